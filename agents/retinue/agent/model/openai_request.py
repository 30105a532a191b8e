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

import orjson

from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.tools import ToolSpec, tool_name
from retinue.service.chat import Message, Part, ToolCall
from retinue.service.errors import Invalid


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


def encode(model: str, request: ModelRequest, *, name: str, quirks: Quirks, streamed: bool = True) -> bytes:
    """The body of the POST. `model` is the server's name of it, `name` the one that provider parts are kept under."""
    body: dict[str, Any] = {"model": model, "messages": list(_messages(request, name, quirks)), "stream": streamed}
    if quirks.include_usage and streamed:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [_tool(spec) for spec in request.tools]
    return orjson.dumps(body, default=_plain)


def _messages(request: ModelRequest, name: str, quirks: Quirks) -> Iterator[dict[str, Any]]:
    if request.system:
        yield {"role": "system", "content": request.system}
    asked = max((at for at, each in enumerate(request.messages) if each.message.role == "user"), default=-1)
    for at, each in enumerate(request.messages):
        message = each.message
        if message.role == "user":
            yield {"role": "user", "content": _content(message)}
        elif message.role == "tool":
            yield {"role": "tool", "tool_call_id": _id(message.tool_call_id, quirks), "content": message.text}
        else:
            yield _assistant(each, name, quirks, open_turn=at > asked)


def _assistant(each: ModelMessage, name: str, quirks: Quirks, *, open_turn: bool) -> dict[str, Any]:
    message, parts = each.message, each.provider_parts
    if not isinstance(parts, Mapping) or parts.get("model") != name:
        parts = {}
    if not message.tool_calls:
        return {"role": "assistant", "content": message.text, **parts.get("message", {})}
    extras = parts.get("calls", ())
    return {
        "role": "assistant",
        "content": message.text or None,
        "tool_calls": [_call(call, quirks, extra) for call, extra in zip_longest(message.tool_calls, extras) if call],
        **parts.get("message", {}),
        # Wanted back within the same loop of tool calls (DeepSeek), refused after it.
        **(parts.get("turn", {}) if open_turn else {}),
    }


def _call(call: ToolCall, quirks: Quirks, extra: Any) -> dict[str, Any]:
    # A name that a model made up may break the server's rule for names, and would on every later turn.
    function = {"name": tool_name(call.name or "unnamed"), "arguments": call.arguments}
    sent = {"id": _id(call.id, quirks), "type": "function", "function": function}
    return sent if extra is None else {**sent, "extra_content": extra}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": function}


def _id(call_id: str, quirks: Quirks) -> str:
    return hashlib.sha256(call_id.encode()).hexdigest()[:9] if quirks.short_ids else call_id


def _content(message: Message) -> str | list[dict[str, Any]]:
    if not message.parts:
        return message.text
    text = [{"type": "text", "text": message.text}] if message.text else []
    return text + [_part(part) for part in message.parts]


def _part(part: Part) -> dict[str, Any]:
    if part.text is not None:
        return {"type": "text", "text": part.text}
    image = part.image
    if image is None or (image.data is None and image.uri is None):
        raise Invalid("this model takes text and images (data or uri) only", field="parts")
    data = f"data:{image.mime};base64,{base64.b64encode(image.data).decode()}" if image.data is not None else image.uri
    return {"type": "image_url", "image_url": {"url": data}}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
