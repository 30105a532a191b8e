"""Whether the store answers, and whether it would forget. It writes nothing and makes no file."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from retinue.router.diagnosis.finding import ERROR, OK, WARNING, Finding, clock, to_be_made
from retinue.service.settings import masked, path_of
from retinue.service.store import open_store

CONNECT_S = 2.0


async def check_store(setting: str) -> AsyncIterator[Finding]:
    """Whether the store answers and forgets nothing."""
    url = masked(setting)
    if setting == "memory:":
        yield Finding("store", WARNING, "memory: is gone with its process: set RETINUE_STORE for one that stays")
        return
    if setting.startswith("sqlite:"):
        path = path_of(setting, field="RETINUE_STORE")
        if not path.exists():
            yield to_be_made("store", url, path)
            return
        if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
            yield Finding("store", ERROR, f"{path} or its folder cannot be written: chown or chmod it for this user")
            return
    async with open_store(setting) as opened:
        await opened.ping()
        yield Finding("store", OK, f"{url} answers")
    if setting.startswith("redis"):
        async for each in _redis(setting):
            yield each


async def _redis(url: str) -> AsyncIterator[Finding]:
    """The version, the settings and the time of the Redis that just answered."""
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    async with AsyncExitStack() as stack:
        client: Any = Redis.from_url(url, socket_connect_timeout=CONNECT_S, socket_timeout=CONNECT_S)
        stack.push_async_callback(client.aclose)
        try:
            before = time.time()
            seconds, micros = await client.time()
            ahead = seconds + micros / 1e6 - (before + time.time()) / 2
            info = await client.info()
        except RedisError as error:
            yield Finding(
                "redis server", WARNING, f"its settings cannot be told: {type(error).__name__}; allow INFO and TIME"
            )
            return
    yield Finding("redis server", OK, f"{info.get('redis_version', 'of no known version')}")
    if not info.get("aof_enabled"):
        yield Finding(
            "redis server", WARNING, "it keeps no append-only file, so that a crash forgets: set appendonly yes"
        )
    if (policy := info.get("maxmemory_policy", "noeviction")) != "noeviction":
        text = f"maxmemory-policy {policy} lets agents forget silently: set maxmemory-policy noeviction"
        yield Finding("redis server", WARNING, text)
    yield clock("the store", ahead)
