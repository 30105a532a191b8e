"""What is sent to Ollama's own API, key by key."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.model.ollama_request import ollama_body
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Blob, Message, Part, ToolCall
from retinue.service.errors import Invalid


def body(*messages: Message | ModelMessage, name: str = "ollama/m", **request: Any) -> Any:
    told = tuple(each if isinstance(each, ModelMessage) else ModelMessage(message=each) for each in messages)
    return ollama_body(ModelRequest(messages=told, **request), model="m", name=name, num_ctx=4096)


CALLS = (ToolCall(id="call-1", name="a", arguments='{"x": 1}'), ToolCall(id="call-2", name="b"))
KEPT = {"model": "ollama/m", "turn": {"thinking": "Hm."}}
TURN = (
    Message(role="user", text="Look."),
    ModelMessage(message=Message(role="assistant", tool_calls=CALLS), provider_parts=KEPT),
    Message(role="tool", tool_call_id="call-1", text="one"),
    Message(role="tool", tool_call_id="call-2", text=""),
)


def test_the_second_request_of_a_turn_is_exactly_this() -> None:
    assert body(*TURN, system="You look.", tools=(ToolSpec("a", "Does a."),)) == {
        "model": "m",
        "stream": True,
        "options": {"num_ctx": 4096},
        "messages": [
            {"role": "system", "content": "You look."},
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": "",
                "thinking": "Hm.",
                "tool_calls": [
                    {"function": {"name": "a", "arguments": {"x": 1}}},
                    {"function": {"name": "b", "arguments": {}}},
                ],
            },
            {"role": "tool", "tool_name": "a", "content": "one"},
            {"role": "tool", "tool_name": "b", "content": ""},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "a",
                    "description": "Does a.",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
    }


def test_thinking_goes_back_within_its_turn_and_to_its_model_only() -> None:
    assert "thinking" not in body(*TURN, Message(role="user", text="And?"))["messages"][1]
    assert "thinking" not in body(*TURN, name="ollama/other")["messages"][1]


def test_images_go_as_data_beside_the_text_and_not_by_address() -> None:
    image = Part(image=Blob("image/png", data=b"\x89PNG"))
    sent = body(Message(role="user", text="See.", parts=(Part(text="And this."), image)))["messages"][0]
    assert sent == {"role": "user", "content": "See.\n\nAnd this.", "images": ["iVBORw=="]}
    with pytest.raises(Invalid, match="by data"):
        body(Message(role="user", parts=(Part(image=Blob("image/png", uri="https://e.com/a.png")),)))
