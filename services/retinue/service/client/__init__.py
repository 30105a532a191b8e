"""The calling end of the mesh: any method of any name, by bytes, by typed stub or by JSON.

It finds a node, sends, and sends again only where that cannot do a thing twice (search.py has the rule). A deadline is
always set. It keeps no sessions and knows no agents: peer.py does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

import grpc

from retinue.service.background import Background
from retinue.service.client.channel import MeshChannel
from retinue.service.client.descriptors import read_services
from retinue.service.client.directory import Directory
from retinue.service.client.endpoints import Endpoint, Endpoints
from retinue.service.client.metadata import check_metadata
from retinue.service.client.nodes import Line, Pool
from retinue.service.client.search import Search
from retinue.service.envelope import HOP_MARGIN_S, TO, Envelope
from retinue.service.errors import CallFailed, DeadlinePassed, MeshError, UnknownName, Unsupported, from_rpc
from retinue.service.transport import MESSAGE_BYTES
from retinue.service.wire import usage_of_trailers

# How long a call may take whose caller does not say, seconds.
TIMEOUT_S = 120.0
_REFLECT_S = 10.0

T = TypeVar("T")


class Client:
    """Calls names of the mesh; entered after its directory, which is the caller's to enter and leave."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self._background = Background()
        self._pool = Pool(self._background)
        self._endpoints: dict[str, tuple[frozenset[str], Endpoints]] = {}
        self._reading: dict[str, asyncio.Lock] = {}
        self._exits = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._exits.enter_async_context(self._background)
        self._exits.callback(self.directory.listen(self._pool.update))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()
        await self._pool.close()

    @property
    def channels(self) -> int:
        """How many channels to nodes are open."""
        return self._pool.channels

    def channel(self, name: str, *, envelope: Envelope = Envelope()) -> MeshChannel:
        """What a generated async stub takes: `TaskStub(client.channel("task"))`."""
        return MeshChannel(self, name, envelope=envelope)

    async def unary(
        self,
        name: str,
        path: str,
        request: bytes,
        *,
        timeout: float | None = None,
        envelope: Envelope = Envelope(),
        metadata: Iterable[tuple[str, str | bytes]] = (),
        repeatable: bool = False,
    ) -> bytes:
        """Calls the unary method at `path` on a node of `name`; cancelled with its caller.

        `timeout` (seconds, TIMEOUT_S unless set) covers all attempts. `repeatable` allows another attempt after the
        node broke off in the middle of one. Raises what the node raised, or why no node could be asked.
        """
        deadline, pairs = self._prepare(name, request, timeout, envelope, metadata)
        time = asyncio.get_running_loop().time

        def send(line: Line) -> Awaitable[bytes]:
            return line.unary(path)(request, timeout=deadline - time(), metadata=pairs)

        return await self._run(name, send, deadline=deadline, repeatable=repeatable)

    async def stream(
        self,
        name: str,
        path: str,
        request: bytes,
        *,
        timeout: float | None = None,
        envelope: Envelope = Envelope(),
        metadata: Iterable[tuple[str, str | bytes]] = (),
        repeatable: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """Calls the server-streaming method at `path` and yields its answers; another attempt ends with the first.

        Close the generator (contextlib.aclosing) to cancel the call early. Otherwise as `unary`.
        """
        deadline, pairs = self._prepare(name, request, timeout, envelope, metadata)
        time = asyncio.get_running_loop().time
        search = Search(self.directory, self._pool, name, deadline=deadline)
        while True:
            line = await search.next()
            begun = False
            with line:
                call = line.stream(path)(request, timeout=deadline - time(), metadata=pairs)
                try:
                    async for answer in call:
                        begun = True
                        yield answer
                    line.answered()
                    return
                except grpc.aio.AioRpcError as failure:
                    error = self._meaning(failure, name, deadline)
                finally:
                    call.cancel()
            if not search.again(line, error, repeatable=repeatable) or begun:
                raise error

    async def endpoints(self, name: str) -> Endpoints:
        """What `name` offers, by reflection: read once, and again when none of its nodes is left.

        Raises UnknownName, NoNode, or Unsupported when the service serves no reflection.
        """
        return await self._offered(name, asyncio.get_running_loop().time() + _REFLECT_S)

    async def call(
        self,
        name: str,
        endpoint: str,
        request: Mapping[str, Any] | str = "{}",
        *,
        timeout: float = TIMEOUT_S,
        envelope: Envelope = Envelope(),
        metadata: Iterable[tuple[str, str]] = (),
    ) -> dict[str, Any]:
        """Calls `endpoint` (such as Task.Create) of `name` with a JSON object and returns its answer as JSON data.

        Raises Invalid, naming the field, for a request that does not fit; UnknownName with the nearest endpoint;
        Unsupported when the endpoint streams.
        """
        deadline, found = await self._resolve(name, endpoint, timeout, envelope)
        if found.streaming:
            raise Unsupported(f"{found.short} of {name} streams its answers: use call_stream")
        answer = await self.unary(
            name,
            found.path,
            found.request(request).SerializeToString(),
            timeout=deadline - asyncio.get_running_loop().time(),
            envelope=envelope,
            metadata=metadata,
            repeatable=found.idempotent,
        )
        return found.data(answer)

    async def call_stream(
        self,
        name: str,
        endpoint: str,
        request: Mapping[str, Any] | str = "{}",
        *,
        timeout: float = TIMEOUT_S,
        envelope: Envelope = Envelope(),
        metadata: Iterable[tuple[str, str]] = (),
    ) -> AsyncGenerator[dict[str, Any], None]:
        """As `call`, for an endpoint that streams: yields each answer. A unary endpoint yields once."""
        deadline, found = await self._resolve(name, endpoint, timeout, envelope)
        answers = self.stream(
            name,
            found.path,
            found.request(request).SerializeToString(),
            timeout=deadline - asyncio.get_running_loop().time(),
            envelope=envelope,
            metadata=metadata,
            repeatable=found.idempotent,
        )
        async with contextlib.aclosing(answers):
            async for answer in answers:
                yield found.data(answer)

    async def _resolve(self, name: str, endpoint: str, timeout: float, envelope: Envelope) -> tuple[float, Endpoint]:
        deadline = _deadline(timeout, envelope)
        found = (await self._offered(name, deadline)).find(endpoint)
        if found.client_streaming:
            raise Unsupported(f"{found.short} of {name} takes a stream of requests: use a client of its own")
        return deadline, found

    async def _offered(self, name: str, deadline: float) -> Endpoints:
        lock = self._reading.setdefault(name, asyncio.Lock())
        try:
            async with asyncio.timeout_at(deadline):
                ids = await self._ids(name)
                await lock.acquire()
        except TimeoutError:
            raise DeadlinePassed(f"{name} did not say in time what it offers") from None
        try:
            read_from, endpoints = self._endpoints.get(name, (frozenset(), None))
            if endpoints is None or ids.isdisjoint(read_from):
                endpoints = await self._reflect(name, deadline)
                self._endpoints[name] = ids, endpoints
            return endpoints
        finally:
            lock.release()

    async def _ids(self, name: str) -> frozenset[str]:
        """The nodes of `name`; none while it is being restarted, which a call waits for."""
        try:
            return frozenset(node.id for node in await self.directory.nodes(name))
        except UnknownName:
            if self.directory.restarting(name):
                return frozenset()
            raise

    async def _reflect(self, name: str, deadline: float) -> Endpoints:
        time = asyncio.get_running_loop().time
        pairs = Envelope(to=name).metadata()

        async def read(line: Line) -> Endpoints:
            services = await read_services(line.channel, timeout=deadline - time(), metadata=pairs)
            return Endpoints.of(name, services)

        return await self._run(name, read, deadline=deadline, repeatable=True)

    async def _run(self, name: str, work: Callable[[Line], Awaitable[T]], *, deadline: float, repeatable: bool) -> T:
        search = Search(self.directory, self._pool, name, deadline=deadline)
        while True:
            line = await search.next()
            with line:
                try:
                    result = await work(line)
                    line.answered()
                    return result
                except grpc.aio.AioRpcError as failure:
                    error = self._meaning(failure, name, deadline)
            if not search.again(line, error, repeatable=repeatable):
                raise error

    @staticmethod
    def _meaning(failure: grpc.aio.AioRpcError, name: str, deadline: float) -> MeshError:
        error = from_rpc(failure)
        if isinstance(error, DeadlinePassed) and asyncio.get_running_loop().time() >= deadline - HOP_MARGIN_S:
            return DeadlinePassed(f"{name} did not answer in time")
        used = usage_of_trailers(failure.trailing_metadata() or ())
        error.usage = used if used.model_calls else None
        return error

    def _prepare(
        self,
        name: str,
        request: bytes,
        timeout: float | None,
        envelope: Envelope,
        metadata: Iterable[tuple[str, str | bytes]],
    ) -> tuple[float, list[tuple[str, str | bytes]]]:
        if len(request) > MESSAGE_BYTES:
            text = f"the request has {len(request)} bytes; grpc.max_send_message_length allows {MESSAGE_BYTES}"
            raise CallFailed(text, status=grpc.StatusCode.RESOURCE_EXHAUSTED)
        pairs: list[tuple[str, str | bytes]] = [(TO, name)]
        pairs += [pair for pair in envelope.metadata() if pair[0] != TO]
        if metadata:
            pairs += check_metadata(metadata)
        return _deadline(timeout, envelope), pairs


def _deadline(timeout: float | None, envelope: Envelope) -> float:
    """When a call has to be answered, as a time of the loop's clock. Raises DeadlinePassed when that is over."""
    now = asyncio.get_running_loop().time()
    if envelope.deadline is None:
        deadline = now + (TIMEOUT_S if timeout is None else timeout)
    else:
        deadline = envelope.deadline - HOP_MARGIN_S
        deadline = deadline if timeout is None else min(deadline, now + timeout)
    if deadline <= now:
        raise DeadlinePassed("the deadline had passed before the call was made")
    return deadline
