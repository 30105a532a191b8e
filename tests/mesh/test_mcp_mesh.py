"""The mesh as an MCP server while things happen: calls are cancelled, agents come and go, turns end in many ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kit.jsonrpc import Speaker, speaking
from kit.nodes import Held, Tasks

from office.v1 import task_pb2_grpc
from retinue.service.chat import Call, Completed, Event, Pending, Reply, RunState, StatusNote, ToolStarted
from retinue.service.errors import ModelRate
from retinue.service.mesh import Mesh, Part, Service
from retinue.service.settings import Settings
from retinue.service.testing import Stub


class Client:
    """A client by hand whose waits are beside the event loop, where the mesh of the test is served."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker

    async def do(self, name: str, *args: Any, **arguments: Any) -> Any:
        """What the method `name` of the client returns."""
        method: Callable[..., Any] = getattr(self._speaker, name)
        return await asyncio.to_thread(method, *args, **arguments)


@asynccontextmanager
async def serving(folder: Path, *parts: Part) -> AsyncIterator[tuple[Mesh, Client]]:
    """A mesh with these parts, and a client of the `retinue mcp serve` that serves it."""
    registry = f"local://{folder}/registry.db"
    async with (
        asyncio.timeout(90),
        Mesh(Settings(registry=registry, store="memory:")) as mesh,
        mesh.serve(*parts),
    ):
        context = speaking(folder, "mcp", "serve", extra={"RETINUE_REGISTRY": registry})
        speaker = await asyncio.to_thread(context.__enter__)
        try:
            yield mesh, Client(speaker)
        finally:
            await asyncio.to_thread(context.__exit__, None, None, None)


class Busy(Stub):
    """An agent that says what it does while it is at work."""

    async def stream(self, message: str, call: Call = Call()) -> AsyncGenerator[Event, None]:
        yield Event(1, "run", StatusNote("waiting for the model"))
        yield Event(2, "run", ToolStarted("1", "task_Task_List"))
        yield Event(3, "run", Completed(Reply(text="done", agent=self.name, run_id="run")))


def held_agent(held: Held) -> Stub:
    async def answer(message: str, call: Call) -> str:
        await held(None, None)  # type: ignore[arg-type]
        return message

    return Stub("slow", answer)


async def test_a_call_that_is_cancelled_is_cancelled_at_the_agent_and_at_the_service(tmp_path: Path) -> None:
    asked, called = Held(), Held()
    service = Service("task", task_pb2_grpc.add_TaskServicer_to_server, Tasks(called))
    async with serving(tmp_path, held_agent(asked), service) as (_, client):
        for held, tool, arguments in (
            (asked, "ask_slow", {"message": "hello"}),
            (called, "task_Task_Create", {"title": "milk"}),
        ):
            number = await client.do("start", tool, **arguments)
            await held.begun.wait()
            await client.do("cancel", number)
            await held.ended.wait()
        assert await client.do("call", "task_Task_List")


async def test_the_list_follows_the_registry_and_clients_are_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as (mesh, client):
        assert await client.do("tools") == {}
        said = await client.do("refused", "ask_second", message="echo")
        assert said.startswith("there is no tool 'ask_second'; nothing is registered at local:///")
        assert said.endswith("registry.db: is the mesh running?")
        service = Service("task", task_pb2_grpc.add_TaskServicer_to_server, Tasks())
        async with mesh.serve(Stub("second", description="Says it\nagain."), service):
            while not {"ask_second", "task_Task_List"} <= (tools := await client.do("tools")).keys():
                await client.do("wait_for", "notifications/tools/list_changed")
            assert tools["ask_second"]["description"].endswith('It says of itself: "Says it again."')
            assert await client.do("call", "ask_second", message="echo") == "echo"
        while await client.do("tools"):
            await client.do("wait_for", "notifications/tools/list_changed")


async def test_how_a_turn_comes_along_and_how_it_ends_is_told(tmp_path: Path) -> None:
    def answer(message: str, call: Call) -> Reply | str:
        reply = Reply(text="so far", agent="agent", run_id="r1")
        match message:
            case "fail":
                raise ModelRate("the model is busy", retry_after=1.0)
            case "limit":
                return replace_state(reply, RunState.INCOMPLETE, reason="model_calls")
            case "wait":
                pending = Pending(id="p1", kind="approval", name="task_Task_Delete", arguments='{"id":"1"}')
                return replace_state(reply, RunState.WAITING, pending=(pending,))
            case "cancelled":
                return replace_state(reply, RunState.CANCELLED)
        return call.session

    async with serving(tmp_path, Stub("agent", answer), Busy("busy")) as (_, client):
        call = {"name": "ask_busy", "arguments": {"message": "x"}, "_meta": {"progressToken": "p"}}
        number = await client.do("send", "tools/call", call)
        notes = [(await client.do("wait_for", "notifications/progress"))["params"] for _ in range(2)]
        assert [(note["progressToken"], note["progress"], note["message"]) for note in notes] == [
            ("p", 1, "waiting for the model"),
            ("p", 2, "busy calls task_Task_List"),
        ]
        assert await client.do("ended", number) == ("done", False)
        said = await client.do("refused", "ask_agent", message="fail")
        assert said == "RESOURCE_EXHAUSTED: the model is busy"
        said = await client.do("call", "ask_agent", message="limit")
        assert said == "so far\n(incomplete: the limit of model_calls was met)"
        said = await client.do("call", "ask_agent", message="wait")
        assert 'waits for approval of task_Task_Delete {"id":"1"}: retinue call agent Agent.Resolve' in said
        assert await client.do("refused", "ask_agent", message="cancelled") == "so far\n(cancelled)"
        # Who names no session goes on with the one of this process, which is nobody else's.
        one, two = [await client.do("call", "ask_agent", message="session") for _ in range(2)]
        assert one == two and one.startswith("mcp-")
        assert await client.do("call", "ask_agent", message="session", session="mine") == "mine"


def replace_state(reply: Reply, state: RunState, *, reason: str = "", pending: tuple[Pending, ...] = ()) -> Reply:
    return Reply(text=reply.text, agent=reply.agent, run_id=reply.run_id, state=state, reason=reason, pending=pending)
