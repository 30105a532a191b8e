"""The ends of histories that this process has seen, so that a turn reads only what was added since the last one.

A history only grows, so its entries never change. What is remembered is used only when the store still has the same
entry at the same place; a history that was cleared and has grown again is read anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from retinue.agent.session.history import Entry

MOST_SESSIONS = 256
# Longer ends than this are read again each time, so that all of them together stay below 64 MiB.
MOST_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a history: how long that was, its last entry as it is stored, and its last entries."""

    length: int
    last: bytes
    entries: Sequence[Entry]


class Tails:
    """The ends of the histories of one serving agent, those that were used last."""

    def __init__(self) -> None:
        self._tails: OrderedDict[str, Tail] = OrderedDict()

    def get(self, key: str) -> Tail | None:
        """The end of the history under `key` when it was last seen."""
        if tail := self._tails.get(key):
            self._tails.move_to_end(key)
        return tail

    def keep(self, key: str, tail: Tail) -> None:
        """Remembers an end."""
        size = sum(len(entry.message.text) for entry in tail.entries)
        if size > MOST_BYTES or any(entry.message.parts for entry in tail.entries):
            self._tails.pop(key, None)
            return
        self._tails[key] = tail
        self._tails.move_to_end(key)
        if len(self._tails) > MOST_SESSIONS:
            self._tails.popitem(last=False)
