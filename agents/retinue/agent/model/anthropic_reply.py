"""What comes back from Anthropic Messages, as events and the whole message.

A call runs only after message_stop and only when the message was not cut; what the server wants back with it is kept
as blocks in their order. Unknown events, blocks and deltas are passed over: the protocol grows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.agent.model import ModelEnd, ModelEvent, ModelText, ModelThinking, ModelToolInput, Stop, WantedCall
from retinue.agent.model.assemble import as_text, storable, unique_id, wanted_call
from retinue.agent.model.failures import Failures
from retinue.agent.model.shown import Shown
from retinue.agent.model.values import count, mapping, present
from retinue.service.text import sane
from retinue.service.usage import Usage

logger = logging.getLogger("retinue.model")

_STOPS = {
    "end_turn": Stop.STOP,
    "stop_sequence": Stop.STOP,
    "tool_use": Stop.STOP,
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH,
    "pause_turn": Stop.PAUSE,
    "refusal": Stop.REFUSAL,
}
# The blocks of tools that the server runs itself; they go back with a paused turn.
_SERVER_TOOLS = ("server_tool_use", "mcp_tool_use", "_tool_result")


@dataclass(slots=True)
class _Block:
    """A content block: as it began, and the pieces of what grew, by key. `place` counts the calls."""

    value: dict[str, Any]
    place: int = -1
    grown: dict[str, list[str]] = field(default_factory=dict)
    citations: list[Any] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.value.get("type"))

    @property
    def raw(self) -> str:
        """A tool's input as JSON text; the one at the start counts only when no other came."""
        return "".join(self.grown.get("input", ())) or as_text(self.value.get("input"))

    @property
    def whole(self) -> dict[str, Any]:
        """The block with all that came."""
        block = dict(self.value)
        for key, pieces in self.grown.items():
            if key != "input":
                block[key] = (block.get(key) or "") + "".join(pieces)
        if self.kind == "tool_use":
            # The message has the arguments.
            block = {key: block.get(key, "") for key in ("type", "id", "name")}
        elif "input" in self.grown:
            block["input"] = dict(wanted_call("", "", self.raw).arguments or {})
        return block | ({"citations": self.citations} if self.citations else {})

    def grow(self, key: str, piece: Any) -> str:
        text = piece if isinstance(piece, str) else ""
        self.grown.setdefault(key, []).append(text)
        return text


class AnthropicReply:
    """One message as it arrives: a Reply."""

    def __init__(self, name: str, failures: Failures) -> None:
        self._name = name
        self._failures = failures
        self._blocks: list[_Block] = []
        self._open: dict[int, _Block] = {}
        self._text = Shown(ModelText)
        self._thinking = Shown(ModelThinking)
        self._counts: dict[str, int] = {}
        self._stop = ""
        self._explanation = ""
        self.done = False

    @property
    def usage(self) -> Usage:
        """Input is all that was read, cached or not: it is what fills the window."""
        counts = self._counts
        read = [counts.get(f"{key}input_tokens") for key in ("", "cache_creation_", "cache_read_")]
        known = [each for each in read if each is not None]
        cached = counts.get("cache_read_input_tokens")
        return Usage(input=sum(known) if known else None, output=counts.get("output_tokens"), cached=cached)

    def feed(self, value: Any, *, whole: bool = False) -> Iterator[ModelEvent]:
        if not isinstance(value, dict) or value.get("error"):
            raise self._failures.of_object(value)
        match value.get("type"):
            case "message_start":
                self._count(mapping(value.get("message")).get("usage"))
            case "content_block_start":
                yield from self._start(value["index"], value["content_block"])
            case "content_block_delta":
                yield from self._delta(self._open.get(value["index"]), value["delta"])
            case "message_delta":
                self._count(value.get("usage"))
                self._finish(mapping(value.get("delta")))
            case "message_stop":
                self.done = True
            case "message":
                yield from self._whole(value)
            case kind if whole:
                raise self._failures.of_kind("server_error", f"the reply is no message but {kind!r}: is this its API?")

    def end(self) -> Iterator[ModelEvent]:
        if not self.done:
            raise self._failures.of_kind("truncated", "the stream ended before its last event")
        yield from self._thinking.close()
        yield from self._text.close()
        calls = self._calls()
        stop = self._derive(bool(calls))
        if stop is Stop.REFUSAL and not self._text.whole:
            yield from self._text.feed(self._explanation)
        yield ModelEnd(
            stop=stop,
            text=self._text.whole,
            calls=calls if stop is Stop.TOOL_CALLS else (),
            usage=self.usage,
            provider_parts=self._provider_parts(stop),
            refusal=self._explanation if stop is Stop.REFUSAL else "",
            cache_write=self._counts.get("cache_creation_input_tokens"),
        )

    def _whole(self, message: Mapping[str, Any]) -> Iterator[ModelEvent]:
        self._count(message.get("usage"))
        content = message.get("content")
        for index, block in enumerate(
            [{"type": "text", "text": content}] if isinstance(content, str) else present(content)
        ):
            yield from self._start(index, block)
        self._finish(message)
        self._stop = self._stop or "end_turn"
        self.done = True

    def _start(self, index: int, value: Mapping[str, Any]) -> Iterator[ModelEvent]:
        # Some proxies give every block the same index: what begins is another block.
        block = self._open[index] = _Block(_checked(value))
        self._blocks.append(block)
        match block.kind:
            case "text":
                yield from self._text.feed(value.get("text"))
            case "thinking":
                yield from self._thinking.feed(value.get("thinking"))
            case "tool_use":
                block.place = sum(each.kind == "tool_use" for each in self._blocks) - 1
                begun = as_text(value["input"]) if value.get("input") else ""
                yield ModelToolInput(block.place, sane(str(value.get("name") or "")), sane(begun))

    def _delta(self, block: _Block | None, delta: Mapping[str, Any]) -> Iterator[ModelEvent]:
        if block is None:
            return
        match delta.get("type"):
            case "text_delta":
                yield from self._text.feed(block.grow("text", delta.get("text")))
            case "thinking_delta":
                yield from self._thinking.feed(block.grow("thinking", delta.get("thinking")))
            case "signature_delta":
                block.grow("signature", delta.get("signature"))
            case "citations_delta":
                block.citations.append(delta.get("citation"))
            case "input_json_delta":
                piece = block.grow("input", delta.get("partial_json"))
                if block.place >= 0:
                    yield ModelToolInput(block.place, str(block.value.get("name") or ""), sane(piece))

    def _count(self, usage: object) -> None:
        """Counts are of the whole message so far: a later one replaces, one that is left out or null does not."""
        for key, told in mapping(usage).items():
            if (number := count(told)) is not None:
                self._counts[key] = number

    def _finish(self, delta: Mapping[str, Any]) -> None:
        self._stop = delta.get("stop_reason") or self._stop
        details = mapping(delta.get("stop_details"))
        self._explanation = sane(str(details.get("explanation") or self._explanation))

    def _derive(self, calls: bool) -> Stop:
        stop = _STOPS.get(self._stop)
        if stop is None:
            logger.warning("%s: unknown stop reason %r taken for end_turn", self._name, self._stop)
            stop = Stop.STOP
        return Stop.TOOL_CALLS if calls and stop in (Stop.STOP, Stop.PAUSE) else stop

    def _calls(self) -> tuple[WantedCall, ...]:
        """The calls, each with an id that is unique among them, which its block gets too."""
        calls: dict[str, WantedCall] = {}
        for block in self._blocks:
            if block.kind == "tool_use":
                call_id = block.value["id"] = unique_id(sane(block.value.get("id") or ""), calls)
                calls[call_id] = wanted_call(call_id, block.value.get("name") or "", block.raw)
        return tuple(calls.values())

    def _provider_parts(self, stop: Stop) -> dict[str, Any] | None:
        """`content` goes back as it is: only with calls or a pause, since nothing else depends on it."""
        if stop not in (Stop.TOOL_CALLS, Stop.PAUSE):
            return None
        content = [storable(block) for block in map(_echoed, self._blocks) if block]
        return {"model": self._name, "content": content} if content else None


def _checked(value: Mapping[str, Any]) -> dict[str, Any]:
    """The block as it begins; TypeError where a text of it is none."""
    for key in ("type", "text", "thinking", "signature", "id", "name"):
        if not isinstance(value.get(key), str | None):
            raise TypeError(f"a block's {key} is {value[key]!r}")
    return {key: each for key, each in value.items() if each is not None}


def _echoed(block: _Block) -> dict[str, Any] | None:
    """The block as the server takes it back; None for what it refuses: blank texts, thinking without a signature."""
    value, kind = block.whole, block.kind
    if kind == "text":
        return value if (value.get("text") or "").strip() else None
    if kind == "thinking":
        return value if value.get("signature") else None
    return value if kind in ("redacted_thinking", "tool_use") or kind.endswith(_SERVER_TOOLS) else None
