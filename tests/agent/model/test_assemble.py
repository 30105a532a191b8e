"""Tool calls out of fragments: any split, any interleaving, any way of numbering gives the same calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.agent.model.assemble import CallAssembly, wanted_call

CALLS = [("call_a", "pick", '{"n": 1, "s": "é😀"}'), ("call_b", "put", '{"where": ["x", "y"]}'), ("call_c", "ping", "")]


def fragment(
    index: int | None = None, call_id: str | None = None, name: str | None = None, arguments: Any = None
) -> dict[str, Any]:
    return {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}


def calls(*fragments: dict[str, Any]) -> list[tuple[str, Any]]:
    assembly = CallAssembly()
    for each in fragments:
        assembly.add(each)
    return [(call.name, call.arguments if call.arguments is not None else call.raw) for call in assembly.finish()]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_split_in_any_order_gives_the_same_calls(data: st.DataObject) -> None:
    """The pieces of one call keep their order; pieces of different calls mix; each server marks them in its way."""
    marked = data.draw(st.sampled_from(["index", "id", "both"]))
    repeats = data.draw(st.booleans())
    queues: list[list[dict[str, Any]]] = []
    for index, (call_id, name, arguments) in enumerate(CALLS):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=4)))
        pieces = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
        queues.append(
            [
                fragment(
                    index if marked != "id" else None,
                    call_id
                    if at == 0 or marked != "index" or repeats
                    else data.draw(st.sampled_from([None, "", "null"])),
                    name if at == 0 or repeats else data.draw(st.sampled_from([None, ""])),
                    piece if at else piece or data.draw(st.sampled_from([None, ""])),
                )
                for at, piece in enumerate(pieces)
            ]
        )
    assembly = CallAssembly()
    for queue in queues:  # they begin in order
        assembly.add(queue.pop(0))
    while any(queues):
        assembly.add(data.draw(st.sampled_from([queue for queue in queues if queue])).pop(0))
    found = [(call.id, call.name, call.arguments) for call in assembly.finish()]
    assert found == [(call_id, name, json.loads(arguments or "{}")) for call_id, name, arguments in CALLS]


def test_calls_one_after_another_need_no_marks_but_their_names() -> None:
    pieces = [fragment(name="a", arguments='{"x":'), fragment(arguments="1}"), fragment(name="b", arguments="{}")]
    assert calls(*pieces) == [("a", {"x": 1}), ("b", {})]


def test_every_call_at_index_0_is_still_a_call_of_its_own() -> None:
    assert calls(fragment(0, "c1", "a", "{}"), fragment(0, "c2", "b", "{}")) == [("a", {}), ("b", {})]


def test_one_id_for_two_indexes_is_two_calls_with_two_ids() -> None:
    assembly = CallAssembly()
    assembly.add(fragment(0, "call_0", "a", "{}"))
    assembly.add(fragment(1, "call_0", "b", "{}"))
    first, second = assembly.finish()
    assert (first.name, second.name) == ("a", "b")
    assert first.id == "call_0" != second.id


def test_arguments_that_come_as_an_object_replace_what_came_before() -> None:
    assert calls(fragment(0, "c", "a", '{"x"'), fragment(0, None, None, {"y": 2})) == [("a", {"y": 2})]


@pytest.mark.parametrize("raw", ["", "  \n", "null", "{}"])
def test_no_arguments_are_an_empty_object(raw: str) -> None:
    assert wanted_call("c", "a", raw).arguments == {}


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ('{"x": 1', "no JSON"),
        ('{"x": 1}{"x": 1}', "no JSON"),
        ('{"x": NaN}', "NaN"),
        ('{"x": -Infinity}', "Infinity"),
        ('{"x": 1, "x": 2}', "'x' occurs twice"),
        ('{"o": {"x": 1, "x": 2}}', "'x' occurs twice"),
        ("[1]", "no JSON object"),
        ('"text"', "no JSON object"),
        ("[" * 100_000, "no JSON"),
        ('{"x": ' + "9" * 5000 + "}", "no JSON"),
    ],
    ids=lambda value: value[:20],
)
def test_arguments_that_are_no_object_are_reported_and_never_mended(raw: str, error: str) -> None:
    call = wanted_call("c", "a", raw)
    assert (call.arguments, call.raw) == (None, raw)
    assert error in call.error


def test_arguments_hold_big_numbers_and_sane_text() -> None:
    call = wanted_call("c", "a", r'{"n": 123456789012345678901234567890, "s": "\ud83d\ude00 \ud83d \u0000"}')
    assert call.arguments == {"n": 123456789012345678901234567890, "s": "\U0001f600 \ufffd \ufffd"}
