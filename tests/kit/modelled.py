"""Real agents over real gRPC, with models behind real HTTP in each dialect; what the server was asked is judged.

One server speaks all four dialects: the path of a request tells which. Every request is held against the rules of its
dialect when the mesh is left.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import pytest

from kit.dialect_models import DIALECTS, PATHS, model_of
from kit.dialects import CHECKS
from retinue.agent import Agent
from retinue.agent.testing import ModelServer, Received
from retinue.service.chat import Call
from retinue.service.client.peer import Peer
from retinue.service.errors import MeshError
from retinue.service.mesh import Mesh
from retinue.service.testing import LocalMesh

ALL = pytest.mark.parametrize("dialect", DIALECTS)

# Steps and answers, or a function of the request: as ModelServer takes them.
Script = Sequence[Any] | Callable[[Any], Any]


def clerk_of(dialect: str, server: ModelServer, **options: Any) -> Agent:
    """The agent that most tests ask."""
    return Agent("clerk", "You keep the list.", model=model_of(dialect, server.url), **options)


@asynccontextmanager
async def scripted_mesh(script: Script) -> AsyncIterator[tuple[ModelServer, Mesh]]:
    """A server with that script, and an empty mesh; in the end every request must be legal. It has 30 seconds."""
    async with asyncio.timeout(30), ModelServer(script) as server:
        async with LocalMesh() as mesh:
            yield server, mesh
        check_received(server.requests)


@asynccontextmanager
async def going(peer: Peer, call: Call = Call(), *, streamed: bool) -> AsyncIterator[asyncio.Task[None]]:
    """Says "Go." and does not mind how that ends; it has ended when the block is left."""

    async def go() -> None:
        with suppress(MeshError):
            if not streamed:
                await peer.ask("Go.", call)
                return
            async with aclosing(peer.stream("Go.", call)) as events:
                async for _ in events:
                    pass

    task = asyncio.create_task(go())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def check_received(requests: Iterable[Received]) -> None:
    """Every request passes the check of the dialect that its path says."""
    checked = 0
    for request in requests:
        CHECKS[dialect_of(request)](request.body)
        checked += 1
    assert checked, "the server was never asked"


def dialect_of(request: Received) -> str:
    """The dialect that lives at the request's path."""
    if request.path.startswith("/v1beta/"):
        return "gemini"
    return next(dialect for dialect, path in PATHS.items() if request.path == path)


def text_in(request: Received) -> str:
    """The whole body as text in which non-ASCII words are found as they are."""
    return json.dumps(request.body, ensure_ascii=False)
