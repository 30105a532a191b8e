"""The command `retinue`: its commands, and how each of them ends.

Commands say what they need in their own modules and import it when they run, so that each loads only that. Nothing
here is for programs: they use retinue.agent and retinue.service.
"""

from __future__ import annotations

import logging
import sys

import typer

from retinue.router.cli import agent, call, chat, doctor, mcp, models, run, service
from retinue.router.cli.options import LogLevel

app = typer.Typer(
    name="retinue",
    help="An agent mesh on plain gRPC: every agent is a service, every service a tool.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("chat")(chat.chat)
app.command("call")(call.call)
app.command("models")(models.models)
app.command("doctor")(doctor.doctor)
app.add_typer(agent.app, name="agent")
app.add_typer(service.app, name="service")
app.add_typer(mcp.app, name="mcp")


@app.callback()
def options(log_level: LogLevel = None) -> None:
    """An agent mesh on plain gRPC: every agent is a service, every service a tool."""


def main() -> None:
    """Runs the command of this process's arguments; errors are one line on standard error and exit code 1."""
    try:
        app(prog_name="retinue")
    except Exception as error:
        sys.exit(report(error))


def report(error: Exception) -> int:
    """Says on standard error what went wrong, in one line, and returns the exit code."""
    from retinue.router.cli.printing import note, one_line
    from retinue.router.cli.reach import Stop, first_of
    from retinue.service.errors import MeshError

    match error := first_of(error):
        case Stop():
            note(f"retinue: {one_line(str(error))}")
        case MeshError():
            note(f"{error.status.name}: {one_line(error.message)}")
        case OSError():
            note(f"retinue: {one_line(str(error))}")
        case _:
            note(f"retinue: a fault of its own: {one_line(repr(error))}; RETINUE_LOG=debug shows where")
    logging.getLogger("retinue.cli").debug("the command failed", exc_info=error)
    return 1
