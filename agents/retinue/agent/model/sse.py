"""Reads server-sent events out of bytes, however the network cut them.

It knows framing only: what an event says, and whether the stream ended too early, is for the dialects to tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

EVENT_BYTES = 8 * 1024 * 1024
STREAM_BYTES = 64 * 1024 * 1024
_FIELDS = ("data", "event", "id", "retry")

# A line ends with CR, LF or CRLF and with nothing else: U+2028 and its kin are text. A CR at the end of what is
# here may be half of a CRLF, so it waits.
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


class TooLarge(Exception):
    """An event or a stream is over its limit; the text names which."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: its name ("" when it has none) and its data lines joined by LF, never empty."""

    name: str
    data: str


class SseReader:
    """Takes chunks of bytes, gives whole events. `feed` and `close` raise TooLarge at a limit (in bytes)."""

    def __init__(self, *, event_bytes: int = EVENT_BYTES, stream_bytes: int = STREAM_BYTES) -> None:
        self._event_bytes = event_bytes
        self._stream_bytes = stream_bytes
        self._read = 0
        self._rest = bytearray()
        self._name = ""
        self._data: list[str] = []
        self._bare: list[str] = []
        self._pending = 0

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """The events that `chunk` completes."""
        self._read += len(chunk)
        if self._read > self._stream_bytes:
            raise TooLarge(f"a stream of more than {self._stream_bytes} bytes")
        held = self._rest.endswith(b"\r")
        self._rest += chunk
        if held or b"\n" in chunk or b"\r" in chunk:
            text = bytes(self._rest)
            *lines, rest = _split(text) if b"\r" in text else text.split(b"\n")
            self._rest = bytearray(rest)
            for line in lines:
                if not line:
                    if event := self._dispatch():
                        yield event
                elif line.startswith(b"data: {") and not self._bare:  # nearly every line there is
                    self._data.append(line[6:].decode("utf-8", "replace"))
                    self._pending += len(line)
                else:
                    yield from self._line(line)
        if self._pending + len(self._rest) > self._event_bytes:
            raise TooLarge(f"an event of more than {self._event_bytes} bytes")

    def close(self) -> Iterator[ServerEvent]:
        """The events that the end of the stream completes.

        Real servers leave out the last blank line, so a tail counts when it is whole JSON or said to be an error.
        """
        rest, self._rest = bytes(self._rest), bytearray()
        if line := rest.removesuffix(b"\r"):
            yield from self._line(line)
        event = self._dispatch()
        if event and (
            rest == b"\r" or event.data.startswith("[DONE]") or event.name == "error" or _is_json(event.data)
        ):
            yield event

    def _line(self, raw: bytes) -> Iterator[ServerEvent]:
        """Takes a line that is not blank; gives the event before it, where no blank line stands between them."""
        line = raw.decode("utf-8", "replace")
        field, _, value = line.partition(":")
        if line[0] in "{[" or (self._bare and field and field not in _FIELDS):
            # A server that fails in the middle may say so in bare JSON, over one line or many.
            if self._data and (event := self._dispatch()):
                yield event
            self._bare.append(line)
            self._pending += len(raw)
            if len(self._bare) == 1 and _is_json(line) and (event := self._dispatch()):
                yield event
            return
        if self._bare and field and (event := self._dispatch()):
            yield event
        value = value.removeprefix(" ")
        # Some proxies put a keep-alive comment inside the data field: no JSON begins with a colon.
        if field == "data" and not value.startswith(":"):
            self._data.append(value)
            self._pending += len(raw)
        elif field == "event":
            self._name = value

    def _dispatch(self) -> ServerEvent | None:
        name, data, bare = self._name, "\n".join(self._data), "\n".join(self._bare)
        self._name, self._data, self._bare, self._pending = "", [], [], 0
        if not data and bare and _is_json(bare):
            data = bare
        return ServerEvent(name, data) if data else None


def _split(text: bytes) -> list[bytes]:
    lines, start = [], 0
    for end in _LINE_END.finditer(text):
        lines.append(text[start : end.start()])
        start = end.end()
    return [*lines, text[start:]]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
