"""One part of the mesh behind one port: a Chat as retinue.v1.Agent, or a plain service as it is.

A server has health, reflection and the alias, makes itself known, and drains when it is left. It opens neither
registry nor store: those are the mesh's.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Self, cast

import grpc
import grpc.aio

from retinue.service.background import Background
from retinue.service.errors import RegistryUnavailable
from retinue.service.names import check_name
from retinue.service.part import Part, Service, describe
from retinue.service.registry import Node, Registry
from retinue.service.server import address, reflection
from retinue.service.server.gate import Gate
from retinue.service.server.pulse import Timing, beat, follow_store
from retinue.service.server.servicer import AgentServicer, alias
from retinue.service.settings import LOOPBACK
from retinue.service.store import Store
from retinue.service.transport import SERVER_OPTIONS
from retinue.v1 import agent_pb2_grpc

_log = logging.getLogger("retinue.server")
# Calls that were on their way when the server stopped still get their refusal.
_GRACE_S = 0.5


class Server:
    """Serves `part` while it is entered; `node` and `address` are known from then on.

    `registry` is where it makes itself known, and `store` drives its health.

    Entering raises Invalid for a bad name, an address that is taken or that others could not reach, and
    RegistryUnavailable. Leaving drains: see `drain`.
    """

    def __init__(
        self,
        part: Part,
        registry: Registry,
        store: Store,
        *,
        listen: str = LOOPBACK,
        advertise: str = "",
        timing: Timing | None = None,
    ) -> None:
        self._part = part
        self._registry = registry
        self._store = store
        self._timing = timing or Timing()
        self._listen = listen
        self._advertise = advertise
        self._drained = False
        self._drain_once = asyncio.Lock()

    @property
    def node(self) -> Node:
        """This server as the registry knows it."""
        return self._node

    @property
    def address(self) -> str:
        """host:port, as others reach it."""
        return self._node.address

    async def __aenter__(self) -> Self:
        check_name(self._part.name)
        address.check_advertise(self._listen, self._advertise)
        async with AsyncExitStack() as stack:
            self._gate = Gate(self._part.name, open=reflection.ALWAYS)
            self._server = grpc.aio.server(interceptors=(self._gate,), options=SERVER_OPTIONS)
            services = self._add_part()
            self._health = reflection.Health(services)
            self._health.add_to(self._server)
            reflection.add_reflection(self._server, services)
            port = await self._bind()
            await self._server.start()
            stack.push_async_callback(self._server.stop, 0)
            self._node = self._describe_node(port)
            self._health.add_node(self._node.id)
            await self._health.report(True)
            await self._registry.register(self._node)
            self._pulse = self._start_pulse(await stack.enter_async_context(Background()))
            self._stack = stack.pop_all()
        _log.info("%s serves on %s", self._node.id, self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.drain()
        finally:
            await self._stack.aclose()
            _log.info("%s is gone", self._node.id)

    async def drain(self) -> None:
        """Takes the node off the list, finishes what runs and refuses what is new with Draining; then stops.

        What still runs after `Timing.drain` seconds is cancelled. Health says NOT_SERVING from the beginning. Who
        drains a server that is draining waits for the same end.
        """
        async with self._drain_once:
            if not self._drained:
                self._drained = True
                await self._end_pulse()
                await self._leave_list()
                await self._finish()

    async def _leave_list(self) -> None:
        try:
            await self._registry.deregister(self._node)
        except RegistryUnavailable as error:
            _log.warning("%s stays on the list until it expires there: %s", self._node.id, error)
        await self._health.end()

    async def _finish(self) -> None:
        timing = self._timing
        self._gate.close()
        if await self._gate.settle(within=timing.drain, quiet=timing.quiet):
            await self._server.stop(_GRACE_S)
        else:
            _log.warning("%s breaks off %d calls after %g s", self._node.id, self._gate.running, timing.drain)
            await self._server.stop(0)

    def _add_part(self) -> tuple[str, ...]:
        registrar = _Registrar(self._server)
        server = cast("grpc.aio.Server", registrar)
        if isinstance(self._part, Service):
            self._part.add(self._part.servicer, server)
        else:
            servicer = AgentServicer(self._part)
            agent_pb2_grpc.add_AgentServicer_to_server(servicer, server)
            self._server.add_generic_rpc_handlers((alias(servicer),))
        return tuple(registrar.services)

    async def _bind(self) -> int:
        await address.check_free(self._listen)
        try:
            return self._server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise address.refusal(self._listen, "it was taken just now") from error

    def _describe_node(self, port: int) -> Node:
        said = describe(self._part)
        return Node(
            name=self._part.name,
            id=f"{self._part.name}-{secrets.token_hex(4)}",
            address=address.advertised(self._listen, self._advertise, port),
            type=said.type,
            services=said.services,
            model=said.model,
            description=said.description,
            version=said.version,
        )

    def _start_pulse(self, background: Background) -> tuple[asyncio.Task[None], ...]:
        timing = self._timing
        return (
            background.start(beat(self._registry, self._node, every=timing.heartbeat)),
            background.start(follow_store(self._store, self._node, self._health.report, every=timing.ping)),
        )

    async def _end_pulse(self) -> None:
        # A heartbeat on its way would put the node on the list again.
        for task in self._pulse:
            task.cancel()
        await asyncio.wait(self._pulse)


class _Registrar:
    """What a generated add function sees of a server: it notes the names of the services added."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self.services: list[str] = []

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        handlers = tuple(generic_rpc_handlers)
        self.services.extend(
            handler.service_name() for handler in handlers if isinstance(handler, grpc.ServiceRpcHandler)
        )
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Left out: the generic handlers hold the same methods, and grpc.aio waits for each registered one anew
        at every call.
        """
