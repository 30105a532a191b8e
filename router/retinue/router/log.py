"""What the router remembers: per session the message, the agent and its reply; per request the choice that was made.

The log has the form of an agent's history: each choice stands there as a call of `route_to_agent` with the reply as
its result. It holds no agent's own history, and shortens long replies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import orjson

from retinue.agent.keys import RUN_TTL_S, history_key, session_ttl
from retinue.agent.model import ModelMessage
from retinue.agent.session.history import Entry, decode, encode, last_groups, to_model, tool_entry, valid
from retinue.service.chat import Message, Reply, ToolCall, ToolStatus
from retinue.service.errors import MeshError, RequestConflict, cut
from retinue.service.names import DEFAULT_SESSION, new_id
from retinue.service.store import Conflict, Store

ROUTE = "route_to_agent"
REPLY_BYTES = 4096
# How much of the log the model is shown: turns, and bytes of each reply.
SHOWN_TURNS, SHOWN_BYTES = 5, 500
# A turn has a message, a choice and a reply for each agent: so many entries hold the last turns of any log.
_ENTRIES = 40


@dataclass(frozen=True, slots=True)
class Errand:
    """One agent and what it is told."""

    agent: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an errand came to: the agent's reply, or why there is none."""

    errand: Errand
    result: Reply | MeshError


class Log:
    """The log of one router in the store."""

    def __init__(self, store: Store, router: str) -> None:
        self._store = store
        self._router = router

    async def add(self, session: str, message: str, outcomes: Sequence[Outcome], *, answer: str = "") -> None:
        """Adds a turn: what was asked, and each errand with its reply, or the router's own answer."""
        now = datetime.now(UTC)
        calls = [_logged(one) for one in outcomes]
        entries = [
            Entry(message=Message(role="user", text=message, time=now)),
            Entry(message=Message(role="assistant", text=answer, tool_calls=tuple(calls), time=now)),
            *(tool_entry(call, run_id=call.run_id, time=now) for call in calls),
        ]
        await self._store.append(
            history_key(self._router, session), [encode(entry) for entry in entries], ttl=session_ttl(session)
        )

    async def last_agent(self, session: str) -> str | None:
        """The agent that answered last in the session; None when nobody did, or several at once."""
        agents = _agents(last_groups(await self._tail(session), 1))
        return agents[0] if len(agents) == 1 else None

    async def agents(self, session: str) -> list[str]:
        """Every agent that answered in the session."""
        span = await self._store.read(history_key(self._router, session))
        return _agents(decode(raw) for raw in span.entries)

    async def recent(self, session: str) -> tuple[ModelMessage, ...]:
        """The last turns as a model is shown them, replies cut short."""
        shown = last_groups(valid(await self._tail(session)), SHOWN_TURNS)
        return to_model(
            [replace(one, message=replace(one.message, text=cut(one.message.text, SHOWN_BYTES))) for one in shown],
            model="",
        )

    async def choice(self, session: str, request_id: str, message: str) -> tuple[Errand, ...]:
        """The choice that was stored for a request; empty when there is none. RequestConflict for another message."""
        raw = await self._store.get(self._choice_key(session, request_id))
        if raw is None:
            return ()
        stored = orjson.loads(raw)
        if stored["message"] != _digest(message):
            raise RequestConflict(f"request_id {request_id!r} was used for another message; use a new one")
        return tuple(Errand(agent, told) for agent, told in stored["errands"])

    async def choose(
        self, session: str, request_id: str, message: str, errands: tuple[Errand, ...]
    ) -> tuple[Errand, ...]:
        """Stores the choice for a request and returns it, or the one that another replica stored first."""
        record = {"message": _digest(message), "errands": [[one.agent, one.message] for one in errands]}
        key = self._choice_key(session, request_id)
        try:
            await self._store.put(key, orjson.dumps(record), expect=None, ttl=RUN_TTL_S)
        except Conflict:
            return await self.choice(session, request_id, message)
        return errands

    def _choice_key(self, session: str, request_id: str) -> str:
        return f"router/{{{self._router}/{session or DEFAULT_SESSION}/{request_id}}}"

    async def _tail(self, session: str) -> list[Entry]:
        span = await self._store.read(history_key(self._router, session), -_ENTRIES)
        return [decode(raw) for raw in span.entries]


def _logged(outcome: Outcome) -> ToolCall:
    """The errand and its outcome as a call; its id is new, since a history may not use one twice."""
    errand, result = outcome.errand, outcome.result
    call = ToolCall(
        id=new_id("call_"),
        name=ROUTE,
        arguments=orjson.dumps({"agent": errand.agent, "message": errand.message}).decode(),
    )
    if isinstance(result, MeshError):
        return replace(call, error=f"{result.reason}: {cut(result.message)}", status=ToolStatus.ERROR)
    return replace(call, result=cut(result.text, REPLY_BYTES), run_id=result.run_id)


def _agents(entries: Iterable[Entry]) -> list[str]:
    chosen = [
        orjson.loads(call.arguments)["agent"]
        for entry in entries
        for call in entry.message.tool_calls
        if call.name == ROUTE
    ]
    return list(dict.fromkeys(chosen))


def _digest(message: str) -> str:
    return hashlib.sha256(message.encode()).hexdigest()
