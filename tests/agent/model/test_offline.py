"""The offline rules on the tools of the reference mesh: what they call for a message, and what they say of results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from office.v1 import notify_pb2, project_pb2, task_pb2
from retinue.agent.model import ModelEnd, ModelMessage, ModelRequest, ModelText, Stop
from retinue.agent.model.offline import Offline
from retinue.agent.tools import ToolSpec
from retinue.agent.tools.schema import schema_of
from retinue.service.chat import Message, ToolCall
from retinue.v1 import options_pb2


def endpoints(name: str, file: Any) -> tuple[ToolSpec, ...]:
    (service,) = file.DESCRIPTOR.services_by_name.values()
    return tuple(
        ToolSpec(
            f"{name}_{service.name}_{method.name}",
            method.GetOptions().Extensions[options_pb2.description],
            schema_of(method.input_type),
        )
        for method in service.methods
    )


def simple(name: str, description: str, *required: str) -> ToolSpec:
    properties = {field: {"type": "string"} for field in required}
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": list(required)})


TASK = endpoints("task", task_pb2)
PROJECT = endpoints("project", project_pb2)
NOTIFY = endpoints("notify", notify_pb2)
PLAN = ToolSpec("plan", "Replace the plan.", {"type": "object", "properties": {"steps": {"type": "array"}}})
DELEGATE = ToolSpec(
    "delegate",
    "Give a task to another agent.",
    {"type": "object", "properties": {"task": {"type": "string"}, "to": {"type": "string"}}, "required": ["task"]},
)
INVOKE = simple("invoke_task-mgr", "Ask task-mgr.", "task")
OVERDUE = simple("overdue", "List what an owner is late with.", "owner")
OWN = (PLAN, DELEGATE)
ALL = (*TASK, *PROJECT, *NOTIFY)
CREATE, SEND = "task_Task_Create", "notify_Notify_Send"


async def answer(*messages: Message, tools: tuple[ToolSpec, ...] = (), system: str = "") -> ModelEnd:
    """What the rules say, having checked that the pieces of the text are the text."""
    request = ModelRequest(system=system, messages=tuple(ModelMessage(message=each) for each in messages), tools=tools)
    events = [event async for event in Offline().stream(request)]
    end = events[-1]
    assert isinstance(end, ModelEnd)
    assert "".join(event.text for event in events if isinstance(event, ModelText)) == end.text
    return end


def asked(text: str) -> Message:
    return Message(role="user", text=text)


CALLS: list[tuple[tuple[ToolSpec, ...], str, str, dict[str, Any]]] = [
    (TASK, "add a task called buy milk for ada", CREATE, {"title": "buy milk", "owner": "ada"}),
    (TASK, "Please add a task named 'wash up'.", CREATE, {"title": "wash up"}),
    (TASK, 'Create a task "list all projects" for Bob.', CREATE, {"title": "list all projects", "owner": "bob"}),
    (TASK, "add a task to call the bank for ada", CREATE, {"title": "call the bank", "owner": "ada"}),
    (TASK, "add buy milk to ada's tasks", CREATE, {"title": "buy milk", "owner": "ada"}),
    (TASK, "add buy milk for ada", CREATE, {"title": "buy milk", "owner": "ada"}),
    (TASK, "new task: buy milk", CREATE, {"title": "buy milk"}),
    (
        TASK,
        "add a task called file the tax form for ada due 2026-03-01 in project home",
        CREATE,
        {"title": "file the tax form", "owner": "ada", "due": "2026-03-01", "project": "home"},
    ),
    (
        TASK,
        "add a task for ada to prepare slides for the demo by 2026-03-01",
        CREATE,
        {"title": "prepare slides for the demo", "owner": "ada", "due": "2026-03-01"},
    ),
    (TASK, "what tasks does ada have?", "task_Task_List", {"owner": "ada"}),
    (TASK, "What are Ada's overdue tasks?", "task_Task_List", {"owner": "ada", "overdue": True}),
    (TASK, "which tasks of ada are late?", "task_Task_List", {"owner": "ada", "overdue": True}),
    (TASK, "list all tasks", "task_Task_List", {}),
    (TASK, "show tasks for bob including done ones", "task_Task_List", {"owner": "bob", "include_done": True}),
    (TASK, "what should Ada do first?", "task_Task_List", {"owner": "ada"}),
    (TASK, "What does ada have to do?", "task_Task_List", {"owner": "ada"}),
    (TASK, "mark task 3f2a as done", "task_Task_Complete", {"id": "3f2a"}),
    (TASK, "complete task t-abcdef", "task_Task_Complete", {"id": "t-abcdef"}),
    (TASK, "delete task #t-1", "task_Task_Delete", {"id": "t-1"}),
    (TASK, "mark buy milk as done", "task_Task_List", {}),
    (PROJECT, "create a project called apollo", "project_Project_Create", {"name": "apollo"}),
    (
        PROJECT,
        "create a project called apollo with the goal to land on the moon",
        "project_Project_Create",
        {"name": "apollo", "goal": "land on the moon"},
    ),
    (PROJECT, "which projects are there?", "project_Project_List", {}),
    (NOTIFY, "notify ada that the milk is bought", SEND, {"to": "ada", "message": "the milk is bought"}),
    (NOTIFY, "tell Bob: lunch is at 12", SEND, {"to": "bob", "message": "lunch is at 12"}),
    (NOTIFY, "send a message to ada saying hi there", SEND, {"to": "ada", "message": "hi there"}),
    (NOTIFY, "remind ada to call the bank", SEND, {"to": "ada", "message": "call the bank"}),
    (NOTIFY, "which messages were sent to ada?", "notify_Notify_List", {"to": "ada"}),
    ((OVERDUE,), "What is ada late with?", "overdue", {"owner": "ada"}),
    ((OVERDUE,), "Is Ada behind? Show what is overdue for Ada", "overdue", {"owner": "ada"}),
    (ALL, "add a task called notify bob for ada", CREATE, {"title": "notify bob", "owner": "ada"}),
    (ALL, "list the projects", "project_Project_List", {}),
    ((simple("weather", "Tell the weather.", "city"),), "what is the weather in Lima?", "weather", {"city": "Lima"}),
    ((*TASK, *OWN), "Ask task-mgr to add a task x", "delegate", {"task": "add a task x", "to": "task-mgr"}),
    ((*TASK, *OWN, INVOKE), "Ask task-mgr to add a task called x", "invoke_task-mgr", {"task": "add a task called x"}),
    ((*TASK, *OWN), "delegate to cook: find cheap milk", "delegate", {"task": "find cheap milk", "to": "cook"}),
    ((*TASK, *OWN), "delegate a list to task-mgr", "delegate", {"task": "a list", "to": "task-mgr"}),
    ((*TASK, *OWN), "@clerk, ask cook to boil milk", "delegate", {"task": "boil milk", "to": "cook"}),
    (tuple(reversed(ALL)), "my tasks", "task_Task_List", {}),
    ((*TASK, *OWN), "delegate: list the tasks", "delegate", {"task": "list the tasks"}),
]  # fmt: skip


@pytest.mark.parametrize(("tools", "message", "name", "arguments"), CALLS, ids=[case[1] for case in CALLS])
async def test_a_message_becomes_a_call(
    tools: tuple[ToolSpec, ...], message: str, name: str, arguments: dict[str, Any]
) -> None:
    for offered in (tools, tuple(reversed(tools))):
        end = await answer(asked(message), tools=offered)
        assert end.stop is Stop.TOOL_CALLS, end.text
        assert [(call.name, call.arguments) for call in end.calls] == [(name, arguments)]


@pytest.mark.parametrize(
    ("message", "steps"),
    [
        ("Plan: buy milk, call the bank; write to Bob", ["buy milk", "call the bank", "write to Bob"]),
        ("plan the week: first call the bank, then buy milk.", ["call the bank", "buy milk"]),
        ("Make a plan to call the bank and then buy milk", ["call the bank", "buy milk"]),
    ],
)
async def test_a_plan_is_cut_into_its_steps(message: str, steps: list[str]) -> None:
    end = await answer(asked(message), tools=(*TASK, *OWN))
    (call,) = end.calls
    assert call.name == "plan"
    assert call.arguments == {"steps": [{"task": step, "status": "pending"} for step in steps]}


Made = tuple[str, dict[str, Any], Any]


async def results(
    message: str, *calls: tuple[str, dict[str, Any], Any], tools: tuple[ToolSpec, ...] = TASK
) -> ModelEnd:
    """What is said to `message` once these calls were made with these results."""
    messages = [asked(message)]
    for at, (name, arguments, result) in enumerate(calls):
        call = ToolCall(id=f"c{at}", name=name, arguments=json.dumps(arguments))
        text = result if isinstance(result, str) else json.dumps(result)
        messages.append(Message(role="assistant", tool_calls=(call,)))
        messages.append(Message(role="tool", tool_call_id=f"c{at}", text=text))
    return await answer(*messages, tools=tools)


MILK = {"id": "t1", "title": "buy milk", "owner": "ada", "due": "", "project": "", "done": False}
BANK = {"id": "t2", "title": "call the bank", "owner": "ada", "due": "2026-03-01", "project": "", "done": False}
SENTENCES: list[tuple[str, dict[str, Any], Any, str]] = [
    (CREATE, {"title": "buy milk", "owner": "ada"}, MILK, "Created buy milk for ada."),
    ("task_Task_List", {"owner": "ada"}, {"tasks": [MILK, BANK]}, "ada has: buy milk, call the bank (due 2026-03-01)."),
    ("task_Task_List", {}, {"tasks": [MILK]}, "Tasks: buy milk (ada)."),
    ("task_Task_List", {"owner": "bob"}, {"tasks": []}, "bob has no tasks."),
    ("task_Task_List", {}, {}, "There are no tasks."),
    ("task_Task_Complete", {"id": "t1"}, MILK | {"done": True}, "Completed buy milk for ada."),
    ("task_Task_Delete", {"id": "t1"}, {"deleted": True}, "Deleted t1."),
    ("task_Task_Delete", {"id": "t1"}, {"deleted": False}, "There was no t1 to delete."),
    (SEND, {"to": "ada", "message": "hi"}, {"id": "n1", "to": "ada", "message": "hi"}, "Sent to ada: hi."),
    ("overdue", {"owner": "ada"}, ["file the tax form", "call the bank"], "ada has: file the tax form, call the bank."),
    ("plan", {"steps": [{"task": "a"}, {"task": "b"}]}, "ok", "The plan has 2 steps: a, b."),
    ("delegate", {"task": "x"}, "Created buy milk for ada.", "Created buy milk for ada."),
    (CREATE, {"title": ""}, "INVALID_ARGUMENT: title is empty", "INVALID_ARGUMENT: title is empty."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "result", "sentence"), SENTENCES, ids=[case[3] for case in SENTENCES])
async def test_a_result_becomes_a_sentence_that_names_the_items(
    name: str, arguments: dict[str, Any], result: Any, sentence: str
) -> None:
    end = await results("add a task called buy milk for ada", (name, arguments, result))
    assert (end.text, end.calls) == (sentence, ())


async def test_an_item_named_by_its_title_is_looked_up_and_then_used() -> None:
    looked_up: Made = ("task_Task_List", {}, {"tasks": [MILK, BANK]})
    end = await results("mark buy milk as done", looked_up)
    assert [(call.name, call.arguments) for call in end.calls] == [("task_Task_Complete", {"id": "t1"})]
    end = await results("delete buy milk", looked_up, ("task_Task_Delete", {"id": "t1"}, {"deleted": True}))
    assert not end.calls
    assert end.text == "Deleted buy milk."


async def test_results_are_always_answered_and_never_called_again() -> None:
    for message in (case[1] for case in CALLS):
        for result in ("", "{}", "[]", "null", "oops", '{"tasks": 3}', '[{"id": 1}]'):
            calls: list[Made] = [("task_Task_List", {}, result)] * 2
            end = await results(message, *calls, tools=(*TASK, *OWN))
            assert not end.calls
            assert end.text


async def test_what_fits_no_rule_is_answered_with_what_can_be_done() -> None:
    end = await answer(asked("what is the weather like on Mars?"), tools=(*TASK, *OWN))
    assert not end.calls
    assert "create a task" in end.text.lower()
    assert "delegate" in end.text
    assert (await answer(asked("hello"))).text


async def test_a_required_field_that_is_not_said_is_asked_for() -> None:
    end = await answer(asked("notify somebody"), tools=(simple("notify_Notify_Send", "Send a message.", "due", "id"),))
    assert not end.calls
    assert "the due and the id" in end.text
    end = await answer(asked("create a task"), tools=TASK)
    assert "the title" in end.text


async def test_what_no_own_tool_fits_goes_to_the_peer_that_it_fits() -> None:
    system = (
        'You run projects.\n\nAgents you can delegate to (quoted):\n- comms-mgr: "talks" (services: notify)\n- task-mgr'
    )
    end = await answer(asked("add a task called buy milk for ada"), tools=(*PROJECT, *OWN), system=system)
    (call,) = end.calls
    assert (call.name, call.arguments) == ("delegate", {"task": "add a task called buy milk for ada", "to": "task-mgr"})
