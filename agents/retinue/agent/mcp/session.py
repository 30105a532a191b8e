"""A connection by the `mcp` package: its session speaks the protocol, over a process or over HTTP.

The package's types are used for the handshake alone: requests go out and come back as plain JSON, so that one tool
that breaks the protocol does not cost all the others, and a result that breaks its own schema still reaches the model.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp import ClientSession, MCPError
from mcp.client.session import IncomingMessage
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext

from retinue.agent.mcp.http import GONE, open_http
from retinue.agent.mcp.link import Link, LinkLost, Request, RpcRefused, checked
from retinue.agent.mcp.server import McpServer
from retinue.agent.mcp.stdio import open_stdio
from retinue.service.text import sane

log = logging.getLogger("retinue.mcp")

# What the HTTP transport says when the server is gone or knows nothing of the session; a server may say so, too.
_DOUBTFUL = (types.CONNECTION_CLOSED, types.INVALID_REQUEST)


@asynccontextmanager
async def open_session(server: McpServer, link: Link) -> AsyncIterator[Request]:
    """Connects and shakes hands; yields what sends a request. Raises what the transport and the server say to it."""

    async def hear(message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            link.change()
        elif isinstance(message, Exception):
            log.warning("MCP server %s: what it sent cannot be read: %s", server.name, message)

    async def say(params: types.LoggingMessageNotificationParams) -> None:
        log.info("MCP server %s: %s: %s", server.name, params.level, sane(str(params.data)))

    async def request(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            result = await dispatcher.send_raw_request(method, params)
        except MCPError as error:
            if link.lost:
                raise LinkLost(link.why or "its connection broke", unsent=link.why == GONE) from error
            if error.code in _DOUBTFUL:
                link.doubt()
            raise RpcRefused(sane(error.message)) from error
        return checked(result)

    about = types.Implementation(name="retinue", version=importlib.metadata.version("retinue"))
    transport = open_stdio(server, link) if server.command else open_http(server, link)
    async with transport as (incoming, outgoing):
        dispatcher = JSONRPCDispatcher[TransportContext](incoming, outgoing)
        async with ClientSession(
            dispatcher=dispatcher, message_handler=hear, logging_callback=say, client_info=about
        ) as session:
            try:
                await session.initialize()
                yield request
            finally:
                link.leave()  # before the session tells those who wait
