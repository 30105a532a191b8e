"""Options that several commands share."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

_LEVELS = ("debug", "info", "warning", "error")


def set_log_level(level: str | None) -> str | None:
    """Lets the process log on standard error from `level` on; None leaves that as it is."""
    if level is None:
        return None
    if level.lower() not in _LEVELS:
        raise typer.BadParameter(f"{level!r}: use one of {', '.join(_LEVELS)}")
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s", force=True
    )
    return level


LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        envvar="RETINUE_LOG",
        metavar="LEVEL",
        help="What is logged on standard error: debug, info, warning (default) or error.",
        callback=set_log_level,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SessionId = Annotated[str, typer.Option("--session", metavar="ID", help="The conversation; default: the default one.")]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long to wait.")]
