"""What an MCP server offers: tools, each with what is true of its effects.

A tool is one of retinue.agent.tools, so that its schema is made, and its arguments are read, as an agent's are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from mcp_types import CallToolResult, TextContent, ToolAnnotations

from retinue.agent.tools import Invocation, Tool, ToolSpec
from retinue.agent.tools.function import tool
from retinue.service.chat import ToolStatus
from retinue.service.text import sane

# Takes a word on how a call comes along, for whoever waits for it.
Progress: TypeAlias = Callable[[str], Awaitable[None]]
Handle: TypeAlias = Callable[[Invocation, Progress], Awaitable[CallToolResult]]


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool as a client of the server sees it, and what answers a call."""

    spec: ToolSpec
    hints: ToolAnnotations
    handle: Handle


class Offer(Protocol):
    """The tools of a server. They may be others at the next call."""

    async def tools(self) -> Sequence[Offered]:
        """The tools as they are now. Raises a MeshError when that cannot be told."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """An Offer that never changes."""

    offered: tuple[Offered, ...]

    async def tools(self) -> Sequence[Offered]:
        return self.offered


READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, destructive_hint=False, open_world_hint=False)
ADDS = ToolAnnotations(read_only_hint=False, idempotent_hint=False, destructive_hint=False, open_world_hint=False)
# The same call again changes nothing more.
ADDS_ONCE = ADDS.model_copy(update={"idempotent_hint": True})
CHANGES = ToolAnnotations(read_only_hint=False, idempotent_hint=False, destructive_hint=True, open_world_hint=False)
REPLACES = CHANGES.model_copy(update={"idempotent_hint": True})
# Whatever a program does: nothing can be promised.
ANYTHING = ToolAnnotations(read_only_hint=False, idempotent_hint=False, destructive_hint=True, open_world_hint=True)


def offered(made: Tool | Callable[..., Any], hints: ToolAnnotations) -> Offered:
    """A tool, or a function as one, with what is true of its effects."""
    each = made if isinstance(made, Tool) else tool(made)

    async def handle(invocation: Invocation, _: Progress) -> CallToolResult:
        result = await each.handler(invocation)
        return said(result.text, failed=result.status is not ToolStatus.OK)

    return Offered(each.spec, hints, handle)


def said(*texts: str, failed: bool = False) -> CallToolResult:
    """A result of these texts; `failed` tells the model that the call went wrong."""
    return CallToolResult(content=[TextContent(type="text", text=sane(text)) for text in texts], is_error=failed)
