"""One request to a model server and its answer: sent, read within its limits, decoded, and asked again where safe.

It knows no dialect: that brings the address, the headers, the body and how its answers are read. It asks once for one
message, and again only while nothing was shown.
"""

from __future__ import annotations

import abc
import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self, TypedDict

import httpx
import orjson

from retinue.agent.model import ModelEnd, ModelEvent, ModelRequest, ModelToolInput
from retinue.agent.model.conversation import own_names
from retinue.agent.model.decoder import Decoder, Dialect
from retinue.agent.model.failures import Failures
from retinue.agent.model.gate import Gate, account_of
from retinue.agent.model.retry import retried
from retinue.agent.model.transport import ModelClient
from retinue.service.errors import Invalid, ModelError, ModelRate

logger = logging.getLogger("retinue.model")

# How long the end of a stream may take after its last event before the connection is given up (seconds).
DRAIN = 0.2
_HEADER = re.compile(r"[!-~]*")
IDLE_TIMEOUT = 180.0
TOTAL_TIMEOUT = 1800.0
LISTING_TIMEOUT = 10.0


class Options(TypedDict, total=False):
    """What every HttpModel may be given, as its constructor says."""

    client: ModelClient | None
    idle_timeout: float
    total_timeout: float
    streamed: bool
    window: int | None


class HttpModel(abc.ABC):
    """A Model behind a server. Enter it with `async with` (it enters `client`, which several models may share).

    Times are in seconds: `idle_timeout` is how long the server may send no real event, whatever keep-alives it sends;
    `total_timeout` is how long one answer may take. `streamed` is whether it is asked for a stream at all. `window`
    is how many tokens fit it, None where nobody knows. `gate`, where one is set, is passed by each request.
    """

    dialect: ClassVar[Dialect]

    def __init__(
        self,
        name: str,
        *,
        url: httpx.URL,
        listing: httpx.URL,
        headers: Mapping[str, str],
        secret: str = "",
        client: ModelClient | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
        total_timeout: float = TOTAL_TIMEOUT,
        streamed: bool = True,
        window: int | None = None,
    ) -> None:
        if not _HEADER.fullmatch(secret):
            raise Invalid(f"{name}: the key has characters that no header can carry", field="api_key")
        self.name = name
        self.streamed = streamed
        self.window = window
        self.gate: Gate | None = None
        self.account = account_of(url.host, secret)
        self._url = url
        self._listing = listing
        self._headers = {"content-type": "application/json", **headers}
        self._client = client or ModelClient()
        self._failures = Failures(name, secret)
        self._idle = idle_timeout
        self._total = total_timeout

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(*error)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """The events of one message. ModelError and its kin; Invalid for parts that the server cannot take."""
        events = retried(partial(self._attempt, _dumped(self.body(request))), self._refused)
        names = own_names(request.tools)
        return _renamed(events, names) if names else events

    async def names(self) -> tuple[str, ...]:
        """The models that the server has now, as it names them. ModelError when it does not say."""
        request = httpx.Request("GET", self._listing, headers=self._headers)
        try:
            answer = await self._client.send(request, read=LISTING_TIMEOUT)
            try:
                raw = await answer.aread()
            finally:
                await answer.aclose()
        except httpx.TransportError as error:
            raise self._failures.of_transport(error, begun=False) from error
        if answer.status_code >= 400:
            raise self._failures.of_answer(answer.status_code, answer.headers, raw)
        try:
            said = orjson.loads(raw)
            # OpenAI and Anthropic have `data` with ids, Gemini and Ollama `models` with names.
            found = [each["id"] for each in said["data"]] if "data" in said else [one["name"] for one in said["models"]]
        except (ValueError, KeyError, TypeError) as error:
            raise self._failures.of_kind("server_error", f"its list of models cannot be read: {error!r}") from error
        return tuple(sorted(str(name).removeprefix("models/") for name in found))

    @abc.abstractmethod
    def body(self, request: ModelRequest) -> dict[str, Any]:
        """The body that asks for that message, as JSON."""

    async def _attempt(self, body: bytes) -> AsyncGenerator[ModelEvent, None]:
        begun = False
        if self.gate is not None:
            await self.gate.passed()
        request = httpx.Request("POST", self._url, content=body, headers=self._headers)
        try:
            answer = await self._client.send(request, read=self._idle)
            try:
                begun = True
                async with aclosing(self._events(answer)) as events:
                    async for event in events:
                        yield event
            finally:
                await answer.aclose()
        except httpx.TransportError as error:
            raise self._failures.of_transport(error, begun=begun) from error

    async def _refused(self, error: ModelError) -> None:
        if self.gate is not None and isinstance(error, ModelRate) and error.retry_after:
            await self.gate.close(error.retry_after)

    async def _events(self, answer: httpx.Response) -> AsyncGenerator[ModelEvent, None]:
        decoder = Decoder(
            self.dialect,
            self._failures,
            status=answer.status_code,
            headers=answer.headers,
            streamed=self.streamed,
        )
        now = asyncio.get_running_loop().time
        last, until = now(), now() + self._total
        seen = 0
        async with aclosing(_bytes(answer)) as chunks:
            while not decoder.done and (chunk := await self._next(chunks, last + self._idle, until)):
                for event in decoder.feed(chunk):
                    yield event
                if decoder.events > seen:
                    last, seen = now(), decoder.events
            if decoder.done:
                await _drain(chunks)
        for event in decoder.close():
            yield event

    async def _next(self, chunks: AsyncIterator[bytes], idle_until: float, until: float) -> bytes:
        try:
            async with asyncio.timeout_at(min(idle_until, until)):
                return await anext(chunks, b"")
        except TimeoutError as error:
            silent = f"no event for {self._idle:g} s" if idle_until < until else f"no end after {self._total:g} s"
            raise self._failures.of_kind("timeout", silent) from error


def _dumped(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # it refuses integers beyond 64 bits
        return json.dumps(body).encode()


async def _renamed(
    events: AsyncGenerator[ModelEvent, None], names: Mapping[str, str]
) -> AsyncGenerator[ModelEvent, None]:
    """The events with the tools' own names in place of those that they have on the wire."""
    async with aclosing(events):
        async for event in events:
            match event:
                case ModelToolInput():
                    yield replace(event, name=names.get(event.name, event.name))
                case ModelEnd():
                    yield replace(event, calls=tuple(replace(c, name=names.get(c.name, c.name)) for c in event.calls))
                case _:
                    yield event


async def _bytes(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The chunks of a body that hold something, so that an empty one means the end."""
    # What is not compressed need not go through httpx's decoders.
    chunks = answer.aiter_bytes() if "content-encoding" in answer.headers else answer.aiter_raw()
    async for chunk in chunks:
        if chunk:
            yield chunk


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Reads to the end, so that the connection can be used again; the answer is whole already."""
    try:
        async with asyncio.timeout(DRAIN):
            async for _ in chunks:
                pass
    except (TimeoutError, httpx.TransportError) as error:
        logger.debug("the stream did not end after its last event; its connection is closed: %r", error)


def endpoint(base_url: str, path: str) -> httpx.URL:
    """The URL of `path` below a base URL, whose query is kept. Invalid when that is none."""
    url = httpx.URL(base_url)
    if url.scheme not in ("http", "https") or not url.host:
        raise Invalid(f"model base URL {base_url!r}: use http://host/path or https://host/path", field="base_url")
    return url.copy_with(path=url.path.rstrip("/") + path)
