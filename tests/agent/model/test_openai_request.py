"""What is sent to a server of chat completions, key by key, and what is left out."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.model.openai_request import Quirks, encode
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Blob, Message, Part, ToolCall
from retinue.service.errors import Invalid

TOOL = ToolSpec("task_Task_List", "List tasks.", MappingProxyType({"type": "object", "properties": {}}))


def body(*messages: Message, quirks: Quirks | None = None, parts: Any = None, **request: Any) -> Any:
    """The sent body; `parts` go with each assistant message."""
    told = tuple(
        ModelMessage(message=each, provider_parts=parts if each.role == "assistant" else None) for each in messages
    )
    sent = encode("m", ModelRequest(messages=told, **request), name="openai/m", quirks=quirks or Quirks())
    return json.loads(sent)


CALLS = (ToolCall(id="call-1", name="a", arguments='{"x": 1}'), ToolCall(id="call-2", name="b"))
TURN = (
    Message(role="user", text="Look."),
    Message(role="assistant", tool_calls=CALLS),
    Message(role="tool", tool_call_id="call-1", text="one"),
    Message(role="tool", tool_call_id="call-2", text=""),
)


def test_the_second_request_of_a_turn_is_exactly_this() -> None:
    assert body(*TURN, system="You look.", tools=(TOOL,)) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "You look."},
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call-1", "type": "function", "function": {"name": "a", "arguments": '{"x": 1}'}},
                    {"id": "call-2", "type": "function", "function": {"name": "b", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "call-1", "content": "one"},
            {"role": "tool", "tool_call_id": "call-2", "content": ""},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "task_Task_List",
                    "description": "List tasks.",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
    }


def test_empty_keys_and_what_strict_servers_refuse_are_left_out() -> None:
    sent = body(Message(role="user", text="hi"), quirks=Quirks(include_usage=False))
    assert sent == {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


def test_a_name_that_the_model_made_up_is_sent_as_a_legal_one() -> None:
    calls = (ToolCall(id="c", name="no such.tool/" + "x" * 80), ToolCall(id="d", name=""))
    sent = body(Message(role="assistant", tool_calls=calls))["messages"][0]["tool_calls"]
    assert [call["function"]["name"] for call in sent] == ["no_such_tool_" + "x" * 51, "unnamed"]


def test_short_ids_are_nine_letters_or_digits_and_still_pair() -> None:
    sent = body(*TURN, quirks=Quirks(short_ids=True))["messages"]
    ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in sent[2:]]
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert len(set(ids)) == 2


def test_reasoning_goes_back_within_its_turn_and_not_after_it() -> None:
    parts = {
        "model": "openai/m",
        "turn": {"reasoning_content": "Hm."},
        "message": {"reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
        "calls": [None, {"google": {"thought_signature": "c2ln"}}],
    }
    within = body(*TURN, parts=parts)["messages"][1]
    assert within["reasoning_content"] == "Hm."
    assert within["reasoning_details"] == parts["message"]["reasoning_details"]  # type: ignore[index]
    assert [call.get("extra_content") for call in within["tool_calls"]] == parts["calls"]
    after = body(*TURN, Message(role="user", text="And?"), parts=parts)["messages"][1]
    assert "reasoning_content" not in after
    assert "reasoning_details" in after


def test_images_go_with_the_message_and_other_files_are_refused() -> None:
    image = Part(image=Blob("image/png", data=b"\x89PNG"))
    linked = Part(image=Blob("image/png", uri="https://example.com/a.png"))
    content = body(Message(role="user", text="What is it?", parts=(image, linked)))["messages"][0]["content"]
    assert content == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]
    with pytest.raises(Invalid):
        body(Message(role="user", text="Read.", parts=(Part(file=Blob("text/plain", data=b"x")),)))
