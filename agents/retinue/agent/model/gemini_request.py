"""What is sent to Gemini's generateContent: the request as one JSON body.

Parts that came from the server go back exactly, in order, unmerged. All results of a step stand in one content, as
many as its calls, and nothing else does.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.model.conversation import (
    arguments_of,
    contents,
    offered,
    open_turn,
    parts_of,
    says_the_same,
    wire_name,
)
from retinue.agent.model.schemas import subset
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Blob, ToolCall

# What the server takes in place of a signature that was never there: calls of another model, or of a lost history.
UNSIGNED = "skip_thought_signature_validator"
_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,63}", re.ASCII)
# These know no signatures.
_OLD = re.compile(r"gemini-[12]\b")


def gemini_body(request: ModelRequest, *, model: str, name: str) -> dict[str, Any]:
    """The body of the POST, which names no model; `name` is the one that provider parts are kept under."""
    body: dict[str, Any] = {"contents": _Contents(name, signed=not _OLD.match(model)).of(request.messages)}
    if request.system.strip():
        body["systemInstruction"] = {"parts": [{"text": request.system}]}
    if tools := offered(request, name, _function):
        body["tools"] = [{"functionDeclarations": tools}]
    return body


def _function(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": wire_name(spec.name), "description": spec.description, "parameters": subset(spec.parameters)}
    return {key: value for key, value in function.items() if value}


class _Contents:
    """The contents of one request; it keeps what the results need to know of their calls."""

    def __init__(self, name: str, *, signed: bool) -> None:
        self._name = name
        self._signed = signed
        self._calls: dict[str, Mapping[str, Any]] = {}
        self._contents: list[dict[str, Any]] = []

    def of(self, conversation: Sequence[ModelMessage]) -> list[dict[str, Any]]:
        asked = open_turn(conversation)
        for at, each in enumerate(conversation):
            message = each.message
            if message.role == "user":
                found = contents(message, current=at == asked)
                self._add("user", [_image(one) if isinstance(one, Blob) else {"text": one} for one in found])
            elif message.role == "tool":
                self._add("user", [self._response(each)])
            else:
                self._add("model", self._echoed(each) or list(self._rebuilt(each)))
        return self._contents

    def _add(self, role: str, parts: list[dict[str, Any]]) -> None:
        """Neighbours of one role are one content, but results share theirs with nothing."""
        last = self._contents[-1] if self._contents else None
        if last and last["role"] == role and _are_results(last["parts"]) == _are_results(parts):
            last["parts"] += parts
        elif parts:
            self._contents.append({"role": role, "parts": list(parts)})

    def _response(self, each: ModelMessage) -> dict[str, Any]:
        message = each.message
        sent = self._calls.get(message.tool_call_id, {})
        response = {"error" if each.failed else "output": message.text}
        known = {"id": sent["id"]} if "id" in sent else {}
        return {"functionResponse": {"name": sent.get("name", "unnamed"), "response": response, **known}}

    def _echoed(self, each: ModelMessage) -> list[dict[str, Any]]:
        """The parts that were kept for this message; none when they are another's or say something else."""
        message, parts = each.message, parts_of(each, self._name).get("parts") or []
        called = [part["functionCall"] for part in parts if "functionCall" in part]
        text = "".join(part.get("text") or "" for part in parts if not part.get("thought"))
        if not parts or not says_the_same(message, text, [call.get("name") or "" for call in called]):
            return []
        calls = iter(message.tool_calls)
        return self._sign([self._filled(part, calls) if "functionCall" in part else dict(part) for part in parts])

    def _filled(self, part: Mapping[str, Any], calls: Iterator[ToolCall]) -> dict[str, Any]:
        """A part with a call, which has its arguments again if it had any."""
        call, sent = next(calls), dict(part["functionCall"])
        name = sent.get("name") or ""
        sent |= {"name": name if _NAME.fullmatch(name) else wire_name(call.name)}
        sent |= {"args": arguments_of(call)} if "args" in sent else {}
        self._calls[call.id] = sent
        return {**part, "functionCall": sent}

    def _rebuilt(self, each: ModelMessage) -> Iterator[dict[str, Any]]:
        message = each.message
        if message.text.strip():
            yield {"text": message.text}
        yield from (_image(part.image) for part in message.parts if part.image)
        yield from self._sign([self._call(call) for call in message.tool_calls])

    def _call(self, call: ToolCall) -> dict[str, Any]:
        sent = {"name": wire_name(call.name), "args": arguments_of(call)}
        self._calls[call.id] = sent
        return {"functionCall": sent}

    def _sign(self, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The first call of a step bears a signature, or the server refuses the whole history."""
        first = next((part for part in parts if "functionCall" in part), None)
        if first and self._signed:
            first.setdefault("thoughtSignature", UNSIGNED)
        return parts


def _are_results(parts: Sequence[Mapping[str, Any]]) -> bool:
    return bool(parts) and "functionResponse" in parts[0]


def _image(image: Blob) -> dict[str, Any]:
    if image.data:
        return {"inlineData": {"mimeType": image.mime, "data": base64.b64encode(image.data).decode()}}
    return {"fileData": {"mimeType": image.mime, "fileUri": str(image.uri)}}
