"""A conversation as a run sees it: loaded once, appended to step by step; kept in the store, or nowhere.

A session writes only at its end and only when nobody else has written since: what it cannot write is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

import orjson

from retinue.agent.history import INTERRUPTED, Entry, decode, encode, last_groups, valid
from retinue.agent.keys import history_key, plan_key, session_ttl
from retinue.service.background import together
from retinue.service.chat import History, Plan, PlanStep
from retinue.service.errors import Invalid, SessionBusy
from retinue.service.store import Conflict, Span, Store

PAGE = 100
MOST_A_PAGE = 1000
RUNNING = "This call is still running."


class Conversation(Protocol):
    """What a run needs of a conversation. `entries` is what was loaded and appended since, oldest first."""

    entries: list[Entry]
    plan: Plan

    def load(self, groups: int) -> Awaitable[None]:
        """Reads the last `groups` groups and the plan; what it returns is awaited."""
        ...

    async def append(self, *entries: Entry) -> None:
        """Adds the entries, all or none, before it returns."""
        ...

    async def set_plan(self, plan: Plan) -> None:
        """Replaces the whole plan."""
        ...


class Scratch:
    """The conversation of an ephemeral sub-agent: gone with its run."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.plan: Plan = ()

    async def load(self, groups: int) -> None:
        """There is nothing to load."""

    async def append(self, *entries: Entry) -> None:
        self.entries.extend(entries)

    async def set_plan(self, plan: Plan) -> None:
        self.plan = plan


class Session:
    """One session of one agent in the store."""

    def __init__(self, store: Store, agent: str, session: str) -> None:
        self.entries: list[Entry] = []
        self.plan: Plan = ()
        self._store = store
        self._history_key = history_key(agent, session)
        self._plan_key = plan_key(agent, session)
        self._ttl = session_ttl(session)
        self._length = 0
        # Results of one step come in any order, and each append names the length that it expects.
        self._writing = asyncio.Lock()

    def load(self, groups: int) -> Awaitable[None]:
        tail, plan = self._store.read(self._history_key, -4 * groups), self._store.get(self._plan_key)
        return self._loaded(groups, tail, plan)

    async def _loaded(self, groups: int, tail: Awaitable[Span], stored_plan: Awaitable[bytes | None]) -> None:
        span, plan = await together(tail, stored_plan)
        want = 4 * groups
        while True:
            self.entries = [decode(raw) for raw in span.entries]
            begins = sum(entry.message.role == "user" for entry in self.entries)
            if span.start == 0 or begins > groups:
                break
            want *= 2
            span = await self._store.read(self._history_key, -want)
        self.entries = list(last_groups(self.entries, groups))
        self._length = span.length
        self.plan = decode_plan(plan)

    async def append(self, *entries: Entry) -> None:
        async with self._writing:
            try:
                self._length = await self._store.append(
                    self._history_key, [encode(entry) for entry in entries], at=self._length, ttl=self._ttl
                )
            except Conflict:
                raise SessionBusy(
                    "another node wrote to this session in the middle of the turn; send the message again"
                ) from None
            self.entries.extend(entries)

    async def set_plan(self, plan: Plan) -> None:
        await self._store.put(self._plan_key, encode_plan(plan), ttl=self._ttl)
        self.plan = plan


async def read_history(
    store: Store, agent: str, session: str, *, page_size: int, page_token: str, running: bool
) -> History:
    """A page of the session's messages as GetHistory shows them; a page ends only where a turn ends.

    `page_size` 0 means 100; a page may be longer by the rest of its last turn. Invalid for a token that is none.
    """
    if page_size < 0 or (page_token and not page_token.isdecimal()):
        raise Invalid("page_size is a number from 0 on, page_token what the last page gave", field="page_token")
    begin, size = int(page_token or 0), min(page_size or PAGE, MOST_A_PAGE)
    stop = begin + size
    while True:
        span = await store.read(history_key(agent, session), begin, stop + 1)
        entries = [decode(raw) for raw in span.entries]
        end = begin + len(entries)
        if end == span.length and end <= stop:
            break
        starts = [at for at, entry in enumerate(entries) if at and entry.message.role == "user"]
        if starts:
            entries, end = entries[: starts[-1]], begin + starts[-1]
            break
        if end == span.length:
            break
        stop += size
    page = valid(entries, open_text=RUNNING if running and end == span.length else INTERRUPTED)
    plan = decode_plan(await store.get(plan_key(agent, session)))
    return History(tuple(entry.message for entry in page), plan, str(end) if end < span.length else "")


async def clear_history(store: Store, agent: str, session: str) -> int:
    """Forgets the session's messages and plan; returns how many messages there were."""
    length = (await store.read(history_key(agent, session), 0, 0)).length
    await store.delete(history_key(agent, session), plan_key(agent, session))
    return length


def encode_plan(plan: Plan) -> bytes:
    """The plan as it is stored: the JSON of the wire's Plan."""
    return orjson.dumps({"steps": [{"task": step.task, "status": step.status} for step in plan]})


def decode_plan(raw: bytes | None) -> Plan:
    """The plan that was stored, or none."""
    fields: Mapping[str, Any] = orjson.loads(raw) if raw else {"steps": []}
    return tuple(PlanStep(step["task"], step["status"]) for step in fields["steps"])
