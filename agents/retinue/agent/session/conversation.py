"""A conversation as a run sees it: loaded once, appended to step by step; kept in the store, or nowhere.

A session writes only at its end and only when nobody else has written since: what it cannot write is an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

import orjson

from retinue.agent.keys import history_key, lease_key, plan_key, session_ttl
from retinue.agent.runs.events import TAKEN_OVER
from retinue.agent.session.history import INTERRUPTED, Entry, begins, decode, encode, last_groups, valid
from retinue.agent.session.places import Places
from retinue.agent.session.tails import Tail, Tails
from retinue.service.background import together
from retinue.service.chat import History, Plan, PlanStep
from retinue.service.errors import Invalid, SessionBusy
from retinue.service.store import Conflict, Lease, Span, Store

PAGE = 100
MOST_A_PAGE = 1000
RUNNING = "This call is still running."


class Conversation(Protocol):
    """What a run needs of a conversation. `entries` is what was loaded and appended since, oldest first."""

    entries: list[Entry]
    plan: Plan

    @property
    def place(self) -> str:
        """The key of the lease that whoever writes it holds; empty where there is none."""
        ...

    @property
    def length(self) -> int:
        """How many entries it has in all."""
        ...

    @property
    def lease(self) -> Lease | None:
        """What its run holds while it writes; None where there is none."""
        ...

    @property
    def taken(self) -> bool:
        """Whether it was loaded, so that this run may have written to it."""
        ...

    @property
    def lapsed(self) -> bool:
        """Whether the run that had it before ran out of its lease, as one whose owner died."""
        ...

    @property
    def lost(self) -> bool:
        """Whether another node has taken it from this run since: nothing more can be written."""
        ...

    def load(self, groups: int) -> Awaitable[bool]:
        """Takes the conversation for this run, and reads its last `groups` groups and the plan; to be awaited.

        False when other runs are before this one: it has a place in line then, and `wait` waits for its turn.
        """
        ...

    async def wait(self, groups: int) -> None:
        """Takes and reads the conversation once it is this run's turn."""
        ...

    def close(self) -> Awaitable[None]:
        """Gives the conversation back, or the place in its line; to be awaited."""
        ...

    def append(self, *entries: Entry) -> Awaitable[None]:
        """Adds the entries, all or none; to be awaited at once, since appends are done in the order of the calls."""
        ...

    async def reload(self, groups: int) -> None:
        """Reads it again, as the run that has it: a write that was cut short may or may not stand there."""
        ...

    async def set_plan(self, plan: Plan) -> None:
        """Replaces the whole plan."""
        ...


class Scratch:
    """The conversation of an ephemeral sub-agent: gone with its run.

    With `places` its run holds a lease at `place` meanwhile, so that others see whether its owner lives.
    """

    taken, lapsed, lost, length = True, False, False, 0

    def __init__(self, places: Places | None = None, *, place: str = "", ticket: str = "") -> None:
        self.entries: list[Entry] = []
        self.plan: Plan = ()
        self.place = place
        self.lease: Lease | None = None
        self._places = places
        self._ticket = ticket

    async def load(self, groups: int) -> bool:
        """There is nothing to load."""
        if self._places is not None:
            self.lease = await self._places.ask(self.place, self._ticket)
        return True

    async def wait(self, groups: int) -> None:
        """There is nobody to wait for."""

    async def reload(self, groups: int) -> None:
        """There is nothing but what is here."""

    async def close(self) -> None:
        """Gives the lease back, where there is one."""
        if self._places is not None:
            await self._places.give_back(self.place, self._ticket)

    async def append(self, *entries: Entry) -> None:
        self.entries.extend(entries)

    async def set_plan(self, plan: Plan) -> None:
        self.plan = plan


class Session:
    """One session of one agent in the store, written by the node that holds its lease.

    `ticket` names this run's attempt in the line of the session, and `claim` what it comes for: whoever comes again
    for what an owner that died was about to do is let in before all others.
    """

    def __init__(
        self,
        store: Store,
        agent: str,
        session: str,
        *,
        places: Places,
        tails: Tails,
        ticket: str,
        claim: str = "",
    ) -> None:
        self.entries: list[Entry] = []
        self.plan: Plan = ()
        self.place = lease_key(agent, session)
        self.length = 0
        self.taken = False
        self._store = store
        self._places = places
        self._tails = tails
        self._tail: Tail | None = None
        # The last entry as it is stored, and how many entries there are for certain.
        self._last, self._stands = b"", 0
        self._groups = 0
        self._ticket = ticket
        self._claim = claim
        self.lease: Lease | None = None
        self._history_key = history_key(agent, session)
        self._plan_key = plan_key(agent, session)
        self._ttl = session_ttl(session)
        self._refused = self._given_back = False

    @property
    def lapsed(self) -> bool:
        return self.lease is not None and self.lease.lapsed

    @property
    def lost(self) -> bool:
        if self.lease is None or self._given_back:
            return self._refused
        return self._refused or not self._places.holds(self.lease)

    def load(self, groups: int) -> Awaitable[bool]:
        return self._loaded(groups, self._places.ask(self.place, self._ticket, claim=self._claim), *self._ask(groups))

    async def wait(self, groups: int) -> None:
        self.lease = await self._places.wait(self.place, self._ticket, claim=self._claim)
        await self._read(groups, *await together(*self._ask(groups)))

    def _ask(self, groups: int) -> tuple[Awaitable[Span], Awaitable[bytes | None]]:
        self._tail = self._tails.get(self._history_key)
        start = self._tail.length - 1 if self._tail else -4 * groups
        return self._store.read(self._history_key, start), self._store.get(self._plan_key)

    async def _loaded(
        self, groups: int, lease: Awaitable[Lease | None], tail: Awaitable[Span], stored_plan: Awaitable[bytes | None]
    ) -> bool:
        self.lease, span, plan = await together(lease, tail, stored_plan)
        if self.lease is None:
            return False
        await self._read(groups, span, plan)
        return True

    async def reload(self, groups: int) -> None:
        await self._read(groups, *await together(*self._ask(groups)))

    async def _read(self, groups: int, span: Span, plan: bytes | None) -> None:
        tail = self._tail
        if tail and span.start == tail.length - 1 and span.entries[:1] == (tail.last,):
            self.entries = [*tail.entries, *map(decode, span.entries[1:])]
        else:
            if tail:  # another history stands there now
                span = await self._store.read(self._history_key, -4 * groups)
            span = await self._read_back(groups, span)
        self.entries = list(last_groups(self.entries, groups))
        self.length = self._stands = span.length
        self._last = span.entries[-1] if span.entries else b""
        self._groups = groups
        self.plan = decode_plan(plan)
        self.taken = True

    async def _read_back(self, groups: int, span: Span) -> Span:
        """Takes the entries of `span`, the end of the history, or of a longer one when that has too few groups."""
        want = 4 * groups
        while True:
            self.entries = [decode(raw) for raw in span.entries]
            if span.start == 0 or sum(map(begins, self.entries)) > groups:
                return span
            want *= 2
            span = await self._store.read(self._history_key, -want)

    def close(self) -> Awaitable[None]:
        self._given_back = True
        return self._closed(self._places.give_back(self.place, self._ticket))

    async def _closed(self, given_back: Awaitable[None]) -> None:
        await given_back
        if self.taken and not self._refused and self._last and self._stands == self.length:
            kept = tuple(last_groups(self.entries, self._groups))
            self._tails.keep(self._history_key, Tail(self.length, self._last, kept))

    def append(self, *entries: Entry) -> Awaitable[None]:
        # Results of one step come side by side, and each append names the length that it expects: counted here,
        # before anything is awaited, it is right for each, since the store keeps the order of the calls.
        at, self.length = self.length, self.length + len(entries)
        raw = [encode(entry) for entry in entries]
        sent = self._store.append(self._history_key, raw, at=at, lease=self.lease, ttl=self._ttl)
        return self._appended(sent, entries, raw)

    async def _appended(self, sent: Awaitable[int], entries: Sequence[Entry], raw: Sequence[bytes]) -> None:
        await self._written(sent)
        self.entries.extend(entries)
        self._stands += len(entries)
        self._last = raw[-1] if raw else self._last

    async def set_plan(self, plan: Plan) -> None:
        sent = self._store.put(self._plan_key, encode_plan(plan), lease=self.lease, ttl=self._ttl)
        await self._written(sent)
        self.plan = plan

    async def _written(self, sent: Awaitable[object]) -> None:
        try:
            await sent
        except Conflict:
            self._refused = True
            raise SessionBusy(TAKEN_OVER) from None


async def read_history(store: Store, agent: str, session: str, *, page_size: int, page_token: str) -> History:
    """A page of the session's messages as GetHistory shows them; a page ends only where a turn ends.

    `page_size` 0 means 100; a page may be longer by the rest of its last turn. Invalid for a token that is none.
    """
    # No history is longer than 18 digits tell, and no store counts much further.
    if page_size < 0 or (page_token and not (page_token.isascii() and page_token.isdecimal() and len(page_token) < 19)):
        raise Invalid("page_size is a number from 0 on, page_token what the last page gave", field="page_token")
    begin, size = int(page_token or 0), min(page_size or PAGE, MOST_A_PAGE)
    stop = begin + size
    while True:
        span = await store.read(history_key(agent, session), begin, stop + 1)
        entries = [decode(raw) for raw in span.entries]
        end = begin + len(entries)
        # A history may have been cleared since the last page: then nothing is left to read.
        if begin >= span.length or (end == span.length and end <= stop):
            break
        starts = [at for at, entry in enumerate(entries) if at and begins(entry)]
        if starts:
            entries, end = entries[: starts[-1]], begin + starts[-1]
            break
        if end == span.length:
            break
        stop += size
    raw_plan, line = await together(store.get(plan_key(agent, session)), store.line(lease_key(agent, session)))
    page = valid(entries, open_text=RUNNING if line.holder and end == span.length else INTERRUPTED)
    plan = decode_plan(raw_plan)
    return History(tuple(entry.message for entry in page), plan, str(end) if end < span.length else "")


async def clear_history(store: Store, agent: str, session: str, *, lease: Lease | None = None) -> int:
    """Forgets the session's messages and plan; returns how many messages there were.

    `lease` is the session's, where it has one: SessionBusy, and nothing forgotten, when that was lost meanwhile.
    """
    length = (await store.read(history_key(agent, session), 0, 0)).length
    try:
        await store.delete(history_key(agent, session), plan_key(agent, session), lease=lease)
    except Conflict:
        raise SessionBusy(TAKEN_OVER) from None
    return length


def encode_plan(plan: Plan) -> bytes:
    """The plan as it is stored: the JSON of the wire's Plan."""
    return orjson.dumps({"steps": [{"task": step.task, "status": step.status} for step in plan]})


def decode_plan(raw: bytes | None) -> Plan:
    """The plan that was stored, or none."""
    fields: Mapping[str, Any] = orjson.loads(raw) if raw else {"steps": []}
    return tuple(PlanStep(step["task"], step["status"]) for step in fields["steps"])
