"""What comes back from Gemini's generateContent, as events and the whole message.

There is no terminator: a stream without a finish reason is an error. Calls have mostly no ids, and end with STOP like
everything else. Parts that must go back are kept exactly, in order, unmerged: signatures belong to a part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from retinue.agent.model import ModelEnd, ModelEvent, ModelText, ModelThinking, ModelToolInput, Stop, WantedCall
from retinue.agent.model.assemble import as_text, storable, unique_id, wanted_call
from retinue.agent.model.failures import Failures
from retinue.agent.model.images import image_of
from retinue.agent.model.shown import Shown
from retinue.agent.model.values import count, mapping, present
from retinue.service.chat import Part
from retinue.service.text import sane
from retinue.service.usage import Usage

logger = logging.getLogger("retinue.model")

_FILTERED = (
    *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
    *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
)
_STOPS = {"STOP": Stop.STOP, "MAX_TOKENS": Stop.LENGTH, **dict.fromkeys(_FILTERED, Stop.CONTENT_FILTER)}
# With the first two the model wrote a call that nobody can read: another try may do better.
_FAILED = {
    "MALFORMED_FUNCTION_CALL": "malformed_tool_call",
    "MALFORMED_RESPONSE": "malformed_tool_call",
    "UNEXPECTED_TOOL_CALL": "tool_use_failed",
    "TOO_MANY_TOOL_CALLS": "tool_use_failed",
    "OTHER": "server_error",
    "LANGUAGE": "server_error",
    "IMAGE_OTHER": "server_error",
    "NO_IMAGE": "server_error",
    # It wants back what it had sent with a call, and does no better when it is asked again.
    "MISSING_THOUGHT_SIGNATURE": "invalid_request",
}


class GeminiReply:
    """One message as it arrives: a Reply."""

    # Nothing on the wire says that it is over.
    done = False

    def __init__(self, name: str, failures: Failures) -> None:
        self._name = name
        self._failures = failures
        self._text = Shown(ModelText)
        self._thinking = Shown(ModelThinking)
        self._calls: list[WantedCall] = []
        self._images: list[Part] = []
        self._parts: list[dict[str, Any]] = []
        self._finish = ""
        self._note = ""
        self.usage = Usage()

    def feed(self, value: Any, *, whole: bool = False) -> Iterator[ModelEvent]:
        if isinstance(value, list) and value and not _failed(value[0]):
            # A stream that was not asked for as events comes as one list.
            for each in value:
                yield from self.feed(each)
            return
        if not isinstance(value, dict) or value.get("error"):
            raise self._failures.of_object(value)
        reported = mapping(value.get("usageMetadata"))
        self.usage = _usage(reported) if reported else self.usage
        candidates = value.get("candidates") or ()
        if not candidates and (blocked := (value.get("promptFeedback") or {}).get("blockReason")):
            raise self._failures.of_kind("content_filter", f"the prompt was blocked: {blocked}")
        if whole and not candidates:
            raise self._failures.of_kind("server_error", "the reply has no candidates; is this the Gemini API?")
        for candidate in candidates:
            if not candidate.get("index"):
                for part in present((candidate.get("content") or {}).get("parts")):
                    yield from self._part(part)
                self._finish = candidate.get("finishReason") or self._finish or ("STOP" if whole else "")
                self._note = candidate.get("finishMessage") or self._note

    def end(self) -> Iterator[ModelEvent]:
        if not self._finish:
            raise self._failures.of_kind("truncated", "the stream ended without a finish reason")
        if kind := _FAILED.get(self._finish):
            raise self._failures.of_kind(kind, f"{self._finish} {self._note}".strip())
        yield from self._thinking.close()
        yield from self._text.close()
        stop = self._stop()
        yield ModelEnd(
            stop=stop,
            text=self._text.whole,
            calls=tuple(self._calls) if stop is Stop.TOOL_CALLS else (),
            usage=self.usage,
            provider_parts=self._provider_parts(stop),
            parts=tuple(self._images),
        )

    def _part(self, part: Mapping[str, Any]) -> Iterator[ModelEvent]:
        if kept := _kept(part):
            self._parts.append(kept)
        shown = self._thinking if part.get("thought") else self._text
        yield from shown.feed(part.get("text"))
        if (call := part.get("functionCall")) is not None:
            arguments = as_text(call.get("args"))
            call_id = unique_id(sane(call.get("id") or ""), [each.id for each in self._calls])
            self._calls.append(wanted_call(call_id, call.get("name") or "", arguments))
            yield ModelToolInput(len(self._calls) - 1, self._calls[-1].name, sane(arguments))
        if data := part.get("inlineData"):
            self._images += image_of(data.get("mimeType"), data.get("data"))

    def _stop(self) -> Stop:
        stop = _STOPS.get(self._finish)
        if stop is None:
            logger.warning("%s: unknown finish reason %r taken for STOP", self._name, self._finish)
            stop = Stop.STOP
        return Stop.TOOL_CALLS if self._calls and stop is Stop.STOP else stop

    def _provider_parts(self, stop: Stop) -> dict[str, Any] | None:
        """`parts` go back as they are, where there is anything in them that plain text would lose."""
        signed = any("thoughtSignature" in part for part in self._parts)
        if stop is not Stop.TOOL_CALLS and not (stop is Stop.STOP and signed):
            return None
        return {"model": self._name, "parts": storable(self._parts)}


def _kept(part: Mapping[str, Any]) -> dict[str, Any]:
    """The part as it is, but for a call's arguments, which the message has; {} for an empty text without signature."""
    kept = {key: value for key, value in part.items() if value is not None}
    call, text = kept.get("functionCall"), kept.get("text")
    if not isinstance(text, str | None) or not isinstance(call, dict | None):
        raise TypeError(f"a part is {part!r}")
    if call and "args" in call:
        kept["functionCall"] = {**call, "args": {}}
    return {} if text == "" and "thoughtSignature" not in kept else kept


def _failed(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("error"))


def _usage(reported: Mapping[str, Any]) -> Usage:
    """Counts are of the whole message so far, and any may be missing; thoughts are no part of the candidates."""

    def total(*keys: str) -> int | None:
        known = [number for key in keys if (number := count(reported.get(key))) is not None]
        return sum(known) if known else None

    given, made = total("promptTokenCount", "toolUsePromptTokenCount"), total(*_MADE)
    whole = total("totalTokenCount")
    if made is None and given is not None and whole is not None and whole >= given:
        made = whole - given
    cached, reasoning = total("cachedContentTokenCount"), total("thoughtsTokenCount")
    return Usage(input=given, output=made, cached=cached, reasoning=reasoning)


_MADE = ("candidatesTokenCount", "thoughtsTokenCount")
