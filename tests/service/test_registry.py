"""The contract of every registry: memory, local and Consul, each read through a second registry on the same URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from kit.watching import closing, until

from retinue.service.errors import Invalid, RegistryUnavailable
from retinue.service.registry import Node, Registry, open_registry

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
SECOND = replace(CLERK, id="clerk-00000002", address="127.0.0.1:9002")
TASK = Node(name="task", id="task-00000001", address="127.0.0.1:9003")
FRONT = Node(name="router", id="router-00000001", address="127.0.0.1:9004", type="router")


@pytest.fixture(params=["memory", "local", "consul"])
def registry_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "consul":
        return str(request.getfixturevalue("consul_url"))
    return "memory:" if request.param == "memory" else f"local://{tmp_path / 'registry.db'}"


@pytest.fixture
async def registry(registry_url: str) -> AsyncIterator[Registry]:
    async with open_registry(registry_url) as registry:
        yield registry


@pytest.fixture
async def elsewhere(registry_url: str, registry: Registry) -> AsyncIterator[Registry]:
    """What another process sees; a registry in memory is seen by its own process alone."""
    if registry_url == "memory:":
        yield registry
        return
    async with open_registry(registry_url) as elsewhere:
        yield elsewhere


def facts(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes but for their health: nothing listens at these addresses, and Consul notices sooner or later."""
    return tuple(replace(node, healthy=True) for node in nodes)


async def test_a_registered_node_is_found_with_all_its_facts(registry: Registry, elsewhere: Registry) -> None:
    await registry.register(CLERK)
    assert facts(await elsewhere.find("clerk")) == (CLERK,)


async def test_nodes_of_one_name_are_found_in_order_of_id(registry: Registry, elsewhere: Registry) -> None:
    for node in (SECOND, TASK, CLERK):
        await registry.register(node)
    assert facts(await elsewhere.find("clerk")) == (CLERK, SECOND)


async def test_a_name_that_nobody_bears_finds_nothing(registry: Registry) -> None:
    await registry.register(CLERK)
    assert await registry.find("clerkk") == ()


async def test_registering_again_keeps_one_node(registry: Registry, elsewhere: Registry) -> None:
    for _ in range(3):
        await registry.register(CLERK)
    assert facts(await elsewhere.find("clerk")) == (CLERK,)


async def test_registering_again_with_other_facts_replaces_them(registry: Registry, elsewhere: Registry) -> None:
    await registry.register(CLERK)
    changed = replace(CLERK, services=("task",), address="127.0.0.1:9011", description="", model="")
    await registry.register(changed)
    async with closing(elsewhere.watch("clerk")) as watch:
        await until(watch, lambda nodes: facts(nodes) == (changed,))


async def test_names_have_their_types(registry: Registry, elsewhere: Registry) -> None:
    assert await elsewhere.names() == {}
    for node in (CLERK, SECOND, TASK, FRONT):
        await registry.register(node)
    assert await elsewhere.names() == {"clerk": "agent", "router": "router", "task": "service"}


async def test_a_deregistered_node_is_gone(registry: Registry, elsewhere: Registry) -> None:
    await registry.register(CLERK)
    await registry.register(SECOND)
    await registry.deregister(CLERK)
    await registry.deregister(CLERK)
    assert facts(await elsewhere.find("clerk")) == (SECOND,)
    await registry.deregister(SECOND)
    assert await elsewhere.names() == {}


async def test_a_watch_shows_what_is_there_and_each_change(registry: Registry, elsewhere: Registry) -> None:
    await registry.register(CLERK)
    async with closing(elsewhere.watch("clerk")) as watch:
        assert facts(await anext(watch)) == (CLERK,)
        await registry.register(SECOND)
        await until(watch, lambda nodes: facts(nodes) == (CLERK, SECOND))
        await registry.deregister(CLERK)
        await until(watch, lambda nodes: facts(nodes) == (SECOND,))


async def test_a_watch_may_begin_before_the_first_node(registry: Registry, elsewhere: Registry) -> None:
    async with closing(elsewhere.watch("clerk")) as watch:
        assert await anext(watch) == ()
        await registry.register(CLERK)
        await until(watch, lambda nodes: facts(nodes) == (CLERK,))


async def test_a_watch_of_names_shows_who_comes_and_goes(registry: Registry, elsewhere: Registry) -> None:
    async with closing(elsewhere.watch_names()) as watch:
        assert await anext(watch) == {}
        await registry.register(CLERK)
        await until(watch, lambda names: names == {"clerk": "agent"})
        await registry.register(TASK)
        await until(watch, lambda names: names == {"clerk": "agent", "task": "service"})
        await registry.deregister(CLERK)
        await until(watch, lambda names: names == {"task": "service"})


async def test_every_watcher_sees_a_change(registry: Registry, elsewhere: Registry) -> None:
    async def see_clerk() -> None:
        async with closing(elsewhere.watch("clerk")) as watch:
            await until(watch, lambda nodes: facts(nodes) == (CLERK,))

    async with asyncio.TaskGroup() as watchers:
        for _ in range(5):
            watchers.create_task(see_clerk())
        await asyncio.sleep(0)
        await registry.register(CLERK)


async def test_eighty_services_and_a_long_description_are_kept(registry: Registry, elsewhere: Registry) -> None:
    services = tuple(f"service-with-a-long-name-{number}" for number in range(80))
    description = "Führt die Liste 📋 für alle. " * 22
    assert len(description) > 600
    node = replace(CLERK, services=services, description=description)
    await registry.register(node)
    await registry.register(node)
    (found,) = await elsewhere.find("clerk")
    assert found.services == services
    assert description.startswith(found.description)
    assert len(found.description.encode()) > 512 - 4


@pytest.mark.parametrize("url", ["consul://:secret@127.0.0.1:1", "consul://127.0.0.1:1?token=secret", "local"])
@pytest.mark.parametrize("method", ["register", "deregister", "find", "names", "watch", "watch_names"])
async def test_each_method_says_that_the_registry_is_out_of_reach(url: str, method: str, tmp_path: Path) -> None:
    url = f"local://{tmp_path}/nowhere/registry.db" if url == "local" else url
    async with open_registry(url) as registry:
        argument = {"register": (CLERK,), "deregister": (CLERK,), "find": ("clerk",), "watch": ("clerk",)}
        result = getattr(registry, method)(*argument.get(method, ()))
        with pytest.raises(RegistryUnavailable) as caught:
            await (anext(result) if method.startswith("watch") else result)
    assert registry.url in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("url", ["", "redis://:secret@127.0.0.1:1", "consul://", "consul://[:secret@x", "consul://a:b"])
def test_a_url_that_names_no_registry_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="use consul://") as caught:
        open_registry(url)
    assert "secret" not in caught.value.message


async def test_a_memory_registry_is_shared_by_all_who_enter_it() -> None:
    async with open_registry("memory:") as registry:
        async with registry as again:  # type: ignore[attr-defined]
            await again.register(CLERK)
        assert await registry.find("clerk") == (CLERK,)
