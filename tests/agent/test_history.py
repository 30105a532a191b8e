"""Any stored history is a valid conversation, wherever its writer was killed and wherever it is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.session.history import (
    INTERRUPTED,
    Entry,
    decode,
    encode,
    interrupted,
    last_groups,
    open_calls,
    to_model,
    tool_entry,
    valid,
)
from retinue.service.chat import Blob, Message, Part, ToolCall, ToolStatus


def user(text: str, run: str = "r") -> Entry:
    return Entry(message=Message(role="user", text=text, run_id=run))


def assistant(text: str = "", *ids: str, run: str = "r") -> Entry:
    calls = tuple(ToolCall(id=id, name="t") for id in ids)
    return Entry(message=Message(role="assistant", text=text, tool_calls=calls, run_id=run))


def result(id: str, text: str = "done") -> Entry:
    return tool_entry(ToolCall(id=id, name="t", result=text), run_id="r")


TURN = [user("one"), assistant("", "a", "b"), result("b"), result("a"), assistant("", "c"), result("c"), assistant("x")]
TWO = [*TURN, user("two"), assistant("", "d"), result("d"), assistant("y")]


def shape(entries: list[Entry]) -> list[str]:
    return [entry.message.tool_call_id or entry.message.role for entry in entries]


def assert_pairs(entries: list[Entry]) -> None:
    """Each call has one result, right behind its message, in call order; nothing else is a result."""
    at = 0
    while at < len(entries):
        message = entries[at].message
        assert message.role != "tool", shape(entries)
        at += 1
        for call in message.tool_calls:
            assert entries[at].message.tool_call_id == call.id, shape(entries)
            at += 1


def test_results_stand_in_call_order_however_they_came() -> None:
    assert shape(valid(TURN))[:4] == ["user", "assistant", "a", "b"]


def test_a_history_cut_off_anywhere_is_valid() -> None:
    for end in range(len(TWO) + 1):
        assert_pairs(valid(TWO[:end]))


def test_an_open_call_says_that_its_outcome_is_unknown() -> None:
    found = valid(TURN[:3])
    assert shape(found) == ["user", "assistant", "a", "b"]
    assert found[2].call is not None
    assert found[2].call.status is ToolStatus.UNKNOWN
    assert found[2].message.text == INTERRUPTED
    assert found[3].message.text == "done"


def test_the_first_result_of_a_call_wins() -> None:
    late = [*TURN, tool_entry(interrupted(ToolCall(id="a", name="t")), run_id="r")]
    assert [entry.message.text for entry in valid(late) if entry.message.tool_call_id == "a"] == ["done"]


def test_open_calls_are_named_with_their_run_in_call_order() -> None:
    assert [(call.id, run) for call, run in open_calls(TURN[:2])] == [("a", "r"), ("b", "r")]
    assert open_calls(TURN) == []


@given(st.integers(0, len(TWO)), st.integers(0, len(TWO)), st.integers(1, 3))
def test_no_cut_and_no_limit_leaves_an_orphan(begin: int, end: int, limit: int) -> None:
    window = list(last_groups(valid(TWO[begin:end]), limit))
    assert_pairs(window)
    if any(entry.message.role == "user" for entry in TWO[begin:end]):
        assert window[0].message.role == "user"
        people = [entry.message.text for entry in TWO[begin:end] if entry.message.role == "user"]
        assert [entry.message.text for entry in window if entry.message.role == "user"] == people[-limit:]


def test_an_entry_survives_being_stored() -> None:
    part = Part(image=Blob("image/png", data=b"\x89\x00"))
    entries = [
        Entry(message=Message(role="user", text="é😀", parts=(part, Part(text="t")), run_id="r")),
        Entry(message=assistant("hi", "a").message, model="m", provider_parts={"signature": "s"}),
        tool_entry(ToolCall(id="a", name="t", error="no", status=ToolStatus.ERROR, duration_ms=3), run_id="r"),
    ]
    assert [decode(encode(entry)) for entry in entries] == entries


def test_what_another_model_wanted_back_is_dropped_and_an_empty_answer_is_not_sent() -> None:
    entries = [
        user("x"),
        Entry(message=assistant("hi").message, model="one", provider_parts=[1]),
        user("y"),
        assistant(""),
    ]
    sent = to_model(entries, model="two")
    assert [(each.message.text, each.provider_parts) for each in sent] == [("x", None), ("hi", None), ("y", None)]
    assert to_model(entries, model="one")[1].provider_parts == [1]
