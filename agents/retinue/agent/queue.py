"""The turns of one session, one after another in the order in which they came; other sessions run beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from retinue.service.errors import SessionBusy

MOST_WAITING = 32


class Turns:
    """The queues of one agent's sessions in this process. A queue exists while somebody is in it."""

    def __init__(self, *, most_waiting: int = MOST_WAITING) -> None:
        self._most = most_waiting
        self._locks: dict[str, asyncio.Lock] = {}
        self._inside: dict[str, int] = {}

    @asynccontextmanager
    async def turn(self, session: str) -> AsyncIterator[None]:
        """Waits for the session's earlier turns; SessionBusy when too many wait already."""
        inside = self._inside.get(session, 0)
        if inside > self._most:
            raise SessionBusy(f"{inside - 1} messages wait in this session already; try again later", retry_after=1.0)
        self._inside[session] = inside + 1
        lock = self._locks.setdefault(session, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            self._inside[session] -= 1
            if not self._inside[session]:
                del self._inside[session], self._locks[session]

    def busy(self, session: str) -> bool:
        """Whether a turn of the session runs here now."""
        return session in self._inside
