"""How far one run has come: what its beginning, its steps and its end share, and nothing that is stored as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retinue.agent.tools import Tool
from retinue.service.chat import Answer, Part, ToolCall
from retinue.service.usage import Usage


@dataclass(slots=True, kw_only=True, eq=False)
class Course:
    """The course of one run. `id` and `root` are another's once it goes on with a run that was begun before.

    `ticket` names this attempt in the session's line. `accepted` is set once the run is known by its id, or over.
    `begun`: something of it may stand in the store, so that its end must. `resumed`: it goes on with stored steps.
    `parts` are the images that the model made. `wanted` are the ids of all calls in their order, `step` the calls of
    the present step, `started` the ids of those that were really made, `answers` what was said to pending ones by id.
    `stopped` says why somebody ends it, `final` has the results that would end it, by call id.
    `deadline` is a time of the loop's clock, None before the clock of a run without a caller was started.
    """

    id: str
    root: str
    ticket: str
    accepted: asyncio.Event = field(default_factory=asyncio.Event)
    begun: bool = False
    resumed: bool = False
    stopped: str = ""
    deadline: float | None = None
    final: dict[str, str] = field(default_factory=dict)
    timer: asyncio.Timeout | None = None
    usage: Usage = Usage()
    done: list[ToolCall] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    wanted: list[str] = field(default_factory=list)
    step: Sequence[ToolCall] = ()
    started: set[str] = field(default_factory=set)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    tools: Mapping[str, Tool] = field(default_factory=dict)

    def start_clock(self, seconds: float) -> None:
        """Bounds the run from now on, where its caller did not: the time that it waited in line is not its own."""
        if self.deadline is None:
            self.deadline = asyncio.get_running_loop().time() + seconds
            if self.timer is not None:
                self.timer.reschedule(self.deadline)
