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
from retinue.agent.model.values import count, mapping, present
from retinue.service.chat import Part
from retinue.service.text import sane
from retinue.service.usage import Usage

logger = logging.getLogger("retinue.model")

# What a finish reason means, in lower case: a stop, or the kind of failure. Proxies hand on the words of others.
_FINISHES: dict[str, Stop | str] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence"), Stop.STOP),
    **dict.fromkeys(("tool_calls", "tool_use", "function_call"), Stop.STOP),
    **dict.fromkeys(("length", "model_length", "max_tokens", "max_output_tokens"), Stop.LENGTH),
    **dict.fromkeys(("content_filter", "safety", "recitation", "prohibited_content", "blocklist"), Stop.CONTENT_FILTER),
    "refusal": Stop.REFUSAL,
    "error": "server_error",
    "insufficient_system_resource": "overloaded",
    "abort": "truncated",  # vLLM and SGLang: the engine gave the request up
    "malformed_function_call": "malformed_tool_call",
}


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
        self._reported: dict[str, Any] = {}
        self.usage = Usage()

    def feed(self, value: Any, *, whole: bool = False) -> Sequence[ModelEvent]:
        events: list[ModelEvent] = []
        choices = self._choices(value)
        if whole and not choices:
            raise self._failures.of_kind("server_error", "the reply has no choices; is this a chat completions API?")
        for choice in choices:
            if choice.get("error"):
                raise self._failures.of_object(choice)
            message, delta = choice.get("message"), choice.get("delta")
            # Some servers send both: in a stream the delta counts.
            alone = isinstance(message, dict) and (whole or not isinstance(delta, dict))
            if said := message if alone else delta:
                events += self._delta(said, whole=alone)
            # What cut the message is not undone by a plain stop that follows.
            if _FINISHES.get(self._finish, Stop.STOP) is Stop.STOP:
                self._finish = (choice.get("finish_reason") or "").lower() or self._finish or ("stop" if alone else "")
        return events

    def end(self) -> Iterator[ModelEvent]:
        if not self._finish:
            raise self._failures.of_kind("truncated", "the stream ended without a finish reason")
        stop = _FINISHES.get(self._finish)
        if stop is None:
            logger.warning("%s: unknown finish reason %r taken for stop", self._name, self._finish)
            stop = Stop.STOP
        if not isinstance(stop, Stop):
            raise self._failures.of_kind(stop, f"finish reason {self._finish}")
        for shown in (self._thinking, self._text, self._refusal):
            yield from shown.close()
        calls = self._calls.finish()
        if stop is Stop.STOP:
            stop = Stop.REFUSAL if self._refusal.whole else Stop.TOOL_CALLS if calls else Stop.STOP
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
        groq = mapping(chunk.get("x_groq"))
        for reporter in (chunk, groq, *choices):
            if reported := mapping(reporter.get("usage")):
                # A later count replaces, one that is left out or null does not.
                self._reported |= {key: value for key, value in reported.items() if value is not None}
                self.usage = _usage(self._reported)
                break
        if chunk.get("error") or chunk.get("object") == "error":
            raise self._failures.of_object(chunk)
        if groq.get("error"):
            raise self._failures.of_object(groq)
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
            if isinstance(item, str):
                yield from self._text.feed(item)
            elif item.get("type") == "thinking":
                thought = item.get("thinking") or ()
                pieces = [thought] if isinstance(thought, str) else [part.get("text") or "" for part in thought]
                yield from self._thinking.feed("".join(pieces))
            else:
                yield from self._text.feed(item.get("text"))
        yield from self._text.feed(content)
        yield from self._refusal.feed(delta.get("refusal"))
        for image in present(delta.get("images")):
            self._images += image_at((image.get("image_url") or {}).get("url"))
        # Servers of old have one call, and another word for it.
        old = delta.get("function_call")
        for fragment in present(delta.get("tool_calls")) or ([{"index": 0, "function": old}] if old else ()):
            yield self._calls.add(fragment, whole=whole)

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

    prompt = mapping(reported.get("prompt_tokens_details"))
    completion = mapping(reported.get("completion_tokens_details"))
    given, made = count(reported.get("prompt_tokens")), count(reported.get("completion_tokens"))
    reasoning = count(completion.get("reasoning_tokens"))
    # xAI leaves reasoning out of completion_tokens; only the total tells.
    if given is not None and made is not None and reasoning:
        made += reasoning if count(reported.get("total_tokens")) == given + made + reasoning else 0
    # Moonshot and DeepSeek have their own words for what was cached.
    told = (prompt.get("cached_tokens"), reported.get("cached_tokens"), reported.get("prompt_cache_hit_tokens"))
    cached = next((number for each in told if (number := count(each)) is not None), None)
    return Usage(input=given, output=made, cached=cached, reasoning=reasoning)
