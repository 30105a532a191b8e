"""Whatever a hook, a tool or a caller does, a run ends in a stored state, its session is free, and others go on."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from typing import Any

import pytest
from kit.replicas import replica

from retinue.agent import Agent, Hooks, Limits, Tool, tool
from retinue.agent.keys import lease_key
from retinue.agent.model import ModelRequest
from retinue.agent.model.scripted import Scripted, call
from retinue.service.chat import Call, Completed, Event, Failed, RunState, TextDelta, ToolStarted, ToolStatus
from retinue.service.errors import MeshError, SessionBusy
from retinue.service.store import Line, Store
from retinue.service.testing import LocalMesh
from retinue.service.usage import Usage


async def free(store: Store) -> bool:
    return await store.line(lease_key("clerk", "")) == Line("", ())


@pytest.mark.parametrize("error", [TimeoutError("read"), ValueError("no"), asyncio.IncompleteReadError(b"", 1)])
async def test_a_model_or_a_hook_that_raises_fails_its_run_and_frees_the_session(
    shared_store: Store, error: Exception
) -> None:
    async def prepare(messages: Any) -> Any:
        if "hook" in messages[-1].message.text:
            raise error
        return messages

    model = Scripted(error, "fine")
    async with replica(shared_store, Agent("clerk", model=model, hooks=Hooks(prepare_context=prepare))) as clerk:
        for message in ("model", "hook"):
            with pytest.raises(type(error)):
                await clerk.ask(message, Call(request_id=message))
            assert await free(shared_store)
            run_id = (await clerk.history()).messages[-1].run_id
            assert (await clerk.run(run_id)).state is RunState.FAILED
        assert (await clerk.ask("and now?")).text == "fine"


async def test_an_event_hook_that_raises_fails_its_own_run_and_no_other() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(request: ModelRequest) -> str:
        begun.set()
        await go_on.wait()
        return "fine"

    def answer(request: ModelRequest) -> Any:
        return wait if request.messages[-1].message.text == "wait" else call("look")

    def hook(event: Event) -> None:
        if event.run_id != waiting[0]:
            raise ValueError("hook")

    @tool
    async def look() -> str:
        """Looks."""
        return "seen"

    waiting: list[str] = []
    agent = Agent("clerk", model=Scripted(*[answer] * 3), tools=[look], hooks=Hooks(on_event=hook))
    async with asyncio.timeout(20), LocalMesh() as mesh, mesh.serve(agent):
        waits = asyncio.create_task(mesh.ask("clerk", "wait", session="one"))
        await begun.wait()
        waiting.append((await mesh.peer("clerk").history("one")).messages[0].run_id)
        with pytest.raises(MeshError):
            await mesh.ask("clerk", "look", session="two")
        go_on.set()
        assert (await waits).text == "fine"


async def test_an_event_hook_that_raises_as_a_run_is_cut_short_ends_no_agent(shared_store: Store) -> None:
    begun = asyncio.Event()

    @tool
    async def hang() -> str:
        """Hangs."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    def hook(event: Event) -> None:
        if isinstance(event.body, ToolStarted):
            raise ValueError("hook")

    model = Scripted(call("hang"), "fine")
    async with replica(shared_store, Agent("clerk", model=model, tools=[hang], hooks=Hooks(on_event=hook))) as clerk:
        turn = asyncio.create_task(clerk.ask("1"))
        await begun.wait()
        turn.cancel()
        await asyncio.wait([turn])
        assert await free(shared_store)
        assert [message.role for message in (await clerk.history()).messages] == ["user", "assistant", "tool"]


async def test_the_event_hook_sees_how_every_run_ends(shared_store: Store) -> None:
    seen: list[Event] = []
    model = Scripted("asked", "streamed", "detached", ValueError("no"))
    async with replica(shared_store, Agent("clerk", model=model, hooks=Hooks(on_event=seen.append))) as clerk:
        await clerk.ask("1")
        async with aclosing(clerk.stream("2")) as events:
            async for _ in events:
                pass
        begun = await clerk.ask("3", Call(detach=True))
        async with aclosing(clerk.watch(begun.run_id)) as events:
            async for _ in events:
                pass
        with pytest.raises(ValueError, match="no"):
            await clerk.ask("4")
    ends = [type(event.body) for event in seen if isinstance(event.body, Completed | Failed)]
    assert ends == [Completed] * 3
    assert "".join(event.body.text for event in seen if isinstance(event.body, TextDelta)) == "askedstreameddetached"


@tool
def leave() -> str:
    """Ends the program, it thinks."""
    sys.exit(2)


@tool
async def cancel_itself() -> str:
    """Cancels itself."""
    raise asyncio.CancelledError


class Odd(BaseException):
    pass


@tool
async def odd() -> str:
    """Raises what is no Exception."""
    raise Odd("strange")


async def test_what_a_tool_raises_is_its_result_whatever_it_is(shared_store: Store) -> None:
    tools: list[Tool] = [leave, cancel_itself, odd]
    for names in ([each.spec.name] for each in tools):
        model = Scripted([call(name) for name in names], "told")
        async with replica(shared_store, Agent("clerk", model=model, tools=tools)) as clerk:
            reply = await clerk.ask("go")
            assert (reply.text, [each.status for each in reply.tool_calls]) == ("told", [ToolStatus.ERROR])
    model = Scripted([call(each.spec.name) for each in tools], "told")
    async with replica(shared_store, Agent("clerk", model=model, tools=tools)) as clerk:
        reply = await clerk.ask("go")
    assert [each.status for each in reply.tool_calls] == [ToolStatus.ERROR] * 3
    assert [each.error.partition(":")[0] for each in reply.tool_calls] == ["SystemExit", "CancelledError", "Odd"]


class Stubborn:
    """A tool that keeps its cancellation to itself."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.tool = tool(self.work)

    async def work(self) -> str:
        """Works."""
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "never mind"
        return ""


async def test_a_tool_that_keeps_its_cancellation_to_itself_undoes_neither_cancel_nor_deadline(
    shared_store: Store,
) -> None:
    stubborn = Stubborn()
    model = Scripted(call("work"), call("work"), "never")
    async with replica(
        shared_store, Agent("clerk", model=model, tools=[stubborn.tool], limits=Limits(time_s=1.0))
    ) as clerk:
        turn = asyncio.create_task(clerk.ask("1"))
        await stubborn.begun.wait()
        assert await clerk.cancel((await clerk.history()).messages[0].run_id) == 1
        assert (await turn).state is RunState.CANCELLED
        late = await clerk.ask("2")
        assert (late.state, late.reason) == (RunState.INCOMPLETE, "deadline")
    assert len(model.requests) == 2


async def test_a_caller_that_leaves_at_any_moment_leaves_a_run_that_is_told_the_truth(shared_store: Store) -> None:
    async with replica(shared_store, Agent("clerk", model=Scripted(then="answer"))) as clerk:
        for passes in range(60):
            session, request = f"s{passes}", Call(session=f"s{passes}", request_id="r")
            turn = asyncio.create_task(clerk.ask("hi", request))
            for _ in range(passes):
                await asyncio.sleep(0)
            turn.cancel()
            (outcome,) = await asyncio.gather(turn, return_exceptions=True)
            assert not isinstance(outcome, SessionBusy)
            stored = (await clerk.history(session)).messages
            if stored:
                state = (await clerk.run(stored[0].run_id)).state
                assert state in (RunState.COMPLETED, RunState.CANCELLED)
            reply = await clerk.ask("hi", request)
            assert (reply.state, reply.text) == (RunState.COMPLETED, "answer")
            assert len((await clerk.history(session)).messages) == 2
        assert clerk.dropped == 0


async def test_a_queued_turn_has_its_time_for_itself(shared_store: Store) -> None:
    async def slowly(request: ModelRequest) -> str:
        await asyncio.sleep(0.4)
        return "done"

    agent = Agent("clerk", model=Scripted(then=slowly), limits=Limits(time_s=1.0))
    async with replica(shared_store, agent) as clerk:
        runs = [await clerk.follow_up(f"{number}") for number in range(4)]
        for run_id in runs:
            async with aclosing(clerk.watch(run_id)) as events:
                async for _ in events:
                    pass
        assert [(await clerk.run(run_id)).text for run_id in runs] == ["done"] * 4


async def test_tokens_that_run_out_in_the_middle_are_a_limit_with_its_name(shared_store: Store) -> None:
    @tool
    async def look() -> str:
        """Looks."""
        return "seen"

    model = Scripted(call("look"), "never", usage=Usage(input=60, output=50))
    agent = Agent("clerk", model=model, tools=[look], limits=Limits(tokens=100))
    async with replica(shared_store, agent) as clerk:
        reply = await clerk.ask("go", Call(request_id="one"))
        assert (reply.state, reply.reason) == (RunState.INCOMPLETE, "tokens")
        assert await clerk.ask("go", Call(request_id="one")) == reply
    assert [each.status for each in reply.tool_calls] == [ToolStatus.OK]


async def test_clearing_a_session_waits_for_its_turn_and_a_stale_clear_removes_nothing(shared_store: Store) -> None:
    async with replica(shared_store, Agent("clerk", model=Scripted("a", "b"))) as clerk:
        await clerk.ask("1")
        delete = shared_store.delete

        async def late(*keys: str, **how: Any) -> int:
            # As of a node that stood still until another had its session.
            await delete(lease_key("clerk", ""))
            return await delete(*keys, **how)

        shared_store.delete = late  # type: ignore[method-assign]
        try:
            with pytest.raises(SessionBusy):
                await clerk.clear()
        finally:
            shared_store.delete = delete  # type: ignore[method-assign]
        assert len((await clerk.history()).messages) == 2
