"""Runs seen from outside: begun without waiting, looked up, watched by number, and ended, at any replica."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from kit.replicas import replica

from retinue.agent import Agent, tool
from retinue.agent.keys import events_key, lease_key
from retinue.agent.model import ModelRequest
from retinue.agent.model.scripted import Scripted, call
from retinue.service.chat import (
    Answer,
    Call,
    Completed,
    Event,
    Failed,
    Reply,
    RunState,
    TextDelta,
    ToolDone,
    ToolStarted,
)
from retinue.service.errors import Invalid, ModelAuth, RequestConflict, SessionBusy, UnknownName
from retinue.service.store import Store

DETACHED = Call(request_id="one", detach=True)


class Slow:
    """A tool that begins, and ends when it is let."""

    def __init__(self) -> None:
        self.begun, self.go_on, self.made = asyncio.Event(), asyncio.Event(), 0
        self.tool = tool(self.work)

    async def work(self) -> str:
        """Works."""
        self.made += 1
        self.begun.set()
        await self.go_on.wait()
        return "worked"


async def watched(agent: Agent, run_id: str, *, after: int = 0) -> list[Event]:
    async with asyncio.timeout(10), aclosing(agent.watch(run_id, after=after)) as events:
        return [event async for event in events]


def end_of(events: list[Event]) -> Reply:
    assert isinstance(events[-1].body, Completed)
    return events[-1].body.reply


async def test_a_detached_run_goes_on_without_its_caller_and_is_looked_up_at_another_replica(
    shared_store: Store,
) -> None:
    slow = Slow()
    model = Scripted(call("work"), "done")
    async with (
        replica(shared_store, Agent("clerk", model=model, tools=[slow.tool])) as one,
        replica(shared_store, Agent("clerk", model=Scripted())) as two,
    ):
        begun = await one.ask("work", DETACHED)
        assert (begun.state, begun.text) == (RunState.RUNNING, "")
        assert (await two.run(begun.run_id)).state is RunState.RUNNING
        slow.go_on.set()
        end = end_of(await watched(two, begun.run_id))
        assert (end.state, end.text, [each.result for each in end.tool_calls]) == (
            RunState.COMPLETED,
            "done",
            ["worked"],
        )
        assert await two.run(begun.run_id) == end
        assert await one.ask("work", Call(request_id="one")) == end
        with pytest.raises(RequestConflict):
            await two.ask("other work", DETACHED)
        with pytest.raises(UnknownName):
            await two.run("run-nobody")


async def test_a_watcher_elsewhere_gets_each_event_once_under_the_number_that_the_stream_gave_it(
    shared_store: Store,
) -> None:
    slow = Slow()
    slow.go_on.set()
    model = Scripted(call("work"), "one two three")
    async with (
        replica(shared_store, Agent("clerk", model=model, tools=[slow.tool])) as one,
        replica(shared_store, Agent("clerk", model=Scripted())) as two,
    ):
        async with aclosing(one.stream("work")) as stream:
            live = [event async for event in stream]
        run_id = live[0].run_id
        assert [event.seq for event in live] == list(range(1, len(live) + 1))
        kinds = {type(event.body) for event in live}
        assert {ToolStarted, ToolDone, TextDelta, Completed} <= kinds
        for after in range(len(live)):
            assert await watched(two, run_id, after=after) == live[after:]


async def test_two_replicas_that_get_a_detached_request_at_once_begin_one_run(shared_store: Store) -> None:
    slow = Slow()
    models = [Scripted(call("work"), "done") for _ in range(2)]
    agents = [Agent("clerk", model=model, tools=[slow.tool]) for model in models]
    async with replica(shared_store, agents[0]) as one, replica(shared_store, agents[1]) as two:
        replies = await asyncio.gather(one.ask("work", DETACHED), two.ask("work", DETACHED))
        assert replies[0].run_id == replies[1].run_id
        slow.go_on.set()
        ends = await asyncio.gather(*(watched(each, replies[0].run_id) for each in (one, two)))
        assert ends[0] == ends[1]
    assert slow.made == 1


async def test_whoever_watches_a_run_whose_owner_died_is_told_and_may_watch_on(shared_store: Store) -> None:
    slow = Slow()
    async with (
        replica(shared_store, Agent("clerk", model=Scripted(call("work")), tools=[slow.tool])) as one,
        replica(shared_store, Agent("clerk", model=Scripted("gone on with"))) as two,
    ):
        dies = asyncio.create_task(one.ask("work", Call(request_id="one")))
        await slow.begun.wait()
        run_id = (await two.history()).messages[0].run_id
        await shared_store.delete(lease_key("clerk", ""))
        events = await watched(two, run_id)
        assert end_of(events).state is RunState.INTERRUPTED
        assert (await two.run(run_id)).state is RunState.INTERRUPTED
        with pytest.raises(SessionBusy):
            await dies
        assert (await two.ask("work", Call(request_id="one"))).text == "gone on with"
        rest = await watched(two, run_id, after=events[-1].seq)
        assert rest[0].seq == events[-1].seq + 1
        assert end_of(rest).text == "gone on with"
        assert [event.seq for event in await watched(two, run_id)] == list(range(1, rest[-1].seq + 1))


async def test_a_watched_run_that_failed_ends_with_its_error(shared_store: Store) -> None:
    async with replica(shared_store, Agent("clerk", model=Scripted(ModelAuth("no key")))) as clerk:
        begun = await clerk.ask("work", DETACHED)
        last = (await watched(clerk, begun.run_id))[-1].body
    assert isinstance(last, Failed)
    assert isinstance(last.error, ModelAuth)
    assert last.error.message == "no key"


async def test_a_run_that_waits_in_line_is_known_and_can_be_cancelled(shared_store: Store) -> None:
    slow = Slow()
    agent = Agent("clerk", model=Scripted(call("work"), "done"), tools=[slow.tool])
    async with replica(shared_store, agent) as one, replica(shared_store, Agent("clerk", model=Scripted())) as two:
        first = await one.ask("work", Call(detach=True))
        waits = await one.ask("then this", DETACHED)
        assert (await two.run(waits.run_id)).state is RunState.RUNNING
        assert await two.cancel(waits.run_id) == 1
        assert (await two.run(waits.run_id)).state is RunState.CANCELLED
        slow.go_on.set()
        assert end_of(await watched(two, first.run_id)).text == "done"
        assert [message.role for message in (await two.history()).messages] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert await two.cancel(first.run_id) == 0


async def test_a_cancelled_run_says_so_to_everybody_and_is_not_gone_on_with(shared_store: Store) -> None:
    hung_up, begun = asyncio.Event(), asyncio.Event()

    async def hang(request: ModelRequest) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            hung_up.set()
        return ""

    async with (
        replica(shared_store, Agent("clerk", model=Scripted(hang, "never"))) as one,
        replica(shared_store, Agent("clerk", model=Scripted())) as two,
    ):
        turn = asyncio.create_task(one.ask("work", Call(request_id="one")))
        await begun.wait()
        run_id = (await two.history()).messages[0].run_id
        assert await two.cancel(run_id) == 1
        reply = await turn
        assert (reply.state, reply.reason) == (RunState.CANCELLED, "cancelled")
        assert hung_up.is_set()
        assert await two.run(run_id) == reply
        assert await one.ask("work", Call(request_id="one")) == reply
        assert await two.cancel(run_id) == 0


async def test_text_that_comes_in_many_pieces_is_stored_in_few_events(shared_store: Store) -> None:
    text = " ".join(["word"] * 300)
    async with replica(shared_store, Agent("clerk", model=Scripted(text))) as clerk:
        reply = await clerk.ask("talk")
        events = await watched(clerk, reply.run_id)
    said = "".join(event.body.text for event in events if isinstance(event.body, TextDelta))
    assert said == reply.text == text
    assert (await shared_store.read(events_key("clerk", "", reply.run_id))).length < 20


async def test_a_repeated_stream_shows_the_whole_run_again_and_runs_nothing(shared_store: Store) -> None:
    slow = Slow()
    slow.go_on.set()
    async with replica(shared_store, Agent("clerk", model=Scripted(call("work"), "done"), tools=[slow.tool])) as clerk:
        streams = []
        for _ in range(2):
            async with aclosing(clerk.stream("work", Call(request_id="one"))) as stream:
                streams.append([event async for event in stream])
    assert streams[0] == streams[1]
    assert slow.made == 1


async def test_a_run_that_is_over_waits_for_no_answer(shared_store: Store) -> None:
    async with replica(shared_store, Agent("clerk", model=Scripted("done"))) as clerk:
        reply = await clerk.ask("work")
        with pytest.raises(Invalid, match="COMPLETED"):
            await clerk.resolve(reply.run_id, "x", Answer(approved=True))
