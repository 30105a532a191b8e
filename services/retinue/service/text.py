"""Text that every boundary accepts: UTF-8 can hold it, and so can gRPC, JSON, Redis and SQLite.

It mends code points that are no characters; it never shortens, trims or translates.
"""

from __future__ import annotations

import re
from typing import Any

REPLACEMENT = "\ufffd"
_BROKEN = re.compile("[\x00\ud800-\udfff]")
_HIGH = range(0xD800, 0xDC00)


def sane(text: str) -> str:
    """`text` with surrogate pairs joined, and each lone surrogate and NUL as one U+FFFD."""
    # Most text is plain ASCII, which is told in no time.
    if (text.isascii() and "\x00" not in text) or not _BROKEN.search(text):
        return text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return joined.replace("\x00", REPLACEMENT)


def sane_json(value: Any) -> Any:
    """A JSON value in which every text, keys included, is sane."""
    match value:
        case str():
            return sane(value)
        case list():
            return [sane_json(item) for item in value]
        case dict():
            return {sane(key): sane_json(item) for key, item in value.items()}
        case _:
            return value


class Joiner:
    """Makes a stream of pieces sane: a pair that was split over two pieces comes out whole."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be shown of all that came so far and was not shown yet; may be empty."""
        piece = self._held + piece
        self._held = ""
        if piece and ord(piece[-1]) in _HIGH:
            piece, self._held = piece[:-1], piece[-1]
        return sane(piece)

    def close(self) -> str:
        """What was still held back when the stream ended."""
        held, self._held = self._held, ""
        return sane(held)
