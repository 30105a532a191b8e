"""What the mesh remembers: logs that grow, records, tables, leases and counters, behind one contract.

A store keeps bytes under keys and promises order and atomicity; it knows nothing of sessions, runs or agents.
Backends are sibling modules named after their product: memory, sqlite, redis.

Every method raises StoreUnavailable when the store cannot be reached, and never retries a write by itself. Calls of
one caller are carried out in the order in which they are made; a store may begin with a call before it is awaited, so
that what is asked for together costs one round trip. Whoever calls a method awaits what it returns.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

from retinue.service.errors import Invalid
from retinue.service.settings import masked, path_of


class Conflict(Exception):
    """A condition of a write did not hold: somebody else was there first. Nothing was written."""


class Fenced(Conflict):
    """The writer's lease is over: another owner holds it, or nobody does."""


class Anything(enum.Enum):
    """The expectation of a write that does not care what was there."""

    ANYTHING = enum.auto()


ANYTHING: Final = Anything.ANYTHING
# How long (seconds) past its end a store knows who held a lease.
REMEMBERED_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a log: its entries, the index of the first of them, and the length of the whole log."""

    entries: tuple[bytes, ...]
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write under a key, until it runs out. `token` grows with every new owner of the key.

    `lapsed` says that the holder before did not give it up but ran out of time.
    """

    key: str
    owner: str
    token: int
    lapsed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in line for a lease: how many wait before it, the holder not counted."""

    before: int


@dataclass(frozen=True, slots=True)
class Line:
    """Who has a lease now ("" when nobody), and the owners that wait for it, in their order."""

    holder: str
    waiting: tuple[str, ...]


class Logs(Protocol):
    """Lists that only grow at their end."""

    def append(
        self,
        key: str,
        entries: Sequence[bytes],
        *,
        at: int | None = None,
        lease: Lease | None = None,
        ttl: float | None = None,
    ) -> Awaitable[int]:
        """Adds `entries` in one piece and returns the log's new length.

        `at` is the length that the writer expects: Conflict when it is another, except that an append which was
        done before (the same entries stand there already) is a no-op. `lease` must still be held: Fenced otherwise.
        `ttl` (seconds) is how long the whole log is kept from now on; None leaves that as it is.
        """
        ...

    def read(self, key: str, start: int = 0, stop: int | None = None) -> Awaitable[Span]:
        """Entries from `start` (negative: counted from the end) up to, not with, `stop`. No such log: an empty span."""
        ...


class Records(Protocol):
    """Single values."""

    def get(self, key: str) -> Awaitable[bytes | None]: ...

    def put(
        self,
        key: str,
        value: bytes,
        *,
        expect: bytes | Anything | None = ANYTHING,
        lease: Lease | None = None,
        ttl: float | None = None,
    ) -> Awaitable[None]:
        """Writes the value. `expect` is what must stand there now (None: nothing); Conflict otherwise.

        `lease` must still be held: Fenced otherwise.
        `ttl` (seconds) is how long it is kept from now on; None keeps it for good, whatever was said before.
        """
        ...

    def delete(self, *keys: str, lease: Lease | None = None) -> Awaitable[int]:
        """Removes logs, records, tables, leases (and who waits for them) and counters; returns how many there were.

        `lease` must still be held: Fenced otherwise, and then nothing is removed.
        """
        ...


class Tables(Protocol):
    """Rows by id under one key."""

    def rows(self, key: str) -> Awaitable[Mapping[str, bytes]]:
        """All rows of the table, in no order."""
        ...

    def put_row(
        self,
        key: str,
        row: str,
        value: bytes,
        *,
        expect: bytes | Anything | None = ANYTHING,
        ttl: float | None = None,
    ) -> Awaitable[None]:
        """Writes one row; `expect` as in `Records.put`, and `ttl` as in `Logs.append`, of the whole table."""
        ...

    def drop_row(self, key: str, row: str) -> Awaitable[bool]:
        """Removes one row; False when there was none."""
        ...


class Leases(Protocol):
    """Who may write, until when, and who waits for it in which order. The store's own clock decides."""

    def acquire(
        self,
        key: str,
        owner: str,
        *,
        ttl: float,
        claim: str = "",
        most: int | None = None,
        join: bool = True,
    ) -> Awaitable[Lease | Place | None]:
        """Takes the lease for `ttl` seconds when nobody holds it and nobody who waits is before `owner`.

        Else `owner`, unique per attempt, gets a place at the end of the line, and keeps it for `ttl` seconds by
        asking again. None when `most` others wait already, and, without `join`, when it neither holds nor waits: its
        place was lost. The holder that asks again extends its lease and keeps token and `lapsed`.

        `claim` names the work. When a lease runs out, whoever waits or asks with its holder's claim goes before all
        others; "" claims nothing. A lease that was released, or ran out a day ago, is forgotten.
        """
        ...

    def renew(self, lease: Lease, *, ttl: float) -> Awaitable[bool]:
        """Extends the lease; False when it is no longer this owner's."""
        ...

    def release(self, key: str, owner: str) -> Awaitable[None]:
        """Gives up the lease of `owner`, or its place in line; a no-op when it has neither."""
        ...

    def line(self, key: str) -> Awaitable[Line]:
        """Who holds the lease and who waits; what has run out is not in it."""
        ...


class Counters(Protocol):
    """Numbers that many writers share."""

    def take(
        self, key: str, amount: int, *, limit: int | None = None, ttl: float | None = None
    ) -> Awaitable[int | None]:
        """Adds `amount` and returns the sum; None, with nothing added, when the sum would pass `limit`.

        `ttl` as in `Logs.append`.
        """
        ...


class Store(Logs, Records, Tables, Leases, Counters, Protocol):
    """All of it. `url` is for messages, its password masked."""

    @property
    def url(self) -> str: ...

    def ping(self) -> Awaitable[None]:
        """Returns when the store answers; StoreUnavailable otherwise."""
        ...


def open_store(url: str) -> AbstractAsyncContextManager[Store]:
    """The store that `url` names, to be entered: redis://host:port/db, sqlite:///abs/path or memory:.

    Raises Invalid for any other. Entering raises StoreUnavailable when the store cannot be reached.
    """
    match url.partition(":")[0]:
        case "redis" | "rediss":
            from retinue.service.store.redis import RedisStore

            return RedisStore(url)
        case "sqlite":
            from retinue.service.store.sqlite import SqliteStore

            return SqliteStore(path_of(url, field="RETINUE_STORE"))
        case "memory":
            from retinue.service.store.memory import MemoryStore

            return MemoryStore()
        case _:
            raise Invalid(
                f"store {masked(url)!r}: use redis://host:port/db, sqlite:///absolute/path or memory:",
                field="RETINUE_STORE",
            )
