"""Plain functions as tools: what a model is told of them, what reaches them, and what comes back."""

from __future__ import annotations

import asyncio
import enum
import json
import threading
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from jsonschema import Draft202012Validator

from retinue.agent.tools import Invocation, Tool, ToolResult
from retinue.agent.tools.function import tool
from retinue.service.errors import Invalid
from retinue.v1 import agent_pb2


class Priority(enum.Enum):
    LOW = 1
    HIGH = 2


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Place:
    """Where it is."""

    town: str
    street: str = ""
    tags: list[str] = field(default_factory=list)


@dataclass
class Trip:
    start: Place
    stops: list[Place]
    day: date | None = None


class Filter(TypedDict):
    owner: str
    done: NotRequired[bool]


class Node:
    pass


@dataclass
class Tree:
    children: list[Tree]


async def call(made: Tool, **arguments: Any) -> ToolResult:
    """Runs a tool as a run does: the arguments fit its schema."""
    Draft202012Validator.check_schema(made.spec.parameters)
    Draft202012Validator(made.spec.parameters).validate(arguments)
    return await made.handler(Invocation(id="1", name=made.spec.name, arguments=arguments, agent="clerk"))


def schema_of_parameter(annotation: Any) -> dict[str, Any]:
    def probe(value):  # type: ignore[no-untyped-def]
        return value

    probe.__annotations__["value"] = annotation
    parameters = tool(probe).spec.parameters
    Draft202012Validator.check_schema(parameters)
    schema: dict[str, Any] = parameters["properties"]["value"]
    return schema


def test_a_function_becomes_a_tool_of_its_name_docstring_and_annotations() -> None:
    @tool
    def overdue(owner: str, limit: int = 10) -> list[str]:
        """List what an owner is late with.

        The oldest comes first.
        """
        return [owner] * limit

    assert isinstance(overdue, Tool)
    assert overdue.spec.name == "overdue"
    assert overdue.spec.description == "List what an owner is late with.\n\nThe oldest comes first."
    assert overdue.spec.parameters == {
        "type": "object",
        "properties": {"owner": {"type": "string"}, "limit": {"type": "integer", "default": 10}},
        "required": ["owner"],
        "additionalProperties": False,
    }
    assert not overdue.idempotent


def test_a_decorated_function_can_still_be_called() -> None:
    @tool(idempotent=True, name="late-list", description="Who is late.")
    def overdue(owner: str) -> list[str]:
        return [owner]

    assert overdue("ada") == ["ada"]
    assert (overdue.spec.name, overdue.spec.description, overdue.idempotent) == ("late-list", "Who is late.", True)


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Any, {}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (str | None, {"type": ["string", "null"]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1] | None, {"type": ["integer", "string", "null"], "enum": ["a", 1, None]}),
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (Priority, {"type": "string", "enum": ["LOW", "HIGH"]}),
        (Priority | None, {"type": ["string", "null"], "enum": ["LOW", "HIGH", None]}),
        (Annotated[int, "How many."], {"type": "integer", "description": "How many."}),
        (
            Filter,
            {
                "type": "object",
                "properties": {"owner": {"type": "string"}, "done": {"type": "boolean"}},
                "required": ["owner"],
                "additionalProperties": False,
            },
        ),
        (
            Place,
            {
                "type": "object",
                "description": "Where it is.",
                "properties": {
                    "town": {"type": "string"},
                    "street": {"type": "string"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["town"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_an_annotation_becomes_its_json_schema(annotation: Any, schema: dict[str, Any]) -> None:
    assert schema_of_parameter(annotation) == schema


@pytest.mark.parametrize("annotation", [set[int], dict[int, str], int | str, Node, Tree, Trip, Literal[b"x"], tuple])
def test_an_unsupported_annotation_is_a_type_error_that_names_the_parameter(annotation: Any) -> None:
    with pytest.raises(TypeError, match="tool probe: parameter 'value': "):
        schema_of_parameter(annotation)


def test_a_parameter_that_no_model_can_give_is_a_type_error_that_names_it() -> None:
    def bare(value):  # type: ignore[no-untyped-def]
        return value

    def many(*values: str) -> None: ...

    def first(value: str, /) -> None: ...

    for function, words in ((bare, "'value' has no annotation"), (many, "'values' cannot"), (first, "'value' cannot")):
        with pytest.raises(TypeError, match=words):
            tool(function)


def test_a_name_that_no_model_can_call_is_refused() -> None:
    with pytest.raises(Invalid, match="list tasks"):
        tool(name="list tasks")(lambda: None)
    with pytest.raises(Invalid, match="<lambda>"):
        tool(lambda: None)


async def test_arguments_arrive_as_what_the_annotations_say() -> None:
    seen: dict[str, Any] = {}

    @tool
    async def plan(
        *,
        place: Place,
        more: list[Place],
        by: dict[str, Priority],
        colour: Colour | None,
        which: Filter,
        count: int,
        share: float,
        note: str | None = None,
    ) -> None:
        seen.update(locals())

    result = await call(
        plan,
        place={"town": "Ulm"},
        more=[{"town": "Bern", "tags": ["x"]}],
        by={"ada": "HIGH"},
        colour="red",
        which={"owner": "ada"},
        count=3.0,
        share=1,
        note=None,
    )
    assert result.text == "null"
    assert seen["place"] == Place("Ulm")
    assert seen["more"] == [Place("Bern", tags=["x"])]
    assert seen["by"] == {"ada": Priority.HIGH}
    assert seen["colour"] is Colour.RED
    assert seen["which"] == {"owner": "ada"}
    assert (type(seen["count"]), type(seen["share"])) == (int, float)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it stands ✓", "as it stands ✓"),
        (["a", "é"], '["a","é"]'),
        (None, "null"),
        (True, "true"),
        ({1: {2}}, '{"1":[2]}'),
        (Place("Ulm"), '{"town":"Ulm","street":"","tags":[]}'),
        ([Priority.HIGH, Colour.RED], '["HIGH","red"]'),
        (date(2026, 1, 31), '"2026-01-31"'),
        (float("nan"), '"NaN"'),
        (agent_pb2.Step(task="x", status="done"), '{"task":"x","status":"done"}'),
    ],
)
async def test_a_string_stays_and_anything_else_becomes_compact_json(value: Any, text: str) -> None:
    @tool
    def give() -> Any:
        return value

    assert (await call(give)).text == text


async def test_a_lone_surrogate_in_a_result_is_no_error() -> None:
    @tool
    def give() -> list[str]:
        return ["\ud83d", "😀"]

    assert json.loads((await call(give)).text) == ["\ufffd", "😀"]


async def test_a_result_that_json_has_no_form_for_is_a_type_error_that_names_it() -> None:
    @tool
    def give() -> object:
        return {"node": Node()}

    with pytest.raises(TypeError, match="Node"):
        await call(give)


async def test_a_sync_function_runs_beside_the_loop_and_an_async_one_on_it() -> None:
    loop = asyncio.get_running_loop()
    reached = asyncio.Event()

    @tool
    def block() -> bool:
        # Ends only because the loop goes on meanwhile.
        asyncio.run_coroutine_threadsafe(reached.wait(), loop).result(5)
        return threading.current_thread() is threading.main_thread()

    @tool
    async def release() -> bool:
        reached.set()
        return asyncio.get_running_loop() is loop

    async with asyncio.timeout(5):
        blocked, released = await asyncio.gather(call(block), call(release))
    assert (blocked.text, released.text) == ("false", "true")


async def test_what_a_function_raises_is_raised() -> None:
    @tool
    def fail() -> None:
        raise ValueError("no such owner")

    with pytest.raises(ValueError, match="no such owner"):
        await call(fail)
