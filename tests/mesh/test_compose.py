"""docker-compose.yml, run for real without containers: its commands, environment and order, on loopback.

Host names become 127.0.0.1 and each node's port 9000 a free port; Consul and Redis are the real ones of the tests.
"""

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from retinue.v1 import agent_pb2, agent_pb2_grpc

ROOT = Path(__file__).parents[2]
GROUND = {"consul", "redis"}  # the tests bring their own, on free ports
NODES = {"task", "project", "notify", "task-mgr", "project-mgr", "comms-mgr", "router"}
BIN = Path(sys.executable).parent


def compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return services


def entrypoint() -> list[str]:
    found = re.search(r"^ENTRYPOINT (\[.*\])$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    assert found
    words: list[str] = json.loads(found.group(1))
    return words


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Loopback:
    """Where the names of the compose file lie on this machine."""

    registry: str
    store: str
    ports: Mapping[str, int]

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    def argv(self, name: str, command: str) -> list[str]:
        words = [*entrypoint(), *command.split()]
        placed = {"0.0.0.0:9000": self.address(name), f"{name}:9000": self.address(name)}
        words = [placed.get(word, word).replace("/app/", f"{ROOT}/") for word in words]
        return [str(BIN / words[0]), *words[1:]]

    def environment(self, declared: Mapping[str, str | None]) -> dict[str, str]:
        placed = {"consul://consul:8500": self.registry, "redis://redis:6379/0": self.store}
        # A name without a value would be passed through; here nothing is, so that the offline model answers.
        given = {name: placed.get(value, value) for name, value in declared.items() if value is not None}
        return {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}/services:{ROOT}/proto", **given}


@asynccontextmanager
async def container(name: str, service: Mapping[str, Any], loopback: Loopback) -> AsyncIterator[None]:
    """One node as its own process, SERVING when entered; stopped as Compose stops it, and its exit code checked."""
    process = await asyncio.create_subprocess_exec(
        *loopback.argv(name, service["command"]),
        env=loopback.environment(service["environment"]),
        stdin=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(30):
            await serving(loopback.address(name), process)
        yield
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(float(service["stop_grace_period"].rstrip("s"))):
            assert await process.wait() == 0, name
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def serving(address: str, process: asyncio.subprocess.Process) -> None:
    """Returns once the node at `address` says SERVING; fails at once when its process has ended."""

    async def watch() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            async for answer in health.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return

    ended = asyncio.ensure_future(process.wait())
    healthy = asyncio.ensure_future(watch())
    try:
        await asyncio.wait({ended, healthy}, return_when=asyncio.FIRST_COMPLETED)
        assert not ended.done(), f"{address} ended with {process.returncode} before it was SERVING"
        await healthy
    finally:
        for waiting in (ended, healthy):
            waiting.cancel()
        await asyncio.gather(ended, healthy, return_exceptions=True)


async def health_check_of_the_image(address: str) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "deploy" / "healthcheck.py"), address, stdout=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


@pytest.mark.timeout(180)
async def test_the_composed_mesh_starts_in_order_and_answers_through_the_router(
    consul_url: str, redis_url: str
) -> None:
    services = compose()
    loopback = Loopback(consul_url, redis_url, {name: free_port() for name in NODES})
    order = TopologicalSorter({name: service.get("depends_on", {}) for name, service in services.items()})
    async with AsyncExitStack() as mesh:
        for name in order.static_order():
            if name not in GROUND:
                await mesh.enter_async_context(container(name, services[name], loopback))
        assert await health_check_of_the_image(loopback.address("router")) == 0
        async with grpc.aio.insecure_channel(loopback.address("router")) as channel:
            chat = agent_pb2_grpc.AgentStub(channel).Chat
            async with asyncio.timeout(60):
                added = await chat(agent_pb2.ChatRequest(message="add a task called buy milk for ada"))
                asked = await chat(agent_pb2.ChatRequest(message="what tasks does ada have?"))
    assert added.agent == "task-mgr"
    assert "buy milk" in asked.reply


def test_the_composed_mesh_is_the_whole_office() -> None:
    assert compose().keys() == NODES | GROUND


@pytest.mark.parametrize("name", sorted(NODES))
def test_each_node_runs_itself_alone_and_advertises_its_own_name(name: str) -> None:
    node = compose()[name]
    assert node["command"].split() == [
        *("run", "/app/agents/office", "--only", name),
        *("--listen", "0.0.0.0:9000", "--advertise", f"{name}:9000"),
    ]
    assert {wanted["condition"] for wanted in node["depends_on"].values()} == {"service_healthy"}


def test_only_the_router_is_published_and_on_this_machine_only() -> None:
    published = {name: service["ports"] for name, service in compose().items() if "ports" in service}
    assert published == {"router": ["127.0.0.1:9000:9000"]}


def test_no_secret_is_written_in_the_compose_file() -> None:
    environment = compose()["router"]["environment"]
    assert {name for name, value in environment.items() if value} == {"RETINUE_REGISTRY", "RETINUE_STORE"}
    assert "OPENAI_API_KEY" in environment


def test_consul_and_redis_have_named_versions_and_a_durable_store() -> None:
    services = compose()
    assert re.fullmatch(r"hashicorp/consul:\d+\.\d+", services["consul"]["image"])
    assert re.fullmatch(r"redis:\d+\.\d+-alpine", services["redis"]["image"])
    assert "redis-data:/data" in services["redis"]["volumes"]
    settings = dict(
        line.split(maxsplit=1)
        for line in (ROOT / "deploy" / "redis.conf").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert (settings["appendonly"], settings["maxmemory-policy"]) == ("yes", "noeviction")
