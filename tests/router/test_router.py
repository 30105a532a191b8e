"""The router of section 8 of the design: who gets which message, with a whole mesh in memory and real gRPC."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from kit.stubs import EVERYONE, PROJECTS, TASKS, Heard, office, served

from office.v1 import task_pb2, task_pb2_grpc
from retinue.agent.model.scripted import Scripted, call
from retinue.router.router import Router
from retinue.service.chat import (
    Call,
    Part,
    RunState,
)
from retinue.service.envelope import Envelope
from retinue.service.errors import ModelUnavailable, NoNode, RequestConflict
from retinue.service.part import Service
from retinue.service.registry import Node
from retinue.service.testing import LocalMesh, Stub


async def test_the_only_agent_gets_everything_without_a_model_call() -> None:
    heard, model = Heard(), Scripted()
    async with office(heard, model, {"task-mgr": TASKS}) as mesh:
        reply = await mesh.ask("router", "what is the weather?")
    assert (reply.agent, reply.text) == ("task-mgr", "task-mgr heard: what is the weather?")
    assert [made.name for made in reply.tool_calls] == ["task-mgr_tool"]
    assert model.requests == []


async def test_a_mention_names_the_agent() -> None:
    heard, model = Heard(), Scripted()
    async with office(heard, model) as mesh:
        reply = await mesh.ask("router", "@comms-mgr what about the task list?")
    assert reply.agent == "comms-mgr"
    assert heard.asked == [("comms-mgr", "@comms-mgr what about the task list?")]


async def test_a_mention_of_nobody_is_answered_with_the_nearest() -> None:
    heard = Heard()
    async with office(heard) as mesh:
        reply = await mesh.ask("router", "@task-mgrr add milk")
    assert reply.agent == "router"
    assert "task-mgrr" in reply.text and "did you mean task-mgr?" in reply.text
    assert heard.asked == []


async def test_an_address_in_a_message_is_no_mention() -> None:
    heard = Heard()
    async with office(heard) as mesh:
        reply = await mesh.ask("router", "send messages to ada@example.com please")
    assert reply.agent == "comms-mgr"


@pytest.mark.parametrize(
    ("message", "agent"),
    [
        ("add a task called buy milk for ada", "task-mgr"),
        ("what tasks does ada have?", "task-mgr"),
        ("create a project called launch", "project-mgr"),
        ("send a message to bob", "comms-mgr"),
    ],
)
async def test_a_clear_match_needs_no_model(message: str, agent: str) -> None:
    heard, model = Heard(), Scripted()
    async with office(heard, model) as mesh:
        assert (await mesh.ask("router", message)).agent == agent
    assert model.requests == []


async def test_an_unclear_message_is_classified_by_the_model_with_descriptions_as_data() -> None:
    heard = Heard()
    model = Scripted(call("route_to_agent", agent="project-mgr", message="get the moon landing going"))
    async with office(heard, model) as mesh:
        reply = await mesh.ask("router", "get the moon landing going")
    assert reply.agent == "project-mgr"
    # Its own model call is counted with the agent's.
    assert (reply.usage.model_calls, reply.usage.input) == (2, 10)
    (request,) = model.requests
    assert [tool.name for tool in request.tools] == ["route_to_agent"]
    assert request.tools[0].parameters["properties"]["agent"]["enum"] == ["comms-mgr", "project-mgr", "task-mgr"]
    assert f'"description": "{TASKS}"' in request.system
    assert [one.message.text for one in request.messages] == ["get the moon landing going"]


async def test_a_follow_up_goes_to_the_agent_that_answered_last() -> None:
    heard, model = Heard(), Scripted()
    async with office(heard, model) as mesh:
        await mesh.ask("router", "what tasks does ada have?", session="s")
        reply = await mesh.ask("router", "And the second one?", session="s")
        other = await mesh.ask("router", "And send that message to bob, please", session="s")
    assert (reply.agent, other.agent) == ("task-mgr", "comms-mgr")
    assert model.requests == []


async def test_a_follow_up_of_another_session_is_not_taken_for_one() -> None:
    model = Scripted("none")
    async with office(Heard(), model) as mesh:
        await mesh.ask("router", "what tasks does ada have?", session="one")
        reply = await mesh.ask("router", "And the second one?", session="two")
    assert reply.agent == "router"
    assert len(model.requests) == 1


async def test_the_model_sees_the_recent_conversation() -> None:
    model = Scripted(call("route_to_agent", agent="comms-mgr", message="tell ada the launch slipped"))
    async with office(Heard(), model) as mesh:
        await mesh.ask("router", "what tasks does ada have?")
        await mesh.ask("router", "let everybody hear that the launch slipped by a week")
    texts = [one.message.text for one in model.requests[0].messages]
    assert "what tasks does ada have?" in texts and "task-mgr heard: what tasks does ada have?" in texts
    assert texts[-1] == "let everybody hear that the launch slipped by a week"


async def test_a_message_for_several_agents_is_answered_by_each_under_its_name() -> None:
    heard = Heard()
    model = Scripted(
        [
            call("route_to_agent", agent="task-mgr", message="add milk"),
            call("route_to_agent", agent="comms-mgr", message="tell bob"),
        ]
    )
    async with office(heard, model) as mesh:
        reply = await mesh.ask("router", "milk for ada, and bob has to hear of it")
    assert reply.text == "task-mgr:\ntask-mgr heard: add milk\n\ncomms-mgr:\ncomms-mgr heard: tell bob"
    assert reply.agent == "task-mgr, comms-mgr"
    assert [made.name for made in reply.tool_calls] == ["task-mgr_tool", "comms-mgr_tool"]
    assert reply.usage.model_calls == 3
    assert reply.state is RunState.COMPLETED


async def test_several_agents_are_asked_at_the_same_time() -> None:
    both = asyncio.Barrier(2)

    async def answer(message: str, call: Call) -> str:
        await both.wait()
        return "done"

    async with served(Stub("one", answer), Stub("two", answer), Stub("three")) as mesh:
        reply = await mesh.ask("router", "@one @two go on")
    assert reply.text == "one:\ndone\n\ntwo:\ndone"


async def test_of_several_agents_one_that_fails_does_not_hide_the_others() -> None:
    def broken(message: str, call: Call) -> str:
        raise ModelUnavailable("the model server is down")

    async with served(Stub("one"), Stub("two", broken)) as mesh:
        reply = await mesh.ask("router", "@one @two hello")
        with pytest.raises(ModelUnavailable, match="server is down"):
            await mesh.ask("router", "@two hello")
    assert reply.text.startswith("one:\n@one @two hello")
    assert "two:\n(no answer: the model server is down)" in reply.text
    assert (reply.state, reply.reason) == (RunState.INCOMPLETE, "two: MODEL_UNAVAILABLE")


async def test_a_message_that_no_agent_fits_gets_an_answer_that_says_who_is_there() -> None:
    heard, model = Heard(), Scripted("none")
    async with office(heard, model) as mesh:
        reply = await mesh.ask("router", "what is the tallest mountain of the moon?")
    assert reply.agent == "router"
    assert reply.text.startswith("No agent here fits that message.")
    assert all(name in reply.text for name in EVERYONE)
    assert (heard.asked, reply.usage.model_calls) == ([], 1)


async def test_a_choice_of_nobody_that_is_there_is_no_choice() -> None:
    heard, model = Heard(), Scripted(call("route_to_agent", agent="weather-mgr", message="rain?"))
    async with office(heard, model) as mesh:
        reply = await mesh.ask("router", "will it rain on the moon tomorrow?")
    assert (reply.agent, heard.asked) == ("router", [])


async def test_an_agent_that_joins_is_routable_and_one_that_leaves_is_not() -> None:
    heard, model = Heard(), Scripted("none")
    async with office(heard, model) as mesh:
        async with mesh.serve(heard.stub("weather", "Knows the weather and the rain.")):
            assert (await mesh.ask("router", "weather: will the rain come?")).agent == "weather"
        reply = await mesh.ask("router", "weather: will the rain come?", session="other")
    assert reply.agent == "router"
    assert "weather" not in reply.text


async def test_all_that_goes_with_a_message_is_passed_on() -> None:
    heard = Heard()
    sent = Call(
        session="s-1",
        request_id="r-1",
        parts=(Part(text="more"),),
        context={"k": "v"},
        envelope=Envelope(root="run-root", parent="run-parent", path=("boss",), traceparent="00-trace"),
    )
    async with office(heard) as mesh:
        await mesh.peer("router").ask("what tasks are there?", sent)
    (got,) = heard.calls
    assert (got.session, got.request_id, got.parts, got.context) == ("s-1", "r-1", sent.parts, {"k": "v"})
    assert (got.envelope.root, got.envelope.path, got.envelope.traceparent) == ("run-root", ("boss",), "00-trace")
    assert got.envelope.to == "task-mgr"


async def test_a_repeated_request_goes_to_the_same_agent_without_a_second_choice() -> None:
    heard = Heard()
    model = Scripted(call("route_to_agent", agent="project-mgr", message="start the moon landing"))
    async with office(heard, model) as mesh:
        for _ in range(2):
            await mesh.ask("router", "get the moon landing going", request_id="r-1")
        with pytest.raises(RequestConflict):
            await mesh.ask("router", "something else", request_id="r-1")
    assert heard.asked == [("project-mgr", "start the moon landing")] * 2
    assert len(model.requests) == 1


async def test_the_choice_is_stored_before_the_agent_is_asked() -> None:
    async with asyncio.timeout(20), LocalMesh() as mesh:
        stored: list[bytes | None] = []

        async def answer(message: str, call: Call) -> str:
            stored.append(await mesh.store.get("router/{router/default/r-1}"))
            return "done"

        async with mesh.serve(Stub("one", answer)), mesh.serve(Router(model=Scripted())):
            await mesh.ask("router", "hello", request_id="r-1")
    assert stored[0] is not None and b'"one"' in stored[0]


async def test_the_log_tells_message_agent_and_reply_per_session_and_is_cleared_with_the_agents() -> None:
    cleared: list[str] = []

    class Remembering(Stub):
        async def history(self, session: str = "", *, page_size: int = 0, page_token: str = "") -> None: ...

        async def clear(self, session: str = "") -> int:
            cleared.append(session)
            return 2

    async with served(Remembering("one")) as mesh:
        await mesh.ask("router", "hello", session="s")
        router = mesh.peer("router")
        kept = await router.history("s")
        assert (await mesh.store.read("agent/{router/s}/history")).length == 3
        assert await router.clear("s") == 5
        assert (await router.history("s")).messages == ()
    asked, chose, replied = kept.messages
    assert (asked.role, asked.text) == ("user", "hello")
    assert (chose.tool_calls[0].name, chose.tool_calls[0].arguments) == (
        "route_to_agent",
        '{"agent":"one","message":"hello"}',
    )
    assert (replied.role, replied.text) == ("tool", "hello")
    assert cleared == ["s"]


async def test_agents_that_are_registered_but_dead_are_not_chosen() -> None:
    model = Scripted("none", name="scripted/none")
    dead = Node(
        name="project-mgr", id="project-mgr-0", address="127.0.0.1:1", type="agent", description=PROJECTS, healthy=False
    )
    async with office(Heard(), model, {"task-mgr": TASKS}) as mesh:
        await mesh.registry.register(dead)
        reply = await mesh.ask("router", "start a project called moon")
        await mesh.registry.register(replace(dead, name="task-mgr"))
        assert (await mesh.ask("router", "what tasks are there?")).agent == "task-mgr"
    assert reply.agent == "router"
    assert "Not answering now: project-mgr" in reply.text


async def test_when_no_agent_is_healthy_that_is_said() -> None:
    dead = Node(name="one", id="one-0", address="127.0.0.1:1", type="agent", healthy=False)
    async with office(Heard(), agents={}) as mesh:
        await mesh.registry.register(dead)
        with pytest.raises(NoNode, match="one registered, but not healthy"):
            await mesh.ask("router", "hello")


class Notes(task_pb2_grpc.TaskServicer):
    """A service that knows one thing."""

    async def List(self, request: task_pb2.ListTasksRequest, context: object) -> task_pb2.ListTasksResponse:
        return task_pb2.ListTasksResponse(tasks=[task_pb2.TaskItem(title="buy milk", owner=request.owner)])

    async def Create(self, request: task_pb2.CreateTaskRequest, context: object) -> task_pb2.TaskItem:
        return task_pb2.TaskItem(title=request.title)

    async def Complete(self, request: task_pb2.CompleteTaskRequest, context: object) -> task_pb2.TaskItem:
        return task_pb2.TaskItem(id=request.id, done=True)

    async def Delete(self, request: task_pb2.DeleteTaskRequest, context: object) -> task_pb2.DeleteTaskResponse:
        return task_pb2.DeleteTaskResponse(deleted=True)


def notes(name: str) -> Service:
    return Service(name, task_pb2_grpc.add_TaskServicer_to_server, Notes())


async def test_without_agents_the_services_are_the_routers_own_tools_as_they_come_and_go() -> None:
    heard = Heard()
    model = Scripted("nothing", call("task_Task_List", owner="ada"), "ada has to buy milk", "both", "hm")
    async with office(heard, model, {}) as mesh:
        nobody = await mesh.ask("router", "hello")
        async with mesh.serve(notes("task")):
            empty = await mesh.ask("router", "hello")
            reply = await mesh.ask("router", "what does ada have to do?")
            async with mesh.serve(notes("chores")):
                await mesh.ask("router", "hello")
            async with mesh.serve(heard.stub("task-mgr", TASKS)):
                assert (await mesh.ask("router", "hello")).agent == "task-mgr"
    assert nobody.text.startswith("Nobody is here")
    assert empty.text == "nothing"
    assert (reply.agent, reply.text) == ("router", "ada has to buy milk")
    assert [(made.name, "buy milk" in made.result) for made in reply.tool_calls] == [("task_Task_List", True)]
    offered = [{tool.name for tool in request.tools} for request in model.requests]
    assert "task_Task_List" in offered[0] and "chores_Task_List" not in offered[0]
    assert {"task_Task_List", "chores_Task_List"} <= offered[3]
    assert not any("Agent" in name for names in offered for name in names)
