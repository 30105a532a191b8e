"""The store of a mesh over many machines: Redis.

Log = LIST, record and counter = STRING, table and lease = HASH, so that anyone can look with redis-cli.
It never repeats a command: after a lost reply only the caller knows whether a repeat is harmless.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Self, TypeAlias, TypeVar

from redis.exceptions import NoScriptError

from retinue.service.store import ANYTHING, Anything, Conflict, Fenced, Lease, Span, scripts
from retinue.service.store.pipeline import Pipeline, Word
from retinue.service.store.scripts import Script

_T = TypeVar("_T")
_Later: TypeAlias = Coroutine[Any, Any, _T]


class RedisStore:
    """A Redis server, by URL. Entering raises StoreUnavailable when it does not answer.

    A Redis that is silent for `connect_timeout` or `reply_timeout` (seconds) is away; the next command tries again.
    """

    def __init__(self, url: str, *, connect_timeout: float = 2.0, reply_timeout: float = 5.0) -> None:
        self._pipeline = Pipeline(url, connect_timeout=connect_timeout, reply_timeout=reply_timeout)

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

    # The methods that a turn uses put their command in line when they are called, and not only when awaited.

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
        if lease and outcome == b"fenced":
            raise Fenced(f"{key}: the lease of {lease.owner} is over")
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
        self, key: str, value: bytes, *, expect: bytes | Anything | None = ANYTHING, ttl: float | None = None
    ) -> _Later[None]:
        kept: tuple[Word, ...] = () if ttl is None else ("PX", _milliseconds(ttl))
        if isinstance(expect, Anything):
            return self._pipeline.send("SET", key, value, *kept)
        if expect is None:
            return self._checked(self._pipeline.send("SET", key, value, "NX", *kept), key)
        return self._checked(self._run(scripts.PUT, (key,), expect, value, _milliseconds(ttl)), key)

    async def _checked(self, sent: _Later[Any], key: str) -> None:
        _check(await sent, key)

    async def delete(self, *keys: str) -> int:
        return int(await self._pipeline.send("DEL", *keys)) if keys else 0

    async def rows(self, key: str) -> Mapping[str, bytes]:
        flat = await self._pipeline.send("HGETALL", key)
        return {row.decode(): value for row, value in zip(flat[::2], flat[1::2], strict=True)}

    async def put_row(self, key: str, row: str, value: bytes, *, expect: bytes | Anything | None = ANYTHING) -> None:
        if isinstance(expect, Anything):
            await self._pipeline.send("HSET", key, row, value)
        elif expect is None:
            _check(await self._pipeline.send("HSETNX", key, row, value), key, row)
        else:
            _check(await self._run(scripts.PUT_ROW, (key,), row, expect, value), key, row)

    async def drop_row(self, key: str, row: str) -> bool:
        return bool(await self._pipeline.send("HDEL", key, row))

    def acquire(self, key: str, owner: str, *, ttl: float) -> _Later[Lease | None]:
        return self._acquired(self._run(scripts.ACQUIRE, (key,), owner, _milliseconds(ttl)), key, owner)

    async def _acquired(self, sent: _Later[Any], key: str, owner: str) -> Lease | None:
        token = await sent
        return None if token is None else Lease(key, owner, int(token))

    async def renew(self, lease: Lease, *, ttl: float) -> bool:
        return bool(await self._run(scripts.RENEW, (lease.key,), lease.owner, lease.token, _milliseconds(ttl)))

    def release(self, lease: Lease) -> _Later[None]:
        return self._run(scripts.RELEASE, (lease.key,), lease.owner, lease.token)

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


def _check(written: object, key: str, row: str = "") -> None:
    if not written:
        raise Conflict(f"{key} {row}".rstrip() + ": something else stands there than was expected")
