"""The table of broken text through every boundary: the turn completes, what is stored encodes, good emoji stay."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from kit.replicas import replica

from retinue.agent import Agent, tool
from retinue.agent.keys import events_key, history_key
from retinue.agent.model import ModelEnd, ModelEvent, ModelRequest, ModelText, Stop
from retinue.agent.model.openai import OpenAI
from retinue.agent.model.scripted import Scripted, Step, call
from retinue.agent.testing import Answer, ModelServer
from retinue.service.chat import Call, Completed, Part, Reply, TextDelta, ToolStatus
from retinue.service.store import Store

LOST = "\ufffd"
TABLE = {
    "a lone high surrogate": ("a\ud83db", f"a{LOST}b"),
    "a lone low one": ("a\ude00b", f"a{LOST}b"),
    "a reversed pair": ("a\ude00\ud83db", f"a{LOST}{LOST}b"),
    "a pair in two halves": ("a\ud83d\ude00b", "a😀b"),
    "a valid emoji": ("a😀b", "a😀b"),
    "NUL": ("a\x00b", f"a{LOST}b"),
}
texts = pytest.mark.parametrize(("broken", "sane"), TABLE.values(), ids=TABLE)


class Deltas:
    """A model whose text comes in these pieces."""

    name = "deltas/any"

    def __init__(self, *pieces: str) -> None:
        self._pieces = pieces

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        for piece in self._pieces:
            yield ModelText(piece)
        yield ModelEnd(text="".join(self._pieces), stop=Stop.STOP)


async def stored(store: Store, reply: Reply) -> str:
    """All that was stored of the turn; it fails when that is no UTF-8."""
    history = await store.read(history_key("clerk", reply.session))
    events = await store.read(events_key("clerk", reply.session, reply.run_id))
    assert all(entry.decode() is not None for entry in history.entries)
    return "\n".join(str(json.loads(entry)) for entry in history.entries) + str(events.entries)


@texts
async def test_a_persons_message_its_parts_and_its_context(broken: str, sane: str, shared_store: Store) -> None:
    model = Scripted("fine")
    async with replica(shared_store, Agent("clerk", model=model)) as clerk:
        said = Call(context={broken: [broken]}, parts=(Part(text=broken),), request_id="one")
        reply = await clerk.ask(broken, said)
        assert await clerk.ask(broken, said) == reply
    (message,) = (each.message for each in model.requests[0].messages)
    assert message.text.startswith(sane)
    assert message.text.count(sane) == 3
    assert message.parts[0].text == sane
    assert sane in await stored(shared_store, reply)


@texts
async def test_what_a_tool_returns_raises_and_is_given(broken: str, sane: str, shared_store: Store) -> None:
    given: list[str] = []

    @tool
    def give(text: str) -> str:
        """Gives it back."""
        given.append(text)
        return broken

    @tool
    def fail() -> str:
        """Fails."""
        raise ValueError(broken)

    @tool
    def structure() -> dict[str, Any]:
        """Gives it back inside of something."""
        return {"text": broken}

    model = Scripted([call("give", text=broken), call("fail"), call("structure")], "fine")
    async with replica(shared_store, Agent("clerk", model=model, tools=[give, fail, structure])) as clerk:
        reply = await clerk.ask("go")
    one, two, three = reply.tool_calls
    assert (one.status, one.result) == (ToolStatus.OK, sane)
    assert (two.status, two.error) == (ToolStatus.ERROR, f"ValueError: {sane}")
    assert json.loads(three.result) == {"text": sane}
    assert given == [sane]
    assert sane in await stored(shared_store, reply)


async def test_a_file_name_that_is_no_text(shared_store: Store) -> None:
    @tool
    def name() -> str:
        """A name as the system gives it."""
        return os.fsdecode(b"caf\xe9.txt")

    async with replica(shared_store, Agent("clerk", model=Scripted(call("name"), "fine"), tools=[name])) as clerk:
        reply = await clerk.ask("go")
    assert reply.tool_calls[0].result == f"caf{LOST}.txt"


@texts
async def test_what_a_model_says_in_one_piece_and_letter_by_letter(broken: str, sane: str, shared_store: Store) -> None:
    for session, pieces in (("whole", [broken]), ("pieces", list(broken))):
        async with replica(shared_store, Agent("clerk", model=Deltas(*pieces))) as clerk:
            async with aclosing(clerk.stream("go", Call(session=session))) as stream:
                events = [event.body async for event in stream]
            assert isinstance(events[-1], Completed)
            assert events[-1].reply.text == sane
            assert "".join(body.text for body in events if isinstance(body, TextDelta)) == sane
            assert sane in await stored(shared_store, events[-1].reply)


@texts
async def test_json_escapes_of_a_model_server_in_text_and_arguments(
    broken: str, sane: str, shared_store: Store
) -> None:
    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}) + "\n\n"

    arguments = json.dumps({"text": broken})
    wanted = {"index": 0, "id": "c1", "type": "function", "function": {"name": "give", "arguments": arguments}}
    first = event({"content": broken}) + event({"tool_calls": [wanted]}) + event({}, "tool_calls") + "data: [DONE]\n\n"
    second = "".join(event({"content": letter}) for letter in broken) + event({}, "stop") + "data: [DONE]\n\n"
    given: list[str] = []

    @tool
    def give(text: str) -> str:
        """Gives it back."""
        given.append(text)
        return text

    script: list[Step | Answer] = [Answer(body=first.encode()), Answer(body=second.encode()), "next"]
    async with ModelServer(script) as server:
        model = OpenAI("any", base_url=server.base_url)
        async with replica(shared_store, Agent("clerk", model=model, tools=[give])) as clerk:
            reply = await clerk.ask("go")
            assert (await clerk.ask("and then?")).text == "next"
    assert reply.text == sane
    assert given == [sane]
    sent = server.requests[-1].body["messages"]
    assert [message["content"] for message in sent if message["role"] != "system"] == [
        "go",
        sane,
        sane,
        sane,
        "and then?",
    ]


@texts
async def test_a_plan_a_delegate_and_its_answer(broken: str, sane: str, shared_store: Store) -> None:
    model = Scripted(
        [call("plan", steps=[{"task": broken, "status": "done"}]), call("delegate", task=broken, to=f"{broken}er")],
        broken,
        broken,
    )
    async with replica(shared_store, Agent("clerk", model=model)) as clerk:
        reply = await clerk.ask("go")
    assert reply.plan[0].task == sane
    assert reply.text == sane
    assert reply.tool_calls[1].result.endswith(sane)
    assert model.requests[1].messages[0].message.text == sane
    assert sane in await stored(shared_store, reply)
