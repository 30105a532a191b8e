"""How a command reaches a mesh that runs: its registry and a client, and never its store or a model.

It makes no `.retinue/`: only `retinue run` and programs do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from retinue.service.client import Client
    from retinue.service.client.directory import Directory

START = "start one with `retinue run`"


class Stop(Exception):
    """Ends a command with this line and exit code 1."""


def execute(work: Coroutine[Any, Any, int | None]) -> None:
    """Runs a command's work to its end and exits with the code that it returns."""
    if code := asyncio.run(work):
        raise typer.Exit(code)


def first_of(error: Exception) -> Exception:
    """The error itself, or the first of a group of them."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def in_own_words() -> Iterator[None]:
    """What goes wrong in here is this command's own matter, and has no status of a call."""
    from retinue.service.errors import MeshError

    try:
        yield
    except (MeshError, ExceptionGroup) as error:
        if isinstance(cause := first_of(error), MeshError):
            raise Stop(cause.message) from error
        raise


@asynccontextmanager
async def reached(*, empty: bool = False) -> AsyncIterator[Client]:
    """A client of the mesh that runs here. Stop, saying where was looked, when there is none; `empty` will do too."""
    from retinue.service.client import Client
    from retinue.service.client.directory import Directory
    from retinue.service.registry import open_registry
    from retinue.service.settings import Settings, masked

    with in_own_words():
        # The store is the agents' matter: a command asks them.
        settings = Settings.from_environment({**os.environ, "RETINUE_STORE": "memory:"})
        registry_entered = open_registry(settings.registry)
    async with AsyncExitStack() as stack:
        registry = await stack.enter_async_context(registry_entered)
        directory = await stack.enter_async_context(Directory(registry))
        client = await stack.enter_async_context(Client(directory))
        if not empty and not await directory.names():
            raise Stop(f"no mesh is running: nothing is registered at {masked(settings.registry)}; {START}")
        yield client


async def entry(directory: Directory, wanted: str = "") -> str:
    """Who is spoken to: `wanted`, else the router, else the only agent. Stop when that is nobody, or not to be told."""
    names = await directory.names()
    if wanted:
        if names.get(wanted) == "service":
            raise Stop(f"{wanted} is a service and cannot be spoken to: retinue call {wanted} ENDPOINT JSON")
        return wanted
    for kind in ("router", "agent"):
        found = sorted(name for name, of in names.items() if of == kind)
        if len(found) == 1:
            return found[0]
        if found:
            raise Stop(f"several could be meant: {', '.join(found)}; choose with --agent NAME")
    raise Stop(f"no agent is running: only {', '.join(sorted(names))}; {START}")
