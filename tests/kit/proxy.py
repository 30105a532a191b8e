"""A TCP proxy to one address whose network can be taken away: cut, swallowed whole, and healed again.

It passes bytes and looks at none. A cut is seen at once by both ends; a black hole is seen by nobody.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

_PIECE = 65536


class Proxy:
    """Passes what comes to `address` on to the host:port `to`, while it is entered; it begins whole."""

    def __init__(self, to: str) -> None:
        self._host, _, port = to.rpartition(":")
        self._port = int(port)
        self._here = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps = asyncio.TaskGroup()
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()

    @property
    def address(self) -> str:
        """host:port of the near end; the same before and after a cut."""
        return f"127.0.0.1:{self._here}"

    async def __aenter__(self) -> Self:
        await self._pumps.__aenter__()
        await self.heal()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._open.set()
        await self._pumps.__aexit__(None, None, None)

    def cut(self) -> None:
        """Breaks every connection and refuses new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()

    def blackhole(self) -> None:
        """Takes connections and bytes and passes nothing on, either way; what is open stays open."""
        self._open.clear()

    async def heal(self) -> None:
        """Takes connections and passes bytes again, those first that a black hole has kept."""
        self._open.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._join, "127.0.0.1", self._here)
            self._here = self._server.sockets[0].getsockname()[1]

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        if self._server is None:  # cut while it was swallowed
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()  # as whoever is not there would refuse it
            return
        for near, far in ((reader, far_writer), (far_reader, writer)):
            self._writers.add(far)
            self._pumps.create_task(self._pump(near, far))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # a cut is what this is for
            while data := await reader.read(_PIECE):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self._writers.discard(writer)
