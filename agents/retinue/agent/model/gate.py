"""The gate before a model key: when the server wants a pause, every agent of the mesh on that key keeps it.

The pause is a record of the store that runs out by itself. Whoever waits comes back a little later than it ends, each
at another moment. It counts no requests and knows no quota: the server alone says when it has had enough.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

import orjson

from retinue.agent.model.retry import LONGEST_FLOOR
from retinue.service.errors import ModelRate
from retinue.service.store import Store

log = logging.getLogger("retinue.model")

# For how long a look at the store holds, seconds: who has just looked need not look again.
_FRESH_S = 0.1
_SHORTEST_S = 0.05
LONGEST_S = 3600.0


class Gate(Protocol):
    """What a model asks before each request, and tells of each pause that its server wants."""

    async def passed(self) -> None:
        """Returns when a request may go. Raises ModelRate when that is longer than a retry may wait."""
        ...

    async def close(self, seconds: float) -> None:
        """Notes that the server wants no request for so long."""
        ...


@runtime_checkable
class Gated(Protocol):
    """A model whose requests pass a gate. `account` names the key and the server without telling the key."""

    gate: Gate | None

    @property
    def account(self) -> str: ...


def account_of(server: str, secret: str) -> str:
    """A name for a key at a server, the same in every process, that does not give the key away."""
    return f"{server}-{hashlib.sha256(f'{server} {secret}'.encode()).hexdigest()[:16]}"


class StoreGate:
    """The gate of one account, shared by all who share the store."""

    def __init__(self, store: Store, account: str) -> None:
        self._store = store
        self._server = account.rpartition("-")[0]
        self._key = f"model/{{{account}}}/pause"
        self._pause: tuple[float, float] | None = None
        self._looked = float("-inf")

    def look(self) -> Awaitable[None]:
        """Looks whether there is a pause; to be awaited. What it finds holds for the next request."""
        return self._seen(self._store.get(self._key))

    async def _seen(self, stored: Awaitable[bytes | None]) -> None:
        raw = await stored
        self._looked = asyncio.get_running_loop().time()
        self._pause = None if raw is None else tuple(orjson.loads(raw))

    async def passed(self) -> None:
        if asyncio.get_running_loop().time() - self._looked > _FRESH_S:
            await self.look()
        if self._pause is None:
            return
        _, seconds = self._pause
        while self._pause is not None:
            until, length = self._pause
            # Clocks differ between machines: no pause is longer than its server said, nor over while it stands there.
            left = min(until - time.time(), length)
            if left > LONGEST_FLOOR:
                text = f"{self._server} wants no request with this key for {left:.0f} s; ask again then"
                raise ModelRate(text, retry_after=left, kind="rate_limited")
            await asyncio.sleep(max(left, _SHORTEST_S))
            await self.look()
        await asyncio.sleep(max(seconds / 4, 0.25) * random.random())

    async def close(self, seconds: float) -> None:
        # A longer pause that stands there already stays, and none is for ever: a server may count wrong.
        seconds = min(seconds, LONGEST_S)
        until = time.time() + seconds
        if self._pause is None or self._pause[0] < until:
            log.warning("%s: no request of anybody with this key for %.1f s", self._server, seconds)
            await self._store.put(self._key, orjson.dumps([until, seconds]), ttl=seconds)
            self._looked = float("-inf")


def guarded(model: object, store: Store) -> StoreGate | None:
    """The gate that the model's requests pass from now on; None for a model that has no server."""
    if not isinstance(model, Gated):
        return None
    model.gate = gate = StoreGate(store, model.account)
    return gate
