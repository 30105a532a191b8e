"""What is sent to Anthropic Messages: the request as one JSON body.

Neighbours of one role are merged, so that roles alternate and all results of a step stand first in one user message.
Blocks that the server wants back go back as they came, with the server's own ids.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.model.conversation import (
    BLANK,
    answer_of,
    arguments_of,
    contents,
    offered,
    open_turn,
    parts_of,
    says_the_same,
    wire_id,
    wire_name,
)
from retinue.agent.model.schemas import rooted
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Blob, ToolCall

_CACHED = {"cache_control": {"type": "ephemeral"}}


def anthropic_body(
    request: ModelRequest, *, model: str, name: str, max_tokens: int, streamed: bool = True, cached: bool = True
) -> dict[str, Any]:
    """The body of the POST. `model` is the server's name of it, `name` the one that provider parts are kept under.

    `cached` marks the ends of tools, system and conversation for the server's cache.
    """
    messages = _Messages(name).of(request.messages)
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "messages": messages, "stream": streamed}
    if request.system.strip():
        body["system"] = [{"type": "text", "text": request.system}]
    if tools := offered(request, name, _tool):
        body["tools"] = tools
    if cached:
        last = messages[-1]["content"] if messages and messages[-1]["role"] == "user" else []
        for blocks in (body.get("tools", []), body.get("system", []), last):
            blocks[-1:] = [block | _CACHED for block in blocks[-1:]]
    return body


def _tool(spec: ToolSpec) -> dict[str, Any]:
    tool = {"name": wire_name(spec.name), "description": spec.description, "input_schema": rooted(spec.parameters)}
    return {key: value for key, value in tool.items() if value}


class _Messages:
    """The messages of one request; it keeps the ids that calls have in it, each of them once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ids: dict[str, str] = {}
        self._taken: set[str] = set()
        self._messages: list[dict[str, Any]] = []

    def of(self, conversation: Sequence[ModelMessage]) -> list[dict[str, Any]]:
        asked = open_turn(conversation)
        for at, each in enumerate(conversation):
            message = each.message
            if message.role == "user":
                found = contents(message, current=at == asked)
                self._add("user", [_image(one) if isinstance(one, Blob) else _text(one) for one in found])
            elif message.role == "tool":
                self._add("user", [self._result(each)])
            else:
                self._add("assistant", self._echoed(each) or self._rebuilt(each))
        if self._messages and self._messages[-1]["role"] == "assistant":
            # The server goes on writing here, and refuses to do so after a blank.
            last = self._messages[-1]["content"][-1]
            if last["type"] == "text":
                self._messages[-1]["content"][-1] = last | {"text": last["text"].rstrip()}
        return self._messages

    def _add(self, role: str, blocks: list[dict[str, Any]]) -> None:
        if self._messages and self._messages[-1]["role"] == role:
            self._messages[-1]["content"] += blocks
        elif blocks:
            self._messages.append({"role": role, "content": list(blocks)})

    def _result(self, each: ModelMessage) -> dict[str, Any]:
        message = each.message
        block = {"type": "tool_result", "tool_use_id": self._ids.get(message.tool_call_id, message.tool_call_id)}
        text = {"content": message.text} if message.text.strip() else {}
        return block | text | ({"is_error": True} if each.failed else {})

    def _echoed(self, each: ModelMessage) -> list[dict[str, Any]]:
        """The blocks that were kept for this message; none when they are another's or say something else."""
        message, content = each.message, parts_of(each, self._name).get("content") or []
        uses = [block for block in content if block["type"] == "tool_use"]
        text = "".join(block["text"] for block in content if block["type"] == "text")
        if not content or not says_the_same(message, text, [block["name"] for block in uses]):
            return []
        calls = iter(message.tool_calls)
        return [self._use(next(calls), block) if block["type"] == "tool_use" else dict(block) for block in content]

    def _rebuilt(self, each: ModelMessage) -> list[dict[str, Any]]:
        message = each.message
        text = answer_of(message)
        blocks = [_text(text)] if text.strip() else []
        return blocks + [self._use(call, {"type": "tool_use", "id": call.id}) for call in message.tool_calls]

    def _use(self, call: ToolCall, block: Mapping[str, Any]) -> dict[str, Any]:
        """The block of a call: under the id that it has there, where that is legal and new in this request."""
        sent = wire_id(block["id"])
        if sent in self._taken:
            sent = wire_id(f"{sent}/{call.id}")
        self._taken.add(sent)
        self._ids[call.id] = sent
        return {**block, "id": sent, "name": wire_name(call.name), "input": arguments_of(call)}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text if text.strip() else BLANK}


def _image(image: Blob) -> dict[str, Any]:
    if image.data:
        source = {"type": "base64", "media_type": image.mime, "data": base64.b64encode(image.data).decode()}
    else:
        source = {"type": "url", "url": str(image.uri)}
    return {"type": "image", "source": source}
