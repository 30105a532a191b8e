"""The package's MCP server over streamable HTTP in a process of its own, and an HTTP server that is none."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kit.nodes import closed_port

SCRIPT = Path(__file__).parent / "mcp_wares.py"
PAGE = b"<html><body>Log in first</body></html>"


class WaresServer:
    """The server on a port of its own, to be killed and started again."""

    def __init__(self) -> None:
        self._port = int(closed_port().rpartition(":")[2])
        self.url = f"http://127.0.0.1:{self._port}/mcp"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts it and waits until it takes connections."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), str(self._port), stderr=asyncio.subprocess.DEVNULL
        )
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            # Nothing says when a foreign process listens.
            await asyncio.sleep(0.05)

    async def kill(self) -> None:
        """Kills it, if it runs, and waits for its end."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def wares_over_http() -> AsyncIterator[WaresServer]:
    """The running server."""
    server = WaresServer()
    try:
        await server.start()
        yield server
    finally:
        await server.kill()


@asynccontextmanager
async def web_page(body: bytes = PAGE, mime: str = "text/html") -> AsyncIterator[str]:
    """The address of a server that answers every request with this page."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            sizes = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
            await reader.readexactly(int(sizes[0]) if sizes else 0)
            fields = (
                f"HTTP/1.1 200 OK\r\ncontent-type: {mime}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            writer.write(fields.encode() + body)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # who has left wants no answer
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
