"""One answer of a model server, out of status, headers and bytes: as events, or as the error that it means.

It does no input or output, so that what is true of bytes in a test is true of them on a wire. Dialects bring the two
parts that differ: a reader for the framing and a reply for what the JSON says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from retinue.agent.model import ModelEvent
from retinue.agent.model.failures import Failures
from retinue.agent.model.ndjson import NdjsonReader
from retinue.agent.model.sse import STREAM_BYTES, ServerEvent, SseReader, TooLarge
from retinue.service.errors import ModelError
from retinue.service.usage import Usage

ERROR_BYTES = 64 * 1024
# A call's arguments as an object, not as text.
_ARGUMENTS = re.compile(r'"(?:args|arguments|input)"\s*:\s*\{\s*"')
# What may come before a body and says nothing: a byte order mark, and the blank lines of a server that is busy.
_BEFORE = b"\xef\xbb\xbf \t\r\n"
_OF_EVENTS = frozenset(b"deir:")  # data, event, id, retry, or a comment


class Reader(Protocol):
    """A framing: chunks of bytes in, whole events out."""

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]: ...

    def close(self) -> Iterator[ServerEvent]: ...


class Reply(Protocol):
    """One message as it arrives in one dialect. Every method raises ModelError.

    `done` is set once the server has said that nothing follows; `usage` is what it has reported so far.
    """

    @property
    def done(self) -> bool: ...

    @property
    def usage(self) -> Usage: ...

    def feed(self, value: Any, *, whole: bool = False) -> Iterable[ModelEvent]:
        """The events of one JSON value: a piece of a stream, or (`whole`) a message that was not streamed."""
        ...

    def end(self) -> Iterator[ModelEvent]:
        """The rest of the text and the end of the message."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """How answers of a dialect are read; `reply` gets the model's full name."""

    reply: Callable[[str, Failures], Reply]
    reader: Callable[[], Reader]


class Decoder:
    """Feed it the body of one answer, then close it. Both raise ModelError, with the usage reported so far.

    `now` is in Unix seconds, for waits that are given as dates.
    """

    def __init__(
        self,
        dialect: Dialect,
        failures: Failures,
        *,
        status: int,
        headers: Mapping[str, str],
        streamed: bool = True,
        now: float | None = None,
    ) -> None:
        self.events = 0
        self._failures = failures
        self._status = status
        self._headers = headers
        self._now = now
        self._reply = dialect.reply(failures.model, failures)
        self._refused = not 200 <= status < 300
        self._dialect = dialect
        self._streamed = streamed
        self._body = bytearray()
        self._ended = False
        self._begun = False
        self._reader: Reader | None = None

    @property
    def done(self) -> bool:
        """Whether the server has said that nothing follows."""
        return self._ended or self._reply.done

    def feed(self, chunk: bytes) -> Iterator[ModelEvent]:
        """The events that `chunk` completes; `events` counts what the server sent, keep-alives apart."""
        if self._refused:
            self._body += chunk[: ERROR_BYTES - len(self._body)]
            self._ended = len(self._body) == ERROR_BYTES
            return iter(())
        if not self._begun:
            chunk = chunk.lstrip(_BEFORE)
            if not chunk:
                return iter(())
            self._begin(chunk[0])
        if self._reader:
            return self._guarded(self._decoded(self._reader.feed(chunk)))
        self._body += chunk
        if len(self._body) > STREAM_BYTES:
            raise self._failures.of_kind("too_large", f"an answer of more than {STREAM_BYTES} bytes")
        return iter(())

    def close(self) -> Iterator[ModelEvent]:
        """The events that the end of the body completes, of which the last is the end of the message."""
        return self._guarded(self._last())

    def _begin(self, first: int | None) -> None:
        """Chooses the framing: the first byte tells it surely, then the content type, then the dialect.

        No reader means that the body is one JSON value.
        """
        self._begun = True
        kind = self._headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/html" or first == ord("<"):
            raise self._failures.of_kind("server_error", "it answers with a web page; check the base URL")
        reader = self._dialect.reader
        if first in _OF_EVENTS:
            self._reader = SseReader()
        elif kind == "application/x-ndjson":
            self._reader = NdjsonReader()
        # What is asked for lines of JSON may call them JSON.
        elif self._streamed and not (kind == "application/json" and reader is not NdjsonReader):
            self._reader = SseReader() if kind == "text/event-stream" else reader()

    def _guarded(self, events: Iterator[ModelEvent]) -> Iterator[ModelEvent]:
        """Those events; a failure carries the usage, and JSON of another shape is a failure of the server's."""
        try:
            yield from events
        except ModelError as error:
            error.usage = None if self._reply.usage == Usage() else self._reply.usage
            raise
        except TooLarge as error:
            raise self._failures.of_kind("too_large", str(error)) from error
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            text = f"its answer has another shape than this API's: {error!r}"
            raise self._failures.of_kind("server_error", text) from error

    def _decoded(self, events: Iterator[ServerEvent]) -> Iterator[ModelEvent]:
        for event in events:
            if self._ended:
                return
            if event.name == "error":
                raise self._failures.of_text(event.data)
            if event.name and event.data[0] not in "{[":
                continue  # a ping in words: what any dialect says is an object
            self.events += 1
            if event.data.startswith("[DONE]"):
                self._ended = True
                return
            yield from self._reply.feed(self._parse(event.data))

    def _last(self) -> Iterator[ModelEvent]:
        if self._refused:
            raise self._failures.of_answer(self._status, self._headers, bytes(self._body), now=self._now)
        if not self._begun:
            self._begin(None)
        if self._reader:
            yield from () if self._ended else self._decoded(self._reader.close())
        else:
            text = self._body.decode("utf-8", "replace")
            yield from self._reply.feed(self._parse(text), whole=True)
        yield from self._reply.end()

    def _parse(self, text: str) -> Any:
        # orjson is fast, but loses what makes arguments invalid and makes floats of their long integers, and it refuses
        # an escape that is half a surrogate pair, which servers send when a delta splits one.
        if not (("arg" in text or "input" in text) and _ARGUMENTS.search(text)):
            with suppress(orjson.JSONDecodeError):
                return orjson.loads(text)
        try:
            return json.loads(text, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            raise self._failures.of_kind("truncated", f"not JSON: {error}") from error


class _Doubled(dict[str, Any]):
    """An object in which a key came twice: written as text it is what it was, so that a call with it is refused."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Doubled(pairs)
