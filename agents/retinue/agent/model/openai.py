"""Models behind OpenAI chat completions, and behind every server that is compatible, by its base URL.

It asks once for one message, and again only while nothing was shown. The time for a whole turn is the caller's.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

import httpx
import orjson

from retinue.agent.model import ModelEvent, ModelRequest
from retinue.agent.model.failures import Failures
from retinue.agent.model.openai_reply import Completion
from retinue.agent.model.openai_request import Dialect, encode
from retinue.agent.model.retry import retried
from retinue.agent.model.sse import STREAM_BYTES, SseReader, TooLarge
from retinue.agent.model.transport import ModelClient
from retinue.service.errors import Invalid

logger = logging.getLogger("retinue.model")

BASE_URL = "https://api.openai.com/v1"
ERROR_BYTES = 64 * 1024
# How long the end of a stream may take after its last event before the connection is given up (seconds).
DRAIN = 0.2


class OpenAI:
    """A model by its name on the server. `base_url` ends before /chat/completions; a query in it is kept.

    Enter it with `async with` (it enters `client`, which several models may share). `idle_timeout` is in seconds:
    how long the server may send no real event, whatever keep-alives it sends.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str = "",
        base_url: str = BASE_URL,
        provider: str = "openai",
        dialect: Dialect | None = None,
        client: ModelClient | None = None,
        idle_timeout: float = 180.0,
    ) -> None:
        self.name = f"{provider}/{model}"
        self._model = model
        self._url = _endpoint(base_url)
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._dialect = dialect or Dialect(short_ids=self._url.host.endswith("mistral.ai"))
        self._client = client or ModelClient()
        self._failures = Failures(self.name, api_key)
        self._idle = idle_timeout

    async def __aenter__(self) -> OpenAI:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(*error)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """The events of one message. ModelError and its kin; Invalid for parts that the server cannot take."""
        body = encode(self._model, request, name=self.name, dialect=self._dialect)
        return retried(partial(self._attempt, body))

    async def _attempt(self, body: bytes) -> AsyncGenerator[ModelEvent, None]:
        begun = False
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
        except TooLarge as error:
            raise self._failures.of_kind("too_large", str(error)) from error

    async def _events(self, answer: httpx.Response) -> AsyncGenerator[ModelEvent, None]:
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not answer.is_success:
            raise self._failures.of_answer(answer, await self._read(answer, ERROR_BYTES, cut=True))
        completion = Completion(self.name, self._failures)
        if kind == "text/html":
            raise self._failures.of_kind("server_error", f"{self._url} answers with a web page; check the base URL")
        if kind == "application/json":
            for event in completion.feed_whole(self._parse(await self._read(answer, STREAM_BYTES))):
                yield event
        else:
            async with aclosing(self._data(answer)) as data:
                async for value in data:
                    for event in completion.feed(value):
                        yield event
        for event in completion.end():
            yield event

    async def _data(self, answer: httpx.Response) -> AsyncGenerator[Any, None]:
        """The JSON values of a stream, up to [DONE] or its end."""
        reader = SseReader()
        async with aclosing(_bytes(answer)) as chunks:
            until = asyncio.get_running_loop().time() + self._idle
            while chunk := await self._next(chunks, until):
                for event in reader.feed(chunk):
                    if event.data.startswith("[DONE]"):
                        await _drain(chunks)
                        return
                    yield self._value(event.name, event.data)
                    until = asyncio.get_running_loop().time() + self._idle
        for event in reader.close():
            if not event.data.startswith("[DONE]"):
                yield self._value(event.name, event.data)

    async def _next(self, chunks: AsyncIterator[bytes], until: float) -> bytes:
        try:
            async with asyncio.timeout_at(until):
                return await anext(chunks, b"")
        except TimeoutError as error:
            raise self._failures.of_kind("timeout", f"no event for {self._idle:g} s") from error

    async def _read(self, answer: httpx.Response, limit: int, *, cut: bool = False) -> bytes:
        """A whole body, within the idle time; over `limit` it is cut or refused."""
        until = asyncio.get_running_loop().time() + self._idle
        body = bytearray()
        async with aclosing(_bytes(answer)) as chunks:
            while chunk := await self._next(chunks, until):
                body += chunk
                if len(body) > limit:
                    if cut:
                        break
                    raise TooLarge(f"an answer of more than {limit} bytes")
        return bytes(body[:limit])

    def _value(self, name: str, data: str) -> Any:
        value = self._parse(data)
        if name == "error" and isinstance(value, dict) and not value.get("error"):
            return {"error": value}
        return value

    def _parse(self, text: str | bytes) -> Any:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return self._parse_loosely(text)

    def _parse_loosely(self, text: str | bytes) -> Any:
        """orjson refuses an escape that is half a surrogate pair, which servers send when a delta splits one."""
        try:
            return json.loads(text)
        except ValueError as error:
            raise self._failures.of_kind("truncated", f"not JSON: {error}") from error


async def _bytes(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The chunks of a body that hold something, so that an empty one means the end."""
    async for chunk in answer.aiter_bytes():
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


def _endpoint(base_url: str) -> httpx.URL:
    url = httpx.URL(base_url)
    if url.scheme not in ("http", "https") or not url.host:
        raise Invalid(f"model base URL {base_url!r}: use http://host/path or https://host/path", field="base_url")
    return url.copy_with(path=url.path.rstrip("/") + "/chat/completions")
