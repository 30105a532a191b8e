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

from retinue.service.store import ANYTHING, REMEMBERED_S, Anything, Conflict, Fenced, Lease, Line, Place, Span
from retinue.service.store.database import Database
from retinue.service.store.turns import whose_turn

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS entries (key TEXT, at INTEGER, entry BLOB NOT NULL, PRIMARY KEY (key, at))",
    "CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS cells (key TEXT, row TEXT, value BLOB NOT NULL, PRIMARY KEY (key, row))",
    "CREATE TABLE IF NOT EXISTS counters (key TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    # AUTOINCREMENT never gives a number twice, so tokens grow also past a lease's end, and places past others'.
    "CREATE TABLE IF NOT EXISTS holders (token INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, owner TEXT,"
    " claim TEXT, lapsed INTEGER, until REAL)",
    "CREATE TABLE IF NOT EXISTS places (place INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, owner TEXT,"
    " claim TEXT, until REAL, UNIQUE (key, owner))",
    "CREATE TABLE IF NOT EXISTS ends (key TEXT PRIMARY KEY, at REAL NOT NULL)",
    "CREATE INDEX IF NOT EXISTS ends_at ON ends (at)",
)
_KINDS: Final = ("entries", "records", "cells", "counters", "holders", "places")
_LINE: Final = ("holders", "places")
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
            _sweep(db, key)
            _fence(db, key, lease)
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
        self,
        key: str,
        value: bytes,
        *,
        expect: bytes | Anything | None = ANYTHING,
        lease: Lease | None = None,
        ttl: float | None = None,
    ) -> None:
        def work(db: Connection) -> None:
            _sweep(db, key)
            _fence(db, key, lease)
            _check(_record(db, key), expect, key)
            db.execute("INSERT OR REPLACE INTO records VALUES (?, ?)", (key, value))
            db.execute("DELETE FROM ends WHERE key = ?", (key,))
            _keep(db, key, ttl)

        await self._database.write(work)

    async def delete(self, *keys: str, lease: Lease | None = None) -> int:
        def work(db: Connection) -> int:
            _sweep(db, *keys)
            _fence(db, " ".join(keys), lease)
            return sum(_drop(db, key) for key in keys)

        return await self._database.write(work)

    async def rows(self, key: str) -> Mapping[str, bytes]:
        def work(db: Connection) -> Mapping[str, bytes]:
            if _ended(db, key):
                return {}
            return dict(db.execute("SELECT row, value FROM cells WHERE key = ?", (key,)).fetchall())

        return await self._database.read(work)

    async def put_row(
        self,
        key: str,
        row: str,
        value: bytes,
        *,
        expect: bytes | Anything | None = ANYTHING,
        ttl: float | None = None,
    ) -> None:
        def work(db: Connection) -> None:
            _sweep(db, key)
            there = db.execute("SELECT value FROM cells WHERE key = ? AND row = ?", (key, row)).fetchone()
            _check(there and there[0], expect, f"{key} {row}")
            db.execute("INSERT OR REPLACE INTO cells VALUES (?, ?, ?)", (key, row, value))
            _keep(db, key, ttl)

        await self._database.write(work)

    async def drop_row(self, key: str, row: str) -> bool:
        def work(db: Connection) -> bool:
            _sweep(db, key)
            dropped = db.execute("DELETE FROM cells WHERE key = ? AND row = ?", (key, row)).rowcount > 0
            if dropped and not db.execute("SELECT 1 FROM cells WHERE key = ?", (key,)).fetchone():
                _drop(db, key)
            return dropped

        return await self._database.write(work)

    async def acquire(
        self, key: str, owner: str, *, ttl: float, claim: str = "", most: int | None = None, join: bool = True
    ) -> Lease | Place | None:
        def work(db: Connection) -> Lease | Place | None:
            _sweep(db, key)
            if not join and not _is_known(db, key, owner):
                return None
            got = _take_lease(db, key, owner, claim=claim, ttl=ttl) or _take_place(
                db, key, owner, claim=claim, ttl=ttl, most=most
            )
            if got:
                _remember(db, key, ttl)
            return got

        return await self._database.write(work)

    async def renew(self, lease: Lease, *, ttl: float) -> bool:
        def work(db: Connection) -> bool:
            _sweep(db, lease.key)
            held = _held(db, lease)
            if held:
                db.execute("UPDATE holders SET until = ? WHERE key = ?", (time.time() + ttl, lease.key))
                _remember(db, lease.key, ttl)
            return held

        return await self._database.write(work)

    async def release(self, key: str, owner: str) -> None:
        def work(db: Connection) -> None:
            _sweep(db, key)
            mine = (key, owner, time.time())
            db.execute("DELETE FROM places WHERE key = ? AND (owner = ? OR until <= ?)", mine)
            db.execute("DELETE FROM holders WHERE key = ? AND owner = ? AND until > ?", mine)
            if not any(db.execute(f"SELECT 1 FROM {kind} WHERE key = ?", (key,)).fetchone() for kind in _LINE):
                _drop(db, key)

        await self._database.write(work)

    async def line(self, key: str) -> Line:
        def work(db: Connection) -> Line:
            there = (key, time.time())
            holder = db.execute("SELECT owner FROM holders WHERE key = ? AND until > ?", there).fetchone()
            waiting = db.execute("SELECT owner FROM places WHERE key = ? AND until > ? ORDER BY place", there)
            return Line(holder[0] if holder else "", tuple(owner for (owner,) in waiting))

        return await self._database.read(work)

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


def _is_known(db: Connection, key: str, owner: str) -> bool:
    """Whether `owner` holds the lease or has a place in its line."""
    query = (
        "SELECT 1 FROM holders WHERE key = ?1 AND owner = ?2 AND until > ?3"
        " UNION SELECT 1 FROM places WHERE key = ?1 AND owner = ?2 AND until > ?3"
    )
    return db.execute(query, (key, owner, time.time())).fetchone() is not None


def _take_lease(db: Connection, key: str, owner: str, *, claim: str, ttl: float) -> Lease | None:
    """The lease, when `owner` has it or it is its turn."""
    now = time.time()
    db.execute("DELETE FROM places WHERE key = ? AND until <= ?", (key, now))
    query = "SELECT token, owner, claim, lapsed, until FROM holders WHERE key = ?"
    holder = db.execute(query, (key,)).fetchone()
    if holder and holder[4] > now:
        if holder[1] != owner:
            return None
        db.execute("UPDATE holders SET until = ? WHERE key = ?", (now + ttl, key))
        return Lease(key, owner, holder[0], lapsed=bool(holder[3]))
    db.execute("UPDATE places SET claim = ? WHERE key = ? AND owner = ?", (claim, key, owner))
    waiting = dict(db.execute("SELECT owner, claim FROM places WHERE key = ? ORDER BY place", (key,)).fetchall())
    if whose_turn(waiting, owner, claim=claim, lapsed=holder[2] if holder else "") != owner:
        return None
    db.execute("DELETE FROM places WHERE key = ? AND owner = ?", (key, owner))
    # A row that is replaced gets a new token.
    statement = "INSERT OR REPLACE INTO holders (key, owner, claim, lapsed, until) VALUES (?, ?, ?, ?, ?)"
    token = db.execute(statement, (key, owner, claim, bool(holder), now + ttl)).lastrowid
    assert token is not None
    return Lease(key, owner, token, lapsed=bool(holder))


def _take_place(db: Connection, key: str, owner: str, *, claim: str, ttl: float, most: int | None) -> Place | None:
    """The place of `owner`, kept or new; None when it has none and `most` others wait."""
    waiting = [waiter for (waiter,) in db.execute("SELECT owner FROM places WHERE key = ? ORDER BY place", (key,))]
    before = waiting.index(owner) if owner in waiting else len(waiting)
    if owner not in waiting and most is not None and len(waiting) >= most:
        return None
    statement = (
        "INSERT INTO places (key, owner, claim, until) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (key, owner) DO UPDATE SET claim = excluded.claim, until = excluded.until"
    )
    db.execute(statement, (key, owner, claim, time.time() + ttl))
    return Place(before)


def _held(db: Connection, lease: Lease) -> bool:
    query = "SELECT 1 FROM holders WHERE token = ? AND key = ? AND owner = ? AND until > ?"
    return db.execute(query, (lease.token, lease.key, lease.owner, time.time())).fetchone() is not None


def _fence(db: Connection, what: str, lease: Lease | None) -> None:
    if lease and not _held(db, lease):
        raise Fenced(f"{what}: the lease of {lease.owner} is over")


def _check(there: bytes | None, expect: bytes | Anything | None, what: str) -> None:
    if not isinstance(expect, Anything) and there != expect:
        raise Conflict(f"{what}: something else stands there than was expected")


def _keep(db: Connection, key: str, ttl: float | None) -> None:
    if ttl is not None:
        db.execute("INSERT OR REPLACE INTO ends VALUES (?, ?)", (key, time.time() + ttl))


def _remember(db: Connection, key: str, ttl: float) -> None:
    """Keeps a lease and its line for longer than anyone in it has time."""
    statement = "INSERT INTO ends VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET at = max(at, excluded.at)"
    db.execute(statement, (key, time.time() + ttl + REMEMBERED_S))


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
