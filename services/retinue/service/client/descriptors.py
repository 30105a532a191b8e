"""The services of a remote node as descriptors, read by server reflection, v1 or v1alpha.

Each reading has a descriptor pool of its own, since two services may use one name for different messages. One service
that cannot be read never hides the rest. It calls nothing but reflection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection_pb2 as wire  # type: ignore[import-untyped]

from retinue.service.errors import Unsupported

log = logging.getLogger("retinue.client")

# The two versions differ in nothing but this path.
_PATHS = tuple(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha"))
# What every server has for tools, and nobody calls as a service.
_HIDDEN = ("grpc.reflection.", "grpc.health.")


async def read_services(
    channel: grpc.aio.Channel, *, timeout: float, metadata: Sequence[tuple[str, str]] = ()
) -> tuple[ServiceDescriptor, ...]:
    """Every service that the node lists, health and reflection aside; all are of one new pool.

    Raises Unsupported when the node serves no reflection, AioRpcError when it cannot be asked.
    """
    for path in _PATHS:
        reader = _Reader(channel, path, timeout=timeout, metadata=metadata)
        try:
            return await reader.services()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
    raise Unsupported("the service does not serve gRPC reflection, so what it offers cannot be told")


class _Reader:
    """One reading of one node, by one version of reflection."""

    def __init__(
        self, channel: grpc.aio.Channel, path: str, *, timeout: float, metadata: Sequence[tuple[str, str]]
    ) -> None:
        serializer = wire.ServerReflectionRequest.SerializeToString
        deserializer = wire.ServerReflectionResponse.FromString
        self._method = channel.stream_stream(path, serializer, deserializer)
        # The same on the wire, for one question: it leaves with the head of the call. A question that is written after
        # a refusal came would be INTERNAL (github.com/grpc/grpc/issues/36066), and the refusal lost.
        self._first = channel.unary_stream(path, serializer, deserializer)
        self._timeout, self._metadata = timeout, metadata
        self._files: dict[str, FileDescriptorProto] = {}

    async def services(self) -> tuple[ServiceDescriptor, ...]:
        every = wire.ServerReflectionRequest(list_services="*")
        names = [
            service.name
            async for listed in self._first(every, timeout=self._timeout, metadata=self._metadata)
            for service in listed.list_services_response.service
        ]
        names = [name for name in names if not name.startswith(_HIDDEN)]
        answers = await self._ask([wire.ServerReflectionRequest(file_containing_symbol=name) for name in names])
        files = [self._keep(answer) for answer in answers]
        await self._complete()
        pool, added = DescriptorPool(), set[str]()
        found = (self._build(pool, added, name, of) for name, of in zip(names, files, strict=True))
        return tuple(service for service in found if service is not None)

    async def _ask(self, requests: Sequence[wire.ServerReflectionRequest]) -> Sequence[wire.ServerReflectionResponse]:
        if not requests:
            return []
        call = self._method(iter(requests), timeout=self._timeout, metadata=self._metadata)
        answers = [answer async for answer in call]
        # A stream that ends early leaves its last questions without an answer, which is no file.
        return [*answers, *(wire.ServerReflectionResponse() for _ in requests[len(answers) :])]

    def _keep(self, answer: wire.ServerReflectionResponse) -> list[str]:
        """Takes the files of an answer, and returns their names: none when the node had none to give."""
        names = []
        for raw in answer.file_descriptor_response.file_descriptor_proto:
            try:
                file = FileDescriptorProto.FromString(raw)
            except DecodeError as error:
                log.warning("reflection: a file that is none: %s", error)
                continue
            self._files.setdefault(file.name, file)
            names.append(file.name)
        return names

    async def _complete(self) -> None:
        """Asks for the imports that did not come with the files that have them, until there are no more."""
        asked: set[str] = set()
        while (
            missing := {name for file in self._files.values() for name in file.dependency} - self._files.keys() - asked
        ):
            asked |= missing
            for answer in await self._ask([wire.ServerReflectionRequest(file_by_filename=name) for name in missing]):
                self._keep(answer)

    def _build(
        self, pool: DescriptorPool, added: set[str], name: str, files: Iterable[str]
    ) -> ServiceDescriptor | None:
        try:
            for file in files:
                self._add(pool, added, file)
            return pool.FindServiceByName(name)
        except (KeyError, TypeError) as error:
            log.warning("reflection: %s is left out, its descriptors do not hold together: %s", name, error)
            return None

    def _add(self, pool: DescriptorPool, added: set[str], name: str) -> None:
        if name not in added:
            added.add(name)
            file = self._files[name]
            for imported in file.dependency:
                self._add(pool, added, imported)
            pool.AddSerializedFile(file.SerializeToString())
