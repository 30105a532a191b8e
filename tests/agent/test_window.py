"""A conversation that is longer than the model's window goes on: shortened, never split, and never without a word."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest
from kit.dialects import check_all
from kit.replicas import replica

from retinue.agent import Agent, Limits, tool
from retinue.agent.model import ModelRequest
from retinue.agent.model.scripted import Scripted, call
from retinue.service.chat import Call, StatusNote
from retinue.service.errors import ModelContext
from retinue.service.store import Store
from retinue.service.usage import Usage

WINDOW = 6000


@tool
async def read(size: int) -> str:
    """Reads so much."""
    return "x" * size


def size_of(request: ModelRequest) -> int:
    return sum(len(each.message.text) for each in request.messages)


async def test_old_results_are_shortened_first_and_then_old_turns_left_out(shared_store: Store) -> None:
    queue = iter([call("read", size=3000), "read", call("read", size=3000), "read again", *["fine"] * 10])

    def answer(request: ModelRequest) -> Any:
        check_all(request.messages)
        return ModelContext("too long") if size_of(request) > WINDOW else next(queue)

    model = Scripted(then=answer)
    async with replica(shared_store, Agent("clerk", model=model, tools=[read])) as clerk:
        assert (await clerk.ask("read one")).text == "read"
        async with aclosing(clerk.stream("read two")) as events:
            notes = [event.body.text async for event in events if isinstance(event.body, StatusNote)]
        assert len(notes) == 1
        assert "longer than the model's window" in notes[0]
        for number in range(10):
            assert (await clerk.ask(f"{number} " + "y" * 1000)).text == "fine"
        assert model.requests[-1].messages[-1].message.text.startswith("9 ")
        assert len((await clerk.history()).messages) == 28
    stored = (await shared_store.read("agent/{clerk}/history")).entries
    assert sum(b"x" * 3000 in entry for entry in stored) == 2


async def notes_of(agent: Agent, message: str) -> list[str]:
    async with aclosing(agent.stream(message)) as events:
        return [event.body.text async for event in events if isinstance(event.body, StatusNote)]


async def test_a_conversation_near_the_window_is_told_so_and_one_over_it_is_shortened_before_it_is_sent(
    shared_store: Store,
) -> None:
    # A server that never refuses, as Ollama is: what does not fit it cuts without a word.
    model = Scripted(then="y" * 100, name="openai/bench")
    clerk = Agent("clerk", model=model, limits=Limits(window=1000))
    async with replica(shared_store, clerk):
        told = [await notes_of(clerk, f"{number} " + "x" * 398) for number in range(20)]
    assert told[:6] == [[]] * 6
    assert [len(each) for each in told] == [0] * 6 + [1] * 14
    assert "of the model's window of 1000 tokens" in told[6][0]
    assert all("shortened" in each[0] for each in told[7:])
    assert max(map(size_of, model.requests)) <= 4 * 1000 * 0.9


async def test_what_the_server_counted_goes_before_what_the_text_looks_like(shared_store: Store) -> None:
    model = Scripted(then="fine", usage=Usage(input=790, output=10))
    clerk = Agent("clerk", model=model, limits=Limits(window=1000))
    async with replica(shared_store, clerk):
        assert await notes_of(clerk, "hi") == []
        (note,) = await notes_of(clerk, "hi")
        assert "80 % of the model's window" in note


async def test_a_later_turn_begins_as_short_as_the_one_before_had_to_be(shared_store: Store) -> None:
    def answer(request: ModelRequest) -> Any:
        return ModelContext("too long") if size_of(request) > WINDOW else "fine"

    model = Scripted(then=answer)
    clerk = Agent("clerk", model=model)
    async with replica(shared_store, clerk):
        for number in range(6):
            await clerk.ask(f"{number} " + "y" * 1500, Call(session="s"))
        before = len(model.requests)
        await clerk.ask("and now?", Call(session="s"))
    assert before > 6
    assert len(model.requests) == before + 1


async def test_what_no_window_of_that_size_holds_is_refused_before_it_is_sent(shared_store: Store) -> None:
    model = Scripted(then="fine")
    clerk = Agent("clerk", model=model, limits=Limits(window=100))
    async with replica(shared_store, clerk):
        with pytest.raises(ModelContext, match="send less at once"):
            await clerk.ask("z" * 5000)
        assert model.requests == []
        assert (await clerk.ask("and now?")).text == "fine"


async def test_a_turn_that_is_too_long_by_itself_is_an_error_in_words(shared_store: Store) -> None:
    def answer(request: ModelRequest) -> Any:
        return ModelContext("too long") if size_of(request) > WINDOW else "fine"

    async with replica(shared_store, Agent("clerk", model=Scripted(then=answer))) as clerk:
        assert (await clerk.ask("hi")).text == "fine"
        with pytest.raises(ModelContext, match="send less at once"):
            await clerk.ask("z" * 7000)
        assert (await clerk.ask("and now?")).text == "fine"
