"""The store of a mesh on one machine: a SQLite file that its processes share.

The machine's clock ends leases and whatever has a ttl; what has ended is absent at once and removed by later writes.
It is not for a network file system, where SQLite's locks do not hold.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Final, Self

from retinue.service.store import ANYTHING, Anything, Conflict, Fenced, Lease, Span
from retinue.service.store.database import Database

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS entries (key TEXT, at INTEGER, entry BLOB NOT NULL, PRIMARY KEY (key, at))",
    "CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS cells (key TEXT, row TEXT, value BLOB NOT NULL, PRIMARY KEY (key, row))",
    "CREATE TABLE IF NOT EXISTS counters (key TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    # AUTOINCREMENT never gives a number twice, so tokens grow also past a lease's end.
    "CREATE TABLE IF NOT EXISTS leases (token INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, owner TEXT)",
    "CREATE TABLE IF NOT EXISTS ends (key TEXT PRIMARY KEY, at REAL NOT NULL)",
    "CREATE INDEX IF NOT EXISTS ends_at ON ends (at)",
)
_KINDS: Final = ("entries", "records", "cells", "counters", "leases")
# How many ended keys a write takes along.
_SWEEP: Final = 8


class SqliteStore:
    """A store in the file `path`. Entering raises StoreUnavailable when SQLite cannot use it.

    `patience` (seconds) is how long a method waits while other processes hold the file's lock.
    """

    def __init__(self, path: Path, *, patience: float = 10.0) -> None:
        self.url = f"sqlite://{path}"
        self._database = Database(path, _SCHEMA, patience=patience)

    async def __aenter__(self) -> Self:
        await self._database.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._database.__aexit__()

    async def ping(self) -> None:
        await self._database.read(lambda db: db.execute("SELECT at FROM ends LIMIT 1").fetchone())

    async def append(
        self,
        key: str,
        entries: Sequence[bytes],
        *,
        at: int | None = None,
        lease: Lease | None = None,
        ttl: float | None = None,
    ) -> int:
        def work(db: Connection) -> int:
            _sweep(db, key, lease.key if lease else key)
            if lease and not _held(db, lease):
                raise Fenced(f"{key}: the lease of {lease.owner} is over")
            length = _length(db, key)
            first = length if at is None else at
            if first == length:
                rows = [(key, index, entry) for index, entry in enumerate(entries, length)]
                db.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
                length += len(rows)
            else:
                stop = first + len(entries)
                if first < 0 or stop > length or _entries(db, key, first, stop) != tuple(entries):
                    raise Conflict(f"{key}: expected {at} entries and found {length}")
            if length:
                _keep(db, key, ttl)
            return length

        return await self._database.write(work)

    async def read(self, key: str, start: int = 0, stop: int | None = None) -> Span:
        def work(db: Connection) -> Span:
            if _ended(db, key):
                return Span((), 0, 0)
            length = _length(db, key)
            first, end, _ = slice(start, stop).indices(length)
            return Span(_entries(db, key, first, end), first, length)

        return await self._database.read(work)

    async def get(self, key: str) -> bytes | None:
        return await self._database.read(lambda db: None if _ended(db, key) else _record(db, key))

    async def put(
        self, key: str, value: bytes, *, expect: bytes | Anything | None = ANYTHING, ttl: float | None = None
    ) -> None:
        def work(db: Connection) -> None:
            _sweep(db, key)
            _check(_record(db, key), expect, key)
            db.execute("INSERT OR REPLACE INTO records VALUES (?, ?)", (key, value))
            db.execute("DELETE FROM ends WHERE key = ?", (key,))
            _keep(db, key, ttl)

        await self._database.write(work)

    async def delete(self, *keys: str) -> int:
        def work(db: Connection) -> int:
            _sweep(db, *keys)
            return sum(_drop(db, key) for key in keys)

        return await self._database.write(work)

    async def rows(self, key: str) -> Mapping[str, bytes]:
        query = "SELECT row, value FROM cells WHERE key = ?"
        return dict(await self._database.read(lambda db: db.execute(query, (key,)).fetchall()))

    async def put_row(self, key: str, row: str, value: bytes, *, expect: bytes | Anything | None = ANYTHING) -> None:
        def work(db: Connection) -> None:
            there = db.execute("SELECT value FROM cells WHERE key = ? AND row = ?", (key, row)).fetchone()
            _check(there and there[0], expect, f"{key} {row}")
            db.execute("INSERT OR REPLACE INTO cells VALUES (?, ?, ?)", (key, row, value))

        await self._database.write(work)

    async def drop_row(self, key: str, row: str) -> bool:
        statement = "DELETE FROM cells WHERE key = ? AND row = ?"
        return await self._database.write(lambda db: db.execute(statement, (key, row)).rowcount > 0)

    async def acquire(self, key: str, owner: str, *, ttl: float) -> Lease | None:
        def work(db: Connection) -> Lease | None:
            _sweep(db, key)
            db.execute("INSERT OR IGNORE INTO leases (key, owner) VALUES (?, ?)", (key, owner))
            token, holder = db.execute("SELECT token, owner FROM leases WHERE key = ?", (key,)).fetchone()
            if holder != owner:
                return None
            _keep(db, key, ttl)
            return Lease(key, owner, token)

        return await self._database.write(work)

    async def renew(self, lease: Lease, *, ttl: float) -> bool:
        def work(db: Connection) -> bool:
            _sweep(db, lease.key)
            held = _held(db, lease)
            if held:
                _keep(db, lease.key, ttl)
            return held

        return await self._database.write(work)

    async def release(self, lease: Lease) -> None:
        def work(db: Connection) -> None:
            if _held(db, lease):
                _drop(db, lease.key)

        await self._database.write(work)

    async def take(self, key: str, amount: int, *, limit: int | None = None, ttl: float | None = None) -> int | None:
        def work(db: Connection) -> int | None:
            _sweep(db, key)
            there = db.execute("SELECT value FROM counters WHERE key = ?", (key,)).fetchone()
            total = (there[0] if there else 0) + amount
            if limit is not None and total > limit:
                return None
            db.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (key, total))
            _keep(db, key, ttl)
            return int(total)

        return await self._database.write(work)


def _length(db: Connection, key: str) -> int:
    return int(db.execute("SELECT coalesce(max(at) + 1, 0) FROM entries WHERE key = ?", (key,)).fetchone()[0])


def _entries(db: Connection, key: str, start: int, stop: int) -> tuple[bytes, ...]:
    query = "SELECT entry FROM entries WHERE key = ? AND at >= ? AND at < ? ORDER BY at"
    return tuple(entry for (entry,) in db.execute(query, (key, start, stop)))


def _record(db: Connection, key: str) -> bytes | None:
    found = db.execute("SELECT value FROM records WHERE key = ?", (key,)).fetchone()
    return found[0] if found else None


def _held(db: Connection, lease: Lease) -> bool:
    query = "SELECT 1 FROM leases WHERE token = ? AND key = ? AND owner = ?"
    return db.execute(query, (lease.token, lease.key, lease.owner)).fetchone() is not None


def _check(there: bytes | None, expect: bytes | Anything | None, what: str) -> None:
    if not isinstance(expect, Anything) and there != expect:
        raise Conflict(f"{what}: something else stands there than was expected")


def _keep(db: Connection, key: str, ttl: float | None) -> None:
    if ttl is not None:
        db.execute("INSERT OR REPLACE INTO ends VALUES (?, ?)", (key, time.time() + ttl))


def _ended(db: Connection, key: str) -> bool:
    return db.execute("SELECT 1 FROM ends WHERE key = ? AND at <= ?", (key, time.time())).fetchone() is not None


def _sweep(db: Connection, *keys: str) -> None:
    """Removes what has ended: those of `keys` for certain, and a few others."""
    others = db.execute("SELECT key FROM ends WHERE at <= ? ORDER BY at LIMIT ?", (time.time(), _SWEEP)).fetchall()
    for key in {key for key in keys if _ended(db, key)} | {key for (key,) in others}:
        _drop(db, key)


def _drop(db: Connection, key: str) -> bool:
    db.execute("DELETE FROM ends WHERE key = ?", (key,))
    return sum(db.execute(f"DELETE FROM {kind} WHERE key = ?", (key,)).rowcount for kind in _KINDS) > 0
