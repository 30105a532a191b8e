"""Runs of agents through the router: begun without waiting, looked up, watched, ended and answered."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from retinue.agent import Agent, Ask, Hooks, Invocation, tool
from retinue.agent.model import ModelRequest
from retinue.agent.model.scripted import Scripted, call
from retinue.router.router import Router
from retinue.service.chat import Answer, Call, Completed, RunState
from retinue.service.errors import Invalid
from retinue.service.server.pulse import Timing
from retinue.service.testing import LocalMesh

DETACHED = Call(detach=True)


async def hang(request: ModelRequest) -> str:
    await asyncio.Event().wait()
    return ""


@tool
async def buy() -> str:
    """Buys something."""
    return "bought"


async def check(invocation: Invocation) -> Ask:
    return Ask("really?")


async def test_a_run_is_found_watched_answered_and_ended_through_the_router() -> None:
    model = Scripted(call("buy"), "there", hang)
    clerk = Agent("clerk", model=model, tools=[buy], hooks=Hooks(before_tool_call=check))
    timing = Timing(quiet=0.0, drain=1.0)
    async with asyncio.timeout(20), LocalMesh(timing=timing) as mesh, mesh.serve(clerk, Router(model=Scripted())):
        router = mesh.peer("router")
        waiting = await router.ask("buy it")
        assert waiting.state is RunState.WAITING
        await router.resolve(waiting.run_id, waiting.pending[0].id, Answer(approved=True))
        async with aclosing(router.watch(waiting.run_id)) as events:
            last = [event async for event in events][-1]
        assert isinstance(last.body, Completed)
        assert (last.body.reply.text, last.body.reply.agent) == ("there", "clerk")
        begun = await router.ask("hang", DETACHED)
        assert (begun.state, begun.agent) == (RunState.RUNNING, "clerk")
        queued = await router.follow_up("and then?")
        assert await router.cancel(queued) == 1
        assert await router.cancel(begun.run_id) == 1
        assert (await router.run(begun.run_id)).state is RunState.CANCELLED


async def test_what_goes_to_several_agents_cannot_be_detached() -> None:
    parts = [Agent(name, model=Scripted()) for name in ("ann", "bob")]
    async with asyncio.timeout(20), LocalMesh() as mesh, mesh.serve(*parts, Router(model=Scripted())):
        with pytest.raises(Invalid, match="ann, bob"):
            await mesh.peer("router").ask("@ann @bob hello", DETACHED)
