"""What a scripted model server says, in each of the four dialects, and what it was asked, in one.

It says what a script has decided; it decides nothing, checks no request and counts no tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from retinue.agent.model import Stop, WantedCall
from retinue.agent.model.said import pieces
from retinue.agent.testing.asked import of_anthropic, of_gemini, of_ollama
from retinue.service.errors import MeshError, ModelAuth, ModelContext, ModelError, ModelQuota, ModelRate
from retinue.service.usage import Usage

SIGNATURE = "c2NyaXB0ZWQ="


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """One message of the model, as a script wants it said."""

    text: str
    calls: Sequence[WantedCall]
    stop: Stop
    thinking: str = ""
    model: str = ""
    usage: Usage = Usage()

    @property
    def tokens(self) -> tuple[int, int]:
        """Input and output, each one where the script says nothing."""
        given, made = self.usage.input, self.usage.output
        return (1 if given is None else given), (1 if made is None else made)


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer with an error status: its HTTP status, and the body that the dialect has for it."""

    status: int
    body: Any


class Spelling(Protocol):
    """How one dialect spells its requests and answers."""

    content_type: str

    def asked(self, body: Any) -> Any:
        """The request as an OpenAI body: model, messages, tools."""
        ...

    def streamed(self, path: str, body: Any) -> bool:
        """Whether the request wants a stream."""
        ...

    def stream(self, spoken: Spoken) -> Iterator[bytes]:
        """The message, in the pieces that pauses come between."""
        ...

    def whole(self, spoken: Spoken) -> Any:
        """The message as one JSON value."""
        ...

    def refused(self, status: int, message: str, error: BaseException | None) -> Refused:
        """How the dialect says no: with that status, or as `error` wants it."""
        ...


_ASKED = re.compile(r"/v1/chat/completions|/v1/messages|/api/chat|/v1beta/models/[^/]+:(?:streamG|g)enerateContent")
_LISTED = re.compile(r"/v1/models|/api/tags|/v1beta/models")


def known_path(path: str, method: str) -> bool:
    """Whether one of the four APIs has that path, below the root."""
    return bool((_ASKED if method == "POST" else _LISTED).fullmatch(path.partition("?")[0]))


def spelling(path: str) -> Spelling:
    """The dialect that lives at that path; OpenAI's where it is none of the others'."""
    path = path.partition("?")[0]
    if path.endswith("/v1/messages"):
        return _Anthropic()
    if path.endswith(("GenerateContent", "generateContent")):
        return _Gemini()
    return _Ollama() if path.endswith("/api/chat") else _OpenAI()


def _sse(value: Any, *, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


def _raw(call: WantedCall) -> str:
    return call.raw or json.dumps(call.arguments)


def _arguments(call: WantedCall) -> Any:
    """As an object; what is none is sent as the text that it is."""
    return call.raw if call.arguments is None else call.arguments


class _OpenAI:
    content_type = "text/event-stream"
    _stops: Mapping[Stop, str] = {
        Stop.TOOL_CALLS: "tool_calls",
        Stop.LENGTH: "length",
        Stop.CONTENT_FILTER: "content_filter",
    }
    _errors: Mapping[type[MeshError], tuple[int, str]] = {
        ModelAuth: (401, "invalid_api_key"),
        ModelQuota: (429, "insufficient_quota"),
        ModelRate: (429, "rate_limit_exceeded"),
        ModelContext: (400, "context_length_exceeded"),
        ModelError: (500, "server_error"),
    }

    def asked(self, body: Any) -> Any:
        return body

    def streamed(self, path: str, body: Any) -> bool:
        return bool(body.get("stream"))

    def stream(self, spoken: Spoken) -> Iterator[bytes]:
        def chunk(*choices: Any, **more: Any) -> bytes:
            shared = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0}
            return _sse({**shared, "model": spoken.model, "choices": list(choices), **more})

        for delta in self._deltas(spoken):
            yield chunk({"index": 0, "delta": delta, "finish_reason": None})
        yield chunk({"index": 0, "delta": {}, "finish_reason": self._stops.get(spoken.stop, "stop")})
        yield chunk(usage=self._usage(spoken))
        yield b"data: [DONE]\n\n"

    def whole(self, spoken: Spoken) -> Any:
        said = "refusal" if spoken.stop is Stop.REFUSAL else "content"
        message: dict[str, Any] = {"role": "assistant", "content": None, said: spoken.text or None}
        message |= {"reasoning_content": spoken.thinking} if spoken.thinking else {}
        message |= {"tool_calls": [self._call(*each) for each in enumerate(spoken.calls)]} if spoken.calls else {}
        choice = {"index": 0, "message": message, "finish_reason": self._stops.get(spoken.stop, "stop")}
        shared = {"id": "chatcmpl-scripted", "object": "chat.completion", "created": 0, "model": spoken.model}
        return {**shared, "choices": [choice], "usage": self._usage(spoken)}

    def refused(self, status: int, message: str, error: BaseException | None) -> Refused:
        status, code = _known(self._errors, error, (status, ""))
        kind = "scripted" if error is None else type(error).__name__
        return Refused(status, {"error": {"message": message, "type": kind, "code": code or None}})

    def _usage(self, spoken: Spoken) -> dict[str, int]:
        given, made = spoken.tokens
        return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}

    def _deltas(self, spoken: Spoken) -> Iterator[dict[str, Any]]:
        yield {"role": "assistant", "content": ""}
        for piece in pieces(spoken.thinking):
            yield {"reasoning_content": piece}
        for piece in pieces(spoken.text):
            yield {"refusal" if spoken.stop is Stop.REFUSAL else "content": piece}
        for each in enumerate(spoken.calls):
            yield {"tool_calls": [self._call(*each)]}

    def _call(self, index: int, call: WantedCall) -> dict[str, Any]:
        function = {"name": call.name, "arguments": _raw(call)}
        return {"index": index, "id": call.id, "type": "function", "function": function}


class _Anthropic:
    content_type = "text/event-stream"
    _stops: Mapping[Stop, str] = {
        Stop.TOOL_CALLS: "tool_use",
        Stop.LENGTH: "max_tokens",
        Stop.CONTENT_FILTER: "refusal",
        Stop.REFUSAL: "refusal",
        Stop.PAUSE: "pause_turn",
    }
    _errors: Mapping[type[MeshError], tuple[int, str]] = {
        ModelAuth: (401, "authentication_error"),
        ModelQuota: (402, "billing_error"),
        ModelRate: (429, "rate_limit_error"),
        ModelContext: (400, "invalid_request_error"),
        ModelError: (500, "api_error"),
    }

    def asked(self, body: Any) -> Any:
        return of_anthropic(body)

    def streamed(self, path: str, body: Any) -> bool:
        return bool(body.get("stream"))

    def stream(self, spoken: Spoken) -> Iterator[bytes]:
        yield self._event("message_start", message={**self._message(spoken), "content": [], "stop_reason": None})
        for index, (block, deltas) in enumerate(self._blocks(spoken)):
            yield self._event("content_block_start", index=index, content_block=block)
            for delta in deltas:
                yield self._event("content_block_delta", index=index, delta=delta)
            yield self._event("content_block_stop", index=index)
        yield self._event("message_delta", delta=self._end(spoken), usage={"output_tokens": spoken.tokens[1]})
        yield self._event("message_stop")

    def whole(self, spoken: Spoken) -> Any:
        content: list[dict[str, Any]] = []
        if spoken.thinking:
            content.append({"type": "thinking", "thinking": spoken.thinking, "signature": SIGNATURE})
        content += [{"type": "text", "text": spoken.text}] if spoken.text and spoken.stop is not Stop.REFUSAL else []
        for call in spoken.calls:
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _arguments(call)})
        return {**self._message(spoken), "content": content, **self._end(spoken)}

    def refused(self, status: int, message: str, error: BaseException | None) -> Refused:
        status, code = _known(self._errors, error, (status, "invalid_request_error"))
        message = f"prompt is too long: {message}" if isinstance(error, ModelContext) else message
        return Refused(status, {"type": "error", "error": {"type": code, "message": message}, "request_id": "req_1"})

    def _event(self, kind: str, **more: Any) -> bytes:
        return _sse({"type": kind, **more}, name=kind)

    def _message(self, spoken: Spoken) -> dict[str, Any]:
        usage = dict(zip(("input_tokens", "output_tokens"), spoken.tokens, strict=True))
        return {"id": "msg_scripted", "type": "message", "role": "assistant", "model": spoken.model, "usage": usage}

    def _end(self, spoken: Spoken) -> dict[str, Any]:
        end: dict[str, Any] = {"stop_reason": self._stops.get(spoken.stop, "end_turn"), "stop_sequence": None}
        return end | ({"stop_details": {"explanation": spoken.text}} if spoken.stop is Stop.REFUSAL else {})

    def _blocks(self, spoken: Spoken) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Each block as it begins, and its deltas."""
        if spoken.thinking:
            told = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(spoken.thinking)]
            signed = [{"type": "signature_delta", "signature": SIGNATURE}]
            yield {"type": "thinking", "thinking": "", "signature": ""}, told + signed
        if spoken.text and spoken.stop is not Stop.REFUSAL:
            yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": each} for each in pieces(spoken.text)]
        for call in spoken.calls:
            raw = _raw(call)
            parts = ["", raw[: len(raw) // 2], raw[len(raw) // 2 :]]
            start = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            yield start, [{"type": "input_json_delta", "partial_json": part} for part in parts]


class _Gemini:
    content_type = "text/event-stream"
    _stops: Mapping[Stop, str] = {Stop.LENGTH: "MAX_TOKENS", Stop.CONTENT_FILTER: "SAFETY", Stop.REFUSAL: "SAFETY"}
    _errors: Mapping[type[MeshError], tuple[int, str]] = {
        ModelAuth: (400, "INVALID_ARGUMENT"),
        ModelQuota: (429, "RESOURCE_EXHAUSTED"),
        ModelRate: (429, "RESOURCE_EXHAUSTED"),
        ModelContext: (400, "INVALID_ARGUMENT"),
        ModelError: (500, "INTERNAL"),
    }

    def asked(self, body: Any) -> Any:
        return of_gemini(body)

    def streamed(self, path: str, body: Any) -> bool:
        return ":stream" in path

    def stream(self, spoken: Spoken) -> Iterator[bytes]:
        for part in self._parts(spoken):
            yield _sse(self._reply(spoken, part)).replace(b"\n", b"\r\n")
        yield _sse(self._reply(spoken, finish=self._stops.get(spoken.stop, "STOP"))).replace(b"\n", b"\r\n")

    def whole(self, spoken: Spoken) -> Any:
        return self._reply(spoken, *self._parts(spoken), finish=self._stops.get(spoken.stop, "STOP"))

    def refused(self, status: int, message: str, error: BaseException | None) -> Refused:
        status, word = _known(self._errors, error, (status, "INVALID_ARGUMENT"))
        details: list[dict[str, Any]] = []
        if isinstance(error, ModelAuth):
            details.append({"reason": "API_KEY_INVALID"})
        if isinstance(error, ModelQuota):
            details.append({"violations": [{"quotaId": "RequestsPerDay"}]})
        if isinstance(error, ModelRate) and error.retry_after is not None:
            details.append({"retryDelay": f"{error.retry_after:g}s"})
        if isinstance(error, ModelContext):
            message = f"the input token count exceeds the maximum: {message}"
        return Refused(status, [{"error": {"code": status, "message": message, "status": word, "details": details}}])

    def _parts(self, spoken: Spoken) -> Iterator[dict[str, Any]]:
        for piece in pieces(spoken.thinking):
            yield {"text": piece, "thought": True}
        for piece in pieces(spoken.text):
            yield {"text": piece}
        for index, call in enumerate(spoken.calls):
            signed = {} if index else {"thoughtSignature": SIGNATURE}
            yield {"functionCall": {"name": call.name, "args": _arguments(call)}, **signed}

    def _reply(self, spoken: Spoken, *parts: Mapping[str, Any], finish: str = "") -> dict[str, Any]:
        content = {"role": "model"} | ({"parts": list(parts)} if parts else {})
        candidate = {"index": 0, "content": content} | ({"finishReason": finish} if finish else {})
        given, made = spoken.tokens
        usage = {"promptTokenCount": given, "candidatesTokenCount": made, "totalTokenCount": given + made}
        return {"candidates": [candidate], "usageMetadata": usage}


class _Ollama:
    content_type = "application/x-ndjson"
    _errors: Mapping[type[MeshError], tuple[int, str]] = {
        ModelAuth: (401, ""),
        ModelQuota: (402, ""),
        ModelRate: (429, ""),
        ModelContext: (400, "the request exceeds the available context size"),
        ModelError: (500, ""),
    }

    def asked(self, body: Any) -> Any:
        return of_ollama(body)

    def streamed(self, path: str, body: Any) -> bool:
        return bool(body.get("stream", True))

    def stream(self, spoken: Spoken) -> Iterator[bytes]:
        for message in self._messages(spoken):
            yield self._line(spoken, {"role": "assistant", "content": "", **message}, done=False)
        yield self._line(spoken, {"role": "assistant", "content": ""}, **self._end(spoken))

    def whole(self, spoken: Spoken) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": spoken.text}
        message |= {"thinking": spoken.thinking} if spoken.thinking else {}
        message |= {"tool_calls": [self._call(*each) for each in enumerate(spoken.calls)]} if spoken.calls else {}
        return {"model": spoken.model, "message": message, **self._end(spoken)}

    def refused(self, status: int, message: str, error: BaseException | None) -> Refused:
        status, words = _known(self._errors, error, (status, ""))
        return Refused(status, {"error": f"{words}: {message}" if words else message})

    def _messages(self, spoken: Spoken) -> Iterator[dict[str, Any]]:
        for piece in pieces(spoken.thinking):
            yield {"thinking": piece}
        for piece in pieces(spoken.text):
            yield {"content": piece}
        for each in enumerate(spoken.calls):
            yield {"tool_calls": [self._call(*each)]}

    def _line(self, spoken: Spoken, message: Mapping[str, Any], **more: Any) -> bytes:
        return json.dumps({"model": spoken.model, "message": message, **more}).encode() + b"\n"

    def _end(self, spoken: Spoken) -> dict[str, Any]:
        reason = "length" if spoken.stop is Stop.LENGTH else "stop"
        given, made = spoken.tokens
        return {"done": True, "done_reason": reason, "prompt_eval_count": given, "eval_count": made}

    def _call(self, index: int, call: WantedCall) -> dict[str, Any]:
        return {"id": call.id, "function": {"index": index, "name": call.name, "arguments": _arguments(call)}}


def _known(
    errors: Mapping[type[MeshError], tuple[int, str]], error: BaseException | None, otherwise: tuple[int, str]
) -> tuple[int, str]:
    if error is None:
        return otherwise
    return next((errors[cls] for cls in type(error).__mro__ if cls in errors), errors[ModelError])
