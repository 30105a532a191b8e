"""What a recorded answer of a model server means: the decoders of the four dialects, fed from a case.

A case is a dict as in tests/cases/wire: provider, kind, http_status, headers, body, and `expect`, of which only its
clock is read. No network takes part, and nothing is asked twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from retinue.agent.model import (
    ModelEnd,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ModelText,
    ModelThinking,
    ModelToolInput,
    Stop,
)
from retinue.agent.model.anthropic import Anthropic
from retinue.agent.model.anthropic_request import anthropic_body
from retinue.agent.model.decoder import Decoder
from retinue.agent.model.failures import Failures
from retinue.agent.model.gemini import Gemini
from retinue.agent.model.gemini_request import gemini_body
from retinue.agent.model.ollama import Ollama
from retinue.agent.model.openai import OpenAI
from retinue.service.chat import Message, ToolCall
from retinue.service.errors import ModelError
from retinue.service.usage import Usage

_DIALECTS = {"anthropic": Anthropic.dialect, "gemini": Gemini.dialect, "ollama": Ollama.dialect}
# Kinds of failure that the cases know by a wider word.
_CLASSES = {"timeout": "server_error", "too_large": "server_error"}


def decode(case: Mapping[str, Any], *, chunk: int | None = None, cut: int | None = None) -> dict[str, Any]:
    """What the body means, in the words of a case's `expect`; keys that say nothing are left out.

    The bytes come in pieces of `chunk` (all at once) and end at offset `cut` (the end). Always there: text,
    tool_calls (those to run), stop, usage (None: nothing was reported), error_class. A provider that is not one of
    the three with a dialect of their own is read as OpenAI-compatible.
    """
    clock = case.get("expect", {}).get("clock")
    seen = _Seen()
    headers = {str(key).lower(): str(value) for key, value in (case.get("headers") or {}).items()}
    body = case["body"].encode()[:cut]
    size = chunk or max(len(body), 1)
    try:
        decoder = Decoder(
            _DIALECTS.get(case["provider"], OpenAI.dialect),
            Failures(f"{case['provider']}/model"),
            status=int(case["http_status"]),
            headers=headers,
            streamed=case["kind"] == "stream",
            now=parsedate_to_datetime(clock).timestamp() if clock else None,
        )
        for at in range(0, len(body), size):
            seen.take(decoder.feed(body[at : at + size]))
        seen.take(decoder.close())
    except ModelError as error:
        return seen.failed(error) | ({"clock": clock} if clock else {})
    return seen.ended()


@dataclass(slots=True)
class _Seen:
    """The events of one answer."""

    text: str = ""
    reasoning: str = ""
    names: dict[int, str] = field(default_factory=dict)
    inputs: dict[int, str] = field(default_factory=dict)
    end: ModelEnd | None = None

    def take(self, events: Iterator[ModelEvent]) -> None:
        for event in events:
            match event:
                case ModelText(text):
                    self.text += text
                case ModelThinking(text):
                    self.reasoning += text
                case ModelToolInput(index, name, delta):
                    self.names[index] = name or self.names.get(index, "")
                    self.inputs[index] = self.inputs.get(index, "") + delta
                case ModelEnd():
                    self.end = event

    def ended(self) -> dict[str, Any]:
        """A message that came to its end."""
        end = self.end
        if end is None:
            raise AssertionError("the decoder closed without an end and without an error")
        runnable = [
            {"name": call.name, "arguments": call.arguments} for call in end.calls if call.arguments is not None
        ]
        broken = [{"name": call.name, "raw": call.raw} for call in end.calls if call.arguments is None]
        filtered = "content_filter" if end.stop is Stop.CONTENT_FILTER else None
        said: dict[str, Any] = {
            "text": end.text.removesuffix(end.refusal),
            "tool_calls": runnable,
            "stop": end.stop.value,
            "usage": _usage(end.usage, end.cache_write),
            "error_class": "malformed_tool_call" if broken else filtered,
            "refusal": end.refusal,
            "tool_call_ids": [call.id for call in end.calls],
            "malformed_tool_calls": broken,
            "valid_tool_calls": runnable if broken else [],
            **_echo(end),
        }
        return self._trimmed(said)

    def failed(self, error: ModelError) -> dict[str, Any]:
        """A message that came to nothing."""
        kind = error.facts["kind"]
        told = error.facts.get("should_retry")
        said: dict[str, Any] = {
            "text": self.text,
            "tool_calls": [],
            "stop": "error",
            "usage": _usage(error.usage or Usage(), None),
            "error_class": _CLASSES.get(kind, kind),
            "retryable": error.retryable if told is None else told == "true",
            "retry_after_s": error.retry_after,
        }
        return self._trimmed(said)

    def _trimmed(self, said: dict[str, Any]) -> dict[str, Any]:
        if said["stop"] != "tool_calls":
            said["incomplete_tool_calls"] = [{"name": self.names[at], "raw": self.inputs[at]} for at in self.inputs]
        said["reasoning"] = self.reasoning
        always = ("text", "tool_calls", "stop", "usage", "error_class")
        return {key: value for key, value in said.items() if key in always or value not in (None, "", [], {})}


def _usage(usage: Usage, cache_write: int | None) -> dict[str, int | None] | None:
    """Input and output, None where the server does not say, and whatever else it says."""
    if usage == Usage():
        return None
    more = {"reasoning": usage.reasoning, "cache_read": usage.cached, "cache_write": cache_write}
    known = {key: count for key, count in more.items() if count is not None}
    return {"input": usage.input, "output": usage.output, **known}


def _echo(end: ModelEnd) -> dict[str, Any]:
    """What goes back with the message: its content or parts, or what stands beside its text and calls."""
    parts = end.provider_parts
    if not parts:
        return {}
    extras = [{"extra_content": extra} if extra else {} for extra in parts.get("calls", ())]
    flat = {**parts.get("message", {}), **parts.get("turn", {}), **({"tool_calls": extras} if extras else {})}
    calls = tuple(
        ToolCall(id=each.id, name=each.name, arguments=json.dumps(each.arguments or {})) for each in end.calls
    )
    message = ModelMessage(message=Message(role="assistant", text=end.text, tool_calls=calls), provider_parts=parts)
    request, name = ModelRequest(messages=(message,)), parts["model"]
    content = anthropic_body(request, model="model", name=name, max_tokens=1)["messages"] if "content" in parts else []
    told = gemini_body(request, model="gemini-2", name=name)["contents"] if "parts" in parts else []
    return {
        "echo": dict(_leaves(flat, "")) if flat else {},
        "echo_content": content[0]["content"] if content else [],
        "echo_parts": told[0]["parts"] if told else [],
    }


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The values of a JSON tree under their dotted paths."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not pairs:
        yield path, value
    for key, each in pairs:
        yield from _leaves(each, f"{path}.{key}".lstrip("."))
