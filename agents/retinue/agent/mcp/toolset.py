"""The tools of an agent's MCP servers, under the names by which a model calls them.

Lists change while turns run, so a clash of names never stops an agent: the later tool is left out, aloud.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from retinue.agent.mcp.connection import Connection
from retinue.agent.mcp.listing import Listed
from retinue.agent.mcp.server import McpServer
from retinue.agent.tools import Handler, Invocation, Tool, ToolResult
from retinue.service.background import Background
from retinue.service.errors import Invalid

log = logging.getLogger("retinue.mcp")

# So long after the agent's start the turns still wait for servers that have not answered yet.
FIRST_WAIT_S = 10.0


class McpTools:
    """A Toolset of the tools of `servers`, in their order. Invalid when two servers bear one name."""

    def __init__(self, servers: Sequence[McpServer]) -> None:
        names = [server.name for server in servers]
        for name in names:
            if names.count(name) > 1:
                raise Invalid(f"two MCP servers are named {name!r}; rename one", field="tools")
        self.servers = tuple(servers)
        self._connections: tuple[Connection, ...] = ()
        self._tools: dict[Listed, Tool] = {}
        self._offered: tuple[Tool, ...] | None = None
        self._taken: frozenset[str] = frozenset()
        self._told: set[tuple[str, str]] = set()
        self._patience = 0.0

    @asynccontextmanager
    async def mounted(self) -> AsyncIterator[None]:
        """Starts the servers, side by side and in the background, and ends them with the block."""
        if not self.servers:
            yield
            return
        self._connections = tuple(Connection(server, self._changed) for server in self.servers)
        self._patience = asyncio.get_running_loop().time() + FIRST_WAIT_S
        try:
            async with Background() as background:
                for connection in self._connections:
                    background.start(connection.keep())
                yield
        finally:
            self._connections = ()
            self._changed()

    async def tools(self, taken: Collection[str]) -> Sequence[Tool]:
        """The tools as they are now, but for those whose names are `taken`.

        Waits for servers that have not answered yet, until FIRST_WAIT_S after the start of the agent.
        """
        if waiting := [each for each in self._connections if not each.settled.is_set()]:
            try:
                async with asyncio.timeout_at(self._patience):
                    for connection in waiting:
                        await connection.settled.wait()
            except TimeoutError:
                pass  # the prompt and the person are told which server is still starting
        return self.known(taken)

    def known(self, taken: Collection[str]) -> Sequence[Tool]:
        """The tools as they are known now, but for those whose names are `taken`; none while not entered."""
        if self._offered is None or self._taken != taken:
            self._taken = frozenset(taken)
            self._offered = self._merged()
        return self._offered

    def troubles(self) -> Sequence[str]:
        """A line for each server that is not there: its name, and why."""
        return [f"{each.server.name}: {each.trouble}" for each in self._connections if each.trouble]

    def is_one(self, name: str) -> bool:
        """Whether a tool of that name would be one of these servers'; not whether there is one."""
        return any(name.startswith(server.full_name("")) for server in self.servers)

    def _changed(self) -> None:
        self._offered = None

    def _merged(self) -> tuple[Tool, ...]:
        merged: dict[str, Tool] = {}
        kept: dict[Listed, Tool] = {}
        for connection in self._connections:
            for listed in connection.tools.values():
                name = listed.spec.name
                if name in merged or name in self._taken:
                    self._leave_out(connection.server.name, listed)
                    continue
                # The same object as before: what was made of it for a model server is found by its identity.
                tool = self._tools.get(listed) or Tool(
                    listed.spec, _handler(connection, listed.name), idempotent=listed.idempotent
                )
                merged[name] = kept[listed] = tool
        self._tools = kept
        return tuple(merged.values())

    def _leave_out(self, server: str, listed: Listed) -> None:
        if (server, listed.name) not in self._told:
            self._told.add((server, listed.name))
            what = f"its tool {listed.name!r} is left out: another tool is named {listed.spec.name}"
            log.warning("MCP server %s: %s", server, what)


def _handler(connection: Connection, tool: str) -> Handler:
    async def handle(invocation: Invocation) -> ToolResult:
        return await connection.call(tool, invocation.arguments)

    return handle
