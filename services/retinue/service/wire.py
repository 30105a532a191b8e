"""The mesh's data on the wire: pure functions between the dataclasses of chat.py and the messages of retinue.v1.

Each pair is `to_x` (dataclass to message) and `from_x` (message to dataclass). Text is made sane on both ways.
Nothing is sent here, and nothing is checked that the data's own type does not ask for.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from datetime import UTC
from typing import Any, TypeVar

from google.protobuf import duration_pb2, timestamp_pb2

from retinue.service import errors
from retinue.service.chat import (
    Body,
    Call,
    Completed,
    Description,
    Event,
    Failed,
    History,
    Message,
    Pending,
    PendingRaised,
    Plan,
    PlanChanged,
    PlanStep,
    Reply,
    RunState,
    StatusNote,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolDone,
    ToolInput,
    ToolStarted,
    ToolStatus,
)
from retinue.service.content import from_context, from_part, to_context, to_part
from retinue.service.envelope import Envelope
from retinue.service.text import sane
from retinue.service.usage import Usage
from retinue.v1 import agent_pb2 as pb

# The trailer that tells what a run has used, also when it failed and there is no response to say so.
USAGE = "retinue-usage"
_COUNTS = ("input", "output", "cached", "reasoning")
_E = TypeVar("_E", bound=enum.Enum)


def to_request(message: str, call: Call) -> pb.ChatRequest:
    """The request of one `ask`; Invalid when `call.context` is not JSON. The envelope is not part of it."""
    request = pb.ChatRequest(
        message=sane(message),
        session=sane(call.session),
        request_id=sane(call.request_id),
        parts=[to_part(part) for part in call.parts],
        detach=call.detach,
    )
    if call.context is not None:
        request.context.CopyFrom(to_context(call.context))
    return request


def from_request(request: pb.ChatRequest, envelope: Envelope) -> tuple[str, Call]:
    """The message and the call of a request that came with `envelope`; Invalid for an empty part."""
    return sane(request.message), Call(
        session=request.session,
        request_id=request.request_id,
        parts=tuple(map(from_part, request.parts)),
        context=from_context(request.context) if request.HasField("context") else None,
        envelope=envelope,
        detach=request.detach,
    )


def to_response(reply: Reply) -> pb.ChatResponse:
    """The response that carries `reply`."""
    return pb.ChatResponse(
        reply=sane(reply.text),
        agent=reply.agent,
        tool_calls=[to_tool_call(call) for call in reply.tool_calls],
        session=reply.session,
        run_id=reply.run_id,
        state=pb.RunState.ValueType(reply.state.value),
        usage=to_usage(reply.usage),
        plan=to_plan(reply.plan),
        pending=[to_pending(pending) for pending in reply.pending],
        reason=sane(reply.reason),
        parts=[to_part(part) for part in reply.parts],
    )


def from_response(response: pb.ChatResponse) -> Reply:
    """The reply that a response carries; Unsupported for a state of a later version."""
    return Reply(
        text=sane(response.reply),
        agent=response.agent,
        tool_calls=tuple(map(from_tool_call, response.tool_calls)),
        session=response.session,
        run_id=response.run_id,
        state=_known(RunState, response.state),
        usage=from_usage(response.usage),
        plan=from_plan(response.plan),
        pending=tuple(map(from_pending, response.pending)),
        reason=sane(response.reason),
        parts=tuple(map(from_part, response.parts)),
    )


def to_tool_call(call: ToolCall) -> pb.ToolCall:
    """The message of a tool call."""
    return pb.ToolCall(
        id=sane(call.id),
        name=sane(call.name),
        arguments=sane(call.arguments),
        result=sane(call.result),
        status=pb.ToolCall.Status.ValueType(call.status.value),
        error=sane(call.error),
        duration_ms=call.duration_ms,
        run_id=call.run_id,
    )


def from_tool_call(call: pb.ToolCall) -> ToolCall:
    """The tool call in a message; Unsupported for a status of a later version."""
    return ToolCall(
        id=sane(call.id),
        name=sane(call.name),
        arguments=sane(call.arguments),
        result=sane(call.result),
        status=_known(ToolStatus, call.status),
        error=sane(call.error),
        duration_ms=call.duration_ms,
        run_id=call.run_id,
    )


def to_message(message: Message) -> pb.Message:
    """The wire's form of one message of a history. A time without a zone is UTC."""
    sent = pb.Message(
        role=message.role,
        text=sane(message.text),
        tool_calls=[to_tool_call(call) for call in message.tool_calls],
        tool_call_id=sane(message.tool_call_id),
        run_id=message.run_id,
        parts=[to_part(part) for part in message.parts],
    )
    if message.time is not None:
        stamp = timestamp_pb2.Timestamp()
        stamp.FromDatetime(message.time)
        sent.time.CopyFrom(stamp)
    return sent


def from_message(message: pb.Message) -> Message:
    """One message of a history; its time is in UTC."""
    return Message(
        role=message.role,
        text=sane(message.text),
        tool_calls=tuple(map(from_tool_call, message.tool_calls)),
        tool_call_id=sane(message.tool_call_id),
        run_id=message.run_id,
        parts=tuple(map(from_part, message.parts)),
        time=message.time.ToDatetime(tzinfo=UTC) if message.HasField("time") else None,
    )


def to_usage(usage: Usage) -> pb.Usage:
    """The wire's form of a usage; what is unknown is absent."""
    return pb.Usage(
        input=usage.input,
        output=usage.output,
        cached=usage.cached,
        reasoning=usage.reasoning,
        model_calls=usage.model_calls,
    )


def from_usage(usage: pb.Usage) -> Usage:
    """The usage in a message; what is absent is unknown (None)."""
    return Usage(
        input=usage.input if usage.HasField("input") else None,
        output=usage.output if usage.HasField("output") else None,
        cached=usage.cached if usage.HasField("cached") else None,
        reasoning=usage.reasoning if usage.HasField("reasoning") else None,
        model_calls=usage.model_calls,
    )


def usage_trailer(usage: Usage) -> tuple[tuple[str, str], ...]:
    """The trailing metadata that tells of `usage`: none when no model was called."""
    if not usage.model_calls:
        return ()
    known = [f"{name}={count}" for name in _COUNTS if (count := getattr(usage, name)) is not None]
    return ((USAGE, ",".join([f"calls={usage.model_calls}", *known])),)


def usage_of_trailers(trailers: Iterable[tuple[str, str | bytes]]) -> Usage:
    """The usage that trailing metadata tells of; nothing used when it tells of none. Bad entries are passed over."""
    for key, value in trailers:
        if key == USAGE and isinstance(value, str):
            pairs = (pair.partition("=")[::2] for pair in value.split(","))
            counts = {name: int(count) for name, count in pairs if count.isdecimal()}
            return Usage(model_calls=counts.get("calls", 0), **{name: counts.get(name) for name in _COUNTS})
    return Usage()


def to_plan(plan: Plan) -> pb.Plan:
    """The wire's form of a plan."""
    return pb.Plan(steps=[pb.Step(task=sane(step.task), status=step.status) for step in plan])


def from_plan(plan: pb.Plan) -> Plan:
    """The plan in a message."""
    return tuple(PlanStep(sane(step.task), step.status) for step in plan.steps)


def to_pending(pending: Pending) -> pb.Pending:
    """The wire's form of something a run waits for."""
    return pb.Pending(
        id=pending.id,
        kind=pending.kind,
        tool_call_id=sane(pending.tool_call_id),
        name=sane(pending.name),
        arguments=sane(pending.arguments),
        text=sane(pending.text),
    )


def from_pending(pending: pb.Pending) -> Pending:
    """Something a run waits for."""
    return Pending(
        id=pending.id,
        kind=pending.kind,
        tool_call_id=sane(pending.tool_call_id),
        name=sane(pending.name),
        arguments=sane(pending.arguments),
        text=sane(pending.text),
    )


def to_error(error: errors.MeshError) -> pb.Error:
    """The wire's form of an error inside an event."""
    sent = pb.Error(status=error.status.name, reason=error.reason, message=errors.cut(error.message))
    if error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after * 1e9))
        sent.retry_after.CopyFrom(delay)
    return sent


def from_error(error: pb.Error) -> errors.MeshError:
    """The error in an event, of the same type as it had where it was raised."""
    retry_after = error.retry_after.ToNanoseconds() / 1e9 if error.HasField("retry_after") else None
    return errors.build(errors.status_named(error.status), error.reason, sane(error.message), retry_after=retry_after)


# Each kind of event: its type, its field in a ChatEvent, and the ways there and back.
_BODIES: tuple[tuple[type[Body], str, Callable[[Any], Any], Callable[[Any], Body]], ...] = (
    (TextDelta, "text", lambda body: sane(body.text), lambda sent: TextDelta(sane(sent))),
    (ThinkingDelta, "thinking", lambda body: sane(body.text), lambda sent: ThinkingDelta(sane(sent))),
    (
        ToolStarted,
        "tool_start",
        lambda body: pb.ToolStart(id=sane(body.id), name=sane(body.name)),
        lambda sent: ToolStarted(sane(sent.id), sane(sent.name)),
    ),
    (
        ToolInput,
        "tool_input",
        lambda body: pb.ToolInput(id=sane(body.id), delta=sane(body.delta)),
        lambda sent: ToolInput(sane(sent.id), sane(sent.delta)),
    ),
    (ToolDone, "tool_done", lambda body: to_tool_call(body.call), lambda sent: ToolDone(from_tool_call(sent))),
    (StatusNote, "status", lambda body: sane(body.text), lambda sent: StatusNote(sane(sent))),
    (PlanChanged, "plan", lambda body: to_plan(body.plan), lambda sent: PlanChanged(from_plan(sent))),
    (PendingRaised, "pending", lambda body: to_pending(body.pending), lambda sent: PendingRaised(from_pending(sent))),
    (Failed, "error", lambda body: to_error(body.error), lambda sent: Failed(from_error(sent))),
    (Completed, "completed", lambda body: to_response(body.reply), lambda sent: Completed(from_response(sent))),
)
_SENT = {body: (field, to) for body, field, to, _ in _BODIES}
_RECEIVED = {field: come for _, field, _, come in _BODIES}


def to_event(event: Event) -> pb.ChatEvent:
    """The wire's form of an event."""
    field, to = _SENT[type(event.body)]
    body: dict[str, Any] = {field: to(event.body)}
    return pb.ChatEvent(seq=event.seq, run_id=event.run_id, parent_tool_id=sane(event.parent_tool_id), **body)


def from_event(event: pb.ChatEvent) -> Event:
    """The event in a message; Unsupported for a kind of a later version."""
    field = event.WhichOneof("event")
    if field is None:
        raise errors.Unsupported("an event of a kind that this version does not know: upgrade this end")
    return Event(event.seq, event.run_id, _RECEIVED[field](getattr(event, field)), sane(event.parent_tool_id))


def to_description(description: Description) -> pb.DescribeResponse:
    """The wire's form of a description."""
    return pb.DescribeResponse(
        name=description.name,
        type=description.type,
        description=sane("\n".join([description.description, *description.notes]).lstrip()),
        services=description.services,
        model=description.model,
        version=description.version,
        tools=description.tools,
        can_invoke=description.can_invoke or (),
        invokes_any=description.can_invoke is None,
    )


def from_description(response: pb.DescribeResponse) -> Description:
    """The description in a message."""
    return Description(
        name=response.name,
        type=response.type,
        description=sane(response.description),
        services=tuple(response.services),
        model=response.model,
        version=response.version,
        tools=tuple(response.tools),
        can_invoke=None if response.invokes_any else tuple(response.can_invoke),
    )


def to_history(history: History) -> pb.GetHistoryResponse:
    """The wire's form of a page of a history."""
    return pb.GetHistoryResponse(
        messages=[to_message(message) for message in history.messages],
        plan=to_plan(history.plan),
        next_page_token=history.next_page_token,
    )


def from_history(response: pb.GetHistoryResponse) -> History:
    """The page of a history in a message."""
    return History(tuple(map(from_message, response.messages)), from_plan(response.plan), response.next_page_token)


def _known(kind: type[_E], value: int) -> _E:
    try:
        return kind(value)
    except ValueError:
        raise errors.Unsupported(f"{kind.__name__} {value} is not known to this version: upgrade this end") from None
