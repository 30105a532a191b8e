"""A request that is sent again: one run, one execution, one answer, whichever replica gets it."""

from __future__ import annotations

import asyncio

import pytest
from kit.replicas import replica

from retinue.agent import Agent, Limits, tool
from retinue.agent.keys import lease_key
from retinue.agent.model import ModelRequest
from retinue.agent.model.scripted import Scripted, call
from retinue.service.chat import Call, RunState, ToolStatus
from retinue.service.errors import ModelAuth, RequestConflict, SessionBusy
from retinue.service.store import Store

ONE = Call(request_id="one")


class Payment:
    """A tool with a side effect that must not happen twice; it hangs while `stuck`."""

    def __init__(self) -> None:
        self.made = 0
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.tool = tool(self.pay)

    async def pay(self) -> str:
        """Pays the bill."""
        self.made += 1
        self.begun.set()
        await self.go_on.wait()
        return "paid"


async def test_a_repeat_gets_the_answer_of_the_first_and_nothing_runs_again(shared_store: Store) -> None:
    payment = Payment()
    payment.go_on.set()
    model = Scripted(call("pay"), "It is paid.", "other")
    async with replica(shared_store, Agent("clerk", model=model, tools=[payment.tool])) as clerk:
        first = await clerk.ask("pay", ONE)
        await clerk.ask("something else")
        again = await clerk.ask("pay", ONE)
    assert again == first
    assert (payment.made, len(model.requests)) == (1, 3)


async def test_a_request_id_with_another_body_is_refused(shared_store: Store) -> None:
    async with replica(shared_store, Agent("clerk", model=Scripted("a", "b"))) as clerk:
        await clerk.ask("pay", ONE)
        with pytest.raises(RequestConflict):
            await clerk.ask("pay twice", ONE)
        assert (await clerk.ask("pay twice", Call(session="other", request_id="one"))).text == "b"
        assert len((await clerk.history()).messages) == 2


async def test_two_replicas_that_get_it_at_once_run_it_once(shared_store: Store) -> None:
    payment = Payment()
    payment.go_on.set()
    models = [Scripted(call("pay"), "It is paid.") for _ in range(2)]
    agents = [Agent("clerk", model=model, tools=[payment.tool]) for model in models]
    async with replica(shared_store, agents[0]) as one, replica(shared_store, agents[1]) as two:
        replies = await asyncio.gather(one.ask("pay", ONE), two.ask("pay", ONE))
    assert replies[0] == replies[1]
    assert payment.made == 1
    assert sum(len(model.requests) for model in models) == 2


async def test_a_run_whose_caller_left_is_gone_on_with_when_its_request_comes_again(shared_store: Store) -> None:
    payment = Payment()
    model = Scripted(call("pay"), "I cannot tell whether it is paid.")
    async with replica(shared_store, Agent("clerk", model=model, tools=[payment.tool])) as clerk:
        left = asyncio.create_task(clerk.ask("pay", ONE))
        await payment.begun.wait()
        run_id = (await clerk.history()).messages[0].run_id
        left.cancel()
        await asyncio.wait([left])
        reply = await clerk.ask("pay", ONE)
        history = await clerk.history()
    assert (reply.run_id, reply.state, reply.text) == (run_id, RunState.COMPLETED, "I cannot tell whether it is paid.")
    assert [each.status for each in reply.tool_calls] == [ToolStatus.UNKNOWN]
    assert payment.made == 1
    assert [message.role for message in history.messages] == ["user", "assistant", "tool", "assistant"]


async def lose_owner(shared_store: Store) -> None:
    """What a killed owner leaves: a lease that nobody renews."""
    await shared_store.delete(lease_key("clerk", ""))
    assert await shared_store.acquire(lease_key("clerk", ""), "dead", ttl=0.3)


async def test_a_run_whose_owner_died_is_gone_on_with_under_its_own_id(shared_store: Store) -> None:
    payment = Payment()
    model = Scripted("I cannot tell.")
    async with (
        replica(shared_store, Agent("clerk", model=Scripted(call("pay")), tools=[payment.tool])) as first,
        replica(shared_store, Agent("clerk", model=model)) as second,
    ):
        dies = asyncio.create_task(first.ask("pay", ONE))
        await payment.begun.wait()
        await lose_owner(shared_store)
        with pytest.raises(SessionBusy):
            await dies
        reply = await second.ask("pay", ONE)
        history = await second.history()
    assert reply.text == "I cannot tell."
    assert {message.run_id for message in history.messages} == {reply.run_id}
    assert "outcome is unknown" in model.requests[0].messages[-1].message.text
    assert payment.made == 1


async def test_once_a_later_turn_has_begun_a_run_that_was_cut_short_stays_so(shared_store: Store) -> None:
    payment = Payment()
    model = Scripted(call("pay"), "later", "never")
    async with replica(shared_store, Agent("clerk", model=model, tools=[payment.tool])) as clerk:
        dies = asyncio.create_task(clerk.ask("pay", ONE))
        await payment.begun.wait()
        await lose_owner(shared_store)
        with pytest.raises(SessionBusy):
            await dies
        assert (await clerk.ask("go on")).text == "later"
        reply = await clerk.ask("pay", ONE)
        assert await clerk.ask("pay", ONE) == reply
    assert reply.state is RunState.INTERRUPTED
    assert len(model.requests) == 2


async def test_a_run_that_ran_out_of_time_is_over(shared_store: Store) -> None:
    async def hang(request: ModelRequest) -> str:
        await asyncio.Event().wait()
        return ""

    agent = Agent("clerk", model=Scripted(hang, "too late"), limits=Limits(time_s=0.3))
    async with replica(shared_store, agent) as clerk:
        first = await clerk.ask("pay", ONE)
        assert (first.state, first.reason) == (RunState.INCOMPLETE, "deadline")
        assert await clerk.ask("pay", ONE) == first


async def test_a_run_that_failed_is_tried_again_when_its_request_comes_again(shared_store: Store) -> None:
    model = Scripted(ModelAuth("no key"), "now it works")
    async with replica(shared_store, Agent("clerk", model=model)) as clerk:
        with pytest.raises(ModelAuth):
            await clerk.ask("pay", ONE)
        assert (await clerk.ask("pay", ONE)).text == "now it works"
        assert [message.role for message in (await clerk.history()).messages] == ["user", "assistant"]


async def test_a_stream_of_a_refused_request_is_a_refusal_and_leaves_the_session_free(shared_store: Store) -> None:
    async with replica(shared_store, Agent("clerk", model=Scripted("a", "b"))) as clerk:
        await clerk.ask("pay", ONE)
        with pytest.raises(RequestConflict):
            async for _ in clerk.stream("pay twice", ONE):
                pytest.fail("nothing happens before the refusal")
        assert await shared_store.acquire(lease_key("clerk", ""), "other", ttl=1)
