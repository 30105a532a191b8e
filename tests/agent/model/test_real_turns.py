"""Whole turns of an agent over gRPC, its model behind HTTP in each dialect: every request of every turn is legal."""

from __future__ import annotations

import asyncio
import base64
from contextlib import aclosing

import pytest
from kit.modelled import ALL, clerk_of, scripted_mesh, text_in

from retinue.agent import tool
from retinue.agent.model import ModelEnd, Stop, WantedCall
from retinue.agent.testing import Answer, call
from retinue.agent.testing.dialects import SIGNATURE
from retinue.service.chat import Blob, Call, Completed, Part, RunState, TextDelta, ThinkingDelta, ToolStatus
from retinue.service.errors import Invalid

PNG = b"\x89PNG real bytes"
DATA = base64.b64encode(PNG).decode()
IMAGE = Part(image=Blob("image/png", data=PNG))
LINKED = Part(image=Blob("image/png", uri="https://example.org/cat.png"))


@tool
async def overdue(owner: str) -> list[str]:
    """List what an owner is late with."""
    if owner == "nobody":
        raise LookupError("there is no such owner")
    return [f"the tax form of {owner}"]


@ALL
async def test_a_tools_result_goes_back_and_the_answer_comes(dialect: str) -> None:
    script = [["Looking.", call("overdue", owner="ada")], "The tax form.", "You are welcome."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=[overdue])):
        reply = await mesh.ask("clerk", "What is late?")
        assert (await mesh.ask("clerk", "Thanks.")).text == "You are welcome."
    assert (reply.text, reply.state) == ("The tax form.", RunState.COMPLETED)
    assert [(each.name, each.status) for each in reply.tool_calls] == [("overdue", ToolStatus.OK)]
    assert [text_in(each).count("the tax form of ada") for each in server.requests] == [0, 1, 1]
    assert [text_in(each).count("What is late?") for each in server.requests] == [1, 1, 1]


@ALL
async def test_parallel_calls_run_side_by_side_and_their_results_go_back_in_order(dialect: str) -> None:
    begun = {"ada": asyncio.Event(), "bob": asyncio.Event()}
    done = asyncio.Event()

    @tool
    async def wait(owner: str) -> str:
        """Ends for ada only after it has for bob."""
        begun[owner].set()
        for each in begun.values():
            await each.wait()
        if owner == "ada":
            await done.wait()
        done.set()
        return f"waited for {owner}"

    script = [[call("wait", owner="ada"), call("wait", owner="bob")], "Both."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=[wait])):
        reply = await mesh.ask("clerk", "Wait.")
    assert [each.result for each in reply.tool_calls] == ["waited for ada", "waited for bob"]
    sent = text_in(server.requests[1])
    assert 0 < sent.index("waited for ada") < sent.index("waited for bob")


@ALL
async def test_thinking_is_shown_apart_and_goes_back_while_the_turn_lasts(dialect: str) -> None:
    first = Answer(step=["Looking.", call("overdue", owner="ada")], thinking="Who is late, I wonder?")
    script = [first, Answer(step="The tax form.", thinking="That was easy."), "You are welcome."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=[overdue])):
        async with aclosing(mesh.peer("clerk").stream("What is late?")) as events:
            bodies = [event.body async for event in events]
        await mesh.ask("clerk", "Thanks.")
    thoughts = "".join(body.text for body in bodies if isinstance(body, ThinkingDelta))
    told = "".join(body.text for body in bodies if isinstance(body, TextDelta))
    assert (thoughts, told) == ("Who is late, I wonder?That was easy.", "Looking.The tax form.")
    assert isinstance(bodies[-1], Completed)
    assert bodies[-1].reply.text == "The tax form."
    mark = SIGNATURE if dialect in ("anthropic", "gemini") else "Who is late, I wonder?"
    assert mark in text_in(server.requests[1])
    later = text_in(server.requests[2])
    # Anthropic and Gemini sign what goes with a call, and take it back for ever; the others want it within the turn.
    assert (mark in later) is (mark == SIGNATURE)
    assert "That was easy." not in later


@ALL
async def test_an_image_is_seen_now_and_in_later_turns(dialect: str) -> None:
    script = [[call("overdue", owner="ada")], "A cat.", "Still a cat."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=[overdue])):
        reply = await mesh.peer("clerk").ask("What is this?", Call(parts=(IMAGE,)))
        assert (await mesh.ask("clerk", "And now?")).text == "Still a cat."
        (said, *_) = (await mesh.peer("clerk").history()).messages
    assert reply.text == "A cat."
    assert said.parts == (IMAGE,)
    assert [text_in(each).count(DATA) for each in server.requests] == [1, 1, 1]


@ALL
async def test_an_image_without_a_word_is_a_message(dialect: str) -> None:
    async with scripted_mesh(["A cat."]) as (server, mesh), mesh.serve(clerk_of(dialect, server)):
        assert (await mesh.peer("clerk").ask("", Call(parts=(IMAGE,)))).text == "A cat."
    assert text_in(server.requests[0]).count(DATA) == 1


@ALL
async def test_what_a_server_cannot_take_is_refused_once_and_spoils_no_later_turn(dialect: str) -> None:
    paper = Part(file=Blob("application/pdf", data=b"%PDF"))
    taken = dialect != "ollama"
    script = [*(["A cat."] if taken else []), "Fine."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server)):
        peer = mesh.peer("clerk")
        with pytest.raises(Invalid, match="takes text and images"):
            await peer.ask("Read this.", Call(parts=(paper,)))
        if taken:
            assert (await peer.ask("See this.", Call(parts=(LINKED,)))).text == "A cat."
        else:
            with pytest.raises(Invalid, match="by data"):
                await peer.ask("See this.", Call(parts=(LINKED,)))
        assert (await peer.ask("And now?")).text == "Fine."
    last = text_in(server.requests[-1])
    assert "application/pdf: left out" in last
    assert ("example.org/cat.png" in last) is taken


# Not every dialect has a word for a refusal: what it says is the reply all the same.
REFUSED = {"gemini": (RunState.INCOMPLETE, "content_filter"), "ollama": (RunState.COMPLETED, "")}


@ALL
async def test_a_refusal_is_the_reply_and_the_session_goes_on(dialect: str) -> None:
    script = [
        [call("overdue", owner="ada")],
        ModelEnd(stop=Stop.REFUSAL, text="I would rather not."),
        "You are welcome.",
    ]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=[overdue])):
        async with aclosing(mesh.peer("clerk").stream("Pick a lock.")) as events:
            bodies = [event.body async for event in events]
        assert (await mesh.ask("clerk", "Thanks.")).text == "You are welcome."
    assert isinstance(bodies[-1], Completed)
    reply = bodies[-1].reply
    assert reply.text == "I would rather not."
    assert (reply.state, reply.reason) == REFUSED.get(dialect, (RunState.COMPLETED, "refusal"))
    assert "".join(body.text for body in bodies if isinstance(body, TextDelta)) == reply.text


@ALL
async def test_an_answer_cut_by_length_runs_no_tool_and_says_so(dialect: str) -> None:
    ran = []

    @tool
    async def pay(amount: int) -> str:
        """Pays."""
        ran.append(amount)
        return "paid"

    script = [
        ModelEnd(stop=Stop.LENGTH, text="I will pay", calls=(WantedCall("c1", "pay", {"amount": 1}),)),
        ModelEnd(stop=Stop.LENGTH, text="", calls=(WantedCall("c1", "pay", {"amount": 1}),)),
        "What now?",
    ]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=[pay])):
        cut = await mesh.ask("clerk", "Pay.")
        silent = await mesh.ask("clerk", "Pay!")
        assert (await mesh.ask("clerk", "Hm.")).text == "What now?"
    assert (cut.text, cut.state, cut.reason, cut.tool_calls) == ("I will pay", RunState.INCOMPLETE, "length", ())
    assert (silent.state, silent.reason) == (RunState.INCOMPLETE, "length")
    assert silent.text
    assert not ran
    assert "I will pay" in text_in(server.requests[-1])


@ALL
async def test_calls_that_fail_are_results_and_numbers_stay_whole(dialect: str) -> None:
    number = 123456789012345678901234567890
    batch = [call("overdue", owner="nobody"), call("overdue", owner="bob"), call("gone", n=number), call("overdue")]
    script = [batch, "Bob is late."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=[overdue])):
        reply = await mesh.ask("clerk", "Who is late?")
    statuses = [each.status for each in reply.tool_calls]
    assert statuses == [ToolStatus.ERROR, ToolStatus.OK, ToolStatus.ERROR, ToolStatus.ERROR]
    sent = text_in(server.requests[1])
    assert sent.index("no such owner") < sent.index("tax form of bob")
    assert str(number) in sent


@ALL
async def test_ids_and_names_that_a_server_makes_up_break_no_later_request(dialect: str) -> None:
    odd = WantedCall("call/0 é", "no such: tool", {"x": "é😀"})
    same = WantedCall("call_0", "overdue", {"owner": "ada"})
    script = [[same], [same, odd], [same], "Done.", [same], "Again."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=[overdue])):
        assert (await mesh.ask("clerk", "Go.")).text == "Done."
        assert (await mesh.ask("clerk", "Go on.")).text == "Again."
    assert text_in(server.requests[-1]).count("the tax form of ada") == 4
