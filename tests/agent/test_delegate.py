"""Delegation over real gRPC: to registered agents, to ephemeral sub-agents, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from retinue.agent import Agent, Limits, tool
from retinue.agent.model import ModelRequest, WantedCall
from retinue.agent.model.scripted import Scripted, call
from retinue.service.chat import RunState, StatusNote, TextDelta, ToolDone, ToolStatus
from retinue.service.client import Client
from retinue.service.client.directory import Directory
from retinue.service.client.peer import Peer
from retinue.service.errors import ModelAuth, RegistryUnavailable
from retinue.service.testing import LocalMesh, Stub
from retinue.service.usage import Usage


@tool
def stock(item: str) -> int:
    """How many there are."""
    return 3


def delegate(task: str, to: str = "", **more: str) -> WantedCall:
    return call("delegate", task=task, **({"to": to} if to else {}), **more)


async def test_a_registered_agent_does_the_task_by_rpc_in_a_session_of_its_own() -> None:
    clerk = Agent("clerk", model=Scripted("the tax form"))
    boss = Agent("boss", model=Scripted(delegate("what is late?", "clerk", context="for Ada"), "Ada: the tax form"))
    async with LocalMesh() as mesh, mesh.serve(clerk, boss):
        reply = await mesh.ask("boss", "check on Ada", session="s1")
        theirs = await clerk.history("s1~boss")
        nothing = await clerk.history("s1")
    (made,) = reply.tool_calls
    assert reply.text == "Ada: the tax form"
    assert (made.status, made.result) == (ToolStatus.OK, "the tax form")
    assert made.run_id == theirs.messages[0].run_id != reply.run_id
    assert theirs.messages[0].text == "what is late?\n\n## Context\nfor Ada"
    assert nothing.messages == ()


async def test_parallel_delegates_to_one_peer_have_sessions_of_their_own() -> None:
    clerk = Agent("clerk", model=Scripted("a", "b"))
    boss = Agent("boss", model=Scripted([delegate("1", "clerk"), delegate("2", "clerk")], "done"))
    async with LocalMesh() as mesh, mesh.serve(clerk, boss):
        await mesh.ask("boss", "go")
        sessions = [await clerk.history(name) for name in ("default~boss", "default~boss.2")]
    assert sorted(page.messages[0].text for page in sessions) == ["1", "2"]


@pytest.mark.parametrize("to", ["", "researcher"])
async def test_without_an_agent_of_that_name_a_sub_agent_does_it_and_stores_nothing(to: str) -> None:
    model = Scripted(delegate("count", to), call("stock", item="x"), "three", "There are three.")
    async with LocalMesh() as mesh, mesh.serve(Agent("boss", model=model, tools=[stock])):
        reply = await mesh.ask("boss", "how many?")
        keys = {f"agent/{{{name}}}/history" for name in ("boss", to or "x")}
        lengths = {key: (await mesh.store.read(key)).length for key in keys}
    (made,) = reply.tool_calls
    assert "a sub-agent answered" in made.result
    assert ("no agent named 'researcher'" in made.result) == bool(to)
    assert made.result.endswith("three")
    assert reply.usage.model_calls == 4
    offered = [spec.name for spec in model.requests[1].tools]
    assert offered == ["stock"]
    assert [message.message.text for message in model.requests[1].messages] == ["count"]
    assert ("Your role: researcher." in model.requests[1].system) == bool(to)
    assert sum(lengths.values()) == 4


async def test_an_agent_that_is_being_restarted_is_waited_for_and_no_sub_agent_stands_in() -> None:
    asked = asyncio.Event()

    def go(_: ModelRequest) -> WantedCall:
        asked.set()
        return delegate("count", "clerk")

    boss = Agent("boss", model=Scripted(delegate("count", "clerk"), "first", go, "second"))
    async with asyncio.timeout(20), LocalMesh() as mesh, mesh.serve(boss):
        async with mesh.serve(Agent("clerk", model=Scripted("one"))):
            assert (await mesh.ask("boss", "go")).tool_calls[0].result == "one"
        again = asyncio.create_task(mesh.ask("boss", "go again"))
        await asked.wait()
        async with mesh.serve(Agent("clerk", model=Scripted("two"))):
            (made,) = (await again).tool_calls
    assert (made.status, made.result) == (ToolStatus.OK, "two")


async def test_the_events_of_a_sub_agent_name_the_call_that_started_it() -> None:
    model = Scripted(delegate("count"), call("stock", item="x"), "three", "done")
    async with Agent("boss", model=model, tools=[stock]) as boss:
        events = [event async for event in boss.stream("go")]
    inner = [event for event in events if event.parent_tool_id]
    outer = [event for event in events if not event.parent_tool_id]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert any(isinstance(event.body, ToolDone) and event.body.call.name == "stock" for event in inner)
    (done,) = [event.body.call for event in outer if isinstance(event.body, ToolDone)]
    assert {event.parent_tool_id for event in inner} == {done.id}
    assert "".join(event.body.text for event in inner if isinstance(event.body, TextDelta)) == "three"
    assert not any(isinstance(event.body, StatusNote) for event in inner)


async def test_a_misspelt_peer_is_an_error_that_names_the_nearest() -> None:
    model = Scripted(delegate("go", "task-mgrr"), "I see.")
    async with LocalMesh() as mesh, mesh.serve(Stub("task-mgr"), Agent("boss", model=model)):
        reply = await mesh.ask("boss", "go")
    assert reply.tool_calls[0].status is ToolStatus.ERROR
    assert "did you mean task-mgr?" in reply.tool_calls[0].error
    assert len(model.requests) == 2


async def test_can_invoke_is_enforced_when_called() -> None:
    model = Scripted([delegate("go", "clerk"), call("invoke_clerk", task="go"), call("invoke_notes", task="hi")], "ok")
    boss = Agent("boss", model=model, can_invoke=["notes"])
    async with LocalMesh() as mesh, mesh.serve(Stub("clerk"), Stub("notes"), boss):
        reply = await mesh.ask("boss", "go")
        system = model.requests[0].system
    assert [made.status for made in reply.tool_calls] == [ToolStatus.REFUSED, ToolStatus.ERROR, ToolStatus.OK]
    assert reply.tool_calls[2].result == "hi"
    assert "notes" in system
    assert "clerk" not in system


async def test_peers_are_listed_as_they_come_and_go() -> None:
    model = Scripted(then="ok")
    async with asyncio.timeout(10), LocalMesh() as mesh, mesh.serve(Agent("boss", model=model)):
        async with mesh.serve(Stub("clerk", description="Knows what is late.")):
            while "clerk" not in await system_now(mesh, model):
                pass
            assert '- clerk: "Knows what is late."' in model.requests[-1].system
        while "clerk" in await system_now(mesh, model):
            pass


async def system_now(mesh: LocalMesh, model: Scripted) -> str:
    await mesh.ask("boss", "who is there?", session=f"s{len(model.requests)}")
    return model.requests[-1].system


async def test_a_circle_is_refused_before_any_model_call_and_the_caller_still_answers() -> None:
    a_model = Scripted(delegate("over to you", "b"), "a is done")
    b_model = Scripted(delegate("back to you", "a"), "b is done")
    async with LocalMesh() as mesh, mesh.serve(Agent("a", model=a_model), Agent("b", model=b_model)):
        reply = await mesh.ask("a", "go")
    assert reply.text == "a is done"
    assert len(a_model.requests) == 2
    told = b_model.requests[1].messages[-1].message.text
    assert "CYCLE" in told
    assert "a → b → a" in told


async def test_an_agent_cannot_delegate_to_itself() -> None:
    async with LocalMesh() as mesh, mesh.serve(Agent("a", model=Scripted(delegate("again", "a"), "done"))):
        reply = await mesh.ask("a", "go")
    assert reply.tool_calls[0].status is ToolStatus.ERROR
    assert reply.tool_calls[0].error.endswith("a → a")


async def test_depth_is_refused_by_the_callee() -> None:
    last = Agent("c", model=Scripted("never asked"))
    middle = Agent("b", model=Scripted(delegate("on", "c"), "b is done"))
    first = Agent("a", model=Scripted(delegate("on", "b"), "a is done"), limits=Limits(depth=2))
    async with LocalMesh() as mesh, mesh.serve(last, middle, first):
        assert (await mesh.ask("a", "go")).text == "a is done"
        history = await middle.history("default~a")
    assert "DEPTH" in history.messages[2].text
    assert "a → b → c" in history.messages[2].text


async def test_children_draw_on_the_budget_of_the_root_and_the_root_still_answers() -> None:
    forever = Scripted(then=lambda request: call("stock", item="x") if request.tools else "enough")
    child = Agent("child", model=forever, tools=[stock])
    root_model = Scripted(delegate("loop", "child"), "the end")
    root = Agent("root", model=root_model, limits=Limits(model_calls=6))
    async with LocalMesh() as mesh, mesh.serve(child, root):
        reply = await mesh.ask("root", "go")
    assert reply.text == "the end"
    assert len(forever.requests) + len(root_model.requests) <= 6
    assert forever.requests[-1].tools == ()
    assert "INCOMPLETE model_calls" in reply.tool_calls[0].result


async def test_sixteen_parallel_children_cannot_overspend() -> None:
    child = Agent("child", model=(forever := Scripted(then=lambda r: call("stock", item="x") if r.tools else "ok")))
    root_model = Scripted([delegate(str(n), "child") for n in range(16)], "the end")
    async with LocalMesh() as mesh, mesh.serve(child, Agent("root", model=root_model, limits=Limits(model_calls=20))):
        reply = await mesh.ask("root", "go")
    assert len(forever.requests) + len(root_model.requests) <= 20
    assert reply.text == "the end"
    assert len(reply.tool_calls) == 16


async def test_a_sub_agent_counts_as_a_run_of_the_tree() -> None:
    model = Scripted(
        delegate("loop"), then=lambda request: call("stock", item="x") if "stock" in names(request) else "that is all"
    )
    async with Agent("boss", model=model, tools=[stock], limits=Limits(model_calls=5)) as boss:
        reply = await boss.ask("go")
    assert len(model.requests) == 5
    assert reply.state is RunState.INCOMPLETE


def names(request: ModelRequest) -> list[str]:
    return [spec.name for spec in request.tools]


async def test_a_registry_that_cannot_be_reached_is_an_error_and_no_sub_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Scripted(delegate("go", "clerk"), "I see.")
    async with LocalMesh() as mesh, mesh.serve(Agent("boss", model=model)):

        async def away(*_: object) -> None:
            raise RegistryUnavailable("the registry at consul://x does not answer")

        monkeypatch.setattr(mesh.client.directory, "nodes", away)
        monkeypatch.setattr(mesh.client.directory, "names", away)
        async with asyncio.timeout(5):
            reply = await boss_reply(mesh)
    assert reply == (ToolStatus.ERROR, "REGISTRY: the registry at consul://x does not answer")


async def boss_reply(mesh: LocalMesh) -> tuple[ToolStatus, str]:
    async with Directory(mesh.registry) as directory, Client(directory) as client:
        reply = await Peer(client, "boss").ask("go")
    return reply.tool_calls[0].status, reply.tool_calls[0].error


async def test_what_a_delegate_used_counts_for_its_parent_also_when_it_fails() -> None:
    good = Agent("good", model=Scripted("fine", usage=Usage(input=10, output=1)))
    bad = Agent(
        "bad",
        model=Scripted(call("stock", item="x"), ModelAuth("no key"), usage=Usage(input=100, output=2)),
        tools=[stock],
    )
    model = Scripted([delegate("1", "good"), delegate("2", "bad")], "done", usage=Usage(input=1000, output=3))
    async with LocalMesh() as mesh, mesh.serve(good, bad, Agent("boss", model=model)):
        reply = await mesh.ask("boss", "go")
    assert reply.tool_calls[1].error == "MODEL_AUTH: no key"
    assert (reply.usage.input, reply.usage.output, reply.usage.model_calls) == (2110, 9, 5)
