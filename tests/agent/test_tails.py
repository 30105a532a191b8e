"""What a node remembers of a history is never taken for what stands in the store."""

from __future__ import annotations

from kit.replicas import replica

from retinue.agent import Agent
from retinue.agent.keys import history_key
from retinue.agent.model import ModelRequest
from retinue.agent.model.scripted import Scripted
from retinue.service.store import Store


def said(request: ModelRequest) -> list[str]:
    return [each.message.text for each in request.messages]


async def test_what_other_replicas_added_is_read_with_what_was_known(shared_store: Store) -> None:
    one, two = Scripted("a", "c", "e"), Scripted("b", "d")
    async with (
        replica(shared_store, Agent("clerk", model=one, history_limit=3)) as first,
        replica(shared_store, Agent("clerk", model=two, history_limit=3)) as second,
    ):
        for agent, message in ((first, "1"), (second, "2"), (first, "3"), (second, "4"), (first, "5")):
            await agent.ask(message)
    assert said(one.requests[2]) == ["3", "c", "4", "d", "5"]


async def test_a_history_that_was_cleared_and_has_grown_again_is_read_anew(shared_store: Store) -> None:
    one, two = Scripted("a", "b", "last"), Scripted("x", "y")
    async with (
        replica(shared_store, Agent("clerk", model=one)) as first,
        replica(shared_store, Agent("clerk", model=two)) as second,
    ):
        await first.ask("1")
        await first.ask("2")
        await second.clear()
        await second.ask("8")
        await second.ask("9")
        assert (await shared_store.read(history_key("clerk", ""))).length == 4
        await first.ask("3")
    assert said(one.requests[2]) == ["8", "x", "9", "y", "3"]
