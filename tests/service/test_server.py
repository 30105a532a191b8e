"""What any gRPC client sees of a server: health, reflection, names, addresses and its place on the list."""

import asyncio
import socket
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]
from kit.serving import served, tasks
from kit.watching import closing, listening, until

from retinue.service import errors
from retinue.service.mesh import Mesh
from retinue.service.registry import Node, Registry
from retinue.service.registry.memory import MemoryRegistry
from retinue.service.server.pulse import Timing
from retinue.service.settings import Settings
from retinue.service.store import Store
from retinue.service.store.memory import MemoryStore
from retinue.service.testing import LocalMesh, Stub
from retinue.v1 import agent_pb2 as pb
from retinue.v1.agent_pb2_grpc import AgentStub

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
QUICK = Timing(heartbeat=0.02, ping=0.02, quiet=0.0)


async def reflect(channel: grpc.aio.Channel, version: str, **query: Any) -> Any:
    call = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )()
    await call.write(reflection_pb2.ServerReflectionRequest(**query))
    answer = await call.read()
    await call.done_writing()
    return answer


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
@pytest.mark.parametrize(
    ("part", "service"), [(Stub("clerk"), "retinue.v1.Agent"), (tasks(), "office.v1.Task")], ids=["agent", "plain"]
)
async def test_reflection_lists_the_service_and_never_the_alias(part: Any, service: str, version: str) -> None:
    async with asyncio.timeout(5), served(part) as (_, channel):
        listed = (await reflect(channel, version, list_services="")).list_services_response.service
        assert {entry.name for entry in listed} == {
            service,
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        for entry in listed:
            found = await reflect(channel, version, file_containing_symbol=entry.name)
            assert found.file_descriptor_response.file_descriptor_proto
        missing = await reflect(channel, version, file_containing_symbol="Agent")
        assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


@pytest.mark.parametrize(
    ("part", "service"), [(Stub("clerk"), "retinue.v1.Agent"), (tasks(), "office.v1.Task")], ids=["agent", "plain"]
)
async def test_health_is_serving_for_the_server_and_its_service(part: Any, service: str) -> None:
    async with asyncio.timeout(5), served(part) as (_, channel):
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", service):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING


async def test_a_node_is_listed_with_what_its_part_says() -> None:
    async with asyncio.timeout(5), LocalMesh() as mesh:
        async with mesh.serve(Stub("clerk", description="Keeps the list."), tasks()) as (clerk, task):
            assert dict(await mesh.registry.names()) == {"clerk": "agent", "task": "service"}
            assert await mesh.registry.find("clerk") == (clerk.node,)
            assert (clerk.node.description, clerk.node.type) == ("Keeps the list.", "agent")
            assert clerk.node.id.startswith("clerk-")
            assert len(clerk.node.id) == len("clerk-") + 8
            assert clerk.address != task.address
        assert not await mesh.registry.names()


async def test_a_node_has_a_new_id_at_each_start() -> None:
    async with asyncio.timeout(5), LocalMesh() as mesh:
        ids = set()
        for _ in range(2):
            async with mesh.serve(Stub("clerk")) as (server,):
                ids.add(server.node.id)
        assert len(ids) == 2


async def test_a_registry_that_forgot_a_node_learns_of_it_again() -> None:
    async with asyncio.timeout(5), LocalMesh(timing=QUICK) as mesh, mesh.serve(Stub("clerk")) as (server,):
        await mesh.registry.deregister(server.node)
        async with closing(mesh.registry.watch("clerk")) as shown:
            await until(shown, lambda nodes: nodes == (server.node,))


class Flaky(MemoryRegistry):
    """A registry that can be away, and take its time while `hold` is not set."""

    away = False
    hold: asyncio.Event | None = None

    def __init__(self) -> None:
        super().__init__()
        self.attempts: asyncio.Queue[None] = asyncio.Queue()

    async def register(self, node: Node) -> None:
        self.attempts.put_nowait(None)
        if self.away:
            raise errors.RegistryUnavailable("the registry is away")
        if self.hold:
            await self.hold.wait()
        await super().register(node)

    async def deregister(self, node: Node) -> None:
        if self.away:
            raise errors.RegistryUnavailable("the registry is away")
        await super().deregister(node)


class FlakyStore(MemoryStore):
    """A store that can be away."""

    away = False

    def __init__(self) -> None:
        super().__init__()
        self.pings: asyncio.Queue[None] = asyncio.Queue()

    async def ping(self) -> None:
        self.pings.put_nowait(None)
        if self.away:
            raise errors.StoreUnavailable("the store is away")


def quick_mesh(registry: Registry, store: Store) -> Mesh:
    return Mesh(Settings(registry="memory:", store="memory:"), registry=registry, store=store, timing=QUICK)


async def test_a_registry_that_is_away_at_the_start_is_told() -> None:
    async with asyncio.timeout(5), MemoryStore() as store:
        registry = Flaky()
        registry.away = True
        async with quick_mesh(registry, store) as mesh:
            with pytest.raises(errors.RegistryUnavailable):
                async with mesh.serve(Stub("clerk")):
                    pass


async def test_a_registry_that_goes_away_later_is_told_once_and_ends_nothing() -> None:
    async with asyncio.timeout(5), MemoryStore() as store:
        registry = Flaky()
        with listening("retinue.server") as lines:
            async with served(Stub("clerk"), quick_mesh(registry, store)) as (_, channel):
                registry.away, registry.attempts = True, asyncio.Queue()
                for _ in range(5):
                    await registry.attempts.get()
                assert (await AgentStub(channel).Chat(pb.ChatRequest(message="hi"))).reply == "hi"
                registry.away = False
                said = []
                while "registered again" not in (line := await lines.get()):
                    said.append(line)
                assert len([line for line in said if "goes on without the registry" in line]) == 1
                assert lines.empty()


async def test_a_heartbeat_on_its_way_does_not_list_a_node_that_goes() -> None:
    async with asyncio.timeout(5), MemoryStore() as store:
        registry = Flaky()
        async with served(Stub("clerk"), quick_mesh(registry, store)) as (server, _):
            registry.hold, registry.attempts = asyncio.Event(), asyncio.Queue()
            await registry.attempts.get()
            draining = asyncio.create_task(server.drain())
            async with closing(registry.watch("clerk")) as shown:
                await until(shown, lambda nodes: not nodes)
            registry.hold.set()
            await draining
            assert not await registry.find("clerk")


async def test_a_registry_that_is_away_at_the_end_is_told() -> None:
    async with asyncio.timeout(5), MemoryStore() as store:
        registry = Flaky()
        with listening("retinue.server") as lines:
            async with served(Stub("clerk"), quick_mesh(registry, store)):
                registry.away = True
            said = [lines.get_nowait() for _ in range(lines.qsize())]
        assert any("stays on the list" in line for line in said)


async def test_the_store_drives_health_with_one_transition_each_way() -> None:
    async with asyncio.timeout(5), FlakyStore() as store:
        with listening("retinue.server") as lines:
            async with served(Stub("clerk"), quick_mesh(MemoryRegistry(), store)) as (_, channel):
                health: Any = health_pb2_grpc.HealthStub(channel)
                watch = health.Watch(health_pb2.HealthCheckRequest())
                assert (await watch.read()).status == SERVING
                store.away = True
                assert (await watch.read()).status == NOT_SERVING
                store.pings = asyncio.Queue()
                for _ in range(5):
                    await store.pings.get()
                store.away = False
                assert (await watch.read()).status == SERVING
                watch.cancel()
            seen = [lines.get_nowait() for _ in range(lines.qsize())]
        assert len([line for line in seen if "SERVING" in line]) == 2


async def test_a_taken_port_is_one_clear_error(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        async with asyncio.timeout(5), LocalMesh() as mesh:
            with pytest.raises(errors.Invalid) as caught:
                async with mesh.serve(Stub("clerk"), listen=address):
                    pass
            assert not await mesh.registry.names()
    assert caught.value.facts["field"] == "RETINUE_LISTEN"
    assert address in caught.value.message
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("listen", "advertise", "field"),
    [
        ("0.0.0.0:0", "", "RETINUE_ADVERTISE"),
        ("[::]:0", "", "RETINUE_ADVERTISE"),
        ("127.0.0.1:0", "0.0.0.0:1", "RETINUE_ADVERTISE"),
        ("127.0.0.1:0", "nonsense", "RETINUE_ADVERTISE"),
        ("192.0.2.1:0", "", "RETINUE_LISTEN"),
        ("127.0.0.1", "", "RETINUE_LISTEN"),
    ],
)
async def test_an_address_that_nobody_could_call_is_refused_by_setting(listen: str, advertise: str, field: str) -> None:
    async with asyncio.timeout(5), LocalMesh() as mesh:
        with pytest.raises(errors.Invalid) as caught:
            async with mesh.serve(Stub("clerk"), listen=listen, advertise=advertise):
                pass
    assert caught.value.facts["field"] == field


async def test_the_advertised_address_is_registered_and_never_port_0() -> None:
    async with asyncio.timeout(5), LocalMesh() as mesh:
        async with mesh.serve(Stub("clerk"), listen="0.0.0.0:0", advertise="agents.example:7000") as (server,):
            assert server.address == "agents.example:7000"
        async with mesh.serve(Stub("clerk"), listen="0.0.0.0:0", advertise="127.0.0.1:0") as (server,):
            assert server.address.startswith("127.0.0.1:")
            assert not server.address.endswith(":0")


async def test_the_settings_are_for_a_single_part() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        async with asyncio.timeout(5), LocalMesh() as mesh:
            mesh.settings = Settings(registry="memory:", store="memory:", listen=taken)
            async with mesh.serve(Stub("clerk"), Stub("planner")):
                pass
            with pytest.raises(errors.Invalid):
                async with mesh.serve(Stub("clerk")):
                    pass
            with pytest.raises(errors.Invalid):
                async with mesh.serve(Stub("clerk"), Stub("planner"), listen="127.0.0.1:0"):
                    pass


async def test_a_bad_name_is_refused() -> None:
    async with LocalMesh() as mesh:
        with pytest.raises(errors.Invalid):
            async with mesh.serve(Stub("Not A Name")):
                pass
