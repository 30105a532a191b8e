"""What a server says of itself to tools: health, and reflection in both versions.

The list names what a reader can look up in the descriptor pool: never the alias, nor reflection's own v1 name.
"""

from __future__ import annotations

from collections.abc import Iterable

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection, reflection_pb2  # type: ignore[import-untyped]

HEALTH = "grpc.health.v1.Health"
_V1ALPHA = "grpc.reflection.v1alpha.ServerReflection"
_V1 = "grpc.reflection.v1.ServerReflection"
# These answer for as long as the server does, also while it drains.
ALWAYS = frozenset((HEALTH, _V1ALPHA, _V1))


class Health:
    """The health of a server: one state for "", each of its services, and its node id once it has one.

    Who asks for the id of a node learns whether it is still that node which answers at an address.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = ("", *services)
        self._servicer = health.aio.HealthServicer()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Makes `server` answer grpc.health.v1."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    def add_node(self, node_id: str) -> None:
        """The node has the state of the server, from the next report on."""
        self._services = (*self._services, node_id)

    async def report(self, serving: bool) -> None:
        """Sets the state of all services; who watches them is told."""
        status = health_pb2.HealthCheckResponse
        for service in self._services:
            await self._servicer.set(service, status.SERVING if serving else status.NOT_SERVING)

    async def end(self) -> None:
        """NOT_SERVING for good: what is reported later changes nothing."""
        await self._servicer.enter_graceful_shutdown()


def add_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    """Makes `server` answer reflection v1alpha and v1 with these services, health and reflection.

    The two versions are one on the wire but for the name, and only v1alpha comes with grpcio-reflection.
    """
    servicer = reflection.aio.ReflectionServicer((*services, HEALTH, _V1ALPHA))
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (_V1ALPHA, _V1):
        handler = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})
        server.add_generic_rpc_handlers((handler,))
