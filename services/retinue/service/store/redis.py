"""The store of a mesh over many machines: Redis.

Log = LIST, record and counter = STRING, table and lease = HASH, so that anyone can look with redis-cli.
Every method but ping puts its command in line when it is called, and not only when it is awaited.
It never repeats a command: after a lost reply only the caller knows whether a repeat is harmless.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Self, TypeAlias, TypeVar

from redis.exceptions import NoScriptError

from retinue.service.store import ANYTHING, Anything, Conflict, Fenced, Lease, Line, Place, Span, scripts
from retinue.service.store.pipeline import Pipeline, Word
from retinue.service.store.scripts import Script

_T = TypeVar("_T")
_Later: TypeAlias = Coroutine[Any, Any, _T]


class RedisStore:
    """A Redis server, by URL. Entering raises StoreUnavailable when it does not answer.

    A Redis that is silent for `connect_timeout` or `reply_timeout` (seconds) is away; the next command tries again.
    """

    def __init__(self, url: str, *, connect_timeout: float = 2.0, reply_timeout: float = 5.0) -> None:
        # A script that Redis had to be sent at its first use would run behind what was asked for after it.
        greeting = [("SCRIPT", "LOAD", script.body) for script in scripts.ALL]
        self._pipeline = Pipeline(url, connect_timeout=connect_timeout, reply_timeout=reply_timeout, greeting=greeting)

    async def __aenter__(self) -> Self:
        await self._pipeline.__aenter__()
        try:
            await self.ping()
        except BaseException:
            await self._pipeline.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pipeline.__aexit__()

    @property
    def url(self) -> str:
        return self._pipeline.url

    async def ping(self) -> None:
        await self._pipeline.send("PING")

    def append(
        self,
        key: str,
        entries: Sequence[bytes],
        *,
        at: int | None = None,
        lease: Lease | None = None,
        ttl: float | None = None,
    ) -> _Later[int]:
        keys = (key, lease.key) if lease else (key,)
        fence: tuple[Word, Word] = (lease.owner, lease.token) if lease else ("", "")
        sent = self._run(scripts.APPEND, keys, "" if at is None else at, _milliseconds(ttl), *fence, *entries)
        return self._appended(sent, key, at, lease)

    async def _appended(self, sent: _Later[Any], key: str, at: int | None, lease: Lease | None) -> int:
        outcome, length = await sent
        _fence(outcome, key, lease)
        if outcome == b"conflict":
            raise Conflict(f"{key}: expected {at} entries and found {length}")
        return int(length)

    def read(self, key: str, start: int = 0, stop: int | None = None) -> _Later[Span]:
        return self._found(self._run(scripts.READ, (key,), start, "" if stop is None else stop))

    async def _found(self, sent: _Later[Any]) -> Span:
        length, first, entries = await sent
        return Span(tuple(entries), first, length)

    def get(self, key: str) -> _Later[bytes | None]:
        return self._pipeline.send("GET", key)

    def put(
        self,
        key: str,
        value: bytes,
        *,
        expect: bytes | Anything | None = ANYTHING,
        lease: Lease | None = None,
        ttl: float | None = None,
    ) -> _Later[None]:
        if lease is None and isinstance(expect, Anything):
            kept: tuple[Word, ...] = () if ttl is None else ("PX", _milliseconds(ttl))
            return self._settled(self._pipeline.send("SET", key, value, *kept))
        keys = (key, lease.key) if lease else (key,)
        fence: tuple[Word, Word] = (lease.owner, lease.token) if lease else ("", "")
        sent = self._run(scripts.PUT, keys, *_expected(expect), value, _milliseconds(ttl), *fence)
        return self._written(sent, key, lease)

    async def _written(self, sent: _Later[Any], what: str, lease: Lease | None = None) -> None:
        outcome = await sent
        _fence(outcome, what, lease)
        if outcome == b"conflict":
            raise Conflict(f"{what}: something else stands there than was expected")

    async def _settled(self, sent: _Later[Any]) -> None:
        await sent

    def delete(self, *keys: str, lease: Lease | None = None) -> _Later[int]:
        if not keys:
            return _nothing()
        if lease is None:
            return self._pipeline.send("DEL", *keys)
        return self._deleted(self._run(scripts.DELETE, (lease.key, *keys), lease.owner, lease.token), keys, lease)

    async def _deleted(self, sent: _Later[Any], keys: Sequence[str], lease: Lease) -> int:
        outcome, count = await sent
        _fence(outcome, " ".join(keys), lease)
        return int(count)

    def rows(self, key: str) -> _Later[Mapping[str, bytes]]:
        return self._paired(self._pipeline.send("HGETALL", key))

    async def _paired(self, sent: _Later[Any]) -> Mapping[str, bytes]:
        flat = await sent
        return {row.decode(): value for row, value in zip(flat[::2], flat[1::2], strict=True)}

    def put_row(
        self,
        key: str,
        row: str,
        value: bytes,
        *,
        expect: bytes | Anything | None = ANYTHING,
        ttl: float | None = None,
    ) -> _Later[None]:
        if ttl is None and isinstance(expect, Anything):
            return self._settled(self._pipeline.send("HSET", key, row, value))
        sent = self._run(scripts.PUT_ROW, (key,), row, *_expected(expect), value, _milliseconds(ttl))
        return self._written(sent, f"{key} {row}")

    def drop_row(self, key: str, row: str) -> _Later[bool]:
        return self._truth(self._pipeline.send("HDEL", key, row))

    async def _truth(self, sent: _Later[Any]) -> bool:
        return bool(await sent)

    def acquire(
        self, key: str, owner: str, *, ttl: float, claim: str = "", most: int | None = None, join: bool = True
    ) -> _Later[Lease | Place | None]:
        limit = "" if most is None else most
        sent = self._run(scripts.ACQUIRE, (key,), owner, claim, _milliseconds(ttl), limit, int(join))
        return self._acquired(sent, key, owner)

    async def _acquired(self, sent: _Later[Any], key: str, owner: str) -> Lease | Place | None:
        match await sent:
            case [b"lease", token, lapsed]:
                return Lease(key, owner, int(token), lapsed=bool(int(lapsed)))
            case [b"place", before]:
                return Place(before)
            case _:
                return None

    def renew(self, lease: Lease, *, ttl: float) -> _Later[bool]:
        return self._truth(self._run(scripts.RENEW, (lease.key,), lease.owner, lease.token, _milliseconds(ttl)))

    def release(self, key: str, owner: str) -> _Later[None]:
        return self._run(scripts.RELEASE, (key,), owner)

    def line(self, key: str) -> _Later[Line]:
        return self._lined_up(self._run(scripts.LINE, (key,)))

    async def _lined_up(self, sent: _Later[Any]) -> Line:
        holder, *waiting = [owner.decode() for owner in await sent]
        return Line(holder, tuple(waiting))

    def take(self, key: str, amount: int, *, limit: int | None = None, ttl: float | None = None) -> _Later[int | None]:
        return self._run(scripts.TAKE, (key,), amount, "" if limit is None else limit, _milliseconds(ttl))

    def _run(self, script: Script, keys: Sequence[str], *arguments: Word) -> _Later[Any]:
        sent = self._pipeline.send("EVALSHA", script.digest, len(keys), *keys, *arguments)
        return self._ran(sent, script, keys, arguments)

    async def _ran(self, sent: _Later[Any], script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        try:
            return await sent
        except NoScriptError:  # the server is new or was restarted: nothing ran
            return await self._pipeline.send("EVAL", script.body, len(keys), *keys, *arguments)


def _milliseconds(ttl: float | None) -> Word:
    return "" if ttl is None else max(1, math.ceil(ttl * 1000))


def _expected(expect: bytes | Anything | None) -> tuple[Word, Word]:
    if isinstance(expect, Anything):
        return "anything", ""
    return ("nothing", "") if expect is None else ("value", expect)


def _fence(outcome: bytes, what: str, lease: Lease | None) -> None:
    if lease and outcome == b"fenced":
        raise Fenced(f"{what}: the lease of {lease.owner} is over")


async def _nothing() -> int:
    return 0
