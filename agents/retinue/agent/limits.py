"""What a run may use, each limit with its default; a run that meets one ends INCOMPLETE with its name as reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from retinue.service.envelope import Budget
from retinue.service.errors import Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one agent's runs. The first three count for the whole tree when the run is its root.

    model_calls: calls of any model; depth: agents in a chain of delegates; tokens: input and output together (None:
    no limit); fan_out: tool calls of one step; result_bytes: UTF-8 bytes of a tool's result that the model is shown;
    time_s: seconds, where the caller set no deadline, as our own clients always do; window: tokens that the model takes
    at once (None: what is known of it); call_s: seconds of one tool call, repeats: how often a run makes the same call
    with the same result (both None: no limit). Raises Invalid for what is no number above 0.
    """

    model_calls: int = 25
    depth: int = 8
    tokens: int | None = None
    fan_out: int = 16
    result_bytes: int = 64 * 1024
    time_s: float = 120.0
    window: int | None = None
    call_s: float | None = None
    repeats: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None and each.default is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise Invalid(f"limits: {each.name}: use a number above 0, not {value!r}", field=each.name)

    @property
    def budget(self) -> Budget:
        """The part of the limits that a whole tree shares."""
        return Budget(self.model_calls, self.depth, self.tokens)
