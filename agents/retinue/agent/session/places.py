"""The sessions that this node writes now, and those that it waits for: a place in line first, then a lease.

The line is the store's, so that turns run in the order in which they came, over all replicas. A lease says who may
write; the store refuses everybody else by its token. This keeps both alive and notices when a lease is lost, as when
this process was frozen for longer than one lasts; it never takes one from another owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from retinue.service.background import Background, together
from retinue.service.errors import SessionBusy, StoreUnavailable
from retinue.service.names import new_id
from retinue.service.store import Lease, Place, Store

log = logging.getLogger("retinue.agent")

MOST_WAITING = 32
# Which part of a lease passes between two renewals.
RENEW_PART = 0.3
# How soon a session that another node writes is asked for again, seconds.
_PAUSE_S = (0.02, 0.25)


class Places:
    """The places of one serving agent. A turn whose lease is lost is cancelled: nothing that it does can be stored.

    A `ticket` names one turn's attempt; whoever comes again with the `claim` of an owner that died is let in first.
    """

    def __init__(self, store: Store, *, ttl: float, most_waiting: int = MOST_WAITING) -> None:
        self._store = store
        self._ttl = ttl
        self._most = most_waiting
        self._held: dict[str, tuple[Lease, asyncio.Task[object] | None]] = {}
        self._freed: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Renews what is held for as long as the block runs."""
        async with Background() as background:
            background.start(self._renew_for_ever())
            yield

    def ask(self, key: str, ticket: str, *, claim: str = "") -> Awaitable[Lease | None]:
        """Asks for the lease of `key`, or a place in its line; what it returns is awaited: None for a place.

        Awaiting it raises SessionBusy when too many wait already.
        """
        answer = self._store.acquire(key, ticket, ttl=self._ttl, claim=claim, most=self._most)
        return self._asked(answer, f"{self._most} messages wait in this session already; try again later")

    async def wait(self, key: str, ticket: str, *, claim: str = "") -> Lease:
        """The lease of `key`, once it is this ticket's turn. Raises SessionBusy when its place was lost meanwhile."""
        pause, longest = _PAUSE_S[0], min(_PAUSE_S[1], self._ttl * RENEW_PART)
        loop, away = asyncio.get_running_loop(), None
        lost = "this node was away for too long and lost its place in the session's line; send the message again"
        while True:
            freed = self._freed.setdefault(key, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause * random.uniform(0.5, 1.0)):
                    await freed.wait()
            try:
                if lease := await self._asked(self._again(key, ticket, claim), lost):
                    return lease
                away = None
            except StoreUnavailable as error:
                # A place outlives a store that is away for a moment; after that it is lost anyway.
                away = away or loop.time()
                if loop.time() - away > self._ttl:
                    raise
                log.warning("a turn of %s waits for the store: %s", key, error)
            pause = min(pause * 2, longest)

    def _again(self, key: str, ticket: str, claim: str) -> Awaitable[Lease | Place | None]:
        return self._store.acquire(key, ticket, ttl=self._ttl, claim=claim, join=False)

    def give_back(self, key: str, ticket: str) -> Awaitable[None]:
        """Gives the lease or the place of the ticket back, whichever it has; what it returns is awaited."""
        lease, _ = self._held.get(key, (None, None))
        if lease is not None and lease.owner == ticket:
            del self._held[key]
        return self._left(key, self._store.release(key, ticket))

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[Lease]:
        """Holds the lease of `key` for the length of the block, once its turn has come."""
        ticket = new_id()
        try:
            yield await self.ask(key, ticket) or await self.wait(key, ticket)
        finally:
            await self.give_back(key, ticket)

    def holds(self, lease: Lease) -> bool:
        """Whether the lease is still this node's, as far as it knows."""
        return self._held.get(lease.key, (None, None))[0] is lease

    async def _left(self, key: str, released: Awaitable[None]) -> None:
        try:
            await released
        finally:
            if freed := self._freed.pop(key, None):
                freed.set()

    async def _asked(self, answer: Awaitable[Lease | Place | None], refusal: str) -> Lease | None:
        lease = await answer
        if lease is None:
            raise SessionBusy(refusal, retry_after=1.0)
        if isinstance(lease, Place):
            return None
        self._held[lease.key] = lease, asyncio.current_task()
        return lease

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._ttl * RENEW_PART)
            held = list(self._held.values())
            asked = [self._store.renew(lease, ttl=self._ttl) for lease, _ in held]
            try:
                kept = await together(*asked)
            except StoreUnavailable as error:
                # The store itself refuses a writer whose lease is over; until it is back nobody can tell.
                log.warning("the leases of %d sessions cannot be renewed: %s", len(held), error)
                continue
            for (lease, task), still in zip(held, kept, strict=True):
                if not still and self.holds(lease):
                    log.warning("another node took %s over; the turn here ends", lease.key)
                    del self._held[lease.key]
                    if task is not None:
                        task.cancel()
