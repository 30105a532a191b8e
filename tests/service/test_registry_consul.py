"""What the registry in Consul promises beyond the contract: what others read there, a Consul that comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from kit.consul import ConsulServer
from kit.watching import closing, listening, until

from retinue.service.errors import RegistryUnavailable
from retinue.service.registry import Node, open_registry
from retinue.service.registry.consul import ConsulRegistry

CLERK = Node(
    name="clerk",
    id="clerk-00000001",
    address="127.0.0.1:9001",
    type="agent",
    services=("task", "project"),
    model="scripted/one",
    description="Keeps the list",
    version="0.1.0",
)


@pytest.fixture
async def registry(consul_url: str) -> AsyncIterator[ConsulRegistry]:
    async with ConsulRegistry(consul_url) as registry:
        yield registry


@pytest.fixture
async def serving() -> AsyncIterator[tuple[grpc.aio.Server, str]]:
    """A gRPC server whose health says that it is CLERK and SERVING, and its address."""
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    await servicer.set(CLERK.id, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield server, f"127.0.0.1:{port}"
    await server.stop(None)


async def test_consul_shows_what_a_node_is(registry: ConsulRegistry, session_consul: ConsulServer) -> None:
    await registry.register(CLERK)
    (entry,) = session_consul.get("health/service/clerk")
    service = entry["Service"]
    assert (service["ID"], service["Address"], service["Port"]) == (CLERK.id, "127.0.0.1", 9001)
    assert service["Tags"] == ["type=agent"]
    assert service["Meta"] == {
        "type": "agent",
        "services": "task,project",
        "model": "scripted/one",
        "description": "Keeps the list",
        "version": "0.1.0",
    }


async def test_consul_checks_each_node_by_grpc(registry: ConsulRegistry, session_consul: ConsulServer) -> None:
    await registry.register(CLERK)
    (check,) = session_consul.checks()
    seconds = {key: check[key] / 1e9 for key in ("Interval", "Timeout", "DeregisterCriticalServiceAfter")}
    assert check["GRPC"] == f"{CLERK.address}/{CLERK.id}"
    assert seconds == {"Interval": 2, "Timeout": 1, "DeregisterCriticalServiceAfter": 60}


async def test_services_over_512_bytes_go_on_under_numbered_keys(
    registry: ConsulRegistry, session_consul: ConsulServer
) -> None:
    services = tuple(f"service-with-a-long-name-{number}" for number in range(80))
    await registry.register(replace(CLERK, services=services))
    meta = session_consul.get(f"agent/service/{CLERK.id}")["Meta"]
    chunks = [meta["services"], *(meta[f"services-{n}"] for n in range(2, 6))]
    assert "services-6" not in meta
    assert ",".join(chunks) == ",".join(services)


@pytest.mark.parametrize("text", ["x" * 600, "é" * 600, "x" + "é" * 600, "📋" * 600, "xyz" + "📋" * 600])
async def test_a_long_description_is_cut_in_whole_characters(registry: ConsulRegistry, text: str) -> None:
    await registry.register(replace(CLERK, description=text))
    (found,) = await registry.find("clerk")
    assert text.startswith(found.description)
    assert 512 - 4 < len(found.description.encode()) <= 512


async def test_a_node_is_healthy_at_once_and_unhealthy_once_its_server_is_gone_whatever_it_says(
    registry: ConsulRegistry, serving: tuple[grpc.aio.Server, str]
) -> None:
    server, address = serving
    node = replace(CLERK, address=address)
    await registry.register(node)
    async with closing(registry.watch("clerk")) as watch:
        assert await anext(watch) == (node,)
        await server.stop(None)
        await until(watch, lambda nodes: not nodes[0].healthy, within=5)
        await registry.register(node)
        assert await registry.find("clerk") == (replace(node, healthy=False),)


async def test_registering_what_is_known_writes_nothing(registry: ConsulRegistry, session_consul: ConsulServer) -> None:
    node = replace(CLERK, description="é" * 600)
    await registry.register(node)
    before = session_consul.writes()
    await registry.register(node)
    assert session_consul.writes() == before
    await registry.register(replace(node, version="0.2.0"))
    assert session_consul.writes() != before


async def test_a_node_can_be_found_as_soon_as_it_has_registered(registry: ConsulRegistry) -> None:
    async def come_and_go(node: Node) -> None:
        await registry.register(node)
        assert len(await registry.find(node.name)) == 1
        await registry.deregister(node)
        assert await registry.find(node.name) == ()

    async with asyncio.TaskGroup() as tasks:
        for number in range(50):
            tasks.create_task(come_and_go(replace(CLERK, name=f"clerk-{number}", id=f"clerk-{number}-00000001")))


async def test_a_service_registered_by_hand_is_found_and_consuls_own_is_not(
    registry: ConsulRegistry, session_consul: ConsulServer
) -> None:
    session_consul.put("agent/service/register", {"Name": "billing", "Port": 7000})
    session_consul.put(
        "agent/service/register", {"Name": "ledger", "Address": "10.0.0.7", "Port": 7001, "Tags": ["v1"]}
    )
    async with closing(registry.watch_names()) as watch:
        await until(watch, lambda names: names == {"billing": "service", "ledger": "service"})
    assert await registry.find("billing") == (Node(name="billing", id="billing", address="127.0.0.1:7000"),)
    assert await registry.find("ledger") == (Node(name="ledger", id="ledger", address="10.0.0.7:7001"),)
    assert await registry.find("consul") == ()


async def test_a_consul_restarted_empty_learns_of_a_node_that_registers_again(consul_server: ConsulServer) -> None:
    async with ConsulRegistry(consul_server.url) as registry:
        await registry.register(CLERK)
        await consul_server.kill()
        with pytest.raises(RegistryUnavailable):
            await registry.register(CLERK)
        await consul_server.start(empty=True)
        assert await registry.names() == {}
        await registry.register(CLERK)
        assert await registry.names() == {"clerk": "agent"}


async def test_watches_live_through_a_restart_and_say_so_once(consul_server: ConsulServer) -> None:
    async with (
        ConsulRegistry(consul_server.url) as registry,
        closing(registry.watch("clerk")) as nodes,
        closing(registry.watch_names()) as names,
    ):
        assert await anext(nodes) == ()
        assert await anext(names) == {}
        with listening("retinue.registry") as lines:
            async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
                listed = tasks.create_task(until(nodes, lambda nodes: nodes != (), within=30))
                named = tasks.create_task(until(names, lambda names: names == {"clerk": "agent"}, within=30))
                await asyncio.sleep(0)
                await consul_server.kill()
                assert (await lines.get()).startswith(f"WARNING registry {consul_server.url} cannot be reached")
                await consul_server.start(empty=True)
                await registry.register(CLERK)
                await listed
                await named
                assert await lines.get() == f"INFO registry {consul_server.url} is back"
            assert lines.empty()


async def test_a_frozen_consul_is_out_of_reach_until_it_thaws(consul_server: ConsulServer) -> None:
    async with (
        ConsulRegistry(consul_server.url, timeout=0.5, wait=1) as registry,
        closing(registry.watch("clerk")) as watch,
    ):
        assert await anext(watch) == ()
        with listening("retinue.registry") as lines:
            async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
                seen = tasks.create_task(until(watch, lambda nodes: nodes != ()))
                await asyncio.sleep(0)
                consul_server.freeze()
                with pytest.raises(RegistryUnavailable, match="no answer within"):
                    await registry.names()
                assert (await lines.get()).startswith("WARNING")
                consul_server.thaw()
                assert await registry.names() == {}
                await registry.register(CLERK)
                await seen
                assert (await lines.get()).endswith("is back")


@pytest.mark.parametrize("place", ["consul://:sesame@{}", "consul://{}?token=sesame"])
async def test_the_token_in_the_url_opens_a_guarded_consul(place: str, tmp_path: Path) -> None:
    with ConsulServer(tmp_path, token="sesame") as guarded:
        address = guarded.url.removeprefix("consul://")
        async with open_registry(place.format(address)) as registry:
            await registry.register(CLERK)
            await registry.register(CLERK)
            assert await registry.names() == {"clerk": "agent"}
            assert "sesame" not in registry.url
            await registry.deregister(CLERK)
        async with open_registry(guarded.url) as registry:
            with pytest.raises(RegistryUnavailable):
                await registry.register(CLERK)
