"""What an agent can do: a tool is a specification for the model and an async function that does it.

Tools of every kind (functions, endpoints of services, peers, MCP servers) meet here; what may be called, and how
often, is decided by guards around the handler and never by the tool.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from retinue.service.chat import Part, ToolStatus
from retinue.service.envelope import Envelope
from retinue.service.usage import Usage

if TYPE_CHECKING:
    from retinue.service.mesh import Mesh

NAME_LENGTH = 64
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What the model is told of a tool: `parameters` is a JSON Schema whose root is an object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One call as its tool sees it: checked arguments, and the run, session and envelope of the run that makes it.

    `envelope` is the one for calls from here (the run's own path and deadline in it); `ordinal` is 1 for the first
    call of its step to the same peer or tool, 2 for the second, and so on. `again`: the call was cut off by a crash,
    and may have had its effect already.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    agent: str
    session: str = ""
    run_id: str = ""
    envelope: Envelope = Envelope()
    ordinal: int = 1
    again: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call came to. `text` goes to the model; `run_id` is a delegate's run and `usage` what that cost.

    `parts` are images and files besides, which are kept with the call in the session's history.
    `final`: where all results of its step are so, the run ends there, with their texts as its reply.
    """

    text: str
    status: ToolStatus = ToolStatus.OK
    run_id: str = ""
    usage: Usage = Usage()
    parts: tuple[Part, ...] = ()
    final: bool = False


Handler: TypeAlias = Callable[[Invocation], Awaitable[ToolResult]]


@dataclass(frozen=True, slots=True)
class Tool:
    """A specification and its handler. `idempotent`: running it twice does no harm, so a crash may repeat it.

    `threaded`: it runs in a thread, which cannot be stopped. What the handler raises becomes the call's result for the
    model (status ERROR), never a failure of the run.
    """

    spec: ToolSpec
    handler: Handler
    idempotent: bool = False
    threaded: bool = False


class Toolset(Protocol):
    """Where an agent's tools come from. Entered once per serving agent; asked for its tools before each model call."""

    def mounted(self, mesh: Mesh) -> AbstractAsyncContextManager[None]:
        """Opens what the tools need for as long as the agent serves."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """The tools as they are now; no registry or reflection call is made here once they are known."""
        ...


def tool_name(*words: str) -> str:
    """The name under which a model calls a tool: the words joined by `_`, other characters as `_`, cut at 64."""
    return _ILLEGAL.sub("_", "_".join(words))[:NAME_LENGTH]
