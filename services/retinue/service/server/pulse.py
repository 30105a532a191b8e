"""What keeps a node listed and its health true: a heartbeat to the registry and a watch over the store.

The registry never decides a node's health, and neither of the two ever ends the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from retinue.service.errors import RegistryUnavailable, StoreUnavailable
from retinue.service.registry import HEARTBEAT_S, Node, Registrar
from retinue.service.store import Store

_log = logging.getLogger("retinue.server")
# One lost answer is no outage.
_FAILURES = 2
_PING_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The pace of a server, in seconds.

    `heartbeat` and `ping` are how often it registers again and asks the store; `drain` is how long running calls
    may take to end once it stops; `quiet` is for how long nobody must have been refused before it is gone; `lease` is
    how long a session stays with a node that gives no sign of life.
    """

    heartbeat: float = HEARTBEAT_S
    ping: float = 1.0
    drain: float = 30.0
    quiet: float = 0.25
    lease: float = 5.0


async def beat(registry: Registrar, node: Node, *, every: float) -> None:
    """Registers `node` again and again, so that a registry that restarted empty learns of it."""
    away = False
    while True:
        await asyncio.sleep(every)
        try:
            await registry.register(node)
        except RegistryUnavailable as error:
            if not away:
                _log.warning("%s goes on without the registry: %s", node.id, error)
            away = True
        else:
            if away:
                _log.info("%s is registered again", node.id)
            away = False


async def follow_store(store: Store, node: Node, report: Callable[[bool], Awaitable[None]], *, every: float) -> None:
    """Reports False once the store failed twice in a row, and True once it is back: each change once."""
    failures = 0
    while True:
        await asyncio.sleep(every)
        if error := await _failure(store):
            failures += 1
            if failures == _FAILURES:
                _log.error("%s is NOT_SERVING: %s", node.id, error)
                await report(False)
        else:
            if failures >= _FAILURES:
                _log.info("%s is SERVING again: the store is back", node.id)
                await report(True)
            failures = 0


async def _failure(store: Store) -> StoreUnavailable | None:
    try:
        async with asyncio.timeout(_PING_S):
            await store.ping()
    except StoreUnavailable as error:
        return error
    except TimeoutError:
        return StoreUnavailable(f"{store.url} did not answer within {_PING_S:g} s")
    return None
