"""A session that changes its provider, or its model: the new one gets the whole history, and no state of the old."""

from __future__ import annotations

import base64
import json
from itertools import permutations, product
from typing import Any

import pytest
from kit.dialect_models import DIALECTS, model_of
from kit.modelled import ALL, clerk_of, dialect_of, scripted_mesh, text_in

from retinue.agent import Agent, tool
from retinue.agent.model import WantedCall
from retinue.agent.testing import Answer, call
from retinue.agent.testing.dialects import SIGNATURE
from retinue.service.chat import Blob, Call, Part
from retinue.service.mesh import Mesh

IMAGE = Part(image=Blob("image/png", data=b"\x89PNG real bytes"))
LINKED = Part(image=Blob("image/png", uri="https://example.org/cat.png"))
NAMES = ("one", "two", "three")
# What a server wants back of a message with this thinking, by dialect.
MARKS = {"anthropic": SIGNATURE, "gemini": SIGNATURE}


@tool
async def look(where: str = "") -> str:
    """Looks."""
    if where == "away":
        raise LookupError("nothing there")
    return f"seen {where}"


def turn_of(name: str) -> list[Any]:
    """The steps of a turn: thinking, a call alone, parallel calls with ids and names of the server's own, an answer."""
    odd = WantedCall("call/0 é", "no such: tool", {})
    return [
        Answer(step=["Looking.", call("look", where=name)], thinking=f"{name} thinks"),
        Answer(step=[call("look", where="away"), odd, call("look", where=f"{name} again")], thinking=f"{name} ponders"),
        Answer(step=f"{name} is done.", thinking=f"{name} rests"),
    ]


async def take_turn(mesh: Mesh, agent: Agent, said: str, *parts: Part) -> None:
    """Serves the agent for one turn."""
    async with mesh.serve(agent):
        await mesh.peer("clerk").ask(said, Call(parts=parts))


@pytest.mark.parametrize(("first", "second"), list(permutations(DIALECTS, 2)))
async def test_a_session_goes_to_another_provider_and_back(first: str, second: str) -> None:
    script = [step for name in NAMES for step in turn_of(name)]
    linked = () if first == "ollama" else (LINKED,)
    async with scripted_mesh(script) as (server, mesh):
        await take_turn(mesh, clerk_of(first, server, tools=[look]), "turn 1", IMAGE, *linked)
        await take_turn(mesh, clerk_of(second, server, tools=[look]), "turn 2", IMAGE)
        await take_turn(mesh, clerk_of(first, server, tools=[look]), "turn 3")
    served = [first, second, first]
    assert [dialect_of(each) for each in server.requests] == [dialect for dialect in served for _ in range(3)]
    for (turn, step), request in zip(product(range(3), range(3)), server.requests, strict=True):
        sent = text_in(request)
        foreign = [name for name, dialect in zip(NAMES, served, strict=True) if dialect != served[turn]]
        assert not [name for name in foreign if f"{name} thinks" in sent or f"{name} rests" in sent]
        assert [f"{name} is done." in sent for name in NAMES] == [each < turn for each in range(3)]
        assert [f"seen {name} again" in sent for name in NAMES] == [(each, 2) <= (turn, step) for each in range(3)]
        assert sent.count("nothing there") == turn + (step == 2)
    assert SIGNATURE not in text_in(server.requests[3])


@ALL
async def test_what_one_model_wanted_back_is_not_sent_to_another_of_the_same_server(dialect: str) -> None:
    script = [step for name in NAMES for step in turn_of(name)]
    async with scripted_mesh(script) as (server, mesh):
        for number, model in enumerate(("m", "n", "m"), 1):
            agent = Agent("clerk", model=model_of(dialect, server.url, model), tools=[look])
            await take_turn(mesh, agent, f"turn {number}")
    first, other = text_in(server.requests[1]), text_in(server.requests[3])
    assert MARKS.get(dialect, "one thinks") in first
    assert SIGNATURE not in other
    assert "one thinks" not in other


DATA = base64.b64encode(b"\x89PNG drawn").decode()
LINK = {"image_url": {"url": f"data:image/png;base64,{DATA}"}}
DRAWN = {
    "openai": {"choices": [{"message": {"content": "", "images": [LINK]}, "finish_reason": "stop"}]},
    "gemini": {
        "candidates": [
            {
                "content": {"parts": [{"inlineData": {"mimeType": "image/png", "data": DATA}}]},
                "finishReason": "STOP",
            }
        ]
    },
}


@pytest.mark.parametrize("dialect", DRAWN)
async def test_an_image_that_one_model_made_spoils_no_request_to_another(dialect: str) -> None:
    drawn = Answer(body=json.dumps(DRAWN[dialect]).encode(), content_type="application/json")
    async with scripted_mesh([drawn, *["Well."] * len(DIALECTS)]) as (server, mesh):
        async with mesh.serve(clerk_of(dialect, server)):
            reply = await mesh.ask("clerk", "Draw a cat.")
        for other in DIALECTS:
            await take_turn(mesh, clerk_of(other, server), "And now?")
    assert reply.parts == (Part(image=Blob("image/png", data=b"\x89PNG drawn")),)
