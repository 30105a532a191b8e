"""Real agents over real gRPC, with models behind real HTTP in each dialect; what the server was asked is judged.

One server speaks all four dialects: the path of a request tells which. Every request is held against the rules of its
dialect when the mesh is left.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kit.dialects import CHECKS
from retinue.agent import Agent
from retinue.agent.model.anthropic import Anthropic
from retinue.agent.model.exchange import HttpModel
from retinue.agent.model.gemini import Gemini
from retinue.agent.model.ollama import Ollama
from retinue.agent.model.openai import OpenAI
from retinue.agent.testing import ModelServer, Received
from retinue.service.mesh import Mesh
from retinue.service.testing import LocalMesh

_BUILD: dict[str, Callable[..., HttpModel]] = {
    "openai": lambda url, model, **options: OpenAI(model, base_url=f"{url}/v1", **options),
    "anthropic": lambda url, model, **options: Anthropic(model, base_url=url, **options),
    "gemini": lambda url, model, **options: Gemini(model, base_url=url, **options),
    "ollama": lambda url, model, **options: Ollama(model, base_url=url, **options),
}
PATHS = {
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/m:streamGenerateContent?alt=sse",
    "ollama": "/api/chat",
}
DIALECTS = tuple(_BUILD)
ALL = pytest.mark.parametrize("dialect", DIALECTS)

# Steps and answers, or a function of the request: as ModelServer takes them.
Script = Sequence[Any] | Callable[[Any], Any]


def model_of(dialect: str, url: str, model: str = "m", **options: Any) -> HttpModel:
    """A model of that dialect on the scripted server whose root is `url`."""
    return _BUILD[dialect](url, model, **options)


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
