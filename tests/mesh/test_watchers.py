"""Whoever watches a run, at whatever replica, sees how it ends: its caller leaves, or its owner is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest
from kit.driver import LEASE_S, Backing, Stage, staged
from kit.histories import check_effects, check_session
from kit.nodes import client_of, registered
from kit.zygote import Zygote

from retinue.agent.keys import history_key
from retinue.agent.session.history import decode
from retinue.service.chat import Call, Completed, Event, Reply, RunState
from retinue.service.client.peer import Peer
from retinue.service.errors import MeshError

# Promised is the lease and one second; the rest is for a machine that is busy with other tests.
SOON_S = LEASE_S + 1.0 + 1.5
LONG = "look:1 | pay:1:30"
IN_TOOL = "clerk tool pay 1 begin"


@asynccontextmanager
async def replicas(stage: Stage) -> AsyncIterator[list[Peer]]:
    """Two replicas, each as a client sees it that knows only that one."""
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stage.start("clerk")
        peers = []
        for node in await stage.mesh.registry.find("clerk"):
            client = await stack.enter_async_context(client_of(await registered("clerk", node.address)))
            peers.append(Peer(client, "clerk"))
        yield peers


async def run_in(stage: Stage, session: str) -> str:
    """The run that wrote the session's first message."""
    return decode((await stage.mesh.store.read(history_key("clerk", session))).entries[0]).message.run_id


async def watched(peer: Peer, run_id: str, *, after: int = 0) -> list[Event] | MeshError:
    try:
        async with aclosing(peer.watch(run_id, after=after)) as events:
            return [event async for event in events]
    except MeshError as error:
        return error


def end_of(events: list[Event] | MeshError) -> Reply:
    assert not isinstance(events, MeshError), events
    assert [event.seq for event in events] == list(range(events[0].seq, events[0].seq + len(events)))
    assert isinstance(events[-1].body, Completed)
    return events[-1].body.reply


@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "stream"])
async def test_every_replica_tells_that_the_caller_left_and_the_run_is_gone_on_with(
    zygote: Zygote, tmp_path: Path, backing: Backing, streamed: bool
) -> None:
    async with (
        asyncio.timeout(40),
        staged(zygote, tmp_path / "stage", backing.store, registry=backing.registry) as stage,
        replicas(stage) as peers,
    ):

        async def follow() -> None:
            async with aclosing(stage.stream("clerk", LONG, session="s", request_id="r")) as events:
                async for _ in events:
                    pass

        turn = asyncio.create_task(follow() if streamed else stage.ask("clerk", LONG, session="s", request_id="r"))
        await stage.at(IN_TOOL, request_id="r")
        run_id = await run_in(stage, "s")
        watchers = [asyncio.create_task(watched(peer, run_id)) for peer in peers]
        turn.cancel()
        async with asyncio.timeout(SOON_S):
            ends = [end_of(await watcher) for watcher in watchers]
        assert ends[0] == ends[1]
        assert ends[0].state is RunState.CANCELLED
        reply = await stage.ask("clerk", LONG, session="s", request_id="r")
        assert (reply.state, reply.run_id) == (RunState.COMPLETED, run_id)
        check_effects(stage.effects(), await check_session(stage.mesh.store, "clerk", "s"))


async def test_whoever_watches_is_told_soon_that_the_owner_was_killed_and_may_watch_on(
    zygote: Zygote, tmp_path: Path, backing: Backing
) -> None:
    async with (
        asyncio.timeout(40),
        staged(zygote, tmp_path / "stage", backing.store, registry=backing.registry) as stage,
        replicas(stage),
    ):
        clerk = stage.mesh.peer("clerk")
        begun = await clerk.ask(LONG, Call(session="s", request_id="r", detach=True))
        owner = await stage.at(IN_TOOL, request_id="r")
        watchers = [asyncio.create_task(watched(clerk, begun.run_id)) for _ in range(4)]
        first = asyncio.create_task(anext(clerk.watch(begun.run_id)))
        await first
        await owner.kill()
        async with asyncio.timeout(SOON_S):
            seen = [await watcher for watcher in watchers]
        assert {end_of(events).state for events in seen} == {RunState.INTERRUPTED}
        assert (await clerk.run(begun.run_id)).state is RunState.INTERRUPTED
        reply = await stage.ask("clerk", LONG, session="s", request_id="r")
        assert (reply.run_id, reply.state) == (begun.run_id, RunState.COMPLETED)
        last = max(event.seq for events in seen if not isinstance(events, MeshError) for event in events)
        rest = await watched(clerk, begun.run_id, after=last)
        assert end_of(rest).text == reply.text
        assert isinstance(rest, list)
        assert rest[0].seq == last + 1
        check_effects(stage.effects(), await check_session(stage.mesh.store, "clerk", "s"))


async def test_a_live_stream_goes_on_at_another_replica_when_its_owner_is_killed(
    zygote: Zygote, tmp_path: Path, backing: Backing
) -> None:
    async with (
        asyncio.timeout(40),
        staged(zygote, tmp_path / "stage", backing.store, registry=backing.registry) as stage,
        replicas(stage),
    ):

        async def follow() -> list[Event]:
            async with aclosing(stage.stream("clerk", LONG, session="s", request_id="r")) as events:
                return [event async for event in events]

        turn = asyncio.create_task(follow())
        await (await stage.at(IN_TOOL, request_id="r")).kill()
        events = await turn
        assert events[0].seq == 1
        assert end_of(events).state is RunState.COMPLETED
        assert await watched(stage.mesh.peer("clerk"), events[0].run_id) == events
        check_effects(stage.effects(), await check_session(stage.mesh.store, "clerk", "s"))
