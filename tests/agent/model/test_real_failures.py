"""What a model server and its callers do wrong, through agent and gRPC in each dialect: told truly, and survived."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import grpc.aio
import pytest
from kit.dialect_models import PATHS, model_of
from kit.modelled import ALL, clerk_of, going, scripted_mesh, text_in
from kit.serving import status_of

from retinue.agent import Agent, tool
from retinue.agent.model import Stop, WantedCall, retry
from retinue.agent.testing import Answer, call
from retinue.agent.testing.dialects import Spoken, spelling
from retinue.service.chat import Failed, TextDelta, ToolStarted
from retinue.service.errors import ModelAuth, ModelRate, ModelUnavailable
from retinue.v1 import agent_pb2, agent_pb2_grpc

SECRET = "sk-secret-1"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off without the waiting; floors that a server sets stay."""
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)


class Work:
    """A tool that is done at once, and one that hangs until it is cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.looked = 0
        self.tools = [tool(self.look), tool(self.hang)]

    async def look(self) -> str:
        """Looks."""
        self.looked += 1
        return "seen"

    async def hang(self) -> str:
        """Hangs."""
        self.begun.set()
        await asyncio.Event().wait()
        return "never"


@ALL
async def test_after_a_rate_limit_the_same_request_comes_again_and_no_sooner(dialect: str) -> None:
    time = asyncio.get_running_loop().time
    came = []

    def script(body: Any) -> Any:
        came.append(time())
        return {1: [call("look")], 2: ModelRate("slow down", retry_after=0.3)}.get(len(came), "Seen.")

    work = Work()
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=work.tools)):
        reply = await mesh.ask("clerk", "Look.")
    assert (reply.text, work.looked) == ("Seen.", 1)
    assert came[2] - came[1] >= 0.3
    assert server.requests[2] == server.requests[1]


@ALL
async def test_an_overloaded_server_is_asked_again(dialect: str) -> None:
    script = [Answer(status=529, step="full"), "Here."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server)):
        assert (await mesh.ask("clerk", "Look.")).text == "Here."
    assert server.requests[1] == server.requests[0]


@ALL
async def test_a_server_that_stays_overloaded_is_a_typed_failure_that_spoils_no_later_turn(dialect: str) -> None:
    work = Work()
    script = [[call("look")], *[Answer(status=529, step="full")] * 3, "Here."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=work.tools)):
        with pytest.raises(ModelUnavailable) as caught:
            await mesh.ask("clerk", "Look.")
        assert caught.value.facts["kind"] == "overloaded"
        assert (await mesh.ask("clerk", "And now?")).text == "Here."
    assert len(server.requests) == 5


@ALL
async def test_a_stream_cut_before_anything_was_shown_is_asked_for_again(dialect: str) -> None:
    script = [Answer(step="one", cut=0), "Here."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server)):
        assert (await mesh.ask("clerk", "Look.")).text == "Here."
    assert len(server.requests) == 2


@ALL
async def test_a_stream_cut_inside_a_call_runs_no_tool(dialect: str) -> None:
    work, wanted = Work(), WantedCall("c1", "look", {"note": "n" * 200})
    spoken = Spoken(text="I will look.", calls=[wanted], stop=Stop.TOOL_CALLS, model="m")
    inside = b"".join(spelling(PATHS[dialect]).stream(spoken)).index(b"nnn") + 50
    script = [Answer(step=["I will look.", wanted], cut=inside), "Here."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=work.tools)):
        async with aclosing(mesh.peer("clerk").stream("Look.")) as events:
            bodies = [event.body async for event in events]
        assert (await mesh.ask("clerk", "And now?")).text == "Here."
    assert isinstance(bodies[-1], Failed)
    assert isinstance(bodies[-1].error, ModelUnavailable)
    assert "the answer broke off" in bodies[-1].error.message
    assert "".join(body.text for body in bodies if isinstance(body, TextDelta)) == "I will look."
    assert not any(isinstance(body, ToolStarted) for body in bodies)
    # Something was shown, so that the second request is the second turn's.
    assert (work.looked, len(server.requests)) == (0, 2)


@ALL
async def test_a_refused_key_is_said_at_once_and_never_shown(dialect: str) -> None:
    words = f"bad key {SECRET}"
    script = [Answer(status=401, step=words), ModelAuth(words), Answer(status=401, step=words), "Here."]
    async with scripted_mesh(script) as (server, mesh):
        clerk = Agent("clerk", model=model_of(dialect, server.url, api_key=SECRET))
        async with mesh.serve(clerk) as (node,), grpc.aio.insecure_channel(node.address) as channel:
            stub = agent_pb2_grpc.AgentStub(channel)
            for _ in range(2):
                error = await status_of(stub.Chat(agent_pb2.ChatRequest(message="Look.")))
                assert isinstance(error, ModelAuth)
                assert error.status is grpc.StatusCode.FAILED_PRECONDITION
                assert f"{dialect}/m" in error.message
                assert SECRET not in repr((error, error.facts))
            *_, last = [event async for event in stub.StreamChat(agent_pb2.ChatRequest(message="Look."))]
            assert last.WhichOneof("event") == "error"
            assert last.error.reason == "MODEL_AUTH"
            assert SECRET not in str(last)
            assert (await stub.Chat(agent_pb2.ChatRequest(message="And now?"))).reply == "Here."
    assert len(server.requests) == 4


@ALL
@pytest.mark.parametrize("how", ["leave ask", "leave stream", "cancel"])
async def test_a_turn_ended_in_the_middle_of_its_tools_leaves_a_history_that_goes_on(dialect: str, how: str) -> None:
    work = Work()
    script = [Answer(step=["Looking.", call("look"), call("hang"), call("look")], thinking="Hm."), "Here."]
    async with scripted_mesh(script) as (server, mesh), mesh.serve(clerk_of(dialect, server, tools=work.tools)):
        peer = mesh.peer("clerk")
        async with going(peer, streamed=how == "leave stream") as turn:
            await work.begun.wait()
            if how == "cancel":
                assert await peer.cancel((await peer.history()).messages[0].run_id) == 1
            else:
                turn.cancel()
        assert (await mesh.ask("clerk", "And now?")).text == "Here."
        results = [each for each in (await peer.history()).messages if each.role == "tool"]
    assert [each.text for each in results[::2]] == ["seen", "seen"]
    assert "outcome is unknown" in results[1].text
    assert len(server.requests) == 2
    assert text_in(server.requests[1]).count("outcome is unknown") == 1
