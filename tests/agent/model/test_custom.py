"""Any async function as a model: what it gets, what it may say, and what its failures become."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from retinue.agent.model import ModelEnd, ModelEvent, ModelMessage, ModelRequest, ModelText, Stop, WantedCall
from retinue.agent.model.custom import Custom, CustomModel
from retinue.agent.model.scripted import call
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Message
from retinue.service.errors import ModelError, ModelRate

HELLO = ModelRequest(
    system="You parrot.",
    messages=(ModelMessage(message=Message(role="user", text="hello")),),
    tools=(ToolSpec("a"),),
)


async def events(function: CustomModel) -> list[ModelEvent]:
    async with asyncio.timeout(5), aclosing(Custom(function).stream(HELLO)) as stream:
        return [event async for event in stream]


async def end(function: CustomModel) -> ModelEnd:
    last = (await events(function))[-1]
    assert isinstance(last, ModelEnd)
    return last


def saying(said: Any) -> Any:
    async def model(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Any:
        return said

    return model


async def test_it_gets_the_messages_with_the_system_prompt_first_and_the_tools() -> None:
    async def parrot(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        return f"{[(each.role, each.text) for each in messages]} {[tool.name for tool in tools]}"

    assert (await end(parrot)).text == "[('system', 'You parrot.'), ('user', 'hello')] ['a']"
    assert Custom(parrot).name == "custom/parrot"


@pytest.mark.parametrize(
    ("said", "text", "names"),
    [
        ("hi", "hi", []),
        (call("a", x=1), "", ["a"]),
        (["first ", "this", call("a"), call("b")], "first this", ["a", "b"]),
        (ModelEnd(stop=Stop.STOP, text="whole"), "whole", []),
    ],
)
async def test_what_it_returns_is_what_the_model_says(said: Any, text: str, names: list[str]) -> None:
    seen = await end(saying(said))
    assert (seen.text, [each.name for each in seen.calls]) == (text, names)
    assert seen.stop is (Stop.TOOL_CALLS if names else Stop.STOP)
    assert all(each.id for each in seen.calls)
    assert "".join(event.text for event in await events(saying(said)) if isinstance(event, ModelText)) == text


async def test_what_it_yields_comes_as_it_is_yielded() -> None:
    async def slowly(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AsyncIterator[str | WantedCall]:
        yield "one "
        yield "two"
        yield call("a")

    seen = await events(slowly)
    assert [event.text for event in seen if isinstance(event, ModelText)] == ["one ", "two"]
    last = seen[-1]
    assert isinstance(last, ModelEnd)
    assert (last.text, [each.name for each in last.calls]) == ("one two", ["a"])


async def test_leaving_the_stream_closes_the_function() -> None:
    closed = asyncio.Event()

    async def endless(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AsyncIterator[str | WantedCall]:
        try:
            while True:
                yield "more "
        finally:
            closed.set()

    async with aclosing(Custom(endless).stream(HELLO)) as stream:
        await anext(stream)
    assert closed.is_set()


@pytest.mark.parametrize("said", [None, 7, {"text": "x"}])
async def test_what_no_model_can_say_is_an_error_that_says_what_can(said: Any) -> None:
    with pytest.raises(ModelError, match="text, calls, a list of them"):
        await end(saying(said))


async def test_what_it_raises_is_a_model_error_unless_the_mesh_knows_it() -> None:
    async def broken(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        raise error

    error: Exception = ZeroDivisionError("by nothing")
    with pytest.raises(ModelError, match=r"custom/broken failed.*by nothing"):
        await end(broken)
    error = ModelRate("slow down", retry_after=3)
    with pytest.raises(ModelRate) as caught:
        await end(broken)
    assert caught.value is error
