"""Bare gRPC nodes on the loopback, and wires to them that can be cut: what a client meets, without our own server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from office.v1 import task_pb2, task_pb2_grpc
from retinue.service.client import Client
from retinue.service.client.directory import Directory
from retinue.service.envelope import Envelope
from retinue.service.errors import MeshError, to_metadata
from retinue.service.registry import Lookup, Node
from retinue.service.registry.memory import MemoryRegistry

Add: TypeAlias = Callable[[grpc.aio.Server], None]
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Behaviour: TypeAlias = Callable[[Any, Context], Awaitable[Any]]

TASK = "office.v1.Task"
MILK = task_pb2.CreateTaskRequest(title="milk")
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


@asynccontextmanager
async def serving(
    *adds: Add, names: tuple[str, ...] = (), pool: DescriptorPool | None = None, port: int = 0
) -> AsyncIterator[str]:
    """The address of a server with what `adds` add; reflection lists `names`, of `pool`, when there are any."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    for add in adds:
        add(server)
    if names:
        listed = (*names, HEALTH, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(listed, server, pool=pool)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(0)


class Tasks(task_pb2_grpc.TaskServicer):
    """A task service whose methods are what a test says; `calls` counts what came in."""

    def __init__(self, create: Behaviour | None = None, *, listing: Behaviour | None = None) -> None:
        self.calls = 0
        self.metadata: dict[str, Any] = {}
        self._create, self._list = create, listing

    async def Create(self, request: task_pb2.CreateTaskRequest, context: Context) -> task_pb2.TaskItem:
        self.calls += 1
        self.metadata = dict(context.invocation_metadata() or ())
        if self._create is not None:
            await self._create(request, context)
        return task_pb2.TaskItem(id="1", title=request.title, owner=request.owner)

    async def List(self, request: task_pb2.ListTasksRequest, context: Context) -> task_pb2.ListTasksResponse:
        self.calls += 1
        if self._list is not None:
            await self._list(request, context)
        return task_pb2.ListTasksResponse(tasks=[task_pb2.TaskItem(id="1")])

    async def Complete(self, request: task_pb2.CompleteTaskRequest, context: Context) -> task_pb2.TaskItem:
        raise NotImplementedError

    async def Delete(self, request: task_pb2.DeleteTaskRequest, context: Context) -> task_pb2.DeleteTaskResponse:
        raise NotImplementedError

    def add(self, server: grpc.aio.Server) -> None:
        task_pb2_grpc.add_TaskServicer_to_server(self, server)


def tasks_at(tasks: Tasks, *, port: int = 0) -> Any:
    """A server of `tasks` with reflection, as `serving`."""
    return serving(tasks.add, names=(TASK,), port=port)


def refusing(error: MeshError) -> Behaviour:
    """A method that answers with `error`, details and all."""

    async def refuse(_: Any, context: Context) -> NoReturn:
        await context.abort(error.status, error.message, to_metadata(error))

    return refuse


class Cable:
    """A way to an address that can be cut: every connection through it breaks at once, and none is taken after."""

    def __init__(self, to: str) -> None:
        self._host, _, port = to.rpartition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps = asyncio.TaskGroup()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def __aenter__(self) -> Cable:
        await self._pumps.__aenter__()
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        await self._pumps.__aexit__(None, None, None)

    def cut(self) -> None:
        """Breaks every connection and refuses new ones."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, far_writer}
        self._pumps.create_task(self._pump(reader, far_writer))
        self._pumps.create_task(self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # a cut is what this is for
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextmanager
def black_hole() -> Iterator[str]:
    """The address of something that takes connections and never says a word: the kernel alone answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def closed_port() -> str:
    """An address of the loopback where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def node(name: str, address: str, number: int = 1) -> Node:
    """The `number`-th node of `name`, at `address`."""
    return Node(name=name, id=f"{name}-{number:08x}", address=address)


async def registered(name: str, *addresses: str) -> MemoryRegistry:
    """A registry with nodes of `name` at these addresses, ordered as given."""
    registry = MemoryRegistry()
    for number, address in enumerate(addresses, 1):
        await registry.register(node(name, address, number))
    return registry


@asynccontextmanager
async def client_of(registry: Lookup) -> AsyncIterator[Client]:
    """A client on a directory of its own."""
    async with Directory(registry) as directory, Client(directory) as client:
        yield client


def stub(client: Client, envelope: Envelope = Envelope()) -> Any:
    """A typed stub of the task service, over the mesh."""
    return task_pb2_grpc.TaskStub(client.channel("task", envelope=envelope))


class Held:
    """A method that begins, and ends when it is let go."""

    def __init__(self) -> None:
        self.begun, self.go, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, _: Any, context: Context) -> None:
        self.begun.set()
        try:
            await self.go.wait()
        finally:
            self.ended.set()
