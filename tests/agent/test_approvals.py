"""Calls that wait for somebody's answer: each has its own, it is given once, used once, and survives who asked."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from kit.replicas import replica

from retinue.agent import Agent, Ask, Hooks, Invocation, tool
from retinue.agent.model import ModelRequest
from retinue.agent.model.scripted import Scripted, call
from retinue.service.chat import Answer, Call, PendingRaised, Reply, RunState, ToolStatus
from retinue.service.errors import AlreadyExists, Invalid, UnknownName
from retinue.service.store import Store

YES, NO = Answer(approved=True), Answer(approved=False, reason="too dear")


class Shop:
    """A tool with a side effect, and a hook that has it approved."""

    def __init__(self) -> None:
        self.bought: list[str] = []
        self.tools = [tool(self.buy)]
        self.hooks = Hooks(before_tool_call=self.check)

    async def buy(self, what: str) -> str:
        """Buys something."""
        self.bought.append(what)
        return f"bought {what}"

    async def check(self, invocation: Invocation) -> Ask | None:
        return Ask(f"buy {invocation.arguments['what']}?") if invocation.name == "buy" else None

    def agent(self, model: Scripted) -> Agent:
        return Agent("clerk", model=model, tools=self.tools, hooks=self.hooks)


async def ended(agent: Agent, run_id: str) -> Reply:
    async with asyncio.timeout(10), aclosing(agent.watch(run_id)) as events:
        async for _ in events:
            pass
    return await agent.run(run_id)


async def test_an_approved_call_is_made_once_and_the_run_goes_on_at_another_replica(shared_store: Store) -> None:
    shop = Shop()
    async with replica(shared_store, shop.agent(Scripted(call("buy", what="a car")))) as one:
        waiting = await one.ask("buy a car", Call(request_id="one"))
        assert waiting.state is RunState.WAITING
        (pending,) = waiting.pending
        assert (pending.kind, pending.name, pending.text) == ("approval", "buy", "buy a car?")
        assert shop.bought == []
    async with replica(shared_store, shop.agent(Scripted("there it is"))) as two:
        assert await two.ask("buy a car", Call(request_id="one")) == waiting
        assert await two.resolve(waiting.run_id, pending.id, YES) is not RunState.WAITING
        reply = await ended(two, waiting.run_id)
        assert (reply.state, reply.text, reply.run_id) == (RunState.COMPLETED, "there it is", waiting.run_id)
        assert [each.result for each in reply.tool_calls] == ["bought a car"]
        assert await two.ask("buy a car", Call(request_id="one")) == reply
        assert await two.resolve(waiting.run_id, pending.id, YES) is RunState.COMPLETED
        with pytest.raises(Invalid):
            await two.resolve(waiting.run_id, pending.id, NO)
    assert shop.bought == ["a car"]


async def test_parallel_calls_each_keep_their_own_answer(shared_store: Store) -> None:
    shop = Shop()
    model = Scripted([call("buy", what="a car"), call("buy", what="a bike")], "only the bike")
    async with replica(shared_store, shop.agent(model)) as clerk:
        waiting = await clerk.ask("buy both")
        car, bike = waiting.pending
        assert await clerk.resolve(waiting.run_id, bike.id, YES) is RunState.WAITING
        assert await clerk.resolve(waiting.run_id, bike.id, YES) is RunState.WAITING
        with pytest.raises(AlreadyExists):
            await clerk.resolve(waiting.run_id, bike.id, NO)
        with pytest.raises(Invalid, match=car.id):
            await clerk.resolve(waiting.run_id, "pending-other", YES)
        with pytest.raises(UnknownName):
            await clerk.resolve("run-other", car.id, YES)
        assert await clerk.resolve(waiting.run_id, car.id, NO) is not RunState.WAITING
        reply = await ended(clerk, waiting.run_id)
    assert shop.bought == ["a bike"]
    assert [each.status for each in reply.tool_calls] == [ToolStatus.REFUSED, ToolStatus.OK]
    assert "too dear" in reply.tool_calls[0].error


async def test_a_conversation_that_goes_on_leaves_what_waited_undone(shared_store: Store) -> None:
    shop = Shop()
    model = Scripted(call("buy", what="a car"), "never mind")
    async with replica(shared_store, shop.agent(model)) as clerk:
        waiting = await clerk.ask("buy a car")
        assert (await clerk.ask("or not")).text == "never mind"
        assert (await clerk.run(waiting.run_id)).state is RunState.INTERRUPTED
        with pytest.raises(Invalid):
            await clerk.resolve(waiting.run_id, waiting.pending[0].id, YES)
    assert shop.bought == []
    assert "it was not made" in model.requests[1].messages[2].message.text


async def test_an_approval_that_was_used_when_its_owner_died_is_not_used_again(shared_store: Store) -> None:
    shop = Shop()
    begun = asyncio.Event()

    async def hang(what: str) -> str:
        """Buys something, slowly."""
        shop.bought.append(what)
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent("clerk", model=Scripted(call("buy", what="a car")), tools=[tool(name="buy")(hang)], hooks=shop.hooks)
    async with (
        replica(shared_store, agent) as one,
        replica(shared_store, shop.agent(Scripted("I cannot tell"))) as two,
    ):
        waiting = await one.ask("buy a car", Call(request_id="one"))
        await one.resolve(waiting.run_id, waiting.pending[0].id, YES)
        await begun.wait()
        await shared_store.delete("agent/{clerk}/lease")
        reply = await two.ask("buy a car", Call(request_id="one"))
    assert [each.status for each in reply.tool_calls] == [ToolStatus.UNKNOWN]
    assert shop.bought == ["a car"]


async def test_an_answer_may_be_the_result_of_the_call(shared_store: Store) -> None:
    shop = Shop()

    async def ask(invocation: Invocation) -> Ask:
        return Ask("what colour?", kind="question")

    agent = Agent(
        "clerk", model=Scripted(call("buy", what="a car"), "blue"), tools=shop.tools, hooks=Hooks(before_tool_call=ask)
    )
    async with replica(shared_store, agent) as clerk:
        async with aclosing(clerk.stream("buy a car")) as stream:
            raised = [event.body.pending async for event in stream if isinstance(event.body, PendingRaised)]
        run_id = (await clerk.history()).messages[0].run_id
        await clerk.resolve(run_id, raised[0].id, Answer(approved=True, result="blue"))
        reply = await ended(clerk, run_id)
    assert [each.result for each in reply.tool_calls] == ["blue"]
    assert shop.bought == []


async def test_a_run_that_waits_can_be_cancelled(shared_store: Store) -> None:
    shop = Shop()

    async def never(request: ModelRequest) -> str:
        return "never"

    async with replica(shared_store, shop.agent(Scripted(call("buy", what="a car"), never))) as clerk:
        waiting = await clerk.ask("buy a car")
        assert await clerk.cancel(waiting.run_id) == 1
        assert (await clerk.run(waiting.run_id)).state is RunState.CANCELLED
        with pytest.raises(Invalid):
            await clerk.resolve(waiting.run_id, waiting.pending[0].id, YES)


async def test_an_answer_after_the_session_was_cleared_starts_nothing(shared_store: Store) -> None:
    shop = Shop()
    async with replica(shared_store, shop.agent(Scripted(call("buy", what="a car"), "never"))) as clerk:
        waiting = await clerk.ask("buy a car")
        await clerk.clear()
        assert await clerk.resolve(waiting.run_id, waiting.pending[0].id, YES) is not RunState.COMPLETED
        assert (await ended(clerk, waiting.run_id)).state is RunState.INTERRUPTED
        assert (await clerk.history()).messages == ()
    assert shop.bought == []


async def test_a_sub_agents_call_that_needs_an_answer_is_refused(shared_store: Store) -> None:
    shop = Shop()
    model = Scripted(call("delegate", task="buy a car"), call("buy", what="a car"), "it may not", "so be it")
    async with replica(shared_store, shop.agent(model)) as clerk:
        reply = await clerk.ask("have a car bought")
    assert (reply.state, reply.text) == (RunState.COMPLETED, "so be it")
    assert "nobody can be asked" in model.requests[2].messages[-1].message.text
    assert shop.bought == []


async def test_an_approved_delegate_is_made(shared_store: Store) -> None:
    async def check(invocation: Invocation) -> Ask | None:
        return Ask("give it away?") if invocation.name == "delegate" else None

    model = Scripted(call("delegate", task="think"), "thought", "told")
    async with replica(shared_store, Agent("clerk", model=model, hooks=Hooks(before_tool_call=check))) as clerk:
        waiting = await clerk.ask("think about it")
        await clerk.resolve(waiting.run_id, waiting.pending[0].id, YES)
        reply = await ended(clerk, waiting.run_id)
    assert [each.status for each in reply.tool_calls] == [ToolStatus.OK]
    assert reply.tool_calls[0].result.endswith("thought")
