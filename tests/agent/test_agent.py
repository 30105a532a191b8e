"""A turn of an agent, asked in a program: its steps, its tools, its memory."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest

from retinue.agent import Agent, Block, Change, Hooks, Invocation, Limits, tool
from retinue.agent.model import ModelEnd, ModelRequest, Stop, WantedCall
from retinue.agent.model.scripted import Scripted, Step, call
from retinue.service.chat import (
    Call,
    Completed,
    Failed,
    Message,
    Reply,
    RunState,
    TextDelta,
    ToolDone,
    ToolStarted,
    ToolStatus,
)
from retinue.service.errors import Invalid, ModelRate, SessionBusy
from retinue.service.testing import LocalMesh

LATE = {"ada": ["file the tax form"]}


@tool
def overdue(owner: str) -> list[str]:
    """List what an owner is late with."""
    return LATE.get(owner, [])


@tool
def fails() -> str:
    """Always fails."""
    raise RuntimeError("the printer is on fire")


def said(request: ModelRequest) -> list[tuple[str, str]]:
    return [(each.message.role, each.message.text) for each in request.messages]


async def test_an_agent_alone_calls_its_tool_and_answers() -> None:
    model = Scripted(call("overdue", owner="ada"), "Ada is late with the tax form.")
    async with Agent("clerk", "You keep the list.", tools=[overdue], model=model) as clerk:
        reply = await clerk.ask("What is late?")
    assert reply.text == "Ada is late with the tax form."
    assert (reply.agent, reply.state) == ("clerk", RunState.COMPLETED)
    (made,) = reply.tool_calls
    assert (made.name, json.loads(made.arguments), json.loads(made.result)) == (
        "overdue",
        {"owner": "ada"},
        LATE["ada"],
    )
    assert reply.usage.model_calls == 2
    assert said(model.requests[1]) == [
        ("user", "What is late?"),
        ("assistant", ""),
        ("tool", json.dumps(LATE["ada"], separators=(",", ":"))),
    ]


async def test_the_person_is_quoted_once_and_the_prompt_is_never_stored() -> None:
    model = Scripted("a", "b")
    async with Agent("clerk", "You keep the list.", model=model) as clerk:
        await clerk.ask("one")
        await clerk.ask("two")
        history = await clerk.history()
    assert said(model.requests[1]) == [("user", "one"), ("assistant", "a"), ("user", "two")]
    assert model.requests[1].system.startswith("You keep the list.")
    assert [message.role for message in history.messages] == ["user", "assistant"] * 2


async def test_sessions_share_nothing() -> None:
    model = Scripted(call("plan", steps=[{"task": "t", "status": "pending"}]), "a", "b")
    async with Agent("clerk", model=model) as clerk:
        await clerk.ask("one", Call(session="ada"))
        await clerk.ask("two", Call(session="bob"))
        ada, bob = await clerk.history("ada"), await clerk.history("bob")
    assert said(model.requests[2]) == [("user", "two")]
    assert "t" in [step.task for step in ada.plan]
    assert bob.plan == ()


async def test_default_is_another_spelling_of_the_default_session() -> None:
    async with Agent("clerk", model=Scripted("a", "b")) as clerk:
        await clerk.ask("one")
        reply = await clerk.ask("two", Call(session="default"))
        assert reply.session == ""
        assert len((await clerk.history("default")).messages) == 4
        assert await clerk.clear() == 4
        assert (await clerk.history()).messages == ()


async def test_the_history_limit_counts_turns_and_keeps_all_in_the_store() -> None:
    turn: list[Step] = [call("overdue", owner="x"), "ok"]
    model = Scripted(*turn * 5)
    async with Agent("clerk", model=model, tools=[overdue], history_limit=2) as clerk:
        for number in range(5):
            await clerk.ask(f"m{number}")
        history = await clerk.history()
    people = [text for role, text in said(model.requests[-1]) if role == "user"]
    assert people == ["m3", "m4"]
    assert [message.text for message in history.messages if message.role == "user"] == [f"m{n}" for n in range(5)]


async def test_pages_of_history_end_where_turns_end_and_miss_nothing() -> None:
    model = Scripted(*(step for _ in range(4) for step in ([call("overdue", owner="x")] * 2, "ok")))
    async with Agent("clerk", model=model, tools=[overdue]) as clerk:
        for number in range(4):
            await clerk.ask(f"m{number}")
        whole = (await clerk.history()).messages
        for size in range(1, 30):
            found: list[Message] = []
            token, pages = "", 0
            while pages == 0 or token:
                page = await clerk.history(page_size=size, page_token=token)
                assert page.messages[0].role == "user"
                found += page.messages
                token, pages = page.next_page_token, pages + 1
            assert found == list(whole)


async def test_the_plan_is_shown_in_each_later_model_call() -> None:
    steps = [{"task": "ask bob", "status": "done"}, {"task": "write it up", "status": "pending"}]
    model = Scripted(call("plan", steps=steps), "ok", "still ok")
    async with Agent("clerk", model=model) as clerk:
        reply = await clerk.ask("plan it")
        await clerk.ask("go on")
    assert [(step.task, step.status) for step in reply.plan] == [("ask bob", "done"), ("write it up", "pending")]
    assert "ask bob" not in model.requests[0].system
    assert "[x] ask bob" in model.requests[1].system
    assert "[ ] write it up" in model.requests[2].system


@pytest.mark.parametrize(
    ("wanted", "status", "words"),
    [
        (call("overdu", owner="ada"), ToolStatus.ERROR, "did you mean overdue?"),
        (call("overdue", owner=7), ToolStatus.ERROR, "do not fit at owner"),
        (call("overdue"), ToolStatus.ERROR, "'owner' is a required property"),
        (call("fails"), ToolStatus.ERROR, "RuntimeError: the printer is on fire"),
        (WantedCall("x", "overdue", None, raw='{"owner": ', error="it ends early"), ToolStatus.ERROR, "it ends early"),
    ],
)
async def test_a_call_that_cannot_be_made_is_a_result_for_the_model(
    wanted: WantedCall, status: ToolStatus, words: str
) -> None:
    model = Scripted(wanted, "I see.")
    async with Agent("clerk", model=model, tools=[overdue, fails]) as clerk:
        reply = await clerk.ask("go")
    assert reply.text == "I see."
    assert reply.tool_calls[0].status is status
    assert words in reply.tool_calls[0].error
    assert words in said(model.requests[1])[-1][1]
    assert json.loads(model.requests[1].messages[1].message.tool_calls[0].arguments) == dict(wanted.arguments or {})


async def test_an_integer_beyond_64_bits_reaches_the_tool_whole() -> None:
    @tool
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    async with Agent("clerk", model=Scripted(call("double", number=2**80), "ok"), tools=[double]) as clerk:
        reply = await clerk.ask("go")
        history = await clerk.history()
    assert reply.tool_calls[0].result == str(2**81)
    assert json.loads(history.messages[1].tool_calls[0].arguments) == {"number": 2**80}


async def test_calls_of_one_step_run_side_by_side_and_their_results_keep_the_order_of_the_calls() -> None:
    second_ran = asyncio.Event()

    @tool
    async def first() -> str:
        """Waits for the second."""
        await second_ran.wait()
        return "1"

    @tool
    async def second() -> str:
        """Comes first."""
        second_ran.set()
        return "2"

    model = Scripted([call("first"), call("second")], "done")
    async with asyncio.timeout(5), Agent("clerk", model=model, tools=[first, second]) as clerk:
        reply = await clerk.ask("go")
    assert [each.result for each in reply.tool_calls] == ["1", "2"]
    assert [text for role, text in said(model.requests[1]) if role == "tool"] == ["1", "2"]


async def test_equal_ids_from_the_server_are_told_apart() -> None:
    calls = [WantedCall("call_0", "overdue", {"owner": "ada"}), WantedCall("call_0", "overdue", {"owner": "bob"})]
    async with Agent("clerk", model=Scripted(calls, calls, "done"), tools=[overdue]) as clerk:
        reply = await clerk.ask("go")
    assert len({each.id for each in reply.tool_calls}) == 4


async def test_turns_of_a_session_run_one_after_another_and_other_sessions_beside_them() -> None:
    running, release = asyncio.Event(), asyncio.Event()

    async def slow(request: ModelRequest) -> str:
        running.set()
        await release.wait()
        return "slow"

    model = Scripted(slow, "other", "after")
    async with asyncio.timeout(5), Agent("clerk", model=model) as clerk, asyncio.TaskGroup() as group:
        first = group.create_task(clerk.ask("1"))
        await running.wait()
        second = group.create_task(clerk.ask("2"))
        assert (await clerk.ask("3", Call(session="bob"))).text == "other"
        assert not second.done()
        release.set()
        assert (await first).text == "slow"
        assert (await second).text == "after"
    assert said(model.requests[2]) == [("user", "1"), ("assistant", "slow"), ("user", "2")]


async def test_a_full_queue_is_a_typed_refusal() -> None:
    hang = asyncio.Event()

    async def wait(request: ModelRequest) -> str:
        await hang.wait()
        return "ok"

    async with asyncio.timeout(5), Agent("clerk", model=Scripted(then=wait)) as clerk, asyncio.TaskGroup() as group:
        tasks = [group.create_task(clerk.ask("hello")) for _ in range(33)]
        await asyncio.sleep(0)
        with pytest.raises(SessionBusy):
            await clerk.ask("one too many")
        hang.set()
        assert len(await asyncio.gather(*tasks)) == 33


async def test_a_step_cut_by_length_runs_no_tool() -> None:
    cut = ModelEnd(stop=Stop.LENGTH, text="I was go", calls=(WantedCall("1", "overdue", {"owner": "ada"}),))
    async with Agent("clerk", model=Scripted(cut), tools=[overdue]) as clerk:
        reply = await clerk.ask("go")
        history = await clerk.history()
    assert (reply.state, reply.reason, reply.text) == (RunState.INCOMPLETE, "length", "I was go")
    assert reply.tool_calls == ()
    assert history.messages[-1].tool_calls == ()


async def test_the_last_model_call_offers_no_tools_and_the_limit_is_named() -> None:
    model = Scripted(*[call("overdue", owner="x")] * 2, "That is all I have.")
    async with Agent("clerk", model=model, tools=[overdue], limits=Limits(model_calls=3)) as clerk:
        reply = await clerk.ask("loop")
    assert (reply.state, reply.reason) == (RunState.INCOMPLETE, "model_calls")
    assert reply.text == "That is all I have."
    assert [bool(request.tools) for request in model.requests] == [True, True, False]


async def test_a_step_makes_no_more_calls_than_the_fan_out() -> None:
    model = Scripted([call("overdue", owner="x")] * 3, "ok")
    async with Agent("clerk", model=model, tools=[overdue], limits=Limits(fan_out=2)) as clerk:
        reply = await clerk.ask("go")
    assert [each.status for each in reply.tool_calls] == [ToolStatus.OK, ToolStatus.OK, ToolStatus.REFUSED]


async def test_a_long_result_is_cut_for_the_model_and_kept_whole() -> None:
    @tool
    def long() -> str:
        """Says a lot."""
        return "ä" * 1000

    model = Scripted(call("long"), "ok")
    async with (
        LocalMesh() as mesh,
        mesh.serve(Agent("clerk", model=model, tools=[long], limits=Limits(result_bytes=100))),
    ):
        reply = await mesh.ask("clerk", "go")
        whole = await mesh.store.get(f"run/{{{reply.run_id}}}/result/{reply.tool_calls[0].id}")
    shown = said(model.requests[1])[-1][1]
    assert shown.startswith("ä" * 40)
    assert "cut" in shown
    assert whole == ("ä" * 1000).encode()


async def test_text_that_nothing_can_store_is_mended_on_its_way() -> None:
    @tool
    def broken() -> str:
        """Says half a pair."""
        return "a\ud83d|\x00|😀"

    model = Scripted(call("broken"), "b\ude00 \ud83d\ude00")
    async with Agent("clerk", model=model, tools=[broken]) as clerk:
        reply = await clerk.ask("c\ud83d")
        history = await clerk.history()
    assert reply.tool_calls[0].result == "a\ufffd|\ufffd|😀"
    assert reply.text == "b\ufffd 😀"
    assert history.messages[0].text == "c\ufffd"


async def test_a_stream_tells_the_turn_in_order_and_ends_with_the_reply() -> None:
    model = Scripted(call("overdue", owner="ada"), "All clear.")
    async with Agent("clerk", model=model, tools=[overdue]) as clerk:
        events = [event async for event in clerk.stream("go")]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    bodies = [event.body for event in events if not isinstance(event.body, type(None))]
    kinds = [type(body) for body in bodies]
    assert kinds.index(ToolStarted) < kinds.index(ToolDone) < kinds.index(TextDelta)
    assert isinstance(bodies[-1], Completed)
    done = kinds.index(ToolDone)
    assert "".join(b.text for b in bodies[done:] if isinstance(b, TextDelta)) == bodies[-1].reply.text


async def test_a_stream_of_a_failed_run_ends_with_the_error_and_the_session_goes_on() -> None:
    model = Scripted(ModelRate("slow down", retry_after=2.0), "fine now")
    async with Agent("clerk", model=model) as clerk:
        events = [event async for event in clerk.stream("one")]
        assert isinstance(events[-1].body, Failed)
        assert events[-1].body.error.reason == "MODEL_RATE"
        with pytest.raises(Invalid):
            await clerk.ask("")
        assert (await clerk.ask("two")).text == "fine now"


async def test_leaving_a_stream_stores_a_result_for_each_open_call_and_the_state() -> None:
    stuck = asyncio.Event()

    @tool
    async def hangs() -> str:
        """Never returns."""
        stuck.set()
        await asyncio.Event().wait()
        return ""

    async with asyncio.timeout(5), LocalMesh() as mesh:
        agent = Agent("clerk", model=Scripted([call("hangs"), call("overdue", owner="ada")]), tools=[hangs, overdue])
        async with mesh.serve(agent):
            async with aclosing(agent.stream("go")) as events:
                async for event in events:
                    run_id = event.run_id
                    if isinstance(event.body, ToolDone):
                        await stuck.wait()
                        break
            history = await agent.history()
            record = json.loads(await mesh.store.get(f"run/{{{run_id}}}") or b"{}")
    assert [message.role for message in history.messages] == ["user", "assistant", "tool", "tool"]
    assert "cancelled" in history.messages[2].text
    assert record["state"] == "CANCELLED"


async def test_a_deadline_ends_the_run_in_time_with_what_there_is() -> None:
    async def hang(request: ModelRequest) -> str:
        await asyncio.Event().wait()
        return ""

    async with asyncio.timeout(5), Agent("clerk", model=Scripted(hang), limits=Limits(time_s=0.2)) as clerk:
        reply = await clerk.ask("go")
    assert (reply.state, reply.reason) == (RunState.INCOMPLETE, "deadline")


async def test_hooks_block_change_and_replace() -> None:
    async def before(invocation: Invocation) -> Block | Change | None:
        match invocation.arguments["owner"]:
            case "eve":
                return Block("not for eve")
            case "bob":
                return Change({"owner": "ada"})
        return None

    model = Scripted([call("overdue", owner=owner) for owner in ("eve", "bob", "cy")], "ok")
    async with Agent("clerk", model=model, tools=[overdue], hooks=Hooks(before_tool_call=before)) as clerk:
        reply = await clerk.ask("go")
    assert [(each.status, each.error or json.loads(each.result)) for each in reply.tool_calls] == [
        (ToolStatus.REFUSED, "not for eve"),
        (ToolStatus.OK, LATE["ada"]),
        (ToolStatus.OK, []),
    ]


async def test_what_is_raised_while_an_agent_is_entered_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with Agent("clerk", model=Scripted()):
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        async with LocalMesh() as mesh, mesh.serve(Agent("clerk", model=Scripted())):
            raise ZeroDivisionError


async def test_two_tools_of_one_name_are_refused_at_once() -> None:
    with pytest.raises(Invalid, match="overdue"):
        Agent("clerk", tools=[overdue, overdue])


def test_a_reply_is_what_the_readme_says_it_is() -> None:
    reply = Reply(text="t", agent="a")
    assert (reply.tool_calls, reply.session, reply.run_id, reply.state) == ((), "", "", RunState.COMPLETED)
