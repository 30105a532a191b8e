"""The cached view of a registry: asked once, kept fresh, and honest about what it cannot know."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
from kit.nodes import node

from retinue.service.client import directory as module
from retinue.service.client.directory import Directory
from retinue.service.errors import Invalid, RegistryUnavailable, UnknownName
from retinue.service.registry import Node
from retinue.service.registry.memory import MemoryRegistry

TASK = node("task", "127.0.0.1:1")


class Counted(MemoryRegistry):
    """A registry that counts what it is asked, and can go away."""

    def __init__(self, *nodes: Node) -> None:
        super().__init__()
        self._nodes.update({each.id: each for each in nodes})
        self.finds: list[str] = []
        self.watches: list[str] = []
        self.watching: set[str] = set()
        self.blind: set[str] = set()
        self.away = False

    async def find(self, name: str) -> tuple[Node, ...]:
        self.finds.append(name)
        await asyncio.sleep(0)
        if self.away:
            raise RegistryUnavailable("the registry is away")
        return await super().find(name)

    async def names(self) -> Mapping[str, str]:
        if self.away:
            raise RegistryUnavailable("the registry is away")
        return await super().names()

    async def watch(self, name: str) -> AsyncIterator[tuple[Node, ...]]:
        self.watches.append(name)
        if self.away:
            raise RegistryUnavailable("the registry is away")
        self.watching.add(name)
        try:
            async for nodes in super().watch(name):
                if name not in self.blind:
                    yield nodes
        finally:
            self.watching.discard(name)


async def becomes(directory: Directory, name: str, wanted: tuple[Node, ...]) -> None:
    async with asyncio.timeout(5):
        while (directory.cached(name) or ()) != wanted:
            await directory.changed(name, since=directory.cached(name) or ())


async def test_five_hundred_first_callers_make_one_query() -> None:
    registry = Counted(TASK)
    async with Directory(registry) as directory:
        found = await asyncio.gather(*(directory.nodes("task") for _ in range(500)))
    assert set(found) == {(TASK,)}
    assert registry.finds == ["task"]


async def test_a_cancelled_first_caller_does_not_take_the_others_along() -> None:
    async with Directory(Counted(TASK)) as directory:
        first, second = (asyncio.ensure_future(directory.nodes("task")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == (TASK,)


async def test_a_used_name_is_followed_without_further_queries() -> None:
    registry = Counted(TASK)
    other = node("task", "127.0.0.1:2", 2)
    async with Directory(registry) as directory:
        await directory.nodes("task")
        await registry.register(other)
        await becomes(directory, "task", (TASK, other))
        assert await directory.nodes("task") == (TASK, other)
    assert registry.finds == ["task"]


async def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    async with Directory(Counted(TASK)) as directory:
        with pytest.raises(UnknownName, match="did you mean task"):
            await directory.nodes("tsak")


async def test_what_is_no_name_is_invalid() -> None:
    async with Directory(Counted()) as directory:
        with pytest.raises(Invalid):
            await directory.nodes("No Name")


async def test_a_name_that_vanished_is_unknown_again() -> None:
    registry = Counted(TASK)
    async with Directory(registry) as directory:
        await directory.nodes("task")
        await registry.deregister(TASK)
        await becomes(directory, "task", ())
        with pytest.raises(UnknownName):
            await directory.nodes("task")


async def test_a_node_that_just_started_is_found_at_once() -> None:
    registry = Counted()
    async with Directory(registry) as directory:
        with pytest.raises(UnknownName):
            await directory.nodes("task")
        await registry.register(TASK)
        assert await directory.nodes("task") == (TASK,)


async def test_a_name_that_came_back_is_found_before_its_watch_says_so() -> None:
    registry = Counted(TASK)
    async with Directory(registry) as directory:
        await directory.nodes("task")
        await registry.deregister(TASK)
        await becomes(directory, "task", ())
        registry.blind.add("task")
        await registry.register(TASK)
        assert await directory.nodes("task") == (TASK,)


async def test_a_registry_that_went_away_leaves_the_last_answer() -> None:
    registry = Counted(TASK)
    async with Directory(registry) as directory:
        await directory.nodes("task")
        registry.away = True
        assert await directory.nodes("task") == (TASK,)


async def test_a_polled_name_survives_the_registry_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCHES", 0)
    monkeypatch.setattr(module, "STALE_S", 0.0)
    registry = Counted(TASK)
    async with Directory(registry) as directory:
        await directory.nodes("task")
        registry.away = True
        assert await directory.nodes("task") == (TASK,)
    assert registry.finds == ["task", "task"]


async def test_a_polled_name_is_answered_at_once_while_it_is_asked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCHES", 0)
    monkeypatch.setattr(module, "POLL_S", 0.0)
    registry = Counted(TASK)
    moved, told = node("task", "127.0.0.1:2"), asyncio.Event()
    async with Directory(registry) as directory:
        await directory.nodes("task")
        directory.listen(lambda _, nodes: told.set() if moved in nodes else None)
        await registry.register(moved)
        known = await asyncio.gather(*(directory.nodes("task") for _ in range(50)))
        assert set(known) == {(TASK,)}
        async with asyncio.timeout(5):
            await told.wait()
        assert registry.finds == ["task", "task"]
        assert moved in await directory.nodes("task")


async def test_a_look_takes_an_answer_of_the_age_it_allows_and_starts_no_watch() -> None:
    registry = Counted(TASK)
    async with Directory(registry) as directory:
        await asyncio.gather(*(directory.look("task", age_s=60.0) for _ in range(50)))
        assert await directory.look("task", age_s=60.0) == (TASK,)
        assert await directory.look("gone", age_s=60.0) == ()
        assert registry.finds == ["task", "gone"]
        assert await directory.look("task", age_s=0.0) == (TASK,)
        assert registry.finds == ["task", "gone", "task"]
        assert directory.cached("task") is None


async def test_a_registry_never_reached_is_not_an_unknown_name() -> None:
    registry = Counted(TASK)
    registry.away = True
    async with Directory(registry) as directory:
        with pytest.raises(RegistryUnavailable):
            await directory.nodes("task")
        registry.away = False
        assert await directory.nodes("task") == (TASK,)


async def test_no_more_names_are_watched_than_the_registry_allows() -> None:
    nodes = [node(f"task-{number}", "127.0.0.1:1") for number in range(module.WATCHES + 3)]
    registry = Counted(*nodes)
    async with Directory(registry) as directory:
        for each in nodes:
            await directory.nodes(each.name)
        await asyncio.sleep(0)
        assert len(registry.watches) == module.WATCHES
        await directory.nodes(nodes[-1].name)
        await registry.deregister(nodes[0])
        await becomes(directory, nodes[0].name, ())
        await directory.nodes(nodes[-1].name)
        await asyncio.sleep(0)
        assert registry.watches[-1] == nodes[-1].name
        assert registry.watching == {each.name for each in (*nodes[1 : module.WATCHES], nodes[-1])}


async def test_names_are_followed() -> None:
    registry = Counted(TASK)
    async with Directory(registry) as directory:
        assert await directory.names() == {"task": "service"}
        await registry.register(node("project", "127.0.0.1:3"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "project" in await directory.names()


async def test_nothing_runs_after_it_is_left() -> None:
    before = asyncio.all_tasks()
    async with Directory(Counted(TASK)) as directory:
        await directory.nodes("task")
        await directory.names()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) > len(before)
    assert asyncio.all_tasks() == before


async def test_names_that_nothing_here_could_bear_are_passed_over() -> None:
    async with MemoryRegistry() as registry, Directory(registry) as directory:
        for name in ("task", "My_Web"):
            await registry.register(Node(name=name, id=f"{name}-1", address="127.0.0.1:1"))
        assert await directory.names() == {"task": "service"}
