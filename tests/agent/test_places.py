"""One writer per session over all replicas: turns wait for each other, and a stale writer is refused."""

from __future__ import annotations

import asyncio

import pytest
from kit.replicas import LEASE_S, replica

from retinue.agent import Agent, tool
from retinue.agent.keys import lease_key
from retinue.agent.model import ModelRequest
from retinue.agent.model.scripted import Scripted, call
from retinue.agent.session.places import Places
from retinue.service.chat import Call
from retinue.service.errors import SessionBusy
from retinue.service.store import Lease, Store


async def test_a_turn_waits_for_the_turn_that_another_replica_has_in_that_session(shared_store: Store) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        """Takes its time."""
        begun.set()
        await go_on.wait()
        return "slowly done"

    one, two = Scripted(call("slow"), "one is done"), Scripted("elsewhere", "two is done")
    async with (
        asyncio.timeout(20),
        replica(shared_store, Agent("clerk", model=one, tools=[slow])) as first,
        replica(shared_store, Agent("clerk", model=two)) as second,
        asyncio.TaskGroup() as group,
    ):
        running = group.create_task(first.ask("1"))
        await begun.wait()
        waiting = group.create_task(second.ask("2"))
        assert (await second.ask("x", Call(session="other"))).text == "elsewhere"
        assert not waiting.done()
        go_on.set()
        assert (await running).text == "one is done"
        assert (await waiting).text == "two is done"
    assert [each.message.text for each in two.requests[1].messages] == ["1", "", "slowly done", "one is done", "2"]


async def test_a_session_whose_owner_died_is_taken_over_when_its_lease_is_over(shared_store: Store) -> None:
    assert await shared_store.acquire(lease_key("clerk", ""), "dead", ttl=LEASE_S)
    async with asyncio.timeout(20), replica(shared_store, Agent("clerk", model=Scripted("hello"))) as clerk:
        assert (await clerk.ask("hi")).text == "hello"


async def test_a_turn_that_has_lost_its_session_is_ended_and_writes_nothing_more(shared_store: Store) -> None:
    begun, hang_up = asyncio.Event(), asyncio.Event()

    async def hang(request: ModelRequest) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            hang_up.set()
        return ""

    async with asyncio.timeout(20), replica(shared_store, Agent("clerk", model=Scripted(hang))) as clerk:
        turn = asyncio.create_task(clerk.ask("hi"))
        await begun.wait()
        await shared_store.delete(lease_key("clerk", ""))
        assert await shared_store.acquire(lease_key("clerk", ""), "thief", ttl=60)
        with pytest.raises(SessionBusy):
            await turn
        assert hang_up.is_set()
        assert (await shared_store.read("agent/{clerk}/history")).length == 1


async def test_a_write_after_the_lease_is_lost_is_refused(shared_store: Store) -> None:
    async def lose(request: ModelRequest) -> str:
        await shared_store.delete(lease_key("clerk", ""))
        assert await shared_store.acquire(lease_key("clerk", ""), "thief", ttl=60)
        return "too late"

    async with asyncio.timeout(20), replica(shared_store, Agent("clerk", model=Scripted(lose))) as clerk:
        with pytest.raises(SessionBusy):
            await clerk.ask("hi")
        assert (await shared_store.read("agent/{clerk}/history")).length == 1


async def test_a_long_turn_keeps_its_session(shared_store: Store) -> None:
    renewed = asyncio.Event()

    async def think(request: ModelRequest) -> str:
        # As long as three leases, told by another lease that ends by itself.
        for number in range(3):
            assert await shared_store.acquire(f"clock {number}", "a", ttl=LEASE_S)
            async with Places(shared_store, ttl=LEASE_S).held(f"clock {number}"):
                pass
        assert await shared_store.acquire(lease_key("clerk", ""), "thief", ttl=60, join=False) is None
        renewed.set()
        return "thought"

    async with asyncio.timeout(20), replica(shared_store, Agent("clerk", model=Scripted(think))) as clerk:
        assert (await clerk.ask("hi")).text == "thought"
        assert renewed.is_set()


async def test_the_session_is_free_again_at_once_when_a_turn_ends_however_it_ends(shared_store: Store) -> None:
    begun = asyncio.Event()

    async def hang(request: ModelRequest) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    async with (
        asyncio.timeout(20),
        replica(shared_store, Agent("clerk", model=Scripted(hang, RuntimeError("no"), "x"))) as clerk,
    ):
        turn = asyncio.create_task(clerk.ask("hi"))
        await begun.wait()
        turn.cancel()
        await asyncio.wait([turn])
        for _ in range(2):
            assert isinstance(await shared_store.acquire(lease_key("clerk", ""), "other", ttl=60), Lease)
            await shared_store.release(lease_key("clerk", ""), "other")
            await asyncio.gather(clerk.ask("again"), return_exceptions=True)
        assert await shared_store.acquire(lease_key("clerk", ""), "other", ttl=60)
