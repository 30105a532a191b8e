"""Histories that are not plain: trimmed, too long, steered into, of delegates and helpers; every request is legal."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from kit.dialect_models import model_of
from kit.modelled import ALL, clerk_of, scripted_mesh, text_in

from retinue.agent import Agent, Limits, tool
from retinue.agent.model import ModelEnd, Stop, WantedCall
from retinue.agent.model.scripted import Step
from retinue.agent.testing import Answer, call
from retinue.agent.testing.asked import text_of
from retinue.service.chat import Blob, Call, Part, RunState, ToolStatus
from retinue.service.errors import ModelContext

IMAGE = Part(image=Blob("image/png", data=b"\x89PNG real bytes"))
WINDOW = 6000


@tool
async def look(size: int = 1) -> str:
    """Reads so much."""
    return "x" * size


def said_last(body: Any) -> str:
    """The last message of a person in a request."""
    return text_of([each for each in body["messages"] if each["role"] == "user"][-1]["content"])


@ALL
@pytest.mark.parametrize("limit", [1, 2])
async def test_a_history_limit_cuts_between_turns_only(dialect: str, limit: int) -> None:
    def script(body: Any) -> Any:
        if body["messages"][-1]["role"] == "tool":
            return "Seen."
        step: Step = [f"Looking for {said_last(body)}.", call("look"), call("look", size=2)]
        return Answer(step=step, thinking="I should look.")

    options: Any = {"tools": [look], "history_limit": limit}
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, **options)):
        for number in range(4):
            parts = (IMAGE,) if number % 2 else ()
            assert (await mesh.peer("clerk").ask(f"turn {number}", Call(parts=parts))).text == "Seen."
        assert len((await mesh.peer("clerk").history()).messages) == 4 * 5
    for number in range(4):
        for request in server.requests[2 * number : 2 * number + 2]:
            shown = [turn for turn in range(4) if f"turn {turn}" in text_in(request)]
            assert shown == list(range(max(0, number + 1 - limit), number + 1))


@ALL
async def test_a_conversation_that_is_too_long_for_the_server_is_sent_shorter(dialect: str) -> None:
    refused = 0

    def script(body: Any) -> Any:
        nonlocal refused
        if len(json.dumps(body["messages"])) > WINDOW:
            refused += 1
            return ModelContext("too long")
        if body["messages"][-1]["role"] == "tool":
            return "Seen."
        step: Step = ["Looking.", call("look"), call("look", size=2500)]
        return Answer(step=step, thinking="I should look.")

    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=[look])):
        for number in range(8):
            said = f"turn {number} " + "y" * 300
            assert (await mesh.peer("clerk").ask(said, Call(parts=(IMAGE,)))).text == "Seen."
    last = text_in(server.requests[-1])
    assert refused >= 2
    assert "shortened: it was 2500 characters" in last
    assert "turn 0 " not in last
    assert "turn 7 " in last


@ALL
async def test_a_message_into_a_running_turn_stands_behind_the_results(dialect: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await go_on.wait()
        return "waited"

    script = [[call("wait"), call("look")], "As you said.", "Yes."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=[wait, look])):
        turn = asyncio.create_task(mesh.ask("clerk", "Go."))
        await begun.wait()
        await mesh.peer("clerk").follow_up("Make haste.", steer=True)
        go_on.set()
        assert (await turn).text == "As you said."
        assert (await mesh.ask("clerk", "Well?")).text == "Yes."
    assert 0 < text_in(server.requests[1]).index("waited") < text_in(server.requests[1]).index("Make haste.")


@ALL
async def test_the_last_model_call_offers_no_tools_and_keeps_the_calls_that_were_made(dialect: str) -> None:
    script = [call("look"), call("look", size=2), "So much for now.", "Yes."]
    options: Any = {"tools": [look], "limits": Limits(model_calls=3)}
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, **options)):
        reply = await mesh.ask("clerk", "Go.")
        assert (await mesh.ask("clerk", "Well?")).text == "Yes."
    assert (reply.text, reply.state, reply.reason) == ("So much for now.", RunState.INCOMPLETE, "model_calls")
    assert ["tools" in each.body for each in server.requests] == [True, True, False, True]


async def test_a_paused_message_goes_back_and_the_turn_goes_on() -> None:
    paused = Answer(step=ModelEnd(stop=Stop.PAUSE, text="One moment. "), thinking="Hm.")
    script = [paused, [call("look")], "Seen.", "Yes."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of("anthropic", server, tools=[look])):
        assert (await mesh.ask("clerk", "Go.")).text == "Seen."
        assert (await mesh.ask("clerk", "Well?")).text == "Yes."
    assert "One moment." in text_in(server.requests[1])


@ALL
async def test_an_empty_answer_leaves_no_empty_message(dialect: str) -> None:
    script = [[call("look")], "", "Here.", Answer(step="", thinking="Nothing to say."), "Yes."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=[look])):
        for text in ("", "Here.", "", "Yes."):
            assert (await mesh.ask("clerk", "Go.")).text == text


@ALL
async def test_a_sub_agent_and_a_delegate_think_with_legal_requests(dialect: str) -> None:
    def script(body: Any) -> Any:
        system, said = text_of(body["messages"][0]["content"]), said_last(body)
        answered = body["messages"][-1]["role"] == "tool"
        if "You do one task for clerk" in system or "You help." in system:
            return f"done: {said}" if answered else Answer(step=["Well.", call("look")], thinking="I should look.")
        if answered:
            return "All done."
        tasks = [("helper", "first"), ("helper", "second"), ("researcher", "third"), ("", "fourth")]
        calls = [call("delegate", to=to, task=f"{task} of {said}") for to, task in tasks]
        return Answer(step=["I share it out.", *calls], thinking="Who can do it?")

    async with scripted_mesh(script) as (server, mesh):
        helper = Agent("helper", "You help.", model=model_of(dialect, server.url), tools=[look])
        async with mesh.serve(helper, clerk_of(dialect, server, tools=[look])):
            replies = [await mesh.ask("clerk", f"turn {number}") for number in range(2)]
    for number, reply in enumerate(replies):
        assert reply.text == "All done."
        assert [each.status for each in reply.tool_calls] == [ToolStatus.OK] * 4
        results = [each.result.rpartition("\n")[2] for each in reply.tool_calls]
        assert results == [f"done: {task} of turn {number}" for task in ("first", "second", "third", "fourth")]
    # Two of the clerk's own a turn, and two for each of the four tasks.
    assert len(server.requests) == 20


@ALL
async def test_arguments_that_are_no_json_are_told_to_the_model_and_not_sent_back(dialect: str) -> None:
    broken = WantedCall("c1", "look", None, raw='{"size": ')
    script = [["Looking.", broken, call("look")], "Seen.", "Yes."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=[look])):
        reply = await mesh.ask("clerk", "Go.")
        assert (await mesh.ask("clerk", "Well?")).text == "Yes."
    assert [each.status for each in reply.tool_calls] == [ToolStatus.ERROR, ToolStatus.OK]
