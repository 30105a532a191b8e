"""What is sent to Gemini, key by key: parts echoed exactly, results as many as calls, signatures, schemas."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.model.gemini_request import UNSIGNED, gemini_body
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Blob, Message, Part, ToolCall

TOOLS = (
    ToolSpec("a", "Does a.", {"type": "object", "properties": {"x": {"type": ["integer", "null"]}}, "$schema": "s"}),
    ToolSpec("b"),
)


def body(*messages: Message | ModelMessage, model: str = "gemini-3-pro", **request: Any) -> Any:
    told = tuple(each if isinstance(each, ModelMessage) else ModelMessage(message=each) for each in messages)
    return gemini_body(ModelRequest(messages=told, **request), model=model, name=f"gemini/{model}")


CALLS = (ToolCall(id="call-1", name="a", arguments='{"x": 1}'), ToolCall(id="call-2", name="b"))
KEPT = {
    "model": "gemini/gemini-3-pro",
    "parts": [
        {"text": "Hm.", "thought": True},
        {"text": "First "},
        {"functionCall": {"name": "a", "args": {}}, "thoughtSignature": "UzE="},
        {"text": "then "},
        {"functionCall": {"name": "b", "id": "fc-2"}},
        {"text": "", "thoughtSignature": "UzI="},
    ],
}
SAID = Message(role="assistant", text="First then ", tool_calls=CALLS)
TURN = (
    Message(role="user", text="Look."),
    ModelMessage(message=SAID, provider_parts=KEPT),
    Message(role="tool", tool_call_id="call-1", text="one"),
    ModelMessage(message=Message(role="tool", tool_call_id="call-2", text="no"), failed=True),
)


def test_the_second_request_of_a_turn_is_exactly_this() -> None:
    assert body(*TURN, Message(role="user", text="Well?"), system="You look.", tools=TOOLS) == {
        "systemInstruction": {"parts": [{"text": "You look."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "a",
                        "description": "Does a.",
                        "parameters": {"type": "object", "properties": {"x": {"type": "integer", "nullable": True}}},
                    },
                    {"name": "b"},
                ]
            }
        ],
        "contents": [
            {"role": "user", "parts": [{"text": "Look."}]},
            {
                "role": "model",
                "parts": [
                    *KEPT["parts"][:2],
                    {"functionCall": {"name": "a", "args": {"x": 1}}, "thoughtSignature": "UzE="},
                    *KEPT["parts"][3:],
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"name": "a", "response": {"output": "one"}}},
                    {"functionResponse": {"name": "b", "response": {"error": "no"}, "id": "fc-2"}},
                ],
            },
            {"role": "user", "parts": [{"text": "Well?"}]},
        ],
    }


@pytest.mark.parametrize(
    ("model", "signature"),
    [
        ("gemini-3-flash", {"thoughtSignature": UNSIGNED}),
        ("gemini-flash-latest", {"thoughtSignature": UNSIGNED}),
        ("gemini-2.5-pro", {}),
    ],
)
def test_another_model_gets_the_message_alone_and_its_first_call_is_signed_where_it_must_be(
    model: str, signature: dict[str, str]
) -> None:
    sent = body(*TURN, model=model)["contents"]
    assert sent[1]["parts"] == [
        {"text": "First then "},
        {"functionCall": {"name": "a", "args": {"x": 1}}, **signature},
        {"functionCall": {"name": "b", "args": {}}},
    ]
    assert [set(part["functionResponse"]) for part in sent[2]["parts"]] == [{"name", "response"}] * 2


def test_kept_parts_without_a_signature_get_one_and_keep_the_one_they_have() -> None:
    kept = {"model": "gemini/gemini-3-pro", "parts": [{"functionCall": {"name": "a", "args": {}}}]}
    said = Message(role="assistant", tool_calls=CALLS[:1])
    sent = body(TURN[0], ModelMessage(message=said, provider_parts=kept), TURN[2])["contents"][1]["parts"]
    assert sent == [{"functionCall": {"name": "a", "args": {"x": 1}}, "thoughtSignature": UNSIGNED}]
    assert kept["parts"] == [{"functionCall": {"name": "a", "args": {}}}]


def test_neighbours_of_one_role_are_one_content_and_an_empty_answer_is_none() -> None:
    hi, said = Message(role="user", text="Hi."), Message(role="assistant", text="One.")
    assert body(hi, Message(role="user", text=" "), Message(role="assistant"), said, said)["contents"] == [
        {"role": "user", "parts": [{"text": "Hi."}, {"text": "(no text)"}]},
        {"role": "model", "parts": [{"text": "One."}, {"text": "One."}]},
    ]


def test_a_tool_whose_schema_has_no_words_here_is_left_out_aloud(caplog: pytest.LogCaptureFixture) -> None:
    odd = ToolSpec("odd", "Odd.", {"type": "object", "properties": {"x": {"$ref": "https://example.com/x"}}})
    sent = body(TURN[0], tools=(odd, TOOLS[1]))
    assert [tool["name"] for tool in sent["tools"][0]["functionDeclarations"]] == ["b"]
    assert "odd" in caplog.text
    assert "example.com" in caplog.text
    assert "tools" not in body(TURN[0], tools=(odd,))


def test_images_go_as_data_or_by_address() -> None:
    parts = (Part(image=Blob("image/png", data=b"\x89PNG")), Part(image=Blob("image/png", uri="gs://b/a.png")))
    assert body(Message(role="user", text="See.", parts=parts))["contents"][0]["parts"] == [
        {"text": "See."},
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},
        {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/a.png"}},
    ]
