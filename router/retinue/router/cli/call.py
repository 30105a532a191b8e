"""`retinue call`: any endpoint of anything registered, by name and JSON. It loads no model layer."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from retinue.router.cli.options import LogLevel, Timeout
from retinue.router.cli.printing import out_json
from retinue.router.cli.reach import Stop, execute, reached
from retinue.service.errors import DeadlinePassed


def call(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A registered service or agent.")],
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="Such as Task.Create or Agent.Chat.")],
    request: Annotated[
        str, typer.Argument(metavar="JSON", help="The request; @FILE reads it from a file, - from standard input.")
    ] = "{}",
    *,
    timeout: Timeout = 120.0,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata",
            metavar="KEY=VALUE",
            help="Goes with the call; base64 where KEY ends in -bin; may be repeated.",
        ),
    ] = None,
    log_level: LogLevel = None,
) -> None:
    """Call any endpoint of any registered service; a stream's answers are printed one a line."""
    pairs = [_pair(text) for text in metadata or ()]
    execute(_call(name, endpoint, _read(request), timeout=timeout, metadata=pairs))


async def _call(name: str, endpoint: str, request: str, *, timeout: float, metadata: list[tuple[str, str]]) -> None:
    async with reached() as client:
        try:
            async with asyncio.timeout(timeout):
                streaming = (await client.endpoints(name)).find(endpoint).streaming
        except TimeoutError:
            raise DeadlinePassed(f"{name} did not say within {timeout:g} s what it offers") from None
        if streaming:
            async for answer in client.call_stream(name, endpoint, request, timeout=timeout, metadata=metadata):
                out_json(answer, lines=True)
        else:
            out_json(await client.call(name, endpoint, request, timeout=timeout, metadata=metadata))


def _read(request: str) -> str:
    if request == "-":
        try:
            return sys.stdin.buffer.read().decode()
        except UnicodeDecodeError:
            raise Stop("standard input is not UTF-8") from None
    if not request.startswith("@"):
        return request
    try:
        return Path(request[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise Stop(f"{request[1:]}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Stop(f"{request[1:]} is not UTF-8") from None


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r}: use KEY=VALUE", param_hint="--metadata")
    return key, value
