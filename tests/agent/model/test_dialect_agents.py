"""A whole turn of an agent over each dialect: tools run, parallel results go back in order, every request is legal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from kit.dialects import CHECKS

from retinue.agent import Agent, tool
from retinue.agent.model.anthropic import Anthropic
from retinue.agent.model.exchange import HttpModel
from retinue.agent.model.gemini import Gemini
from retinue.agent.model.ollama import Ollama
from retinue.agent.model.openai import OpenAI
from retinue.agent.model.scripted import Step
from retinue.agent.testing import Answer, ModelServer, call
from retinue.service.chat import RunState, ToolStatus

BUILD: dict[str, Callable[[ModelServer], HttpModel]] = {
    "openai": lambda server: OpenAI("m", base_url=server.base_url),
    "anthropic": lambda server: Anthropic("m", base_url=server.url),
    "gemini": lambda server: Gemini("m", base_url=server.url),
    "ollama": lambda server: Ollama("m", base_url=server.url),
}


@tool
async def overdue(owner: str) -> list[str]:
    """List what an owner is late with."""
    if owner == "nobody":
        raise LookupError("there is no such owner")
    return [f"the tax form of {owner}"]


@pytest.mark.parametrize("dialect", BUILD)
async def test_an_agent_has_a_session_of_several_turns(dialect: str) -> None:
    number = 123456789012345678901234567890
    script: list[Step | Answer] = [
        Answer(step=["Looking.", call("overdue", owner="ada")], thinking="Who is late?"),
        [call("overdue", owner="nobody"), call("overdue", owner="bob"), call("gone", n=number)],
        "Ada and Bob are late.",
        "You are welcome.",
    ]
    async with asyncio.timeout(20), ModelServer(script) as server:
        clerk = Agent("clerk", "You keep the list.", tools=[overdue], model=BUILD[dialect](server))
        async with clerk:
            reply = await clerk.ask("Who is late?")
            assert (await clerk.ask("Thanks.")).text == "You are welcome."
    assert (reply.state, reply.text) == (RunState.COMPLETED, "Ada and Bob are late.")
    assert [each.status for each in reply.tool_calls] == [
        ToolStatus.OK,
        ToolStatus.ERROR,
        ToolStatus.OK,
        ToolStatus.ERROR,
    ]
    assert len(server.requests) == 4
    for request in server.requests:
        CHECKS[dialect](request.body)
    sent = json.dumps(server.requests[2].body)
    assert sent.index("tax form of ada") < sent.index("no such owner") < sent.index("tax form of bob")
    assert str(number) in sent
