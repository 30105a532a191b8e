"""Schemas of tools, reduced to what a server takes: what is kept, what is rewritten, what cannot be said."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.dialect_gemini import check_gemini_schema
from kit.dialect_rules import must_be_rooted

from retinue.agent.model.conversation import own_names, wire_name
from retinue.agent.model.schemas import Unreducible, rooted, subset
from retinue.agent.tools import ToolSpec


def prop(schema: Any, **beside: Any) -> Any:
    """What becomes of a property with that schema in Gemini's words."""
    reduced = subset({"type": "object", "properties": {"p": schema}, **beside})
    assert reduced
    check_gemini_schema(reduced)
    return reduced["properties"]["p"]


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
ANY = {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean", "object")]}


@pytest.mark.parametrize(
    ("schema", "reduced"),
    [
        (STRING, STRING),
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        ({"type": ["string", "integer"]}, {"anyOf": [STRING, INTEGER]}),
        ({"const": "a"}, {"type": "string", "enum": ["a"]}),
        ({"enum": ["a", "b", None]}, {"type": "string", "enum": ["a", "b"], "nullable": True}),
        ({"type": "integer", "enum": [1, 2]}, {"type": "integer", "description": "One of [1, 2]."}),
        ({"type": "string", "enum": ["", "a"]}, {"type": "string", "description": 'One of ["", "a"].'}),
        ({"oneOf": [STRING, INTEGER]}, {"anyOf": [STRING, INTEGER]}),
        ({"anyOf": [STRING, {"type": "null"}], "description": "D."}, STRING | {"description": "D.", "nullable": True}),
        ({"type": "string", "anyOf": [{"format": "date"}]}, {"type": "string", "description": "(date)"}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"type": "array"}, {"type": "array", "items": ANY}),
        ({"type": "array", "prefixItems": [STRING, INTEGER]}, {"type": "array", "items": {"anyOf": [STRING, INTEGER]}}),
        ({"type": "array", "items": [STRING, STRING]}, {"type": "array", "items": STRING}),
        ({"type": "object", "additionalProperties": False}, {"type": "object"}),
        ({"$ref": "#/$defs/T", "description": "D."}, INTEGER | {"description": "D."}),
        ({"allOf": [{"$ref": "#/$defs/T"}, {"minimum": 1}]}, INTEGER | {"minimum": 1}),
        ({"type": "string", "not": {"const": "a"}, "x-secret": 1, "uniqueItems": True}, STRING),
        ({"type": "integer", "exclusiveMinimum": 0, "default": 3}, INTEGER | {"default": 3}),
        (
            {"properties": {"default": STRING, "$ref": INTEGER, "type": STRING}, "required": ["type", "gone"]},
            {
                "type": "object",
                "properties": {"default": STRING, "$ref": INTEGER, "type": STRING},
                "required": ["type"],
            },
        ),
        (
            {"$ref": "#/$defs/Node"},
            {
                "type": "object",
                "properties": {"next": {"type": "object", "description": "Nested in the same way."}, "value": INTEGER},
            },
        ),
    ],
)
def test_a_schema_is_put_in_the_words_that_gemini_has(schema: Any, reduced: Any) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "value": INTEGER}}
    assert prop(schema, **{"$defs": {"T": INTEGER, "Node": node}}) == reduced


@pytest.mark.parametrize(
    ("schema", "reduced"),
    [
        ({}, {"type": "object", "properties": {}}),
        ({"properties": {"x": STRING}}, {"type": "object", "properties": {"x": STRING}}),
        ({"type": ["object", "null"]}, {"type": "object", "properties": {}}),
        (
            {"type": "object", "oneOf": [{"required": ["x"]}, {"required": ["y"]}], "properties": {"x": STRING}},
            {"type": "object", "properties": {"x": STRING}},
        ),
        (
            {
                "anyOf": [
                    {"properties": {"x": STRING, "k": {"const": "a"}}, "required": ["k", "x"]},
                    {"properties": {"k": {"const": "b"}}, "required": ["k"]},
                ]
            },
            {
                "type": "object",
                "properties": {"x": STRING, "k": {"anyOf": [{"const": "a"}, {"const": "b"}]}},
                "required": ["k"],
            },
        ),
        (
            {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"y": STRING}}], "$defs": {"A": {"required": ["z"]}}},
            {"type": "object", "properties": {"y": STRING}, "required": ["z"], "$defs": {"A": {"required": ["z"]}}},
        ),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"y": STRING}}}}, None),
    ],
)
def test_a_root_becomes_a_plain_object_with_what_was_combined_in_it(schema: Any, reduced: Any) -> None:
    found = rooted(schema)
    must_be_rooted(found)
    assert found == reduced if reduced else found["properties"] == {"y": STRING}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"anyOf": [{"type": "object"}, {"type": "string"}]},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/$defs/gone"},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"allOf": ["nonsense"]},
        {"type": "object", "properties": ["x"]},
    ],
)
def test_a_root_that_cannot_be_an_object_is_refused(schema: Any) -> None:
    with pytest.raises(Unreducible):
        subset(schema)


def test_an_object_without_properties_is_left_out() -> None:
    assert subset({"type": "object", "properties": {}}) is None


def test_references_that_multiply_are_stopped() -> None:
    fans = {f"d{at}": {"properties": {k: {"$ref": f"#/$defs/d{at + 1}"} for k in "abcd"}} for at in range(12)}
    with pytest.raises(Unreducible, match="more than 2000"):
        subset({"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": {**fans, "d12": STRING}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a", "string", "object"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "type"]), inner, max_size=2),
    max_leaves=4,
)
KINDS = st.sampled_from(["string", "integer", "number", "boolean", "object", "array", "null"])


def schemas() -> st.SearchStrategy[Any]:
    """Schemas as people and generators write them, and some nonsense."""

    def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        words: dict[str, st.SearchStrategy[Any]] = {
            "type": KINDS | st.lists(KINDS, max_size=3),
            "properties": st.dictionaries(st.sampled_from(["a", "$ref", "type"]), inner, max_size=3),
            "required": st.lists(st.sampled_from(["a", "b"]), max_size=2),
            "items": inner,
            "anyOf": st.lists(inner, max_size=3),
            "oneOf": st.lists(inner, max_size=2),
            "allOf": st.lists(inner, max_size=2),
            "enum": st.lists(JSON, max_size=3),
            "const": JSON,
            "$ref": st.sampled_from(["#", "#/properties/a", "#/$defs/b", "x"]),
            "format": st.sampled_from(["date", "date-time", "int32"]),
            "description": st.sampled_from(["", "D."]),
            "minimum": st.integers(0, 3),
            "additionalProperties": inner,
            "$defs": st.dictionaries(st.just("b"), inner, max_size=1),
            "x-y": JSON,
        }
        return st.fixed_dictionaries({}, optional=words)

    return st.recursive(
        st.booleans() | st.just({}) | KINDS.map(lambda kind: {"type": kind}) | JSON, grown, max_leaves=8
    )


@settings(max_examples=500, deadline=None)
@given(schemas())
def test_any_schema_is_reduced_or_refused(schema: Any) -> None:
    for shape in (schema, {"type": "object", "properties": {"p": schema}}):
        if not isinstance(shape, dict):
            continue
        try:
            must_be_rooted(rooted(shape))
            if reduced := subset(shape):
                check_gemini_schema(reduced)
        except Unreducible:
            continue


@given(st.text(max_size=80), st.text(max_size=80))
def test_names_are_legal_on_the_wire_and_lead_back_to_one_tool(one: str, other: str) -> None:
    tools = [ToolSpec(one), ToolSpec(other)]
    wires = [wire_name(spec.name) for spec in tools]
    assert all(re.fullmatch("[A-Za-z_][A-Za-z0-9_-]{0,63}", wire) for wire in wires)
    assert (wires[0] == wires[1]) == (one == other)
    assert [own_names(tools).get(wire, wire) for wire in wires] == [one, other]


def test_a_name_that_servers_take_stays_as_it_is() -> None:
    assert wire_name("task_Task_List-2") == "task_Task_List-2"
    assert wire_name("server.tool/x").startswith("server_tool_x_")
    assert wire_name("2fa").startswith("t_2fa_")
    assert len({wire_name("x" * 64 + end) for end in "ab"}) == 2
