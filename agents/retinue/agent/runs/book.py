"""Runs seen from outside, by whoever has the store: how they stand, what happened in them, and how to end them.

It reads what the runs' owners wrote, and tells when an owner died. It runs nothing; the one thing it writes to a run
is that it was cancelled, when nobody is left who could.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace

from retinue.agent.keys import RUN_TTL_S, cancelled_key, cancels_key, events_key, result_key, run_key, tree_key
from retinue.agent.runs.cancels import CANCELLED
from retinue.agent.runs.events import stored_event
from retinue.agent.runs.record import Record
from retinue.service.chat import Completed, Event, Failed, Reply, RunState, ToolCall, ToolStatus
from retinue.service.errors import MeshError, UnknownName, build, status_named
from retinue.service.store import Conflict, Store

log = logging.getLogger("retinue.agent")

# How soon a change is seen, seconds: at first, and after a while without any.
_LOOK_S = (0.02, 0.25)
_PAGE = 256
# How many bytes of whole results go with a reply, which must fit in one message; others stay as the model saw them.
MOST_BYTES = 32 * 1024 * 1024
DIED = "its owner died"


class RunBook:
    """The runs that a store knows."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def record(self, run_id: str) -> Record:
        """The run as it stands: INTERRUPTED when its owner is gone. Raises UnknownName for a run that is not known."""
        raw = await self._store.get(run_key(run_id))
        while raw is not None:
            record = Record.decode(raw, run_id=run_id)
            if record.state is not RunState.RUNNING or await self._has_owner(record):
                return record
            # Its owner may have ended it, or another may have gone on with it, between the two looks.
            again = await self._store.get(run_key(run_id))
            if again == raw:
                return replace(record, state=RunState.INTERRUPTED, reason=DIED)
            raw = again
        raise UnknownName(f"there is no run {run_id}: it never was, or was longer than 7 days ago")

    async def reply(self, run_id: str) -> Reply:
        """How the run stands, with its reply once it has one; its tools' results are whole, as far as they fit."""
        record = await self.record(run_id)
        reply = record.as_reply(run_id)
        calls, left = [], MOST_BYTES
        for call in reply.tool_calls:
            whole = await self._store.get(result_key(run_id, call.id))
            if whole is not None and len(whole) <= left:
                left -= len(whole)
                calls.append(_whole(call, whole))
            else:
                calls.append(call)
        return replace(reply, tool_calls=tuple(calls))

    async def watch(self, run_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
        """The events behind number `after` as they come, and in the end one Completed or Failed, whatever happens."""
        pause = _LOOK_S[0]
        while True:
            # In this order: an end that is seen comes behind all events.
            record = await self.record(run_id)
            span = await self._store.read(events_key(record.agent, record.session, run_id), after, after + _PAGE)
            for raw in span.entries:
                event = stored_event(raw)
                after, pause = event.seq, _LOOK_S[0]
                yield event
            if span.start + len(span.entries) < span.length:
                continue
            if record.state is not RunState.RUNNING:
                yield Event(span.length + 1, run_id, _end(record, run_id))
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LOOK_S[1])

    async def ended(self, run_id: str) -> Record:
        """The run, once it does not run any more."""
        pause = _LOOK_S[0]
        while (record := await self.record(run_id)).state is RunState.RUNNING:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LOOK_S[1])
        return record

    async def cancel(self, run_id: str, *, tree: bool = False) -> int:
        """Ends the run, or with `tree` all of its tree; returns how many ran, once none of them does any more."""
        record = await self.record(run_id)
        members = {run_id: record.agent}
        if tree:
            # Flag first, members second: a run that begins now writes itself down first and looks for the flag then.
            root = record.root
            await self._store.put(cancelled_key(root), b"1", ttl=RUN_TTL_S)
            rows = await self._store.rows(tree_key(root))
            members = {root: (await self.record(root)).agent} | {run: agent.decode() for run, agent in rows.items()}
        standing = await self._standing(members)
        try:
            for run in standing:
                await self._store.put_row(cancels_key(members[run]), run, b"1", ttl=RUN_TTL_S)
            # Also those that do not run, and that a repeat of their request would go on with.
            for run in members:
                await self._end(run)
        finally:
            for run in standing:
                await self._store.drop_row(cancels_key(members[run]), run)
        return len(standing)

    async def _standing(self, runs: Iterable[str]) -> list[str]:
        """Those of `runs` that run or wait for an answer; a sub-agent, which has no record, runs while it is listed."""
        found = []
        for run in runs:
            try:
                record = await self.record(run)
            except UnknownName:
                found.append(run)
                continue
            if record.state in (RunState.RUNNING, RunState.WAITING):
                found.append(run)
        return found

    async def _end(self, run_id: str) -> None:
        """Waits for the run's owner to end it, and notes for good that it was cancelled."""
        while True:
            try:
                await self.ended(run_id)
            except UnknownName:
                return  # a sub-agent's, which ends with its parent
            raw = await self._store.get(run_key(run_id))
            record = None if raw is None else Record.decode(raw, run_id=run_id)
            if record is None or record.final:
                return
            reply = record.reply or record.as_reply(run_id)
            ended = replace(record, state=RunState.CANCELLED, reason=CANCELLED, reply=replace(reply, pending=()))
            try:
                await self._store.put(run_key(run_id), ended.encode(), expect=raw, ttl=RUN_TTL_S)
            except Conflict:
                log.info("%s has moved on while it was cancelled: looking again", run_id)
            else:
                return

    async def _has_owner(self, record: Record) -> bool:
        line = await self._store.line(record.place)
        return record.ticket == line.holder or record.ticket in line.waiting


def _whole(call: ToolCall, whole: bytes) -> ToolCall:
    text = whole.decode()
    return replace(call, result=text) if call.status is ToolStatus.OK else replace(call, error=text)


def _end(record: Record, run_id: str) -> Completed | Failed:
    if record.state is RunState.FAILED:
        return Failed(failure(record))
    return Completed(record.as_reply(run_id))


def failure(record: Record) -> MeshError:
    """The error that the run failed with."""
    return build(status_named(record.status), record.reason, record.message)
