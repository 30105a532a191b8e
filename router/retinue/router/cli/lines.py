"""Standard input line by line, without holding up the event loop, for whatever it is: pipe, file or terminal."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator


async def read_lines(descriptor: int) -> AsyncGenerator[str, None]:
    """The lines of a file descriptor as they come, without their ends.

    A thread reads them: a read that blocks cannot be called off, so the thread is left behind when the process ends.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue()

    def read() -> None:
        while True:
            piece: bytes | OSError
            try:
                piece = os.read(descriptor, 65536)
            except OSError as error:
                piece = error
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(pieces.put_nowait, piece)
            if not isinstance(piece, bytes) or not piece:
                return

    threading.Thread(target=read, daemon=True).start()
    pending = b""
    while piece := await pieces.get():
        if isinstance(piece, OSError):
            raise piece
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            yield _text(line)
    if pending:
        yield _text(pending)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").removesuffix("\r")
