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
_LONG = re.compile(r"\d{19}")


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
        self._body = bytearray()
        self._ended = False
        self._reader = self._choose(dialect, streamed)

    @property
    def done(self) -> bool:
        """Whether the server has said that nothing follows."""
        return self._ended or self._reply.done

    def feed(self, chunk: bytes) -> Iterator[ModelEvent]:
        """The events that `chunk` completes; `events` counts what the server sent, keep-alives apart."""
        if self._reader:
            return self._guarded(self._decoded(self._reader.feed(chunk)))
        if self._refused:
            self._body += chunk[: ERROR_BYTES - len(self._body)]
            self._ended = len(self._body) == ERROR_BYTES
            return iter(())
        self._body += chunk
        if len(self._body) > STREAM_BYTES:
            raise self._failures.of_kind("too_large", f"an answer of more than {STREAM_BYTES} bytes")
        return iter(())

    def close(self) -> Iterator[ModelEvent]:
        """The events that the end of the body completes, of which the last is the end of the message."""
        if self._refused:
            raise self._failures.of_answer(self._status, self._headers, bytes(self._body), now=self._now)
        return self._guarded(self._last())

    def _choose(self, dialect: Dialect, streamed: bool) -> Reader | None:
        """The framing that the content type names, or else the dialect's own; None for one whole JSON value."""
        kind = self._headers.get("content-type", "").partition(";")[0].strip().lower()
        if self._refused:
            return None
        if kind == "application/json":
            # What is asked for lines of JSON may call them so.
            return NdjsonReader() if dialect.reader is NdjsonReader else None
        if kind == "text/html":
            raise self._failures.of_kind("server_error", "it answers with a web page; check the base URL")
        if not streamed:
            return None
        known: dict[str, Callable[[], Reader]] = {"text/event-stream": SseReader, "application/x-ndjson": NdjsonReader}
        return known.get(kind, dialect.reader)()

    def _guarded(self, events: Iterator[ModelEvent]) -> Iterator[ModelEvent]:
        """Those events; a failure carries the usage, and JSON of another shape is a failure of the server's."""
        try:
            yield from events
        except ModelError as error:
            error.usage = None if self._reply.usage == Usage() else self._reply.usage
            raise
        except TooLarge as error:
            raise self._failures.of_kind("too_large", str(error)) from error
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            text = f"its answer has another shape than this API's: {error!r}"
            raise self._failures.of_kind("server_error", text) from error

    def _decoded(self, events: Iterator[ServerEvent]) -> Iterator[ModelEvent]:
        for event in events:
            if self._ended:
                return
            self.events += 1
            if event.data.startswith("[DONE]"):
                self._ended = True
                return
            value = self._parse(event.data)
            if event.name == "error" and isinstance(value, dict) and not value.get("error"):
                value = {"error": value}
            yield from self._reply.feed(value)

    def _last(self) -> Iterator[ModelEvent]:
        if self._reader:
            yield from () if self._ended else self._decoded(self._reader.close())
        else:
            text = self._body.decode("utf-8", "replace").removeprefix("\ufeff")
            yield from self._reply.feed(self._parse(text), whole=True)
        yield from self._reply.end()

    def _parse(self, text: str) -> Any:
        # orjson is fast, but makes floats of long integers (of which only those of calls matter), and refuses an escape
        # that is half a surrogate pair, which servers send when a delta splits one.
        if not (("arg" in text or "input" in text) and _LONG.search(text)):
            with suppress(orjson.JSONDecodeError):
                return orjson.loads(text)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._failures.of_kind("truncated", f"not JSON: {error}") from error
