"""A server as a child process that speaks over its pipes: started in a process group of its own, and gone with it.

Not the package's transport, for three reasons: its lines are mended before they are parsed (an escaped lone surrogate
would make it drop the answer), what the server prints to stderr goes to the log by its name, and no process that the
server started is left behind, however this process ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from retinue.agent.mcp.link import Link
from retinue.agent.mcp.server import McpServer
from retinue.service.background import Background
from retinue.service.errors import cut
from retinue.service.text import sane_json

log = logging.getLogger("retinue.mcp")

Incoming: TypeAlias = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing: TypeAlias = MemoryObjectSendStream[SessionMessage]

# How long a server may take to end once its input is closed, and again once it was sent SIGTERM.
GRACE_S = 1.0
_LOOK_S = 0.02
# A longer answer ends the connection: it would not fit into any message of the mesh either.
MOST_BYTES = 64 * 1024 * 1024
_CHUNK = 256 * 1024
_LOGGED_BYTES = 4096
# Leads the group of the server, and ends it when its own input is closed: by us, or by the death of this process.
_WARDEN = "trap '' TERM INT HUP; read -r _; kill -KILL 0"


@asynccontextmanager
async def open_stdio(server: McpServer, link: Link) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Runs the server; yields the streams of its messages. OSError when it cannot be run."""
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](16)
    # Wide, so that a server that does not read its input holds up nobody who gives up on it.
    outgoing, to_server = anyio.create_memory_object_stream[SessionMessage](1024)
    with to_session, incoming, outgoing, to_server:
        # The readers go on while the process is ended, so that it never waits for them.
        async with _group() as group, Background() as background, _process(server, group) as process:
            said = background.start(_log_errors(server.name, process))
            background.start(_read(server.name, process, to_session, link, said))
            background.start(_write(process, to_server))
            yield incoming, outgoing


@asynccontextmanager
async def _group() -> AsyncIterator[int]:
    """A process group in which nothing lives longer than the block, or than this process."""
    warden = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", _WARDEN, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, process_group=0
    )
    try:
        yield warden.pid
    finally:
        _signal_group(warden.pid, signal.SIGKILL)
        await warden.wait()


@asynccontextmanager
async def _process(server: McpServer, group: int) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *_command(server),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={**get_default_environment(), **server.env},
        cwd=server.cwd or None,
        process_group=group,
        limit=_CHUNK,
    )
    assert process.stdin is not None
    try:
        yield process
    finally:
        try:
            process.stdin.close()
            if not await _ended(process, GRACE_S):
                _signal_group(group, signal.SIGTERM)
                await _ended(process, GRACE_S)
        finally:
            _signal_group(group, signal.SIGKILL)
            await _bury(server.name, process)


def _command(server: McpServer) -> list[str]:
    """The argument vector: `python` is this interpreter, and `retinue` the command that stands beside it."""
    program = server.command
    beside = Path(sys.executable).with_name("retinue")
    if program == "python":
        program = sys.executable
    elif program == "retinue" and beside.is_file():
        program = str(beside)
    return [program, *server.args]


async def _ended(process: Process, within: float) -> bool:
    """Whether the process ends in time. Not by `wait`, which also waits for whoever else has its pipes."""
    for _ in range(max(1, round(within / _LOOK_S))):
        if process.returncode is not None:
            return True
        await asyncio.sleep(_LOOK_S)
    return process.returncode is not None


async def _bury(name: str, process: Process) -> None:
    try:
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    except TimeoutError:
        log.warning("MCP server %s: a process that left its group still holds its pipes", name)
        # Nothing public closes our ends of the pipes.
        process._transport.close()  # type: ignore[attr-defined]


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # all of it has ended
        os.killpg(group, number)


async def _read(
    name: str,
    process: Process,
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    link: Link,
    said: Awaitable[str],
) -> None:
    """Hands on what the server says, until it says no more."""
    assert process.stdout is not None
    why = ""
    try:
        async for line in _lines(process.stdout, MOST_BYTES):
            if message := _message(name, line):
                with suppress(anyio.BrokenResourceError):  # the session was left, and so is the process in a moment
                    await to_session.send(message)
    except OverflowError:
        why = f"it sent an answer of more than {MOST_BYTES >> 20} MiB"
    link.lose(why or await _last_words(process, said))
    to_session.close()


async def _last_words(process: Process, said: Awaitable[str]) -> str:
    """How the process ended, with the last line that it printed to stderr."""
    code = process.returncode if await _ended(process, GRACE_S / 2) else None
    how = "it closed its output" if code is None else f"it ended (exit {code})"
    if code is not None and code < 0:
        how = f"it was killed ({signal.Signals(-code).name})"
    try:
        async with asyncio.timeout(GRACE_S / 2):
            last = await asyncio.shield(said)
    except TimeoutError:
        last = ""
    return f"{how}: {last}" if last else how


def _message(name: str, line: bytes) -> SessionMessage | None:
    """The message in a line of output; what is none is logged and passed over."""
    if not line.strip():
        return None
    try:
        value = sane_json(json.loads(line.decode("utf-8", "replace")))
        return SessionMessage(types.jsonrpc_message_adapter.validate_python(value, by_name=False))
    except (ValidationError, ValueError, RecursionError):
        log.warning("MCP server %s printed what is no message: %s", name, _shown(line))
        return None


async def _write(process: Process, to_server: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    with suppress(ConnectionError):  # the server has ended, and whoever reads its output says so
        async for message in to_server:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()


async def _log_errors(name: str, process: Process) -> str:
    """Logs what the server prints to stderr; returns the last line of it."""
    assert process.stderr is not None
    last = ""
    async for line in _lines(process.stderr, _LOGGED_BYTES, cutting=True):
        if text := _shown(line):
            last = text
            log.info("MCP server %s: %s", name, text)
    return last


async def _lines(stream: asyncio.StreamReader, most: int, *, cutting: bool = False) -> AsyncIterator[bytes]:
    """The lines of a stream, by LF alone. One of more than `most` bytes is given in pieces, or is an OverflowError."""
    pieces: list[bytes] = []
    size = 0
    while chunk := await stream.read(_CHUNK):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield b"".join([*pieces, end])
            pieces, size = [], 0
        pieces.append(rest)
        size += len(rest)
        if size > most and not cutting:
            raise OverflowError(f"a line of more than {most} bytes")
        if size > most:
            yield b"".join(pieces)
            pieces, size = [], 0
    if size:
        yield b"".join(pieces)


def _shown(line: bytes) -> str:
    return cut(line[:_LOGGED_BYTES].decode("utf-8", "replace").strip(), 500)
