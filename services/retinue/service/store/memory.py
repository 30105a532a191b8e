"""The store of tests and of an agent that runs alone: this process' memory, gone with it.

It is the contract in its plainest form: no method waits, so each is one piece.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from retinue.service.store import ANYTHING, REMEMBERED_S, Anything, Conflict, Fenced, Lease, Line, Place, Span
from retinue.service.store.turns import whose_turn


@dataclass(frozen=True, slots=True)
class _Waiter:
    claim: str
    until: float


@dataclass(slots=True)
class _Turns:
    """The last holder of a lease, until it gives it up, and who waits for it, in order."""

    lease: Lease | None = None
    claim: str = ""
    until: float = 0.0
    waiters: dict[str, _Waiter] = field(default_factory=dict)

    def holder(self) -> Lease | None:
        return self.lease if time.monotonic() < self.until else None

    def drop_dead(self) -> None:
        now = time.monotonic()
        self.waiters = {owner: waiter for owner, waiter in self.waiters.items() if now < waiter.until}

    def next(self, owner: str, claim: str) -> str:
        """Who may take the lease that nobody holds."""
        claims = {waiter: its.claim for waiter, its in self.waiters.items()}
        if owner in claims:
            claims[owner] = claim
        return whose_turn(claims, owner, claim=claim, lapsed=self.claim)


class MemoryStore:
    """A store inside this process."""

    url = "memory:"

    def __init__(self) -> None:
        self._logs: dict[str, list[bytes]] = {}
        self._records: dict[str, bytes] = {}
        self._tables: dict[str, dict[str, bytes]] = {}
        self._leases: dict[str, _Turns] = {}
        self._counters: dict[str, int] = {}
        self._tokens = itertools.count(1)
        self._ends: dict[str, float] = {}
        self._next_ends: list[tuple[float, str]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def ping(self) -> None:
        return None

    async def append(
        self,
        key: str,
        entries: Sequence[bytes],
        *,
        at: int | None = None,
        lease: Lease | None = None,
        ttl: float | None = None,
    ) -> int:
        self._drop_ended()
        self._fence(key, lease)
        log = self._logs.get(key, [])
        at = len(log) if at is None else at
        if at == len(log):
            if entries:
                self._logs[key] = log
                log.extend(entries)
        elif at < 0 or at + len(entries) > len(log) or log[at : at + len(entries)] != list(entries):
            raise Conflict(f"{key}: expected {at} entries and found {len(log)}")
        self._keep(key, ttl)
        return len(log)

    async def read(self, key: str, start: int = 0, stop: int | None = None) -> Span:
        self._drop_ended()
        log = self._logs.get(key, [])
        first, end, _ = slice(start, stop).indices(len(log))
        return Span(tuple(log[first:end]), first, len(log))

    async def get(self, key: str) -> bytes | None:
        self._drop_ended()
        return self._records.get(key)

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        expect: bytes | Anything | None = ANYTHING,
        lease: Lease | None = None,
        ttl: float | None = None,
    ) -> None:
        self._drop_ended()
        self._fence(key, lease)
        _check(self._records.get(key), expect, key)
        self._records[key] = value
        self._ends.pop(key, None)
        self._keep(key, ttl)

    async def delete(self, *keys: str, lease: Lease | None = None) -> int:
        self._drop_ended()
        self._fence(" ".join(keys), lease)
        return sum(self._drop(key) for key in keys)

    async def rows(self, key: str) -> Mapping[str, bytes]:
        self._drop_ended()
        return dict(self._tables.get(key, {}))

    async def put_row(
        self,
        key: str,
        row: str,
        value: bytes,
        *,
        expect: bytes | Anything | None = ANYTHING,
        ttl: float | None = None,
    ) -> None:
        self._drop_ended()
        _check(self._tables.get(key, {}).get(row), expect, f"{key} {row}")
        self._tables.setdefault(key, {})[row] = value
        self._keep(key, ttl)

    async def drop_row(self, key: str, row: str) -> bool:
        self._drop_ended()
        table = self._tables.get(key, {})
        dropped = table.pop(row, None) is not None
        if dropped and not table:
            self._drop(key)
        return dropped

    async def acquire(
        self, key: str, owner: str, *, ttl: float, claim: str = "", most: int | None = None, join: bool = True
    ) -> Lease | Place | None:
        self._drop_ended()
        turns = self._leases.get(key, _Turns())
        turns.drop_dead()
        holder = turns.holder()
        known = owner in turns.waiters or (holder is not None and holder.owner == owner)
        if not known and not join:
            return None
        if holder is None and turns.next(owner, claim) == owner:
            holder = Lease(key, owner, next(self._tokens), lapsed=turns.lease is not None)
            turns.lease, turns.claim = holder, claim
            turns.waiters.pop(owner, None)
        holds = holder is not None and holder.owner == owner
        if holds:
            turns.until = time.monotonic() + ttl
        elif owner in turns.waiters or most is None or len(turns.waiters) < most:
            turns.waiters[owner] = _Waiter(claim, time.monotonic() + ttl)
        else:
            return None
        self._leases[key] = turns
        self._remember(key, ttl)
        return holder if holds else Place(list(turns.waiters).index(owner))

    async def renew(self, lease: Lease, *, ttl: float) -> bool:
        self._drop_ended()
        turns = self._leases.get(lease.key, _Turns())
        if turns.holder() != lease:
            return False
        turns.until = time.monotonic() + ttl
        self._remember(lease.key, ttl)
        return True

    async def release(self, key: str, owner: str) -> None:
        self._drop_ended()
        turns = self._leases.get(key, _Turns())
        turns.drop_dead()
        turns.waiters.pop(owner, None)
        holder = turns.holder()
        if holder is not None and holder.owner == owner:
            turns.lease, turns.claim, turns.until = None, "", 0.0
        if turns.lease is None and not turns.waiters:
            self._drop(key)

    async def line(self, key: str) -> Line:
        self._drop_ended()
        turns = self._leases.get(key, _Turns())
        turns.drop_dead()
        holder = turns.holder()
        return Line(holder.owner if holder else "", tuple(turns.waiters))

    async def take(self, key: str, amount: int, *, limit: int | None = None, ttl: float | None = None) -> int | None:
        self._drop_ended()
        total = self._counters.get(key, 0) + amount
        if limit is not None and total > limit:
            return None
        self._counters[key] = total
        self._keep(key, ttl)
        return total

    def _fence(self, key: str, lease: Lease | None) -> None:
        if lease is not None and self._leases.get(lease.key, _Turns()).holder() != lease:
            raise Fenced(f"{key}: the lease of {lease.owner} is over")

    def _remember(self, key: str, ttl: float) -> None:
        """Keeps a lease and its line for longer than anyone in it has time."""
        self._keep(key, max(ttl + REMEMBERED_S, self._ends.get(key, 0.0) - time.monotonic()))

    def _keep(self, key: str, ttl: float | None) -> None:
        if ttl is None:
            return
        end, before = time.monotonic() + ttl, self._ends.get(key)
        self._ends[key] = end
        if before is None or end < before:
            heapq.heappush(self._next_ends, (end, key))

    def _drop_ended(self) -> None:
        """Removes what has run out; an end that was put off meanwhile goes back into the heap."""
        now = time.monotonic()
        while self._next_ends and self._next_ends[0][0] <= now:
            _, key = heapq.heappop(self._next_ends)
            end = self._ends.get(key)
            if end is not None and end <= now:
                self._drop(key)
            elif end is not None:
                heapq.heappush(self._next_ends, (end, key))

    def _drop(self, key: str) -> bool:
        self._ends.pop(key, None)
        kinds: tuple[dict[str, Any], ...] = (self._logs, self._records, self._tables, self._leases, self._counters)
        return any([kind.pop(key, None) is not None for kind in kinds])


def _check(there: bytes | None, expect: bytes | Anything | None, what: str) -> None:
    if not isinstance(expect, Anything) and there != expect:
        raise Conflict(f"{what}: something else stands there than was expected")
