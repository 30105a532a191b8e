"""HTTP to model servers: the httpx interface over aiohttp's connections, shared by all models of a process.

httpx's own pool walks all its connections on every event and collapses with many calls in flight. Nothing here
knows a dialect, repeats a request or follows a redirect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import TracebackType
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from yarl import URL

from retinue.service.errors import InternalError

# A number on purpose: with None aiohttp silently takes 100.
CONNECTIONS = 512

# What aiohttp raises, as httpx means it; the first type that fits decides.
_MEANINGS: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (aiohttp.ConnectionTimeoutError, httpx.ConnectTimeout),
    (aiohttp.ServerTimeoutError, httpx.ReadTimeout),
    (aiohttp.ClientConnectorError, httpx.ConnectError),
    (aiohttp.ServerDisconnectedError, httpx.RemoteProtocolError),
    (aiohttp.ClientPayloadError, httpx.RemoteProtocolError),
    (aiohttp.ClientConnectionError, httpx.ReadError),
    (aiohttp.InvalidURL, httpx.UnsupportedProtocol),
    (aiohttp.ClientError, httpx.RemoteProtocolError),
    (OSError, httpx.ReadError),
)


class ModelClient:
    """The connections to model servers; one per process is meant, for all its agents.

    It may be entered many times, by each that uses it: it opens with the first and closes with the last. Times are
    in seconds: to connect, and to wait for one of the connections to be free. `transport` is what carries requests.
    """

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        connections: int = CONNECTIONS,
        connect_timeout: float = 10.0,
        pool_timeout: float = 30.0,
    ) -> None:
        self._transport = transport or AiohttpTransport(connections=connections)
        self._timeout = httpx.Timeout(30.0, connect=connect_timeout, pool=pool_timeout).as_dict()
        self._users = 0

    async def send(self, request: httpx.Request, *, read: float) -> httpx.Response:
        """The answer, its body not read yet; `read` (seconds) bounds each read. Raises httpx.TransportError.

        It has none of a browser's cookies, redirects and logins: in httpx's own client they cost as much as the
        exchange itself.
        """
        if not self._users:
            raise InternalError("the model's client is not open: enter the model or its ModelClient with `async with`")
        request.extensions["timeout"] = self._timeout | {"read": read}
        answer = await self._transport.handle_async_request(request)
        answer.request = request
        return answer

    async def __aenter__(self) -> ModelClient:
        if self._users == 0:
            await self._transport.__aenter__()
        self._users += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        if self._users == 0:
            await self._transport.aclose()


class AiohttpTransport(httpx.AsyncBaseTransport):
    """One aiohttp session under an httpx client. Proxies are those of the environment, as with httpx itself."""

    def __init__(self, *, connections: int = CONNECTIONS) -> None:
        self._connections = connections
        self._free = asyncio.Semaphore(connections)
        self._proxies: dict[str, str] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> AiohttpTransport:
        self._proxies = getproxies()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        return self

    async def aclose(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._session is None:
            raise InternalError("the transport is not open")
        body = await request.aread()
        times = request.extensions.get("timeout", {})
        await self._take(request, times.get("pool"))
        try:
            with _meant(request):
                answer = await self._session.request(
                    request.method,
                    URL(str(request.url), encoded=True),
                    data=body or None,
                    headers=[(key.decode("ascii"), value.decode("latin-1")) for key, value in request.headers.raw],
                    skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept", "Content-Type"),
                    allow_redirects=False,
                    proxy=self._proxy(request.url),
                    timeout=aiohttp.ClientTimeout(
                        total=None, sock_connect=times.get("connect"), sock_read=times.get("read")
                    ),
                )
        except BaseException:
            self._free.release()
            raise
        return httpx.Response(answer.status, headers=answer.raw_headers, stream=_Body(answer, request, self._free))

    async def _take(self, request: httpx.Request, timeout: float | None) -> None:
        """Waits for a free connection here, so that this wait is never taken for a slow server."""
        try:
            async with asyncio.timeout(timeout):
                await self._free.acquire()
        except TimeoutError as error:
            raise httpx.PoolTimeout(f"all {self._connections} connections are in use", request=request) from error

    def _proxy(self, url: httpx.URL) -> str | None:
        proxy = self._proxies.get(url.scheme) or self._proxies.get("all")
        return None if proxy is None or proxy_bypass(url.host) else proxy


class _Body(httpx.AsyncByteStream, AsyncIterator[bytes]):
    """The bytes of an answer; closing it before its end closes the connection."""

    def __init__(self, answer: aiohttp.ClientResponse, request: httpx.Request, free: asyncio.Semaphore) -> None:
        self._answer = answer
        self._request = request
        self._free: asyncio.Semaphore | None = free

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        with _meant(self._request):
            chunk = await self._answer.content.readany()
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        self._answer.close()
        if self._free is not None:
            free, self._free = self._free, None
            free.release()


@contextmanager
def _meant(request: httpx.Request) -> Iterator[None]:
    """Raises what aiohttp raises as the httpx error of the same meaning, decided by type alone."""
    try:
        yield
    except (aiohttp.ClientError, OSError) as error:
        meaning = next(meaning for kind, meaning in _MEANINGS if isinstance(error, kind))
        # aiohttp's own words for that speak of an HTTP 400, which nobody sent.
        broken = isinstance(error, aiohttp.ClientPayloadError)
        text = "the connection broke" if broken else str(error) or type(error).__name__
        raise meaning(text, request=request) from error
