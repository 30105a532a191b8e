"""The strict checks of requests: what is built passes them, and each rule that is broken is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.dialects import CHECKS, check_all, check_gemini, check_openai, requests_of

from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.model.openai_request import Quirks, openai_body
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Blob, Message, Part, ToolCall

CALLS = (ToolCall(id="call-1", name="a", arguments='{"x": 1}'), ToolCall(id="call-2", name="b.c"))
IMAGE = Part(image=Blob("image/png", data=b"\x89PNG"))
HISTORY = tuple(
    ModelMessage(message=message)
    for message in (
        Message(role="user", text="Look.", parts=(IMAGE,)),
        Message(role="assistant", text="Yes.", tool_calls=CALLS),
        Message(role="tool", tool_call_id="call-1", text="one"),
        Message(role="tool", tool_call_id="call-2", text=""),
        Message(role="assistant", text="Done."),
        Message(role="user", text="Thanks."),
    )
)
TOOLS = (ToolSpec("a", "Does a.", {"type": "object", "properties": {"x": {"type": "integer"}}}), ToolSpec("b.c"))
KEPT = {
    "anthropic": {
        "model": "anthropic/m",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "U2ln"},
            {"type": "text", "text": "Yes."},
            {"type": "tool_use", "id": "toolu_1", "name": "a"},
            {"type": "tool_use", "id": "toolu_2", "name": "b.c"},
        ],
    }
}


def built(dialect: str) -> dict[str, Any]:
    history = list(HISTORY)
    history[1] = ModelMessage(message=history[1].message, provider_parts=KEPT.get(dialect))
    return requests_of(history, TOOLS)[dialect]


def conversation(body: dict[str, Any]) -> list[Any]:
    found: list[Any] = body.get("messages") or body["contents"]
    return found if found[0]["role"] == "user" else found[1:]


@pytest.mark.parametrize("dialect", CHECKS)
def test_what_is_built_passes(dialect: str) -> None:
    CHECKS[dialect](built(dialect))


def drop(body: dict[str, Any], at: int) -> None:
    found = body.get("messages") or body["contents"]
    del found[found.index(conversation(body)[at])]


def swap(items: list[Any], one: int, other: int) -> None:
    first = dict(items[one])
    for target, source in ((items[one], items[other]), (items[other], first)):
        values = dict(source)
        target.clear()
        target.update(values)


TEXT = {"type": "text", "text": "x"}
Break = Callable[[dict[str, Any]], Any]
COMMON: list[tuple[Break, str]] = [
    (lambda body: body.update(extra=1), "no other keys"),
    (lambda body: body.update(tools=[]), "tools is a list that is not empty"),
    (lambda body: conversation(body)[0].update(role="robot"), "role|begin"),
    (lambda body: drop(body, 0), "begin"),
]
OPENAI: list[tuple[Break, str]] = [
    (lambda body: swap(conversation(body), 2, 3), "results stand in call order"),
    (lambda body: drop(body, 3), "each call has its result"),
    (lambda body: drop(body, 1), "answers a call"),
    (lambda body: conversation(body)[4].update(content=""), "without calls has content|says or calls"),
    (lambda body: conversation(body)[4].update(tool_calls=[]), "tool_calls is a list"),
    (lambda body: conversation(body)[5].update(content=" "), "not blank"),
    (lambda body: body["tools"].append(body["tools"][0]), "different names"),
    (lambda body: body["tools"][0]["function"]["parameters"].update(anyOf=[]), "combines nothing"),
    (lambda body: body["tools"][0]["function"]["parameters"].update(type="string"), "type object"),
    (lambda body: body.update(model=""), "model is not blank"),
]
BROKEN: dict[str, list[tuple[Break, str]]] = {
    "openai": [
        *OPENAI,
        (lambda body: conversation(body)[1]["tool_calls"][1].update(id="call-1"), "ids of calls are unique"),
        (lambda body: conversation(body)[1]["tool_calls"][0]["function"].update(arguments={}), "are a string"),
        (lambda body: conversation(body)[1]["tool_calls"][0]["function"].update(arguments="[]"), "one JSON object"),
        (lambda body: conversation(body)[1]["tool_calls"][0]["function"].update(name="a.b"), "called name is legal"),
        (lambda body: conversation(body)[2].update(content=None), "a result is a string"),
        (lambda body: conversation(body)[0].update(content=[]), "a list that is not empty"),
        (lambda body: conversation(body)[0]["content"][0].update(text=""), "text part is not blank"),
        (lambda body: conversation(body)[5].update(content="\ud83d"), "UTF-8"),
        (lambda body: body.update(stream=False), "with a stream only"),
    ],
    "ollama": [
        *OPENAI,
        (lambda body: body["options"].clear(), "num_ctx is set"),
        (lambda body: conversation(body)[1]["tool_calls"][0]["function"].update(arguments="{}"), "are an object"),
        (lambda body: conversation(body)[0].update(images=["?"]), "base64"),
    ],
    "anthropic": [
        (lambda body: conversation(body)[2]["content"].reverse(), "in order"),
        (lambda body: conversation(body)[2]["content"].pop(), "each tool_use has one tool_result"),
        (lambda body: conversation(body)[1]["content"].pop(), "answers a tool_use of the message before"),
        (
            lambda body: conversation(body)[2]["content"].insert(0, {"type": "text", "text": "x"}),
            "before anything else",
        ),
        (lambda body: drop(body, 2), "roles alternate"),
        (lambda body: conversation(body)[3].update(content=[]), "content is a list"),
        (lambda body: conversation(body)[3]["content"][0].update(text=" "), "not blank"),
        (lambda body: conversation(body)[1]["content"][0].update(signature=""), "signature is not blank"),
        (lambda body: swap(conversation(body)[1]["content"], 0, 1), "begins with it"),
        (lambda body: conversation(body)[1]["content"][3].update(id="toolu_1"), "ids of calls are unique"),
        (lambda body: conversation(body)[1]["content"][3].update(id="a.b"), "id is letters"),
        (lambda body: conversation(body)[1]["content"][3].update(input="{}"), "input is an object"),
        (lambda body: conversation(body).pop() and conversation(body)[3]["content"][0].update(text="x "), "end with a"),
        (lambda body: body["tools"][0].update(cache_control={"type": "x"}), "ephemeral"),
        (lambda body: body.update(max_tokens=0), "max_tokens"),
        (lambda body: body["tools"].append(body["tools"][0]), "different names"),
        (lambda body: body["tools"][0]["input_schema"].update(oneOf=[]), "combines nothing"),
    ],
    "gemini": [
        (lambda body: conversation(body)[2]["parts"].reverse(), "under the call's name"),
        (lambda body: conversation(body)[2]["parts"].pop(), "as many results as calls"),
        (lambda body: conversation(body)[2]["parts"].append({"text": "x"}), "share their content with nothing"),
        (lambda body: conversation(body)[2]["parts"][0]["functionResponse"].update(response="x"), "is an object"),
        (lambda body: conversation(body)[2]["parts"][0]["functionResponse"].update(id="x"), "call's id"),
        (lambda body: drop(body, 2), "one content|results"),
        (lambda body: drop(body, 1), "answers a call"),
        (lambda body: conversation(body)[3].update(parts=[]), "parts is a list"),
        (lambda body: conversation(body)[3]["parts"][0].update(text=""), "text is not empty"),
        (lambda body: conversation(body)[1]["parts"][1].pop("thoughtSignature"), "is signed"),
        (lambda body: conversation(body)[1]["parts"][1].update(text="x"), "one kind of data"),
        (lambda body: conversation(body)[1]["parts"][1]["functionCall"].update(args="{}"), "args are an object"),
        (lambda body: conversation(body)[1]["parts"][1]["functionCall"].update(name="1a"), "called name is legal"),
        (
            lambda body: body["tools"][0]["functionDeclarations"][0]["parameters"].update(additionalProperties=False),
            "no words that Gemini does not know",
        ),
    ],
}
ROWS = [(dialect, wreck, rule) for dialect, rows in BROKEN.items() for wreck, rule in [*COMMON, *rows]]


@pytest.mark.parametrize(("dialect", "wreck", "rule"), ROWS)
def test_a_broken_rule_is_named(dialect: str, wreck: Break, rule: str) -> None:
    body = copy.deepcopy(built(dialect))
    wreck(body)
    with pytest.raises(AssertionError, match=rule):
        CHECKS[dialect](body)


def test_an_older_gemini_needs_no_signature() -> None:
    body = requests_of(HISTORY, names={"gemini": "gemini/gemini-2.5-flash"})["gemini"]
    check_gemini(body, signed=False)
    with pytest.raises(AssertionError, match="signed"):
        check_gemini(body)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
OBJECTS = st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(), st.none()), max_size=2)
PARTS = st.lists(
    st.one_of(
        TEXTS.map(lambda text: Part(text=text)),
        st.just(IMAGE),
        st.just(Part(file=Blob("text/plain", data=b"x"))),
        st.just(Part(image=Blob("image/png", uri="https://e.com/a.png"))),
    ),
    max_size=2,
).map(tuple)


@st.composite
def histories(draw: st.DrawFn) -> tuple[ModelMessage, ...]:
    """Valid conversations: any texts, calls and results; a person's message may follow anything."""
    told = [ModelMessage(message=Message(role="user", text=draw(TEXTS), parts=draw(PARTS)))]
    for step in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            told.append(ModelMessage(message=Message(role="user", text=draw(TEXTS), parts=draw(PARTS))))
            continue
        calls = tuple(
            ToolCall(id=f"call-{step}-{at}", name=draw(TEXTS), arguments=json.dumps(draw(OBJECTS)))
            for at in range(draw(st.integers(0, 3)))
        )
        told.append(ModelMessage(message=Message(role="assistant", text=draw(TEXTS), tool_calls=calls)))
        for call in calls:
            result = Message(role="tool", tool_call_id=call.id, text=draw(TEXTS))
            told.append(ModelMessage(message=result, failed=draw(st.booleans())))
    told.append(ModelMessage(message=Message(role="user", text="And now?")))
    return tuple(told)


@settings(max_examples=200, deadline=None)
@given(histories(), st.lists(TEXTS, unique=True, max_size=3))
def test_any_valid_history_passes_in_every_dialect(history: tuple[ModelMessage, ...], names: list[str]) -> None:
    tools = tuple(ToolSpec(name) for name in names)
    check_all(history, tools)
    request = ModelRequest(messages=history, tools=tools)
    check_openai(openai_body(request, model="m", name="openai/m", quirks=Quirks(short_ids=True)), short_ids=True)
