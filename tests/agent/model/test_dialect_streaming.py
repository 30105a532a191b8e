"""A turn as it happens: what the model says reaches the caller at once, and a call that ends ends the model's."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from kit.modelled import ALL, clerk_of, going, scripted_mesh

from retinue.agent import Agent, tool
from retinue.agent.model.scripted import Scripted
from retinue.agent.testing import Answer, ModelServer, call
from retinue.agent.testing.asked import text_of
from retinue.service.chat import Body, Call, Completed, RunState, TextDelta, ThinkingDelta, ToolInput
from retinue.service.client.peer import Peer
from retinue.service.envelope import Envelope

WORDS = "one two three four five six seven"


@tool
async def look(where: str) -> str:
    """Looks."""
    return "seen"


SAID = {
    "text": Answer(step=WORDS),
    "thinking": Answer(step="", thinking=WORDS),
    "a call": Answer(step=call("look", where=WORDS)),
}


def piece_of(what: str, body: Body) -> str:
    """What this event brings of it."""
    match what, body:
        case ("text", TextDelta(piece)) | ("thinking", ThinkingDelta(piece)) | ("a call", ToolInput(_, piece)):
            return piece
        case _:
            return ""


@ALL
@pytest.mark.parametrize("what", SAID)
async def test_what_the_model_says_arrives_while_it_still_speaks(dialect: str, what: str) -> None:
    hold = asyncio.Event()
    script = [replace(SAID[what], hold=hold), "Done."]
    async with (
        scripted_mesh(script) as (server, mesh),
        mesh.serve(clerk_of(dialect, server, tools=[look])),
        aclosing(mesh.peer("clerk").stream("Go.")) as events,
    ):
        said = ""
        while WORDS not in said:
            # The server sends its last piece only when all of this has come.
            body = (await anext(events)).body
            assert not isinstance(body, Completed)
            said += piece_of(what, body)
        hold.set()
        *_, last = [event.body async for event in events]
    assert isinstance(last, Completed)
    assert last.reply.state is RunState.COMPLETED


class Turn:
    """A turn whose model speaks, and holds its last piece back for ever; then one that is answered."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def __call__(self, body: Any) -> str | Answer:
        if text_of(body["messages"][-1]["content"]) != "Go.":
            return "Here."
        self.asked.set()
        return Answer(step=WORDS, hold=asyncio.Event())

    async def speaks(self, peer: Peer | Agent, session: str = "") -> str:
        """Returns the id of the run once it has shown something of the model's answer."""
        await self.asked.wait()
        run_id = (await peer.history(session)).messages[0].run_id
        async with aclosing(peer.watch(run_id)) as events:
            async for event in events:
                if isinstance(event.body, TextDelta):
                    return run_id
        raise AssertionError("the run showed nothing")


async def hung_up(server: ModelServer) -> None:
    """The model's connection is closed within a second."""
    async with asyncio.timeout(1):
        await server.hung_up.wait()


@ALL
@pytest.mark.parametrize("how", ["leave ask", "leave stream", "cancel"])
async def test_ending_a_call_closes_the_models_connection_within_a_second(dialect: str, how: str) -> None:
    turn = Turn()
    async with scripted_mesh(turn) as (server, mesh), mesh.serve(clerk_of(dialect, server)):
        peer = mesh.peer("clerk")
        async with going(peer, streamed=how == "leave stream") as task:
            run_id = await turn.speaks(peer)
            if how == "cancel":
                assert await peer.cancel(run_id) == 1
            else:
                task.cancel()
            await hung_up(server)
        assert (await peer.ask("And now?")).text == "Here."
        assert (await peer.run(run_id)).state is RunState.CANCELLED


@ALL
async def test_a_deadline_closes_the_models_connection_within_a_second(dialect: str) -> None:
    turn, loop = Turn(), asyncio.get_running_loop()
    async with scripted_mesh(turn) as (server, mesh), mesh.serve(clerk_of(dialect, server)):
        peer = mesh.peer("clerk")
        deadline = loop.time() + 1.0
        async with going(peer, Call(envelope=Envelope(deadline=deadline)), streamed=True):
            run_id = await turn.speaks(peer)
            await asyncio.sleep(deadline - loop.time())
            await hung_up(server)
        assert (await peer.ask("And now?")).text == "Here."
        run = await peer.run(run_id)
    assert (run.state, run.reason) == (RunState.INCOMPLETE, "deadline")


@ALL
async def test_a_call_left_before_the_models_first_byte_closes_its_connection_too(dialect: str) -> None:
    asked = asyncio.Event()

    def script(body: Any) -> Answer:
        asked.set()
        return Answer(latency=None)

    async with (
        scripted_mesh(script) as (server, mesh),
        mesh.serve(clerk_of(dialect, server)),
        going(mesh.peer("clerk"), streamed=True) as task,
    ):
        await asked.wait()
        task.cancel()
        await hung_up(server)


@ALL
async def test_a_call_left_closes_the_connection_of_a_delegates_model(dialect: str) -> None:
    turn = Turn()
    boss = Agent("boss", model=Scripted(call("delegate", to="clerk", task="Go.")))
    async with scripted_mesh(turn) as (server, mesh):
        clerk = clerk_of(dialect, server)
        async with mesh.serve(clerk, boss), going(mesh.peer("boss"), streamed=True) as task:
            run_id = await turn.speaks(clerk, "default~boss")
            task.cancel()
            await hung_up(server)
            assert (await mesh.ask("clerk", "And now?")).text == "Here."
            assert (await clerk.run(run_id)).state is RunState.CANCELLED
