"""A conversation that is longer than the model's window goes on: shortened, never split, and never without a word."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest
from kit.dialects import check_all
from kit.replicas import replica

from retinue.agent import Agent, tool
from retinue.agent.model import ModelRequest
from retinue.agent.model.scripted import Scripted, call
from retinue.service.chat import StatusNote
from retinue.service.errors import ModelContext
from retinue.service.store import Store

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


async def test_a_turn_that_is_too_long_by_itself_is_an_error_in_words(shared_store: Store) -> None:
    def answer(request: ModelRequest) -> Any:
        return ModelContext("too long") if size_of(request) > WINDOW else "fine"

    async with replica(shared_store, Agent("clerk", model=Scripted(then=answer))) as clerk:
        assert (await clerk.ask("hi")).text == "fine"
        with pytest.raises(ModelContext, match="send less at once"):
            await clerk.ask("z" * 7000)
        assert (await clerk.ask("and now?")).text == "fine"
