"""A name of the mesh as a gRPC channel, so that generated async stubs call it as they would call an address.

It stands for whatever nodes the name has: there is no connection of its own to open, wait for or close. Only unary
requests are sent, since what a caller streams could not be sent a second time.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, Self

import grpc
from google.protobuf import descriptor_pool

from retinue.service.client.endpoints import declared_repeatable
from retinue.service.envelope import Envelope
from retinue.service.errors import Unsupported


class Caller(Protocol):
    """What a channel needs of a client: calls of methods by path, with bytes out and in."""

    async def unary(
        self,
        name: str,
        path: str,
        request: bytes,
        *,
        timeout: float | None = None,
        envelope: Envelope = ...,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        repeatable: bool = False,
    ) -> bytes: ...

    def stream(
        self,
        name: str,
        path: str,
        request: bytes,
        *,
        timeout: float | None = None,
        envelope: Envelope = ...,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        repeatable: bool = False,
    ) -> AsyncGenerator[bytes, None]: ...


class MeshChannel(grpc.aio.Channel):
    """What a stub takes. Its calls raise MeshError, and take `timeout` (seconds) and `metadata`.

    `repeatable` tells by its path whether a method may be sent again after its node broke off; by default those may
    that are declared idempotent or free of side effects where the stub comes from.
    """

    def __init__(
        self,
        client: Caller,
        name: str,
        *,
        envelope: Envelope = Envelope(),
        repeatable: Callable[[str], bool] | None = None,
    ) -> None:
        self._client, self._name, self._envelope = client, name, envelope
        self._repeatable = repeatable or (lambda path: declared_repeatable(path, descriptor_pool.Default()))

    def unary_unary(  # type: ignore[override]  # awaitable like grpc.aio's own, but a coroutine and no Call
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Callable[..., Any]:
        return self._method(method, request_serializer, response_deserializer).unary

    def unary_stream(  # type: ignore[override]  # iterable like grpc.aio's own, but a generator and no Call
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Callable[..., Any]:
        return self._method(method, request_serializer, response_deserializer).stream

    def stream_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., Any]:  # type: ignore[override]
        return self._method(method, None, None).refuse

    def stream_stream(self, method: str, *_: Any, **__: Any) -> Callable[..., Any]:  # type: ignore[override]
        return self._method(method, None, None).refuse

    def _method(self, path: str, encode: Any, decode: Any) -> _Method:
        return _Method(self._client, self._name, self._envelope, path, encode, decode, self._repeatable(path))

    async def close(self, grace: float | None = None) -> None:
        """Does nothing: the connections are the client's."""

    def get_state(self, try_to_connect: bool = False) -> NoReturn:
        raise Unsupported("a name of the mesh has no connection state: call it")

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> NoReturn:
        raise Unsupported("a name of the mesh has no connection state: call it")

    async def channel_ready(self) -> NoReturn:
        raise Unsupported("a name of the mesh has no connection state: call it")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Does nothing: the connections are the client's."""


@dataclass(frozen=True, slots=True)
class _Method:
    """One method of a stub. `timeout` is in seconds, 120 unless set."""

    client: Caller
    name: str
    envelope: Envelope
    path: str
    encode: Callable[[Any], bytes] | None
    decode: Callable[[bytes], Any] | None
    repeatable: bool

    async def unary(
        self, request: Any, *, timeout: float | None = None, metadata: Iterable[tuple[str, str | bytes]] = ()
    ) -> Any:
        reply = await self.client.unary(
            self.name,
            self.path,
            self.encode(request) if self.encode else request,
            timeout=timeout,
            envelope=self.envelope,
            metadata=metadata,
            repeatable=self.repeatable,
        )
        return self.decode(reply) if self.decode else reply

    async def stream(
        self, request: Any, *, timeout: float | None = None, metadata: Iterable[tuple[str, str | bytes]] = ()
    ) -> AsyncIterator[Any]:
        replies = self.client.stream(
            self.name,
            self.path,
            self.encode(request) if self.encode else request,
            timeout=timeout,
            envelope=self.envelope,
            metadata=metadata,
            repeatable=self.repeatable,
        )
        async with contextlib.aclosing(replies):
            async for reply in replies:
                yield self.decode(reply) if self.decode else reply

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise Unsupported(f"{self.path}: requests that are streamed are not sent over the mesh")
