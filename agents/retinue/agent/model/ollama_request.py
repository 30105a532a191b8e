"""What is sent to Ollama's own API: the request as one JSON body.

The window is always set: left alone, Ollama takes a small one and cuts the conversation without a word.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.model.conversation import answer_of, arguments_of, contents, offered, open_turn, parts_of, wire_name
from retinue.agent.model.openai_request import function_tool
from retinue.service.chat import Blob, Message


def ollama_body(request: ModelRequest, *, model: str, name: str, num_ctx: int, streamed: bool = True) -> dict[str, Any]:
    """The body of the POST. `num_ctx` is the window in tokens; `name` is what provider parts are kept under."""
    messages = list(_messages(request, name))
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": streamed, "options": {"num_ctx": num_ctx}}
    if tools := offered(request, name, function_tool):
        body["tools"] = tools
    return body


def _messages(request: ModelRequest, name: str) -> Iterator[dict[str, Any]]:
    if request.system:
        yield {"role": "system", "content": request.system}
    asked = open_turn(request.messages)
    names: dict[str, str] = {}
    for at, each in enumerate(request.messages):
        message = each.message
        names |= {call.id: wire_name(call.name) for call in message.tool_calls}
        if message.role == "user":
            yield _user(message, current=at == asked)
        elif message.role == "tool":
            yield {"role": "tool", "tool_name": names.get(message.tool_call_id, "unnamed"), "content": message.text}
        elif message.text or message.tool_calls or message.parts:
            yield _assistant(each, name, open_turn=at > asked)


def _user(message: Message, *, current: bool) -> dict[str, Any]:
    found = contents(message, current=current, uris=False)
    images = [base64.b64encode(each.data or b"").decode() for each in found if isinstance(each, Blob)]
    text = "\n\n".join(each for each in found if isinstance(each, str))
    return {"role": "user", "content": text} | ({"images": images} if images else {})


def _assistant(each: ModelMessage, name: str, *, open_turn: bool) -> dict[str, Any]:
    message = each.message
    said: dict[str, Any] = {"role": "assistant", "content": answer_of(message)}
    if message.tool_calls:
        said["tool_calls"] = [
            {"function": {"name": wire_name(call.name), "arguments": arguments_of(call)}} for call in message.tool_calls
        ]
        said |= parts_of(each, name).get("turn", {}) if open_turn else {}
    return said
