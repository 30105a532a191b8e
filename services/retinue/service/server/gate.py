"""What every call of a server passes: the name it was meant for, whether new work is taken, and how errors leave.

One interceptor; it starts no task and looks into no message, but it decodes each: grpc would answer bytes that are no
message with UNKNOWN and a traceback. A MeshError goes out as its status with details, anything else that was raised as
INTERNAL with a line in the log and no word of it to the caller.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Never, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from retinue.service import errors
from retinue.service.envelope import TO
from retinue.service.errors import CallFailed, Draining, InternalError, Invalid, MeshError, Unsupported, WrongNode
from retinue.service.transport import MESSAGE_BYTES
from retinue.service.wire import usage_trailer

_log = logging.getLogger("retinue.server")
_T = TypeVar("_T")
_S = TypeVar("_S")
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Single: TypeAlias = Callable[[Any, _Context], Awaitable[Any]]
_Stream: TypeAlias = Callable[[Any, _Context], AsyncGenerator[Any, None]]
_Code: TypeAlias = Callable[[Any], Any]
# By whether requests and responses are streams.
_HANDLERS: dict[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[Any, Any]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class Gate(grpc.aio.ServerInterceptor):
    """The gate of one server. `running` counts the calls in it; those of `open` services are neither counted nor
    refused while draining.
    """

    def __init__(self, name: str, *, open: frozenset[str] = frozenset()) -> None:
        self._name = name
        self._open = open
        self._guarded: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._draining = False
        self._idle = asyncio.Event()
        self._refused_at = float("-inf")
        self.running = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_T, _S] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_T, _S] | None:
        """The handler of a call, or one that refuses it."""
        for key, value in handler_call_details.invocation_metadata or ():
            if key == TO and value != self._name:
                return _refusal(
                    WrongNode(f"this node is {self._name}, not {errors.cut(str(value), 64)}: look it up again")
                )
        method = handler_call_details.method
        if guarded := self._guarded.get(method):
            return guarded
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        # Handlers of a server never change, so each is wrapped once.
        self._guarded[method] = guarded = self._guard(method, handler)
        return guarded

    def close(self) -> None:
        """Refuses new work from now on; what runs goes on."""
        self._draining = True
        if not self.running:
            self._idle.set()

    async def settle(self, *, within: float, quiet: float) -> bool:
        """Waits until nothing runs and no call was refused for `quiet` seconds; False when `within` seconds pass first.

        Callers that have not heard yet are refused in words that they can act on; a stopped server only breaks off.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within):
                await self._idle.wait()
                while True:
                    rest = self._refused_at + quiet - loop.time()
                    if rest <= 0:
                        return True
                    await asyncio.sleep(rest)
        except TimeoutError:
            return False

    def _guard(self, method: str, handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
        behaviour: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        decode, encode = _decoder(method, handler.request_deserializer), _encoder(handler.response_serializer)
        serialize: Callable[[Any], bytes] | None = None
        if inspect.isasyncgenfunction(behaviour):
            behaviour, encode = _writing(behaviour, encode), _unchanged
        elif not inspect.iscoroutinefunction(behaviour):
            return _refusal(Unsupported(f"{method[1:]} is not implemented here as an async method"))
        elif handler.response_streaming:
            # It writes to the context by itself, and returns nothing.
            encode, serialize = _unchanged, handler.response_serializer
        deserialize: _Code | None = None
        if handler.request_streaming:
            # Decoded as the handler reads them: what is raised then comes through the handler to the gate.
            decode, deserialize = _unchanged, decode
        counted = method[1:].rpartition("/")[0] not in self._open
        make = _HANDLERS[bool(handler.request_streaming), bool(handler.response_streaming)]
        guarded = self._guarded_by(method, behaviour, decode=decode, encode=encode, counted=counted)
        return make(guarded, deserialize, serialize)

    def _guarded_by(self, method: str, behaviour: _Single, *, decode: _Code, encode: _Code, counted: bool) -> _Single:
        async def guarded(request: Any, context: _Context) -> Any:
            if counted and self._draining:
                await self._refuse(context)
            self.running += counted
            try:
                return encode(await behaviour(decode(request), context))
            except Exception as error:
                await _abort(method, error, context)
            finally:
                self.running -= counted
                if self._draining and not self.running:
                    self._idle.set()

        return guarded

    async def _refuse(self, context: _Context) -> Never:
        self._refused_at = asyncio.get_running_loop().time()
        await _send(Draining(f"this node of {self._name} is going away: ask another"), context)


def _unchanged(message: Any) -> Any:
    return message


def _writing(behaviour: _Stream, encode: _Code) -> _Single:
    """A coroutine that writes what `behaviour` yields, since grpc leaves an abandoned generator to the garbage
    collector: this one is closed at once when the caller goes away.
    """

    async def write(request: Any, context: _Context) -> None:
        async with aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                await context.write(encode(response))

    return write


def _decoder(method: str, deserialize: Callable[[bytes], Any] | None) -> _Code:
    """Reads requests here and not in grpc, whose answer to bytes that are no message is a fault of this server."""

    def decode(raw: bytes) -> Any:
        try:
            return deserialize(raw) if deserialize else raw
        except (DecodeError, ValueError):
            text = f"{method[1:]}: its {len(raw)} bytes are no such request: see that both ends have the same proto"
            raise Invalid(text, field="request") from None

    return decode


def _encoder(serialize: Callable[[Any], bytes] | None) -> _Code:
    """Makes bytes here and not in grpc, where a message that is too large would fail without a reason."""

    def encode(response: Any) -> bytes:
        raw: bytes = serialize(response) if serialize else response
        if len(raw) > MESSAGE_BYTES:
            text = f"the answer has {len(raw)} bytes; grpc.max_send_message_length allows {MESSAGE_BYTES}"
            raise CallFailed(text, status=grpc.StatusCode.RESOURCE_EXHAUSTED)
        return raw

    return encode


def _refusal(error: MeshError) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler for calls of any kind: as a stream it answers without waiting for a request."""

    async def refuse(_requests: Any, context: _Context) -> None:
        await _send(error, context)

    return grpc.stream_stream_rpc_method_handler(refuse)


async def _abort(method: str, error: Exception, context: _Context) -> Never:
    if isinstance(error, grpc.aio.BaseError):
        raise error  # grpc's own: an abort on its way out, or a caller that is gone
    if not isinstance(error, MeshError):
        _log.error("%s failed", method[1:], exc_info=error)
        error = InternalError(f"{method[1:]} failed by a fault of this server; its log has the details")
    await _send(error, context)


async def _send(error: MeshError, context: _Context) -> Never:
    trailers: tuple[tuple[str, str | bytes], ...] = errors.to_metadata(error)
    if error.usage is not None:
        trailers += usage_trailer(error.usage)
    await context.abort(error.status, errors.cut(error.message), trailers)
