"""What a run tells while it goes on: its events, numbered from 1 without a gap, stored, and then shown to who listens.

Nothing is shown that is not stored, so that whoever loses the stream goes on from its last number at any node. What
is told within a short while is stored in one piece, text joined to text.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from retinue.agent.keys import RUN_TTL_S, events_key
from retinue.service import wire
from retinue.service.background import Background
from retinue.service.chat import Body, Event, TextDelta, ThinkingDelta, ToolInput
from retinue.service.errors import SessionBusy
from retinue.service.store import Conflict, Lease, Span, Store
from retinue.v1 import agent_pb2 as pb

Sink: TypeAlias = Callable[[Event], None]

log = logging.getLogger("retinue.agent")

# How long events are gathered before they are stored, seconds.
GATHER_S = 0.05
TAKEN_OVER = "another node took this session over in the middle of the turn; send the message again"


@dataclass(slots=True)
class _Piece:
    """Events that are stored together."""

    events: list[Event]
    stored: bool = False


@dataclass(frozen=True, slots=True)
class EventLog:
    """Where events of a session's runs are kept, and the lease that whoever adds to them must hold."""

    store: Store
    agent: str
    session: str
    lease: Callable[[], Lease | None]

    def add(self, run_id: str, events: Sequence[Event]) -> Awaitable[int]:
        """Adds events at the place that their numbers say; to be awaited. Conflict where something else stands."""
        raw = [wire.to_event(event).SerializeToString() for event in events]
        at, lease = events[0].seq - 1, self.lease()
        return self.store.append(self._key(run_id), raw, at=at, lease=lease, ttl=RUN_TTL_S)

    def read(self, run_id: str, start: int, stop: int | None) -> Awaitable[Span]:
        """Events as they are stored, from that place on."""
        return self.store.read(self._key(run_id), start, stop)

    def _key(self, run_id: str) -> str:
        return events_key(self.agent, self.session, run_id)


class Events:
    """The events of one run, shown to `hook` and `live` once they are stored, which for `live` is done without delay.

    Without a `kept` log they are only shown, at once: those of a sub-agent, which its parent stores.
    """

    def __init__(
        self,
        run_id: str,
        *,
        kept: EventLog | None,
        tasks: Background,
        hook: Sink | None = None,
        live: Sink | None = None,
    ) -> None:
        self.run_id = run_id
        self._sinks = [sink for sink in (hook, live) if sink is not None]
        self._hook = hook
        self._kept = kept
        self._tasks = tasks
        self._live = live
        self._seq = 0
        self._gathered: list[Event] = []
        self._unshown: deque[_Piece] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._last_flush = float("-inf")
        self._fault: Exception | None = None

    async def resume(self, run_id: str, *, note: Body | None = None) -> None:
        """Goes on with the events of a run that was begun before: `live` is shown them, and the count goes on.

        With a `note` that is told next, under the number that the end of the run had when it was seen as ended.
        """
        self.run_id = run_id
        if self._kept is None:
            return
        live = self._live
        span = await self._kept.read(run_id, 0, None if live else 0)
        if live is not None:
            for raw in span.entries:
                live(stored_event(raw))
        self._seq = span.length
        if note is not None:
            self.emit(note)

    def emit(self, body: Body, *, run_id: str = "", parent_tool_id: str = "") -> None:
        """Tells what happened; `run_id` and `parent_tool_id` are those of a sub-agent whose event this is."""
        event = Event(self._seq + 1, run_id or self.run_id, body, parent_tool_id)
        if self._kept is None:
            self._seq += 1
            self._show(event)
            return
        if not (self._gathered and self._join(event)):
            self._seq += 1
            self._gathered.append(event)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            wait = self._last_flush + GATHER_S - loop.time() if self._live else GATHER_S
            self._timer = loop.call_later(max(0.0, wait), self._flush_beside)

    def say(self, kind: type[TextDelta] | type[ThinkingDelta], piece: str) -> None:
        """Tells a piece of text, unless it is empty."""
        if piece:
            self.emit(kind(piece))

    def flush(self) -> Awaitable[None]:
        """Stores what was gathered and shows it; what it returns is awaited. Raises what kept it from being stored."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._kept is None or not self._gathered:
            return self._nothing()
        piece = _Piece(self._gathered)
        self._gathered = []
        self._unshown.append(piece)
        self._last_flush = asyncio.get_running_loop().time()
        return self._stored(piece, self._kept.add(self.run_id, piece.events))

    async def recover(self) -> None:
        """Finds out what of the events that were being stored stands there, and gathers the rest again."""
        if self._kept is None:
            return
        self._fault = None
        length = (await self._kept.read(self.run_id, 0, 0)).length
        unsure = [event for piece in self._unshown for event in piece.events]
        self._unshown.clear()
        for event in unsure:
            if event.seq <= length:
                self._show(event)
        self._gathered = [event for event in unsure if event.seq > length] + self._gathered

    def last(self, body: Body) -> Event:
        """The end of the run, for whoever shows it: it is kept with the run and not among the events."""
        return Event(self._seq + 1, self.run_id, body)

    def tell(self, body: Body) -> None:
        """Shows the end of the run to the hook."""
        if self._hook in self._sinks:
            self._sinks = [sink for sink in self._sinks if sink is self._hook]
            self._show(self.last(body))

    def _join(self, event: Event) -> bool:
        """Adds the event to the one before, where both are pieces of one text."""
        before = self._gathered[-1]
        if (before.run_id, before.parent_tool_id) != (event.run_id, event.parent_tool_id):
            return False
        match before.body, event.body:
            case (TextDelta(first), TextDelta(second)):
                joined: Body = TextDelta(first + second)
            case (ThinkingDelta(first), ThinkingDelta(second)):
                joined = ThinkingDelta(first + second)
            case (ToolInput(one, first), ToolInput(other, second)) if one == other:
                joined = ToolInput(one, first + second)
            case _:
                return False
        self._gathered[-1] = replace(before, body=joined)
        return True

    def _flush_beside(self) -> None:
        self._timer = None
        self._tasks.start(self._flush_or_note())

    async def _flush_or_note(self) -> None:
        try:
            await self.flush()
        except Exception as error:
            # The run hears of it when it stores its next step, and ends.
            self._fault = error

    async def _stored(self, piece: _Piece, sent: Awaitable[int]) -> None:
        try:
            await sent
        except Conflict:
            raise SessionBusy(TAKEN_OVER) from None
        piece.stored = True
        while self._unshown and self._unshown[0].stored:
            for event in self._unshown.popleft().events:
                self._show(event)
        await self._nothing()

    async def _nothing(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _show(self, event: Event) -> None:
        for sink in tuple(self._sinks):
            try:
                sink(event)
            except Exception as error:
                log.exception("on_event failed in %s", self.run_id)
                self._sinks.remove(sink)
                self._fault = error


def stored_event(raw: bytes) -> Event:
    """The event that was stored as these bytes."""
    return wire.from_event(pb.ChatEvent.FromString(raw))
