"""Reads lines of JSON out of bytes, however the network cut them. It knows framing only, as sse.py does."""

from __future__ import annotations

import json
from collections.abc import Iterator

from retinue.agent.model.sse import EVENT_BYTES, STREAM_BYTES, ServerEvent, TooLarge


class NdjsonReader:
    """Takes chunks of bytes, gives whole lines as events without a name. Raises TooLarge at a limit (in bytes)."""

    def __init__(self, *, event_bytes: int = EVENT_BYTES, stream_bytes: int = STREAM_BYTES) -> None:
        self._event_bytes = event_bytes
        self._stream_bytes = stream_bytes
        self._read = 0
        self._rest = bytearray()
        self._open = False

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """The lines that `chunk` completes."""
        self._read += len(chunk)
        if self._read > self._stream_bytes:
            raise TooLarge(f"a stream of more than {self._stream_bytes} bytes")
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._rest += line
            whole = b"" if self._open else bytes(self._rest).strip()
            # What ends no value begins one over many lines, the last of the body: an error as people like to read it.
            self._open = self._open or (bool(whole) and not whole.endswith((b"}", b"]")))
            if self._open:
                self._rest += b"\n"
                continue
            self._rest = bytearray()
            if whole:
                yield ServerEvent("", whole.decode("utf-8", "replace"))
        self._rest += rest
        if len(self._rest) > self._event_bytes:
            raise TooLarge(f"a line of more than {self._event_bytes} bytes")

    def close(self) -> Iterator[ServerEvent]:
        """The last value, whose line may have no end: it counts when it is whole JSON, and only then."""
        line, self._rest = bytes(self._rest).strip().decode("utf-8", "replace"), bytearray()
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            return
        yield ServerEvent("", line)
