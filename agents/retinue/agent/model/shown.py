"""A text of a model's message as it is shown: in pieces, each of them sane, and kept whole for the end."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.agent.model import ModelText, ModelThinking
from retinue.service.text import Joiner


class Shown:
    """Feed it what the server sends; what is no text shows nothing."""

    def __init__(self, event: type[ModelText] | type[ModelThinking]) -> None:
        self._event = event
        self._joiner = Joiner()
        self._pieces: list[str] = []

    @property
    def whole(self) -> str:
        return "".join(self._pieces)

    def feed(self, piece: object) -> Sequence[ModelText | ModelThinking]:
        return self._show(self._joiner.feed(piece)) if isinstance(piece, str) and piece else ()

    def close(self) -> Sequence[ModelText | ModelThinking]:
        return self._show(self._joiner.close())

    def _show(self, text: str) -> Sequence[ModelText | ModelThinking]:
        if not text:
            return ()
        self._pieces.append(text)
        return (self._event(text),)
