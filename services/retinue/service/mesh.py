"""The life of an application in the mesh: its registry, store and client, and the servers of its parts.

Everything is opened when the mesh is entered and closed when it is left. It chooses no node and answers no call.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Protocol, Self, runtime_checkable

from retinue.service import chat
from retinue.service.chat import Call, Event, Reply
from retinue.service.client import Client
from retinue.service.client.directory import Directory
from retinue.service.client.peer import Peer
from retinue.service.envelope import HOP_MARGIN_S, Envelope
from retinue.service.errors import Invalid
from retinue.service.part import Part, Service
from retinue.service.registry import Registry, open_registry
from retinue.service.server import Server
from retinue.service.server.pulse import Timing
from retinue.service.settings import LOOPBACK, Settings
from retinue.service.store import Store, open_store

__all__ = ["Mesh", "Mountable", "Part", "Service"]

_log = logging.getLogger("retinue.mesh")


@runtime_checkable
class Mountable(Protocol):
    """A part that needs the mesh while it serves."""

    def mounted(self, mesh: Mesh) -> AbstractAsyncContextManager[None]:
        """Entered before the part's server starts, left after it has stopped."""
        ...


class Mesh:
    """A registry, a store and a client, open while the mesh is entered.

    `registry` and `store` may be objects that their owner has entered; else they are opened from `settings`.
    Entering raises StoreUnavailable when the store cannot be reached, and Invalid for an unknown kind of either.
    """

    registry: Registry
    store: Store
    client: Client

    def __init__(
        self,
        settings: Settings,
        *,
        registry: Registry | None = None,
        store: Store | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.settings = settings
        self.timing = timing or Timing()
        self._given = registry, store
        self._stack = AsyncExitStack()

    @classmethod
    def connect(
        cls,
        registry: str | Registry | None = None,
        *,
        store: str | Store | None = None,
        settings: Settings | None = None,
    ) -> Self:
        """The mesh that the environment names, to be entered; what is given here goes before it.

        The folder `.retinue/` is made where a bare `local:` or `sqlite:` needs it.
        """
        if settings is None:
            named = {
                "RETINUE_REGISTRY": registry if registry is None or isinstance(registry, str) else registry.url,
                "RETINUE_STORE": store if store is None or isinstance(store, str) else store.url,
            }
            environ = {**os.environ, **{key: url for key, url in named.items() if url is not None}}
            settings = Settings.from_environment(environ, make_home=True)
        return cls(
            settings,
            registry=None if isinstance(registry, str) else registry,
            store=None if isinstance(store, str) else store,
        )

    async def __aenter__(self) -> Self:
        registry, store = self._given
        async with AsyncExitStack() as stack:
            if registry is None:
                registry = await stack.enter_async_context(open_registry(self.settings.registry))
            if store is None:
                store = await stack.enter_async_context(open_store(self.settings.store))
            directory = await stack.enter_async_context(Directory(registry))
            self.registry, self.store = registry, store
            self.client = await stack.enter_async_context(Client(directory))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def serve(
        self, *parts: Part, listen: str | None = None, advertise: str | None = None
    ) -> AsyncIterator[tuple[Server, ...]]:
        """Serves `parts` for the length of the block: each is mounted and registered in order, and drained in reverse.

        `listen` and `advertise` (host:port) are for a single part, and so are those of the settings; several parts
        take free ports of the loopback. Raises Invalid for a part that cannot be served so, RegistryUnavailable.
        """
        if len(parts) == 1:
            listen = listen or self.settings.listen
            advertise = self.settings.advertise if advertise is None else advertise
        elif listen or advertise:
            raise Invalid("listen and advertise are for one part: serve each in a block of its own", field="listen")
        match parts:
            case (Service() as service,) if self.settings.description:
                parts = (replace(service, description=self.settings.description),)
        async with AsyncExitStack() as stack:
            servers = []
            for part in parts:
                if isinstance(part, Mountable):
                    await stack.enter_async_context(part.mounted(self))
                server = Server(
                    part,
                    self.registry,
                    self.store,
                    listen=listen or LOOPBACK,
                    advertise=advertise or "",
                    timing=self.timing,
                )
                servers.append(await stack.enter_async_context(server))
            yield tuple(servers)

    async def run(self, *parts: Part) -> None:
        """Serves `parts` until SIGTERM or SIGINT and drains then; a second signal ends the process at once."""
        with _until_signal() as stopped:
            async with self.serve(*parts):
                await stopped.wait()

    def peer(self, name: str) -> Peer:
        """The agent of that name, as a Chat. It is looked up when it is asked."""
        return Peer(self.client, name)

    async def ask(
        self,
        name: str,
        message: str,
        *,
        session: str = "",
        request_id: str = "",
        timeout: float = 120.0,
        parts: Sequence[chat.Part] = (),
    ) -> Reply:
        """Asks an agent of the mesh. Raises what the agent raised, UnknownName, NoNode, or DeadlinePassed in the end.

        An agent that runs out of time, or meets another limit, still replies: `reply.state` is INCOMPLETE then, and
        `reply.reason` says why. `request_id` is new and random unless given; `timeout` is in seconds and covers all
        that is tried. `parts` are images and the like beside the message.
        """
        return await self.peer(name).ask(message, _call(session, request_id, timeout, parts))

    def stream(
        self,
        name: str,
        message: str,
        *,
        session: str = "",
        request_id: str = "",
        timeout: float = 120.0,
        parts: Sequence[chat.Part] = (),
    ) -> AsyncGenerator[Event, None]:
        """The same as it happens: events, of which the last is one Completed or Failed. Leaving it ends the run."""
        return self.peer(name).stream(message, _call(session, request_id, timeout, parts))


def _call(session: str, request_id: str, timeout: float, parts: Sequence[chat.Part]) -> Call:
    deadline = asyncio.get_running_loop().time() + timeout + HOP_MARGIN_S
    return Call(session=session, request_id=request_id, parts=tuple(parts), envelope=Envelope(deadline=deadline))


@contextmanager
def _until_signal() -> Iterator[asyncio.Event]:
    """An event that the first SIGTERM or SIGINT sets; the second ends the process."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def stop(number: signal.Signals) -> None:
        if stopped.is_set():
            _log.warning("%s again: ending at once, what runs is broken off", number.name)
            logging.shutdown()
            os._exit(128 + number)
        _log.info("%s: finishing what runs; once more to end at once", number.name)
        stopped.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        yield stopped
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
