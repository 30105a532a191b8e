"""A store of each kind, and what tests of all kinds need: to wait for what is nobody's event.

The end of a ttl has to be asked for; nothing here looks at a clock but the store's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from retinue.service.store import Store, open_store


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of each kind in turn."""
    match request.param:
        case "redis":
            url: str = request.getfixturevalue("redis_url")
            return url
        case "sqlite":
            return f"sqlite://{tmp_path / 'store.db'}"
        case _:
            return "memory:"


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    """A store of each kind in turn; the test has 60 seconds."""
    async with asyncio.timeout(60), open_store(store_url) as opened:
        yield opened


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Returns once `holds` does."""
    async with asyncio.timeout(10):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def passed(store: Store, seconds: float) -> None:
    """Returns once the store's own clock is so much further."""
    await store.put("probe", b"", ttl=seconds)
    await until(lambda: is_absent(store, "probe"))


async def is_absent(store: Store, key: str) -> bool:
    """Whether there is no such record."""
    return await store.get(key) is None
