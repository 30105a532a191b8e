"""A conversation at the command line, without a terminal: what a person can do in the middle of a turn."""

from __future__ import annotations

import asyncio

import pytest
from kit.stubs import served

from retinue.agent import Agent, Hooks, tool
from retinue.agent.model.scripted import Scripted, call
from retinue.router.cli.prompt import Talk
from retinue.router.router import Router
from retinue.service.chat import Call
from retinue.service.testing import LocalMesh, Stub


async def test_an_interrupt_ends_the_turn_at_the_agent_and_not_the_conversation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def answer(message: str, call: Call) -> str:
        if message != "wait":
            return "here"
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with served(Stub("one", answer)) as mesh:
        talk = Talk(mesh.client, "router")
        assert not talk.interrupt()
        async with asyncio.TaskGroup() as group:
            group.create_task(talk.say("wait"))
            await begun.wait()
            assert talk.interrupt()
        await ended.wait()
        await talk.say("and now?")
    assert capsys.readouterr() == ("here\n", "cancelled\n")


async def test_a_call_that_waits_for_approval_is_made_on_yes_and_not_on_no(capsys: pytest.CaptureFixture[str]) -> None:
    bought = 0

    @tool
    async def buy(what: str) -> str:
        """Buys something."""
        nonlocal bought
        bought += 1
        return f"bought {what}"

    model = Scripted(call("buy", what="a car"), "there it is", call("buy", what="a bike"), "then not")
    clerk = Agent("clerk", model=model, tools=[buy], hooks=Hooks(approvals=["buy"]))
    async with asyncio.timeout(20), LocalMesh() as mesh, mesh.serve(clerk, Router(model=Scripted())):
        talk = Talk(mesh.client, "router")
        await talk.obey("/yes")
        await talk.say("buy a car")
        await talk.obey("/yes")
        assert bought == 1
        await talk.say("and a bike")
        await talk.obey("/no too dear")
    assert bought == 1
    assert "too dear" in model.requests[-1].messages[-1].message.text
    said, told = capsys.readouterr()
    assert said.splitlines()[1::2] == ["there it is", "then not"]
    assert told.splitlines() == [
        "nothing waits for an answer",
        'clerk waits for approval of buy {"what":"a car"}: /yes or /no REASON',
        'clerk waits for approval of buy {"what":"a bike"}: /yes or /no REASON',
    ]
