"""The one shape that everything in the mesh has, and the data that goes in and out of it.

An agent, a remote peer, the router and a scripted stub are each a Chat. Nothing here knows of gRPC: wire.py maps it.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeAlias, runtime_checkable

from retinue.service.envelope import Envelope
from retinue.service.errors import Invalid, MeshError
from retinue.service.usage import Usage


class RunState(enum.Enum):
    """How a run stands. INCOMPLETE: a limit was met; WAITING: on answers; INTERRUPTED: its owner died."""

    RUNNING = 0
    COMPLETED = 1
    INCOMPLETE = 2
    WAITING = 3
    CANCELLED = 4
    FAILED = 5
    INTERRUPTED = 6


class ToolStatus(enum.Enum):
    """How a tool call ended. UNKNOWN: whether it had its effect cannot be told."""

    OK = 0
    ERROR = 1
    REFUSED = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes by value, by address or by a handle of the mesh: exactly one of the three is set."""

    mime: str
    data: bytes | None = None
    uri: str | None = None
    handle: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a message: exactly one of text, image and file is set. Invalid when it is not so."""

    text: str | None = None
    image: Blob | None = None
    file: Blob | None = None

    def __post_init__(self) -> None:
        given = [each for each in (self.text, self.image, self.file) if each is not None]
        if len(given) > 1:
            raise Invalid("a part is one of text, image and file: use several parts", field="parts")
        for blob in (self.image, self.file):
            if not isinstance(blob, Blob | None):
                raise Invalid(f"a part's image or file is a Blob, not {type(blob).__name__}", field="parts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of one tool, with its outcome once it has one. `arguments` is JSON text of one object."""

    id: str
    name: str
    arguments: str = "{}"
    result: str = ""
    status: ToolStatus = ToolStatus.OK
    error: str = ""
    duration_ms: int = 0
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a plan; status is pending, in_progress or done."""

    task: str
    status: str = "pending"


Plan: TypeAlias = tuple[PlanStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Something a run waits for: kind is approval, question or tool."""

    id: str
    kind: str
    tool_call_id: str = ""
    name: str = ""
    arguments: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What somebody says to something pending. `result` answers a question or an external tool, `reason` a refusal."""

    approved: bool
    result: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a session's history; role is user, assistant or tool."""

    role: str
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    run_id: str = ""
    parts: tuple[Part, ...] = ()
    time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What goes with a message: the session, the id that makes it one message, further parts, and the envelope.

    `detach`: the run goes on without its caller, who gets its id at once.
    """

    session: str = ""
    request_id: str = ""
    parts: tuple[Part, ...] = ()
    context: Mapping[str, Any] | None = None
    envelope: Envelope = Envelope()
    detach: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The outcome of a run. `agent` is who answered; `reason` names the limit when the state is INCOMPLETE, and is
    "refusal" where the text is the model's refusal."""

    text: str
    agent: str
    tool_calls: tuple[ToolCall, ...] = ()
    session: str = ""
    run_id: str = ""
    state: RunState = RunState.COMPLETED
    usage: Usage = Usage()
    plan: Plan = ()
    pending: tuple[Pending, ...] = ()
    reason: str = ""
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the reply, as the model writes it."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A piece of the model's reasoning; never part of the reply."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool call is about to run."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolInput:
    """A piece of a call's arguments as the model writes them: for display only."""

    id: str
    delta: str


@dataclass(frozen=True, slots=True)
class ToolDone:
    """A tool call has its outcome."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class StatusNote:
    """A word to the person about what goes on: waiting, retrying, degraded."""

    text: str


@dataclass(frozen=True, slots=True)
class PlanChanged:
    """The session's plan is now this one."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class PendingRaised:
    """The run waits for an answer."""

    pending: Pending


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a run that failed."""

    error: MeshError


@dataclass(frozen=True, slots=True)
class Completed:
    """The last event of a run that ended with a reply, whole or incomplete."""

    reply: Reply


Body: TypeAlias = (
    TextDelta
    | ThinkingDelta
    | ToolStarted
    | ToolInput
    | ToolDone
    | StatusNote
    | PlanChanged
    | PendingRaised
    | Failed
    | Completed
)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in a run. `seq` counts from 1 without gaps; the last is Completed or Failed."""

    seq: int
    run_id: str
    body: Body
    parent_tool_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a part of the mesh says of itself. `can_invoke` None: every registered agent.

    `notes` say how it stands just now: told to whoever asks, behind the description, and not registered.
    """

    name: str
    type: str
    description: str = ""
    services: tuple[str, ...] = ()
    model: str = ""
    version: str = ""
    tools: tuple[str, ...] = ()
    can_invoke: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """A page of a session's messages, oldest first; `next_page_token` is empty on the last page."""

    messages: tuple[Message, ...]
    plan: Plan = ()
    next_page_token: str = ""


@runtime_checkable
class Chat(Protocol):
    """Anything that can be asked. `ask` raises a MeshError; `stream` ends with one Completed or Failed.

    A refusal before the run began (bad name, cycle, full queue) is raised by both.
    """

    @property
    def name(self) -> str: ...

    async def ask(self, message: str, call: Call = ...) -> Reply: ...

    def stream(self, message: str, call: Call = ...) -> AsyncGenerator[Event, None]: ...


@runtime_checkable
class Remembers(Protocol):
    """A Chat that keeps its sessions."""

    async def history(self, session: str = "", *, page_size: int = 0, page_token: str = "") -> History: ...

    async def clear(self, session: str = "") -> int: ...


@runtime_checkable
class Runs(Protocol):
    """A Chat whose runs are found again by their ids, at any of its nodes. UnknownName for a run that nobody knows."""

    async def run(self, run_id: str) -> Reply:
        """How the run stands, and its reply once it has one."""
        ...

    def watch(self, run_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
        """The run's events behind number `after`, up to one Completed or Failed, which also an owner's death brings."""
        ...

    async def cancel(self, run_id: str, *, tree: bool = False) -> int:
        """Ends the run, or all runs of its tree, and returns how many that were once none of them is left."""
        ...

    async def follow_up(self, message: str, call: Call = ..., *, steer: bool = False) -> str:
        """Adds a message to a session behind its running turn, or with `steer` into it; returns the message's run."""
        ...

    async def resolve(self, run_id: str, pending_id: str, answer: Answer) -> RunState:
        """Answers something that the run waits for; with the last answer the run goes on by itself."""
        ...


@runtime_checkable
class Describes(Protocol):
    """A Chat that can say what it is."""

    def describe(self) -> Description: ...


async def reply_of(events: AsyncIterator[Event]) -> Reply:
    """The reply that a stream of events ends with; raises the error that it ends with instead."""
    async for event in events:
        if isinstance(event.body, Completed):
            return event.body.reply
        if isinstance(event.body, Failed):
            raise event.body.error
    raise MeshError("the stream ended without a reply")
