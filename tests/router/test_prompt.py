"""A conversation at the command line, without a terminal: what a person can do in the middle of a turn."""

from __future__ import annotations

import asyncio

import pytest
from kit.stubs import served

from retinue.router.cli.prompt import Talk
from retinue.service.chat import Call
from retinue.service.testing import Stub


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
