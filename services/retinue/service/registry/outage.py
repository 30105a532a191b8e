"""When a registry was last out of reach: for a while after, a node that it does not list may only not be back yet.

A registry that restarted empty learns of its nodes by their heartbeats, one after the other. This keeps the time
alone; what was known is kept by whoever knew it.
"""

from __future__ import annotations

import time

from retinue.service.registry import HEARTBEAT_S

# Every node has registered again by then: its heartbeat, and one that was lost.
REJOIN_S = 2 * HEARTBEAT_S + 0.5


class Outage:
    """Told of each failure and each answer of a registry."""

    def __init__(self) -> None:
        self._away = False
        self._until = float("-inf")

    def begin(self) -> None:
        """The registry did not answer."""
        self._away = True

    def end(self) -> None:
        """The registry answered; a no-op when it was not away."""
        if self._away:
            self._away = False
            self._until = time.monotonic() + REJOIN_S

    @property
    def recent(self) -> bool:
        """Whether it is away, or was so until a moment ago."""
        return self._away or time.monotonic() < self._until
