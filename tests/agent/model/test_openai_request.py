"""What is sent to a server of chat completions, key by key, and what is left out."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.model.openai_request import Quirks, openai_body, quirks_of
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Blob, Message, Part, ToolCall
from retinue.service.errors import Invalid

TOOL = ToolSpec("task_Task_List", "List tasks.", MappingProxyType({"type": "object", "properties": {}}))


def body(*messages: Message, quirks: Quirks | None = None, parts: Any = None, **request: Any) -> Any:
    """The sent body; `parts` go with each assistant message."""
    told = tuple(
        ModelMessage(message=each, provider_parts=parts if each.role == "assistant" else None) for each in messages
    )
    return openai_body(ModelRequest(messages=told, **request), model="m", name="openai/m", quirks=quirks)


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
    sent = body(Message(role="user", text="hi"), Message(role="assistant"), quirks=Quirks(include_usage=False))
    assert sent == {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


def test_short_ids_are_nine_letters_or_digits_and_still_pair() -> None:
    sent = body(*TURN, quirks=quirks_of("api.mistral.ai"))["messages"]
    ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in sent[2:]]
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert len(set(ids)) == 2
    assert quirks_of("notmistral.ai") == quirks_of("localhost") == Quirks()


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
    other = body(*TURN, parts=parts | {"model": "openai/other"})
    assert other == body(*TURN)


IMAGE = Part(image=Blob("image/png", data=b"\x89PNG"))
LINKED = Part(image=Blob("image/png", uri="https://example.com/a.png"))
FILE = Part(file=Blob("text/plain", data=b"x"))


def test_images_go_with_the_message_and_blank_texts_do_not() -> None:
    blank = Part(text=" ")
    content = body(Message(role="user", text="What is it?", parts=(IMAGE, blank, LINKED)))["messages"][0]["content"]
    assert content == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]


def test_a_file_is_refused_where_it_is_new_and_named_where_it_is_old() -> None:
    asked = Message(role="user", text="Read.", parts=(FILE,))
    with pytest.raises(Invalid, match="text and images"):
        body(asked)
    old = body(asked, Message(role="assistant", text="No."), Message(role="user", text="Go on."))["messages"][0]
    assert old["content"][1]["text"].startswith("[text/plain: left out")
