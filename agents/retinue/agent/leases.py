"""The sessions that this node writes now: each is leased for the length of a turn, and renewed while it lasts.

A lease says who may write; the store refuses everybody else by its token. This keeps leases alive and notices when one
is lost, as when this process was frozen for longer than a lease lasts; it never takes one from another owner.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from retinue.service.background import Background
from retinue.service.errors import StoreUnavailable
from retinue.service.names import new_id
from retinue.service.store import Lease, Store

log = logging.getLogger("retinue.agent")

# Which part of a lease passes between two renewals.
RENEW_PART = 0.3
# How soon a session that another node writes is asked for again, seconds.
_PAUSE_S = (0.02, 0.25)


class Leases:
    """The leases of one serving agent. A turn whose lease is lost is cancelled: nothing that it does can be stored."""

    def __init__(self, store: Store, *, ttl: float) -> None:
        self._store = store
        self._ttl = ttl
        self._owner = new_id()
        self._held: dict[str, tuple[Lease, asyncio.Task[object] | None]] = {}

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Renews what is held for as long as the block runs."""
        async with Background() as background:
            background.start(self._renew_for_ever())
            yield

    def ask(self, key: str) -> Awaitable[Lease | None]:
        """Asks for the lease of `key`; what it returns is awaited: None while another node has it."""
        return self._asked(self._store.acquire(key, self._owner, ttl=self._ttl))

    async def wait(self, key: str) -> Lease:
        """The lease of `key`, once the node that has it gives it back, or has not renewed it in time."""
        pause = _PAUSE_S[0]
        while True:
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            if lease := await self.ask(key):
                return lease
            pause = min(pause * 2, _PAUSE_S[1])

    def give_back(self, lease: Lease) -> Awaitable[None]:
        """Gives the lease back; what it returns is awaited."""
        self._held.pop(lease.key, None)
        return self._store.release(lease)

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[None]:
        """Holds the lease of `key` for the length of the block, once it can be had."""
        lease = await self.ask(key) or await self.wait(key)
        try:
            yield
        finally:
            await self.give_back(lease)

    def holds(self, lease: Lease) -> bool:
        """Whether the lease is still this node's, as far as it knows."""
        return self._held.get(lease.key, (None, None))[0] is lease

    async def _asked(self, answer: Awaitable[Lease | None]) -> Lease | None:
        lease = await answer
        if lease:
            self._held[lease.key] = lease, asyncio.current_task()
        return lease

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._ttl * RENEW_PART)
            for lease, task in list(self._held.values()):
                try:
                    if await self._store.renew(lease, ttl=self._ttl):
                        continue
                except StoreUnavailable as error:
                    # The store itself refuses a writer whose lease is over; until it is back nobody can tell.
                    log.warning("the lease of %s cannot be renewed: %s", lease.key, error)
                    continue
                if self.holds(lease):
                    log.warning("another node took %s over; the turn here ends", lease.key)
                    del self._held[lease.key]
                    if task is not None:
                        task.cancel()
