"""What comes back from a server that speaks OpenAI chat completions, as events and the whole message.

Why the model stopped is derived from what arrived. A stream that ends before its finish reason is an error, and a
message that was cut, filtered or refused carries no calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from retinue.agent.model import ModelEnd, ModelEvent, ModelText, ModelThinking, Stop
from retinue.agent.model.assemble import CallAssembly
from retinue.agent.model.failures import Failures
from retinue.service.text import Joiner, sane, sane_json
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
    """One message as it arrives: `feed` each chunk or the one whole reply, then `end`. Both raise ModelError."""

    def __init__(self, name: str, failures: Failures) -> None:
        self._name = name
        self._failures = failures
        self._calls = CallAssembly()
        self._text = _Shown(ModelText)
        self._refusal = _Shown(ModelText)
        self._thinking = _Shown(ModelThinking)
        self._reasoning_content = ""
        self._reasoning_details: list[Any] = []
        self._usage = Usage()
        self._finish = ""

    def feed(self, chunk: Any) -> Iterator[ModelEvent]:
        """The events of one chunk of a stream."""
        for choice in self._choices(chunk):
            yield from self._delta(choice.get("delta") or {})
            self._finish = choice.get("finish_reason") or self._finish

    def feed_whole(self, reply: Any) -> Iterator[ModelEvent]:
        """The events of a reply that was not streamed; in it, no finish reason means that nothing was cut."""
        choices = list(self._choices(reply))
        if not choices:
            raise self._failures.of_kind("server_error", "the reply has no choices; is this a chat completions API?")
        self._finish = choices[0].get("finish_reason") or "stop"
        yield from self._delta(choices[0].get("message") or {}, whole=True)

    def end(self) -> Iterator[ModelEvent]:
        """The rest of the text and the end of the message."""
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
            usage=self._usage,
            provider_parts=self._provider_parts(stop),
        )

    def _choices(self, chunk: Any) -> Iterator[Mapping[str, Any]]:
        """The first choice, after everything that concerns the whole chunk."""
        if not isinstance(chunk, dict):
            raise self._failures.of_object(chunk)
        choices = [choice for choice in chunk.get("choices") or () if isinstance(choice, dict)]
        groq = chunk.get("x_groq") or {}
        reported = [chunk.get("usage"), groq.get("usage"), *(choice.get("usage") for choice in choices)]
        self._usage = next((_usage(each) for each in reported if each), self._usage)
        if chunk.get("error") or chunk.get("object") == "error":
            raise self._failures.of_object(chunk, **_spent(self._usage))
        yield from (choice for choice in choices if not choice.get("index"))

    def _delta(self, delta: Mapping[str, Any], *, whole: bool = False) -> Iterator[ModelEvent]:
        self._reasoning_content += delta.get("reasoning_content") or ""
        self._reasoning_details += delta.get("reasoning_details") or ()
        # Servers name the same reasoning by either word, and some by both.
        yield from self._thinking.feed(delta.get("reasoning_content") or delta.get("reasoning") or "")
        content: Any = delta.get("content") or ""
        for item in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if item.get("type") == "thinking":
                yield from self._thinking.feed("".join(part.get("text") or "" for part in item.get("thinking") or ()))
            else:
                yield from self._text.feed(item.get("text") or "")
        yield from self._refusal.feed(delta.get("refusal") or "")
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
            "message": {"reasoning_details": sane_json(self._reasoning_details)} if self._reasoning_details else {},
            "turn": {"reasoning_content": sane(self._reasoning_content)} if self._reasoning_content else {},
        }
        kept = {key: value for key, value in parts.items() if value}
        return {"model": self._name, **kept} if kept else None


class _Shown:
    """A text that is handed on in pieces, each of them sane, and kept whole."""

    def __init__(self, event: type[ModelText] | type[ModelThinking]) -> None:
        self._event = event
        self._joiner = Joiner()
        self._pieces: list[str] = []

    @property
    def whole(self) -> str:
        return "".join(self._pieces)

    def feed(self, piece: str) -> Iterator[ModelEvent]:
        return self._show(self._joiner.feed(piece))

    def close(self) -> Iterator[ModelEvent]:
        return self._show(self._joiner.close())

    def _show(self, text: str) -> Iterator[ModelEvent]:
        if text:
            self._pieces.append(text)
            yield self._event(text)


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


def _spent(usage: Usage) -> dict[str, str]:
    """What a failed call cost, as facts of its error."""
    counts = {"input_tokens": usage.input, "output_tokens": usage.output}
    return {key: str(count) for key, count in counts.items() if count is not None}
