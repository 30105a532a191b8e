"""A session's messages as they are stored, and the rules by which any stored history is a valid conversation.

Functions on entries: nothing here reads or writes a store. What is appended is never changed; order, pairing
and trimming are decided on each load, so that a history is valid at whatever point its writer was killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from retinue.agent.model import ModelEnd, ModelMessage
from retinue.agent.parts import decode_part, encode_part
from retinue.service.chat import Call, Message, Part, ToolCall, ToolStatus
from retinue.service.text import sane, sane_json

INTERRUPTED = "This call was interrupted: its outcome is unknown. Check before you repeat it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One stored message. A tool's carries its finished call; an assistant's what its model wants back with it.

    `origin` is the run of a message that went into the running turn of another. `tokens` is how many the conversation
    had up to here as `model` was sent it, and `cuts` how often it had been made shorter for that.
    """

    message: Message
    call: ToolCall | None = None
    origin: str = ""
    model: str = ""
    provider_parts: Any = None
    tokens: int = 0
    cuts: int = 0


def encode(entry: Entry) -> bytes:
    """The entry as JSON text; fields at their defaults are left out."""
    message = entry.message
    fields: dict[str, Any] = {"role": message.role, "text": message.text, "run_id": message.run_id}
    if message.time:
        fields["time"] = message.time.isoformat()
    if message.tool_calls:
        fields["tool_calls"] = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls]
    if message.parts:
        fields["parts"] = [encode_part(part) for part in message.parts]
    if entry.call:
        call = entry.call
        fields |= {
            "tool_call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": call.status.name,
            "duration_ms": call.duration_ms,
            "child_run": call.run_id,
        }
    if entry.origin:
        fields["origin"] = entry.origin
    if entry.model:
        fields["model"] = entry.model
    if entry.provider_parts is not None:
        fields["provider_parts"] = entry.provider_parts
    if entry.tokens or entry.cuts:
        fields |= {"tokens": entry.tokens, "cuts": entry.cuts}
    return orjson.dumps(fields)


def decode(raw: bytes) -> Entry:
    """The entry that `encode` wrote."""
    fields = orjson.loads(raw)
    call = _decode_call(fields) if fields["role"] == "tool" else None
    return Entry(
        message=Message(
            role=fields["role"],
            text=fields["text"],
            tool_calls=tuple(ToolCall(**wanted) for wanted in fields.get("tool_calls", ())),
            tool_call_id=fields.get("tool_call_id", ""),
            run_id=fields["run_id"],
            parts=tuple(decode_part(part) for part in fields.get("parts", ())),
            time=datetime.fromisoformat(fields["time"]) if "time" in fields else None,
        ),
        call=call,
        origin=fields.get("origin", ""),
        model=fields.get("model", ""),
        provider_parts=fields.get("provider_parts"),
        tokens=fields.get("tokens", 0),
        cuts=fields.get("cuts", 0),
    )


def user_entry(message: str, call: Call, *, run_id: str, origin: str = "") -> Entry:
    """The entry of a person's message, as of now: with its context below it under a heading."""
    if call.context:
        context = orjson.dumps(sane_json(dict(call.context)), option=orjson.OPT_INDENT_2).decode()
        message = f"{message}\n\n## Context\n{context}"
    parts = tuple(part if part.text is None else Part(text=sane(part.text)) for part in call.parts)
    said = Message(role="user", text=sane(message), parts=parts, run_id=run_id, time=datetime.now(UTC))
    return Entry(message=said, origin=origin)


def assistant_entry(end: ModelEnd, calls: Sequence[ToolCall], *, run_id: str, model: str, cuts: int = 0) -> Entry:
    """The entry of a model's message, as of now: with the calls that are going to be made, and no others."""
    text, time = sane(end.text), datetime.now(UTC)
    said = Message(role="assistant", text=text, tool_calls=tuple(calls), run_id=run_id, parts=end.parts, time=time)
    tokens = (end.usage.input or 0) + (end.usage.output or 0)
    return Entry(message=said, model=model, provider_parts=end.provider_parts, tokens=tokens, cuts=cuts)


def tool_entry(call: ToolCall, *, run_id: str, time: datetime | None = None, parts: Sequence[Part] = ()) -> Entry:
    """The entry of a finished call, as of `time` (now), with what its result has besides text."""
    text = call.error if call.status is not ToolStatus.OK else call.result
    time = time or datetime.now(UTC)
    said = Message(role="tool", text=text, tool_call_id=call.id, run_id=run_id, time=time, parts=tuple(parts))
    return Entry(message=said, call=call)


def open_calls(entries: Iterable[Entry]) -> list[tuple[ToolCall, str]]:
    """The calls without a result, each with the id of its run, in call order."""
    entries = list(entries)
    closed = {entry.message.tool_call_id for entry in entries if entry.call}
    return [
        (call, entry.message.run_id) for entry in entries for call in entry.message.tool_calls if call.id not in closed
    ]


def interrupted(call: ToolCall, *, text: str = INTERRUPTED) -> ToolCall:
    """The call with the result that says nobody knows what came of it."""
    return ToolCall(id=call.id, name=call.name, arguments=call.arguments, status=ToolStatus.UNKNOWN, error=text)


def valid(entries: Sequence[Entry], *, open_text: str = INTERRUPTED) -> list[Entry]:
    """The entries as a conversation that every model server accepts.

    It begins with a person's message; behind each assistant message stands exactly one result per call, in call
    order (the first that was stored; one that says `open_text` where there is none), and no other result anywhere.
    """
    results: dict[str, Entry] = {}
    for entry in entries:
        if entry.call:
            results.setdefault(entry.call.id, entry)
    begin = next((at for at, entry in enumerate(entries) if begins(entry)), len(entries))
    conversation: list[Entry] = []
    for entry in entries[begin:]:
        if entry.call:
            continue
        conversation.append(entry)
        for call in entry.message.tool_calls:
            found = results.get(call.id)
            conversation.append(found or tool_entry(interrupted(call, text=open_text), run_id=entry.message.run_id))
    return conversation


def begins(entry: Entry) -> bool:
    """Whether a turn begins here: with a person's message that did not go into the turn of another."""
    return entry.message.role == "user" and not entry.origin


def last_groups(entries: Sequence[Entry], limit: int) -> Sequence[Entry]:
    """The last `limit` groups: a person's message and all up to the next one. Never cuts inside a group."""
    first = [at for at, entry in enumerate(entries) if begins(entry)]
    return entries[first[-limit] :] if len(first) > limit else entries


def to_model(entries: Iterable[Entry], *, model: str) -> tuple[ModelMessage, ...]:
    """The conversation as `model` is sent it: what another model wanted back is dropped, and so are empty answers."""
    messages = []
    for entry in entries:
        message, own = entry.message, entry.model == model
        parts, tokens = (entry.provider_parts, entry.tokens) if own else (None, 0)
        empty = not (message.text or message.tool_calls or message.parts or parts is not None)
        if message.role != "assistant" or not empty:
            failed = entry.call is not None and entry.call.status is not ToolStatus.OK
            messages.append(ModelMessage(message=message, provider_parts=parts, failed=failed, tokens=tokens))
    return tuple(messages)


def _decode_call(fields: dict[str, Any]) -> ToolCall:
    status = ToolStatus[fields["status"]]
    fine = status is ToolStatus.OK
    return ToolCall(
        id=fields["tool_call_id"],
        name=fields["name"],
        arguments=fields["arguments"],
        result=fields["text"] if fine else "",
        error="" if fine else fields["text"],
        status=status,
        duration_ms=fields["duration_ms"],
        run_id=fields["child_run"],
    )
