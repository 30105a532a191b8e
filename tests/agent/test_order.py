"""Turns of one session run in the order in which they were accepted, whichever replica accepted them."""

from __future__ import annotations

import asyncio

import pytest
from kit.replicas import replica

from retinue.agent import Agent
from retinue.agent.keys import lease_key
from retinue.agent.model import ModelRequest
from retinue.agent.model.scripted import Scripted
from retinue.agent.session.places import MOST_WAITING
from retinue.service.chat import Call
from retinue.service.errors import SessionBusy
from retinue.service.store import Store


class Gate:
    """A model that answers with the last message, once it is let."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, request: ModelRequest) -> str:
        self.begun.set()
        await self.go_on.wait()
        return f"re: {request.messages[-1].message.text}"

    def model(self, turns: int) -> Scripted:
        return Scripted(*[self] * turns)


async def waiting(store: Store, count: int) -> None:
    """Returns once `count` turns wait in the session's line."""
    while True:
        if len((await store.line(lease_key("clerk", ""))).waiting) >= count:
            return
        await asyncio.sleep(0)


async def test_turns_of_three_replicas_run_in_the_order_in_which_they_were_accepted(shared_store: Store) -> None:
    gate = Gate()
    agents = [Agent("clerk", model=gate.model(12)) for _ in range(3)]
    async with (
        replica(shared_store, agents[0]) as one,
        replica(shared_store, agents[1]) as two,
        replica(shared_store, agents[2]) as three,
        asyncio.TaskGroup() as group,
    ):
        turns = [group.create_task(one.ask("0"))]
        await gate.begun.wait()
        for number in range(1, 12):
            turns.append(group.create_task((one, two, three)[number % 3].ask(str(number))))
            await waiting(shared_store, number)
        gate.go_on.set()
        assert [(await turn).text for turn in turns] == [f"re: {number}" for number in range(12)]
        history = await one.history()
    said = [message.text for message in history.messages]
    assert said == [text for number in range(12) for text in (str(number), f"re: {number}")]


async def test_a_full_line_refuses_at_once_and_in_words(shared_store: Store) -> None:
    gate = Gate()
    async with (
        replica(shared_store, Agent("clerk", model=gate.model(MOST_WAITING + 2))) as one,
        replica(shared_store, Agent("clerk", model=gate.model(0))) as two,
        asyncio.TaskGroup() as group,
    ):
        turns = [group.create_task(one.ask(str(number))) for number in range(MOST_WAITING + 1)]
        await waiting(shared_store, MOST_WAITING)
        with pytest.raises(SessionBusy, match="32 messages wait"):
            await two.ask("one too many")
        assert (await shared_store.line(lease_key("clerk", ""))).waiting[MOST_WAITING:] == ()
        other = group.create_task(one.ask("elsewhere", Call(session="other")))
        gate.go_on.set()
        assert (await other).text == "re: elsewhere"
        assert [(await turn).text for turn in turns] == [f"re: {number}" for number in range(MOST_WAITING + 1)]


async def test_who_stops_waiting_leaves_the_line(shared_store: Store) -> None:
    gate = Gate()
    async with (
        replica(shared_store, Agent("clerk", model=gate.model(2))) as clerk,
        asyncio.TaskGroup() as group,
    ):
        first = group.create_task(clerk.ask("1"))
        await gate.begun.wait()
        gone = group.create_task(clerk.ask("2"))
        await waiting(shared_store, 1)
        last = group.create_task(clerk.ask("3"))
        await waiting(shared_store, 2)
        gone.cancel()
        await asyncio.wait([gone])
        assert len((await shared_store.line(lease_key("clerk", ""))).waiting) == 1
        gate.go_on.set()
        assert [(await first).text, (await last).text] == ["re: 1", "re: 3"]
        assert len((await clerk.history()).messages) == 4
