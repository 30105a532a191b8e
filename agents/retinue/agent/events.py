"""What a run tells while it goes on: its events, numbered from 1 without a gap, to whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from retinue.service.chat import Body, Event, TextDelta, ThinkingDelta

Sink: TypeAlias = Callable[[Event], None]


class Events:
    """The events of one run, handed to each of `sinks` as they happen. Without a sink none is made."""

    def __init__(self, run_id: str, *sinks: Sink | None) -> None:
        self.run_id = run_id
        self._sinks = [sink for sink in sinks if sink is not None]
        self._seq = 0

    def next(self, body: Body, *, run_id: str = "", parent_tool_id: str = "") -> Event:
        """The next event, for whoever hands it on itself."""
        self._seq += 1
        return Event(self._seq, run_id or self.run_id, body, parent_tool_id)

    def emit(self, body: Body, *, run_id: str = "", parent_tool_id: str = "") -> None:
        """Tells what happened; `run_id` and `parent_tool_id` are those of a sub-agent whose event this is."""
        if self._sinks:
            event = self.next(body, run_id=run_id, parent_tool_id=parent_tool_id)
            for sink in self._sinks:
                sink(event)

    def say(self, kind: type[TextDelta] | type[ThinkingDelta], piece: str) -> None:
        """Tells a piece of text, unless it is empty."""
        if piece:
            self.emit(kind(piece))
