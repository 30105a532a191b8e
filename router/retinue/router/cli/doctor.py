"""`retinue doctor`: whether all that a mesh needs is there, a line each, with what to do about what is not."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from retinue.router.cli.options import Json, LogLevel
from retinue.router.cli.printing import one_line, out, out_json


def doctor(
    mesh: Annotated[
        Path | None,
        typer.Argument(metavar="MESH", help="A mesh file, or a folder with one; default: that of the working folder."),
    ] = None,
    json_: Json = False,
    log_level: LogLevel = None,
) -> None:
    """Check registry, store, model, ports, clock and versions; exit code 1 when one of them is an error."""
    from retinue.router.diagnosis import ERROR, examine, worst

    findings = asyncio.run(examine(mesh, os.environ))
    if json_:
        out_json([{"check": one.check, "status": one.status, "text": one.text} for one in findings])
    else:
        width = max(len(one.check) for one in findings)
        for one in findings:
            out(f"{one.status:<7}  {one.check:<{width}}  {one_line(one.text)}")
    if worst(findings) == ERROR:
        raise typer.Exit(1)
