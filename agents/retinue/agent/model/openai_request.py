"""What is sent to a server that speaks OpenAI chat completions: the request as one JSON body.

It trusts the conversation to be valid (each call followed by its one result) and leaves out every optional key.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.model.conversation import answer_of, contents, offered, open_turn, parts_of, wire_name
from retinue.agent.model.schemas import rooted
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Blob, Message, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """Where compatible servers differ. `include_usage`: asks for token counts, which some strict servers refuse;
    `short_ids`: call ids are exactly nine letters or digits; `api_key_header`: the key has a header of its own."""

    include_usage: bool = True
    short_ids: bool = False
    api_key_header: bool = False


_BY_HOST = {
    "mistral.ai": Quirks(short_ids=True),
    "azure.com": Quirks(api_key_header=True),
}


def quirks_of(host: str) -> Quirks:
    """The flags of the servers at that host."""
    return next((quirks for known, quirks in _BY_HOST.items() if f".{host}".endswith(f".{known}")), Quirks())


def openai_body(
    request: ModelRequest, *, model: str, name: str, quirks: Quirks | None = None, streamed: bool = True
) -> dict[str, Any]:
    """The body of the POST. `model` is the server's name of it, `name` the one that provider parts are kept under."""
    quirks = quirks or Quirks()
    body: dict[str, Any] = {"model": model, "messages": list(_messages(request, name, quirks)), "stream": streamed}
    if quirks.include_usage and streamed:
        body["stream_options"] = {"include_usage": True}
    if tools := offered(request, name, function_tool):
        body["tools"] = tools
    return body


def function_tool(spec: ToolSpec) -> dict[str, Any]:
    """A tool as OpenAI and Ollama take it."""
    function = {"name": wire_name(spec.name), "description": spec.description, "parameters": rooted(spec.parameters)}
    return {"type": "function", "function": {key: value for key, value in function.items() if value}}


def _messages(request: ModelRequest, name: str, quirks: Quirks) -> Iterator[dict[str, Any]]:
    if request.system:
        yield {"role": "system", "content": request.system}
    asked = open_turn(request.messages)
    for at, each in enumerate(request.messages):
        message = each.message
        if message.role == "user":
            yield {"role": "user", "content": _content(message, current=at == asked)}
        elif message.role == "tool":
            yield {"role": "tool", "tool_call_id": _id(message.tool_call_id, quirks), "content": message.text}
        elif message.text or message.tool_calls or message.parts:
            yield _assistant(each, name, quirks, open_turn=at > asked)


def _assistant(each: ModelMessage, name: str, quirks: Quirks, *, open_turn: bool) -> dict[str, Any]:
    message, parts = each.message, parts_of(each, name)
    kept: Mapping[str, Any] = parts.get("message", {})
    if not message.tool_calls:
        return {"role": "assistant", "content": answer_of(message), **kept}
    extras = parts.get("calls", ())
    return {
        "role": "assistant",
        "content": answer_of(message) or None,
        "tool_calls": [_call(call, quirks, extra) for call, extra in zip_longest(message.tool_calls, extras) if call],
        **kept,
        # Wanted back within the same loop of tool calls (DeepSeek), refused after it.
        **(parts.get("turn", {}) if open_turn else {}),
    }


def _call(call: ToolCall, quirks: Quirks, extra: Any) -> dict[str, Any]:
    # A name that a model made up may break the server's rule for names, and would on every later turn.
    function = {"name": wire_name(call.name), "arguments": call.arguments}
    sent = {"id": _id(call.id, quirks), "type": "function", "function": function}
    return sent if extra is None else {**sent, "extra_content": extra}


def _id(call_id: str, quirks: Quirks) -> str:
    return hashlib.sha256(call_id.encode()).hexdigest()[:9] if quirks.short_ids else call_id


def _content(message: Message, *, current: bool) -> str | list[dict[str, Any]]:
    found = contents(message, current=current)
    if len(found) == 1 and isinstance(found[0], str):
        return found[0]
    return [_image(each) if isinstance(each, Blob) else {"type": "text", "text": each} for each in found]


def _image(image: Blob) -> dict[str, Any]:
    data = f"data:{image.mime};base64,{base64.b64encode(image.data).decode()}" if image.data else image.uri
    return {"type": "image_url", "image_url": {"url": data}}
