"""Replicas of an agent on one store, each in a mesh of its own as in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pytest import FixtureRequest

from retinue.agent import Agent
from retinue.service.mesh import Mesh
from retinue.service.registry.memory import MemoryRegistry
from retinue.service.server.pulse import Timing
from retinue.service.settings import Settings
from retinue.service.store import Store, open_store

LEASE_S = 0.5


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def shared_store(request: FixtureRequest) -> AsyncIterator[Store]:
    """A store of each kind in turn; the test has 20 seconds."""
    match request.param:
        case "redis":
            url = request.getfixturevalue("redis_url")
        case "sqlite":
            url = f"sqlite://{request.getfixturevalue('tmp_path')}/store.db"
        case _:
            url = "memory:"
    async with open_store(url) as opened, asyncio.timeout(20):
        yield opened


@asynccontextmanager
async def replica(store: Store, agent: Agent) -> AsyncIterator[Agent]:
    """The agent, entered in a mesh of its own on `store`."""
    settings = Settings(registry="memory:", store="memory:")
    mesh = Mesh(settings, registry=MemoryRegistry(), store=store, timing=Timing(lease=LEASE_S))
    async with mesh, agent.mounted(mesh):
        yield agent
