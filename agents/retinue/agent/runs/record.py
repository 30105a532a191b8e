"""What is stored of a run beside its messages: how it stands, and the reply that it ended with.

A request that is sent again finds the run of the first time by its id, and by a hash of its body whether it is the
same one. Records are data; who may write them, and when, is the run's affair.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from retinue.agent.parts import decode_part, encode_part
from retinue.service.chat import Call, Pending, Plan, PlanStep, Reply, RunState, ToolCall, ToolStatus
from retinue.service.envelope import Budget, Envelope
from retinue.service.text import sane_json
from retinue.service.usage import Usage

_PLAIN = (
    "agent",
    "session",
    "root",
    "parent",
    "budget",
    "request_id",
    "place",
    "ticket",
    "reason",
    "status",
    "message",
    "at",
)
_USAGE = ("input", "output", "cached", "reasoning", "model_calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A run: whose it is, where it stands in its tree, its state with the reason, and its reply once it has one.

    `place` and `ticket` are the lease that its owner holds or waits for, and under what name: a run that is RUNNING
    and has neither has lost its owner. Without a reply a run may be gone on with. `status` (gRPC's name for it) and
    `message` are those of the error that it failed with. `at` is where in its session's history its last writing
    began, and -1 while it waits for its turn.
    """

    agent: str
    session: str
    root: str
    parent: str = ""
    path: tuple[str, ...] = ()
    budget: str = ""
    request_id: str = ""
    place: str = ""
    ticket: str = ""
    state: RunState = RunState.RUNNING
    reason: str = ""
    status: str = ""
    message: str = ""
    at: int = -1
    reply: Reply | None = None

    @property
    def final(self) -> bool:
        """Whether the run is over for good."""
        return self.reply is not None and self.state is not RunState.WAITING

    @property
    def envelope(self) -> Envelope:
        """The envelope that the run's call came with; without a deadline, since whoever set that is not there."""
        budget = Budget.decode(self.budget) if self.budget else None
        return Envelope(root=self.root, parent=self.parent, path=self.path, budget=budget)

    def as_reply(self, run_id: str) -> Reply:
        """How the run stands, in the shape of a reply."""
        reply = self.reply or Reply(text="", agent=self.agent, session=self.session, run_id=run_id)
        return replace(reply, state=self.state, reason=self.reason)

    def encode(self) -> bytes:
        """The record as JSON."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        fields |= {"state": self.state.name, "path": list(self.path)}
        return orjson.dumps(fields | ({"reply": _encode_reply(self.reply)} if self.reply else {}))

    @classmethod
    def decode(cls, raw: bytes, *, run_id: str) -> Record:
        """The record of run `run_id` that `encode` wrote."""
        fields = orjson.loads(raw)
        record = cls(
            **{name: fields[name] for name in _PLAIN},
            path=tuple(fields["path"]),
            state=RunState[fields["state"]],
        )
        return replace(record, reply=_decode_reply(fields["reply"], record, run_id)) if "reply" in fields else record


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
        "pending": [asdict(pending) for pending in reply.pending],
        "parts": [encode_part(part) for part in reply.parts],
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
        pending=tuple(Pending(**each) for each in fields["pending"]),
        reason=record.reason,
        parts=tuple(decode_part(each) for each in fields.get("parts", ())),
    )
