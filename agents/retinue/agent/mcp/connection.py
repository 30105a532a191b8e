"""One MCP server of one agent: a task of its own starts it, lists its tools, and starts it again when it is lost.

Connections are entered and left in that task alone. Calls come from any other; each has its one answer, whatever
becomes of the server. How a server fails is never a failure of the agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from retinue.agent.mcp.link import Link, LinkLost, Request, RpcRefused
from retinue.agent.mcp.listing import Listed, read_tools
from retinue.agent.mcp.opening import open_link
from retinue.agent.mcp.results import to_result
from retinue.agent.mcp.server import McpServer
from retinue.agent.tools import ToolResult
from retinue.service.chat import ToolStatus
from retinue.service.errors import cut
from retinue.service.text import sane_json

log = logging.getLogger("retinue.mcp")

# The wait before another start doubles from the first to the most, and is forgotten after a steady life.
FIRST_WAIT_S, MOST_WAIT_S, STEADY_S = 0.1, 30.0, 60.0
# How long a call waits for a server that is being started again, and from which failure in a row on it does not.
RETURN_WAIT_S, HOPELESS = 5.0, 3
# How long a server may take to answer a ping when a call of it had no answer.
PING_S = 5.0
# Lists that change in quick succession are read once.
CALM_S = 0.1


class Connection:
    """The connection to `server`. `tools` are its tools as last listed, also while it is away, by its own names.

    `settled` is set once its first start has succeeded or failed, and `changed` is called whenever its tools or its
    state are others.
    """

    def __init__(self, server: McpServer, changed: Callable[[], None]) -> None:
        self.server = server
        self.tools: Mapping[str, Listed] = {}
        self.settled = asyncio.Event()
        self.trouble = "it is still starting"
        self._changed = changed
        self._up = asyncio.Event()
        self._link = Link(self._up.clear)
        self._request: Request | None = None
        self._failures = 0
        self._lived = False

    async def keep(self) -> None:
        """Keeps the server running until it is cancelled: the one task that owns the connection."""
        clock, task = asyncio.get_running_loop().time, asyncio.current_task()
        assert task is not None
        while True:
            began, self._lived = clock(), False
            log.info("MCP server %s is starting", self.server.name)
            link = self._link = Link(self._up.clear)
            try:
                await self._live(link)
            except Exception as error:
                if task.cancelling():  # what broke as it was left does not undo the leaving
                    raise asyncio.CancelledError from error
                link.why = link.why or reason_of(error)
            steady = self._lived and clock() - began > STEADY_S
            self._failures = 1 if steady else self._failures + 1
            wait = min(FIRST_WAIT_S * 2 ** (self._failures - 1), MOST_WAIT_S)
            self._down(link.why, wait)
            await asyncio.sleep(wait)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Calls a tool by the server's name of it; always a result, but for a cancellation, which the server hears."""
        if not self.server.allows(tool):
            return ToolResult(f"the tool {tool!r} of {self.server.name} is not allowed here", ToolStatus.REFUSED)
        params = {"name": tool, "arguments": sane_json(dict(arguments))}
        try:
            async with asyncio.timeout(self.server.timeout):
                return await self._ask(params)
        except TimeoutError:
            self._link.doubt()
            text = f"no answer within {self.server.timeout:g} s; {self.server.name} was told to stop"
        except LinkLost as error:
            text = f"{self.server.name} was lost during this call ({error}), so its outcome is unknown"
        except RpcRefused as error:
            text = str(error)
        return ToolResult(text, ToolStatus.ERROR)

    async def _ask(self, params: Mapping[str, Any]) -> ToolResult:
        try:
            return await self._try(params)
        except LinkLost as error:
            if not error.unsent:
                raise
        # The server did not take it, as one that was started again since: once more over a new connection.
        return await self._try(params)

    async def _try(self, params: Mapping[str, Any]) -> ToolResult:
        if not self._up.is_set():
            if self._failures >= HOPELESS:
                return self._away()
            try:
                async with asyncio.timeout(RETURN_WAIT_S if self.settled.is_set() else None):
                    await self._up.wait()
            except TimeoutError:
                return self._away()
        request = self._request
        if request is None:
            return self._away()
        if params["name"] not in self.tools:
            text = f"{self.server.name} has no tool {params['name']!r} any more"
            return ToolResult(text, ToolStatus.ERROR)
        return to_result(await request("tools/call", params))

    def _away(self) -> ToolResult:
        text = f"{self.server.name} is away ({self.trouble}); it is started again by itself, so try later"
        return ToolResult(text, ToolStatus.ERROR)

    async def _live(self, link: Link) -> None:
        """One life of the connection, until it is lost."""
        async with asyncio.timeout(self.server.timeout) as start, open_link(self.server, link) as request:
            self.tools = await read_tools(self.server, request)
            start.reschedule(None)
            self._request, self.trouble = request, ""
            log.info("MCP server %s is ready: %d tools", self.server.name, len(self.tools))
            self._lived = True
            if not link.lost:
                self._up.set()
            self.settled.set()
            self._changed()
            while not link.lost:
                await link.news.wait()
                link.news.clear()
                if link.doubted and not link.lost:
                    link.doubted = False
                    await self._probe(link, request)
                if link.changed and not link.lost:
                    await asyncio.sleep(CALM_S)
                    link.changed = False
                    await self._relist(link, request)

    async def _probe(self, link: Link, request: Request) -> None:
        """Gives the connection up when the server does not even answer a ping."""
        try:
            async with asyncio.timeout(PING_S):
                await request("ping", {})
        except TimeoutError:
            link.lose(f"it does not answer within {PING_S:g} s")
        except RpcRefused as error:
            link.lose(str(error))

    async def _relist(self, link: Link, request: Request) -> None:
        try:
            async with asyncio.timeout(self.server.timeout):
                self.tools = await read_tools(self.server, request)
        except (TimeoutError, RpcRefused) as error:
            log.warning("MCP server %s: its tools stay as they were: %s", self.server.name, reason_of(error))
            link.doubt()
            return
        log.info("MCP server %s has other tools now: %d", self.server.name, len(self.tools))
        self._changed()

    def _down(self, why: str, wait: float) -> None:
        self._request = None
        self._up.clear()
        self.trouble = why
        what = "is lost" if self._lived else "cannot be started"
        log.warning("MCP server %s %s: %s; it is tried again in %g s", self.server.name, what, why, wait)
        self.settled.set()
        self._changed()


def reason_of(error: BaseException) -> str:
    """What went wrong in one line: of a group, what its first member says."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return cut(" ".join(f"{error}".split()) or type(error).__name__, 300)
