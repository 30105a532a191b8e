"""What is sent to Anthropic Messages, key by key: the order of results, what is echoed, what is merged and left out."""

from __future__ import annotations

from typing import Any

from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.model.anthropic_request import anthropic_body
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Blob, Message, Part, ToolCall

TOOL = ToolSpec("a", "Does a.", {"anyOf": [{"type": "object", "properties": {"x": {"type": "integer"}}}]})
CACHED = {"cache_control": {"type": "ephemeral"}}


def body(*messages: Message | ModelMessage, name: str = "anthropic/m", cached: bool = False, **request: Any) -> Any:
    told = tuple(each if isinstance(each, ModelMessage) else ModelMessage(message=each) for each in messages)
    return anthropic_body(
        ModelRequest(messages=told, **request), model="m", name=name, max_tokens=64, cached=cached, streamed=False
    )


CALLS = (ToolCall(id="call-1", name="a", arguments='{"x": 1}'), ToolCall(id="call-2", name="b"))
KEPT = {
    "model": "anthropic/m",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "U2ln"},
        {"type": "redacted_thinking", "data": "eA=="},
        {"type": "text", "text": "Looking. "},
        {"type": "tool_use", "id": "toolu_1", "name": "a"},
        {"type": "tool_use", "id": "toolu_2", "name": "b"},
    ],
}
SAID = Message(role="assistant", text="Looking. ", tool_calls=CALLS)
TURN = (
    Message(role="user", text="Look."),
    ModelMessage(message=SAID, provider_parts=KEPT),
    Message(role="tool", tool_call_id="call-1", text="one"),
    ModelMessage(message=Message(role="tool", tool_call_id="call-2", text=""), failed=True),
)


def test_the_second_request_of_a_turn_is_exactly_this() -> None:
    assert body(*TURN, Message(role="user", text="Well?"), system="You look.", tools=(TOOL,), cached=True) == {
        "model": "m",
        "max_tokens": 64,
        "stream": False,
        "system": [{"type": "text", "text": "You look.", **CACHED}],
        "tools": [
            {
                "name": "a",
                "description": "Does a.",
                "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}},
                **CACHED,
            }
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look."}]},
            {
                "role": "assistant",
                "content": [
                    *KEPT["content"][:3],
                    {"type": "tool_use", "id": "toolu_1", "name": "a", "input": {"x": 1}},
                    {"type": "tool_use", "id": "toolu_2", "name": "b", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "one"},
                    {"type": "tool_result", "tool_use_id": "toolu_2", "content": "(no text)", "is_error": True},
                    {"type": "text", "text": "Well?", **CACHED},
                ],
            },
        ],
    }


def assistant(name: str, message: Message = SAID) -> list[dict[str, Any]]:
    said = ModelMessage(message=message, provider_parts=KEPT)
    sent = body(TURN[0], said, *TURN[2:], name=name)
    content: list[dict[str, Any]] = sent["messages"][1]["content"]
    assert [block["tool_use_id"] for block in sent["messages"][2]["content"]] == [b["id"] for b in content[-2:]]
    return content


def test_another_model_gets_the_message_and_nothing_that_was_kept_for_this_one() -> None:
    assert assistant("anthropic/other") == [
        {"type": "text", "text": "Looking. "},
        {"type": "tool_use", "id": "call-1", "name": "a", "input": {"x": 1}},
        {"type": "tool_use", "id": "call-2", "name": "b", "input": {}},
    ]


def test_a_message_that_was_changed_since_does_not_get_its_old_words_back() -> None:
    assert assistant("anthropic/m", Message(role="assistant", text="***", tool_calls=CALLS))[0]["text"] == "***"


def test_ids_that_a_server_gave_twice_or_wrongly_are_changed_on_both_sides() -> None:
    twice = {"model": "anthropic/m", "content": [{"type": "tool_use", "id": "same", "name": "a"}]}
    told: list[Message | ModelMessage] = [Message(role="user", text="Look.")]
    for call_id in ("call-1", "call.2", "call-3"):
        said = Message(role="assistant", tool_calls=(ToolCall(id=call_id, name="a"),))
        told.append(ModelMessage(message=said, provider_parts=None if call_id == "call.2" else twice))
        told.append(Message(role="tool", tool_call_id=call_id, text="fine"))
    messages = body(*told)["messages"]
    used = [message["content"][0]["id"] for message in messages[1::2]]
    assert used == [message["content"][0]["tool_use_id"] for message in messages[2::2]]
    assert used[0] == "same"
    assert len(set(used)) == 3
    assert all(each.replace("_", "").isalnum() for each in used)


def test_roles_alternate_and_nothing_blank_is_sent() -> None:
    blank = Message(role="user", text=" \n")
    said = Message(role="assistant", text="One. ")
    sent = body(blank, Message(role="user", text="Hi."), Message(role="assistant"), said, said)["messages"]
    assert sent == [
        {"role": "user", "content": [{"type": "text", "text": "(no text)"}, {"type": "text", "text": "Hi."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "One. "}, {"type": "text", "text": "One."}]},
    ]


def test_a_paused_message_goes_back_as_it_came() -> None:
    blocks = [
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
    ]
    paused = ModelMessage(message=Message(role="assistant"), provider_parts={"model": "anthropic/m", "content": blocks})
    assert body(TURN[0], paused)["messages"][1] == {"role": "assistant", "content": blocks}


def test_images_go_as_data_or_by_address() -> None:
    parts = (Part(image=Blob("image/png", data=b"\x89PNG")), Part(image=Blob("image/png", uri="https://e.com/a.png")))
    assert body(Message(role="user", parts=parts))["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
        {"type": "image", "source": {"type": "url", "url": "https://e.com/a.png"}},
    ]
