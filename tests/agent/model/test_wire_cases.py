"""Every recorded answer of a model server is decoded the same however it is split, and a cut one never succeeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.agent.testing import decode

FOLDER = Path(__file__).parents[2] / "cases"


def read(name: str) -> dict[str, dict[str, Any]]:
    """The cases of a folder by name: `wire` are given, `wire_more` were found since, by those who looked for faults."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / name).glob("*.json"))}


CASES = read("wire") | read("wire_more")
ALL = pytest.mark.parametrize("name", CASES)


def test_all_cases_are_here() -> None:
    assert (len(read("wire")), len(CASES)) == (70, 159)


@ALL
@pytest.mark.parametrize("chunk", [None, 1, 2, 3, 7])
def test_an_answer_means_what_its_case_says(name: str, chunk: int | None) -> None:
    case = CASES[name]
    seen = decode(case, chunk=chunk)
    for key, value in case["expect"].items():
        if value == "unique-nonempty":
            assert all(seen[key])
            assert len(set(seen[key])) == len(seen[key]) > 0
        else:
            assert seen.get(key) == value, key
    assert seen == decode(case)


@ALL
def test_an_answer_cut_anywhere_is_the_same_or_an_error(name: str) -> None:
    """Usage may be lost with the tail; an error that came after the finish reason cannot be seen."""
    case = CASES[name]
    whole = decode(case)
    for at in range(len(case["body"].encode())):
        seen = decode(case, cut=at)
        if seen["stop"] == "error":
            assert seen["tool_calls"] == []
            if whole["stop"] != "error":
                assert (seen["error_class"], seen["retryable"]) == ("truncated", True), f"cut at {at}"
            continue
        if name == "openrouter_error_after_finish":
            assert (seen["text"], seen["tool_calls"]) == ("", [])
            continue
        assert seen["usage"] in (whole["usage"], None), f"cut at {at}"
        assert seen | {"usage": None} == whole | {"usage": None}, f"cut at {at}"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "{" in case["body"]])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_an_answer_of_another_shape_is_an_error_or_an_answer_and_never_a_crash(name: str, data: st.DataObject) -> None:
    """One JSON value somewhere in the body becomes something else."""
    case = CASES[name]
    lines = case["body"].split("\n")
    at = data.draw(st.sampled_from([at for at, line in enumerate(lines) if "{" in line]))
    head, brace, tail = lines[at].partition("{")
    try:
        value = json.loads(brace + tail)
    except ValueError:
        return
    lines[at] = head + json.dumps(mutated(value, data))
    seen = decode(case | {"body": "\n".join(lines)})
    assert seen["stop"] in ("stop", "tool_calls", "length", "content_filter", "refusal", "pause", "error")


def mutated(value: Any, data: st.DataObject) -> Any:
    """The value with one thing in it changed for one of another type."""
    if isinstance(value, dict | list) and value and data.draw(st.integers(0, 5)):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = data.draw(st.sampled_from(keys))
        copy: Any = dict(value) if isinstance(value, dict) else list(value)
        copy[key] = mutated(value[key], data)
        return copy
    return data.draw(st.sampled_from([None, 0, 1.5, True, "", "x", [], [1], [None], {}, {"a": 1}, "\ud83d"]))
