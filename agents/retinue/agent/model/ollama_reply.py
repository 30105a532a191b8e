"""What comes back from Ollama's own API, as events and the whole message.

Calls come whole, on any line; the line that says `done` may still bring a message. A stream without it was cut.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from retinue.agent.model import ModelEnd, ModelEvent, ModelText, ModelThinking, Stop
from retinue.agent.model.assemble import CallAssembly
from retinue.agent.model.failures import Failures
from retinue.agent.model.shown import Shown
from retinue.agent.model.values import count, present
from retinue.service.usage import Usage

logger = logging.getLogger("retinue.model")

_STOPS = {"stop": Stop.STOP, "length": Stop.LENGTH, "load": Stop.STOP, "unload": Stop.STOP, "": Stop.STOP}


class OllamaReply:
    """One message as it arrives: a Reply."""

    def __init__(self, name: str, failures: Failures) -> None:
        self._name = name
        self._failures = failures
        self._text = Shown(ModelText)
        self._thinking = Shown(ModelThinking)
        self._calls = CallAssembly()
        self._reason = ""
        self.done = False
        self.usage = Usage()

    def feed(self, value: Any, *, whole: bool = False) -> Iterator[ModelEvent]:
        if not isinstance(value, dict) or value.get("error"):
            raise self._failures.of_object(value)
        if whole and "message" not in value:
            raise self._failures.of_kind("server_error", "the reply has no message; is this Ollama's own API?")
        message = value.get("message") or {}
        yield from self._thinking.feed(message.get("thinking"))
        yield from self._text.feed(message.get("content"))
        for call in present(message.get("tool_calls")):
            yield self._calls.add(call, whole=True)
        if value.get("done") or whole:
            self.done = True
            self._reason = value.get("done_reason") or ""
            self.usage = Usage(input=count(value.get("prompt_eval_count")), output=count(value.get("eval_count")))

    def end(self) -> Iterator[ModelEvent]:
        if not self.done:
            raise self._failures.of_kind("truncated", "the stream ended before the line that says done")
        yield from self._thinking.close()
        yield from self._text.close()
        calls = self._calls.finish()
        stop = _STOPS.get(self._reason)
        if stop is None:
            logger.warning("%s: unknown done_reason %r taken for stop", self._name, self._reason)
            stop = Stop.STOP
        if calls and stop is Stop.STOP:
            stop = Stop.TOOL_CALLS
        thought = {"model": self._name, "turn": {"thinking": self._thinking.whole}} if self._thinking.whole else None
        yield ModelEnd(
            stop=stop,
            text=self._text.whole,
            calls=calls if stop is Stop.TOOL_CALLS else (),
            usage=self.usage,
            provider_parts=thought if stop is Stop.TOOL_CALLS else None,
        )
