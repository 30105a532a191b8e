"""`retinue mcp`: the MCP servers that come with Retinue, and the mesh as one. It loads `mcp` only when it runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from retinue.router.cli.options import LogLevel, Timeout
from retinue.router.cli.printing import note
from retinue.router.cli.reach import Stop, in_own_words

app = typer.Typer(help="MCP servers of our own, and the mesh as one.", no_args_is_help=True, rich_markup_mode=None)
ADDRESS = "127.0.0.1:7420"
SERVERS = ("filesystem", "edit", "grep", "shell")


@app.command()
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(SERVERS)}.")],
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR", help="The folders it may use; default: this one.")
    ] = None,
    *,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow", metavar="PROGRAM", help="shell: a program that may be run, * for all; may be repeated."
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME", help="shell: a variable that programs get too; may be repeated."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0.1,
            help="grep, shell: the longest a call may take; default: 10 and 60.",
        ),
    ] = None,
    cpu: Annotated[int, typer.Option("--cpu", metavar="SECONDS", min=1, help="shell: CPU time of each process.")] = 60,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="shell: how many processes a call may have at once.")
    ] = 128,
    log_level: LogLevel = None,
) -> None:
    """Serve files, line edits, searches or programs over standard input and output."""
    if name not in SERVERS:
        raise typer.BadParameter(f"{name!r}: use one of {', '.join(SERVERS)}", param_hint="NAME")
    if name != "shell" and (allow or env):
        raise typer.BadParameter(f"--allow and --env are for shell, not for {name}")
    for program in allow or ():
        if "/" in program or not program:
            raise typer.BadParameter(f"--allow {program!r}: use a program's name without its folder, or *")
    with in_own_words():
        if name == "shell":
            if not allow:
                raise Stop("the shell is off: allow programs by name, as in --allow git, or all with --allow '*'")
            from retinue.router.mcp.shell import Limits, serve_shell

            limits = Limits(seconds=timeout or 60.0, cpu=cpu, processes=processes)
            asyncio.run(serve_shell(folders or (), allow, env=env or (), limits=limits))
        else:
            from retinue.router.mcp.own import serve_own

            asyncio.run(serve_own(name, folders or (), seconds=timeout or 10.0))


@app.command()
def serve(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help=f"With --http: where; default {ADDRESS}.")] = "",
    *,
    http: Annotated[bool, typer.Option("--http", help="Streamable HTTP instead of standard input and output.")] = False,
    timeout: Timeout = 120.0,
    log_level: LogLevel = None,
) -> None:
    """Serve the mesh that runs: every agent and every endpoint of a service as a tool of any MCP client."""
    if address and not http:
        raise typer.BadParameter("HOST:PORT goes with --http")
    with in_own_words():
        from retinue.service.settings import Settings

        # The store is the agents' matter.
        settings = Settings.from_environment({**os.environ, "RETINUE_STORE": "memory:"})
        from retinue.router.mcp.mesh import serve_mesh

        asyncio.run(serve_mesh(settings, (address or ADDRESS) if http else None, timeout=timeout, say=note))
