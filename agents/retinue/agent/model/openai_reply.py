"""What comes back from a server that speaks OpenAI chat completions, as events and the whole message.

Why the model stopped is derived from what arrived. A stream that ends before its finish reason is an error, and a
message that was cut, filtered or refused carries no calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retinue.agent.model import ModelEnd, ModelEvent, ModelText, ModelThinking, Stop
from retinue.agent.model.assemble import CallAssembly, storable
from retinue.agent.model.failures import Failures
from retinue.agent.model.images import image_at
from retinue.agent.model.shown import Shown
from retinue.service.chat import Part
from retinue.service.text import sane
from retinue.service.usage import Usage

logger = logging.getLogger("retinue.model")

_STOPS = {
    "stop": Stop.STOP,
    "tool_calls": Stop.STOP,
    "function_call": Stop.STOP,
    "eos": Stop.STOP,
    "length": Stop.LENGTH,
    "model_length": Stop.LENGTH,
    "content_filter": Stop.CONTENT_FILTER,
}
_FAILED = {"error": "server_error", "insufficient_system_resource": "overloaded"}


class Completion:
    """One message as it arrives: a Reply. In a whole one, no finish reason means that nothing was cut."""

    # What says so is [DONE], which is framing.
    done = False

    def __init__(self, name: str, failures: Failures) -> None:
        self._name = name
        self._failures = failures
        self._calls = CallAssembly()
        self._text = Shown(ModelText)
        self._refusal = Shown(ModelText)
        self._thinking = Shown(ModelThinking)
        self._reasoning_content: list[str] = []
        self._reasoning_details: list[Any] = []
        self._images: list[Part] = []
        self._finish = ""
        self.usage = Usage()

    def feed(self, value: Any, *, whole: bool = False) -> Sequence[ModelEvent]:
        events: list[ModelEvent] = []
        choices = self._choices(value)
        if whole and not choices:
            raise self._failures.of_kind("server_error", "the reply has no choices; is this a chat completions API?")
        for choice in choices:
            if choice.get("error"):
                raise self._failures.of_object(choice)
            whole = "message" in choice and "delta" not in choice
            if delta := choice.get("message" if whole else "delta"):
                events += self._delta(delta, whole=whole)
            self._finish = choice.get("finish_reason") or self._finish or ("stop" if whole else "")
        return events

    def end(self) -> Iterator[ModelEvent]:
        if not self._finish:
            raise self._failures.of_kind("truncated", "the stream ended without a finish reason")
        if kind := _FAILED.get(self._finish):
            raise self._failures.of_kind(kind, f"finish reason {self._finish}")
        for shown in (self._thinking, self._text, self._refusal):
            yield from shown.close()
        calls = self._calls.finish()
        stop = self._stop(bool(calls))
        yield ModelEnd(
            stop=stop,
            text=self._text.whole + self._refusal.whole,
            calls=calls if stop is Stop.TOOL_CALLS else (),
            usage=self.usage,
            provider_parts=self._provider_parts(stop),
            refusal=self._refusal.whole,
            parts=tuple(self._images),
        )

    def _choices(self, chunk: Any) -> Sequence[Mapping[str, Any]]:
        """The first choice, after everything that concerns the whole chunk."""
        if not isinstance(chunk, dict):
            raise self._failures.of_object(chunk)
        choices = [choice for choice in chunk.get("choices") or () if isinstance(choice, dict)]
        for reporter in (chunk, chunk.get("x_groq"), *choices):
            if reporter and (reported := reporter.get("usage")):
                self.usage = _usage(reported)
                break
        if chunk.get("error") or chunk.get("object") == "error":
            raise self._failures.of_object(chunk)
        return [choice for choice in choices if not choice.get("index")]

    def _delta(self, delta: Mapping[str, Any], *, whole: bool = False) -> Iterator[ModelEvent]:
        if isinstance(piece := delta.get("reasoning_content"), str):
            self._reasoning_content.append(piece)
        self._reasoning_details += delta.get("reasoning_details") or ()
        # Servers name the same reasoning by either word, and some by both.
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            yield from self._thinking.feed(reasoning)
        content: Any = delta.get("content")
        for item in content if isinstance(content, list) else ():
            if item.get("type") == "thinking":
                yield from self._thinking.feed("".join(part.get("text") or "" for part in item.get("thinking") or ()))
            else:
                yield from self._text.feed(item.get("text"))
        yield from self._text.feed(content)
        yield from self._refusal.feed(delta.get("refusal"))
        for image in delta.get("images") or ():
            self._images += image_at((image.get("image_url") or {}).get("url"))
        for fragment in delta.get("tool_calls") or ():
            yield self._calls.add(fragment, whole=whole)

    def _stop(self, calls: bool) -> Stop:
        stop = _STOPS.get(self._finish)
        if stop is None:
            logger.warning("%s: unknown finish reason %r taken for stop", self._name, self._finish)
            stop = Stop.STOP
        if stop is not Stop.STOP:
            return stop
        if self._refusal.whole:
            return Stop.REFUSAL
        return Stop.TOOL_CALLS if calls else Stop.STOP

    def _provider_parts(self, stop: Stop) -> dict[str, Any] | None:
        """`message` goes back with the message, `calls` with its calls in order, `turn` while the turn goes on."""
        parts = {
            "calls": self._calls.extras() if stop is Stop.TOOL_CALLS else [],
            "message": {"reasoning_details": storable(self._reasoning_details)} if self._reasoning_details else {},
            "turn": {"reasoning_content": sane("".join(self._reasoning_content))},
        }
        kept = {key: value for key, value in parts.items() if value and value != {"reasoning_content": ""}}
        return {"model": self._name, **kept} if kept else None


def _usage(reported: Mapping[str, Any]) -> Usage:
    """Token counts: input includes cached, output includes reasoning, whatever the server's own sums."""

    def count(value: Any) -> int | None:
        return value if isinstance(value, int) and value >= 0 else None

    prompt = reported.get("prompt_tokens_details") or {}
    completion = reported.get("completion_tokens_details") or {}
    given, made = count(reported.get("prompt_tokens")), count(reported.get("completion_tokens"))
    cached, reasoning = count(prompt.get("cached_tokens")), count(completion.get("reasoning_tokens"))
    # xAI leaves reasoning out of completion_tokens; only the total tells.
    if given and made and reasoning and reported.get("total_tokens") == given + made + reasoning:
        made += reasoning
    if cached is None:
        cached = count(reported.get("prompt_cache_hit_tokens"))
    return Usage(input=given, output=made, cached=cached, reasoning=reasoning)
