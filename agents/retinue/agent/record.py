"""What is stored of a run beside its messages: how it stands, and the reply that it ended with.

A request that is sent again finds the run of the first time by its id, and by a hash of its body whether it is the
same one. Records are data; who may write them, and when, is the run's affair.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from retinue.service.chat import Call, Plan, PlanStep, Reply, RunState, ToolCall, ToolStatus
from retinue.service.text import sane_json
from retinue.service.usage import Usage

_USAGE = ("input", "output", "cached", "reasoning", "model_calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A run: whose it is, where it stands in its tree, its state with the reason, and its reply once it has one."""

    agent: str
    session: str
    root: str
    parent: str = ""
    state: RunState = RunState.RUNNING
    reason: str = ""
    reply: Reply | None = None

    def encode(self) -> bytes:
        """The record as JSON."""
        fields: dict[str, Any] = {
            "agent": self.agent,
            "session": self.session,
            "root": self.root,
            "parent": self.parent,
            "state": self.state.name,
            "reason": self.reason,
        }
        return orjson.dumps(fields | ({"reply": _encode_reply(self.reply)} if self.reply else {}))

    @classmethod
    def decode(cls, raw: bytes, *, run_id: str) -> Record:
        """The record of run `run_id` that `encode` wrote."""
        fields = orjson.loads(raw)
        record = cls(
            agent=fields["agent"],
            session=fields["session"],
            root=fields["root"],
            parent=fields["parent"],
            state=RunState[fields["state"]],
            reason=fields["reason"],
        )
        if "reply" not in fields:
            return record
        return cls(
            agent=record.agent,
            session=record.session,
            root=record.root,
            parent=record.parent,
            state=record.state,
            reason=record.reason,
            reply=_decode_reply(fields["reply"], record, run_id),
        )


@dataclass(frozen=True, slots=True)
class Request:
    """The run that a request id stands for, and the hash of the body that came with it."""

    run_id: str
    body: str

    def encode(self) -> bytes:
        """The entry as JSON."""
        return orjson.dumps({"run_id": self.run_id, "body": self.body})

    @classmethod
    def decode(cls, raw: bytes) -> Request:
        """The entry that `encode` wrote."""
        fields = orjson.loads(raw)
        return cls(fields["run_id"], fields["body"])


def body_hash(message: str, call: Call) -> str:
    """A hash of all that a request says, the same for the same message, parts and context."""
    parts = [repr(part) for part in call.parts]
    context = sane_json(dict(call.context)) if call.context else None
    said = orjson.dumps([sane_json(message), sane_json(parts), context], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(said).hexdigest()


def _encode_reply(reply: Reply) -> dict[str, Any]:
    return {
        "text": reply.text,
        "usage": {name: getattr(reply.usage, name) for name in _USAGE},
        "plan": [[step.task, step.status] for step in reply.plan],
        "tool_calls": [
            {
                "id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "result": call.result,
                "status": call.status.name,
                "error": call.error,
                "duration_ms": call.duration_ms,
                "run_id": call.run_id,
            }
            for call in reply.tool_calls
        ],
    }


def _decode_reply(fields: Mapping[str, Any], record: Record, run_id: str) -> Reply:
    plan: Plan = tuple(PlanStep(task, status) for task, status in fields["plan"])
    calls = tuple(ToolCall(**(each | {"status": ToolStatus[each["status"]]})) for each in fields["tool_calls"])
    return Reply(
        text=fields["text"],
        agent=record.agent,
        tool_calls=calls,
        session=record.session,
        run_id=run_id,
        state=record.state,
        usage=Usage(**fields["usage"]),
        plan=plan,
        reason=record.reason,
    )
