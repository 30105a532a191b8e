"""A server over streamable HTTP: the package's transport, with its answers mended before they are parsed.

It follows the life of the HTTP session: one that the server has forgotten is a connection that is lost.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client

from retinue.agent.mcp.link import Link
from retinue.agent.mcp.server import McpServer
from retinue.agent.mcp.stdio import MOST_BYTES

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

log = logging.getLogger("retinue.mcp")

GONE = "it has forgotten the session: it was started again"
_CONNECT_S, _READ_S, _CLOSE_S = 10.0, 300.0, 2.0

_HEX = "[0-9a-fA-F]"
_HIGH, _LOW = f"u[dD][89abAB]{_HEX}{{2}}", f"u[dD][c-fC-F]{_HEX}{{2}}"
# Each escape of a JSON text as one token, so that an escaped backslash never begins another.
_ESCAPE = re.compile(rf"\\(?:{_HIGH}\\{_LOW}|({_HIGH}|{_LOW})|.)", re.DOTALL)
_UNFINISHED = re.compile(rf"(?:^|[^\\])(?:\\\\)*(\\(?:u{_HEX}{{0,3}}|{_HIGH}(?:\\(?:u{_HEX}{{0,3}})?)?)?)$")


@asynccontextmanager
async def open_http(server: McpServer, link: Link) -> AsyncIterator[TransportStreams]:
    """The streams of the server's messages. What breaks a connection ends the block, as an ExceptionGroup."""
    session: dict[str, str] = {}

    async def look(response: httpx2.Response) -> None:
        if found := response.headers.get(MCP_SESSION_ID):
            session[MCP_SESSION_ID] = found
        if response.status_code == 404 and MCP_SESSION_ID in response.request.headers:
            session.clear()
            link.lose(GONE)
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = Mended(response.stream)

    timeout = httpx2.Timeout(_CONNECT_S, read=max(_READ_S, 2 * server.timeout))
    # What is compressed could not be mended on the way.
    headers = {"accept-encoding": "identity", **server.headers}
    async with httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [look]}) as client:
        try:
            async with streamable_http_client(
                server.url, http_client=client, terminate_on_close=False, max_sse_event_size=MOST_BYTES
            ) as streams:
                yield streams
        finally:
            await _say_goodbye(server, client, session)


async def _say_goodbye(server: McpServer, client: httpx2.AsyncClient, session: dict[str, str]) -> None:
    """Ends the session at the server, which may be gone, or hang."""
    if not session:
        return
    try:
        await client.delete(server.url, headers=session, timeout=_CLOSE_S)
    except httpx2.HTTPError as error:
        log.debug("MCP server %s: its session could not be ended: %r", server.name, error)


class Mended(httpx2.AsyncByteStream):
    """A body without what a strict reader of JSON refuses: lone surrogates in escapes, bytes that are no UTF-8."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        held = ""
        async for chunk in self._body:
            text = held + decoder.decode(chunk)
            unfinished = _UNFINISHED.search(text) if "\\" in text[-12:] else None
            end = unfinished.start(1) if unfinished else len(text)
            text, held = text[:end], text[end:]
            yield mended(text).encode()
        if rest := held + decoder.decode(b"", True):
            yield mended(rest).encode()

    async def aclose(self) -> None:
        await self._body.aclose()


def mended(text: str) -> str:
    """JSON text in which each escape of a lone surrogate is U+FFFD; pairs and all else stay as they are."""
    return _ESCAPE.sub(lambda found: r"\ufffd" if found[1] else found[0], text) if "\\u" in text else text
