"""Where a program looks into a turn, or changes its course; all optional.

A hook that raises in `before_tool_call` or `after_tool_call` fails that one call; one that raises elsewhere fails
the run. Hooks see what is about to be sent or stored; they cannot change what is stored already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from retinue.agent.guards import Guard
from retinue.agent.model import ModelMessage
from retinue.agent.tools import Invocation, ToolResult
from retinue.service.chat import Event
from retinue.service.errors import Invalid

Messages: TypeAlias = tuple[ModelMessage, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """The call is not made; the model is told the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Change:
    """The call is made with these arguments instead."""

    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """The run waits for somebody's answer to this call, and goes on when it is given.

    kind is "approval" (the call is made once it is approved), or "question" or "tool" (the answer is its result).
    """

    text: str = ""
    kind: str = "approval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The hooks of one agent.

    prepare_context: chooses what of the conversation is sent, before each model call.
    format_messages: rewrites what is sent, after that.
    before_tool_call: None to proceed, Block, Change or Ask; asked call by call in the model's order, and again when
        a call that waited, or that a crash cut off, is about to be made.
    guards: wrappers around every tool, the first outermost; a sub-agent's tools have them too.
    approvals: exact names of tools each call of which waits for somebody's approval, where before_tool_call lets it.
    after_tool_call: None to keep the result, or another one (`final` ends the run); runs before anything is stored.
    on_event: sees each event of the run.
    """

    prepare_context: Callable[[Messages], Awaitable[Messages]] | None = None
    format_messages: Callable[[Messages], Awaitable[Messages]] | None = None
    before_tool_call: Callable[[Invocation], Awaitable[Block | Change | Ask | None]] | None = None
    after_tool_call: Callable[[Invocation, ToolResult], Awaitable[ToolResult | None]] | None = None
    on_event: Callable[[Event], None] | None = None
    approvals: Collection[str] = ()
    guards: Sequence[Guard] = ()

    def __post_init__(self) -> None:
        if isinstance(self.approvals, str):
            raise Invalid(f"approvals: use a list of names, not {self.approvals!r}", field="approvals")
        if callable(self.guards) or not all(callable(guard) for guard in self.guards):
            raise Invalid(f"guards: use a list of guards, not {self.guards!r}", field="guards")
