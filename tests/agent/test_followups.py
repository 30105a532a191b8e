"""Messages for a session whose turn is running: behind it, or into it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from kit.replicas import replica

from retinue.agent import Agent, tool
from retinue.agent.model import ModelRequest
from retinue.agent.model.scripted import Scripted, call
from retinue.service.chat import Call, RunState
from retinue.service.store import Store


class Slow:
    """A tool that begins, and ends when it is let."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.tool = tool(self.work)

    async def work(self) -> str:
        """Works."""
        self.begun.set()
        await self.go_on.wait()
        return "worked"


async def ended(agent: Agent, run_id: str) -> None:
    async with asyncio.timeout(10), aclosing(agent.watch(run_id)) as events:
        async for _ in events:
            pass


def said(request: ModelRequest) -> list[tuple[str, str]]:
    return [(each.message.role, each.message.text) for each in request.messages]


async def test_a_follow_up_is_a_turn_behind_the_running_one(shared_store: Store) -> None:
    slow = Slow()
    model = Scripted(call("work"), "done", "and that too")
    async with replica(shared_store, Agent("clerk", model=model, tools=[slow.tool])) as clerk:
        turn = asyncio.create_task(clerk.ask("work"))
        await slow.begun.wait()
        run_id = await clerk.follow_up("and that?", Call(request_id="two"))
        assert await clerk.follow_up("and that?", Call(request_id="two")) == run_id
        slow.go_on.set()
        assert (await turn).text == "done"
        await ended(clerk, run_id)
        reply = await clerk.run(run_id)
    assert (reply.state, reply.text) == (RunState.COMPLETED, "and that too")
    assert said(model.requests[1])[-1] == ("tool", "worked")
    assert said(model.requests[2])[-1] == ("user", "and that?")


async def test_a_steering_message_from_any_replica_goes_in_behind_the_running_tools(shared_store: Store) -> None:
    slow = Slow()
    model = Scripted(call("work"), "done, in blue")
    async with (
        replica(shared_store, Agent("clerk", model=model, tools=[slow.tool])) as one,
        replica(shared_store, Agent("clerk", model=Scripted())) as two,
    ):
        turn = asyncio.create_task(one.ask("paint it"))
        await slow.begun.wait()
        first = await two.follow_up("in blue", steer=True)
        second = await one.follow_up("and today", steer=True)
        slow.go_on.set()
        reply = await turn
        assert reply.text == "done, in blue"
        assert said(model.requests[1])[-3:] == [("tool", "worked"), ("user", "in blue"), ("user", "and today")]
        for run_id in (first, second):
            await ended(two, run_id)
            steered = await two.run(run_id)
            assert (steered.state, steered.text) == (RunState.COMPLETED, "done, in blue")
            assert reply.run_id in steered.reason
        history = await two.history()
    assert [message.role for message in history.messages] == ["user", "assistant", "tool", "user", "user", "assistant"]


async def test_a_steering_message_that_comes_too_late_is_a_turn_of_its_own(shared_store: Store) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def think(request: ModelRequest) -> str:
        begun.set()
        await go_on.wait()
        return "done"

    model = Scripted(think, "in blue then", "later")
    async with replica(shared_store, Agent("clerk", model=model)) as clerk:
        turn = asyncio.create_task(clerk.ask("paint it"))
        await begun.wait()
        late = await clerk.follow_up("in blue", steer=True)
        go_on.set()
        assert (await turn).text == "done"
        await ended(clerk, late)
        assert (await clerk.run(late)).text == "in blue then"
        assert (await clerk.ask("next")).text == "later"
    assert [text for role, text in said(model.requests[2]) if role == "user"] == ["paint it", "in blue", "next"]


async def test_steering_an_idle_session_is_an_ordinary_turn(shared_store: Store) -> None:
    async with replica(shared_store, Agent("clerk", model=Scripted("hello"))) as clerk:
        run_id = await clerk.follow_up("hi", steer=True)
        await ended(clerk, run_id)
        assert (await clerk.run(run_id)).text == "hello"
        assert len((await clerk.history()).messages) == 2
