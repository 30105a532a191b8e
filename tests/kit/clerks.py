"""Agents with MCP servers for tests: a model that makes the calls it is told to, and the servers of this folder."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from retinue.agent import Agent
from retinue.agent.mcp import McpServer
from retinue.agent.model import ModelRequest, WantedCall
from retinue.agent.model.scripted import Scripted, call
from retinue.service.chat import Call, ToolCall

HERE = Path(__file__).parent


def odd(mode: str = "", /, name: str = "odd", **settings: Any) -> McpServer:
    """The server that misbehaves as `mode` says."""
    return McpServer(name, command="python", args=("-I", "-S", str(HERE / "mcp_odd.py"), mode), **settings)


def wares(name: str = "wares", **settings: Any) -> McpServer:
    """The server made with the package, over stdio."""
    return McpServer(name, command="python", args=(str(HERE / "mcp_wares.py"),), **settings)


def script(request: ModelRequest) -> WantedCall | str:
    """Makes the calls that the person's message lists, one a step."""
    at = max(at for at, each in enumerate(request.messages) if each.message.role == "user")
    wanted = json.loads(request.messages[at].message.text)
    made = sum(each.message.role == "tool" for each in request.messages[at:])
    return call(wanted[made][0], **wanted[made][1]) if made < len(wanted) else "done"


@asynccontextmanager
async def clerk(*tools: Any, **options: Any) -> AsyncIterator[tuple[Agent, Scripted]]:
    """An agent with these tools and servers, and its model. The test has 60 seconds."""
    model = Scripted(then=script)
    async with asyncio.timeout(60), Agent("clerk", model=model, tools=tools, **options) as agent:
        yield agent, model


async def do(agent: Agent, *calls: str | tuple[str, dict[str, Any]], session: str = "") -> tuple[ToolCall, ...]:
    """Has the agent make these calls in one turn, one a step."""
    wanted = [(each, {}) if isinstance(each, str) else each for each in calls]
    return (await agent.ask(json.dumps(wanted), Call(session=session))).tool_calls


def names(model: Scripted, at: int = -1) -> set[str]:
    """The tools of a request that are no built-in ones."""
    return {spec.name for spec in model.requests[at].tools} - {"plan", "delegate", "check_task", "wait_task"}


class Lines(logging.Handler):
    """What is logged, line by line, to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._new = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self._new.set()

    async def wait_for(self, text: str, times: int = 1) -> str:
        """The line that brings it to so many lines with `text` in them."""
        while len(found := [line for line in self.texts if text in line]) < times:
            self._new.clear()
            await self._new.wait()
        return found[times - 1]


@contextmanager
def logged(name: str = "retinue.mcp") -> Iterator[Lines]:
    """The lines of that logger, from INFO on."""
    logger, lines = logging.getLogger(name), Lines()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(lines)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before)
