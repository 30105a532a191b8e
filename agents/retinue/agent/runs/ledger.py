"""The book of runs: which request stands for which run, how each run stands, and what it replied.

A request is claimed once and for all, before its turn comes: whoever comes with it later, at any node, finds the run
of the first. A run's record is changed only by the owner that wrote it last: a stale one finds it changed.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, replace

from retinue.agent.keys import RUN_TTL_S, request_key, run_key, tree_key
from retinue.agent.runs.events import TAKEN_OVER
from retinue.agent.runs.record import Record, Request, body_hash
from retinue.service.background import discard
from retinue.service.chat import Call, Reply, RunState
from retinue.service.errors import MeshError, RequestConflict, SessionBusy, StoreUnavailable, cut
from retinue.service.store import Conflict, Store


@dataclass(frozen=True, slots=True)
class Found:
    """A run that was begun before. `record` None: it was claimed, and nothing of it is stored."""

    run_id: str
    record: Record | None


class Ledger:
    """The entries of one run of `agent`, whose owner holds, or waits for, `place` as `ticket`.

    Without a request id nothing is looked up, and only the run is noted. `known` is the run that is to be gone on with.
    """

    def __init__(
        self, store: Store, agent: str, call: Call, message: str, *, place: str, ticket: str, known: str = ""
    ) -> None:
        self._store = store
        self._call = call
        self._known = known
        self._key = request_key(agent, call.session, call.request_id) if call.request_id and not known else ""
        self._body = body_hash(message, call) if self._key else ""
        envelope = call.envelope
        self._record = Record(
            agent=agent,
            session=call.session,
            root=envelope.root,
            parent=envelope.parent,
            path=envelope.path,
            budget=envelope.budget.encode() if envelope.budget else "",
            request_id=call.request_id,
            place=place,
            ticket=ticket,
        )
        # What stands in the store as far as this owner knows; another owner's writes are found by it.
        self._stands: bytes | None = None

    def claim(self, run_id: str) -> Awaitable[Found | None]:
        """Claims the request for `run_id`; the run that has it already, where there is one. To be awaited.

        Awaiting it raises RequestConflict when the id came with another body.
        """
        if self._known:
            return self._look_up(self._known)
        if not self._key:
            return _nothing()
        claim = Request(run_id, self._body).encode()
        written = self._store.put(self._key, claim, expect=None, ttl=RUN_TTL_S)
        return self._claimed(run_id, written, self._store.get(self._key))

    async def look(self) -> Found | None:
        """The run of the claimed request as it stands now, after others may have gone on with it."""
        return await self._look_up(self._known) if self._known else None

    async def _claimed(self, run_id: str, written: Awaitable[None], stored: Awaitable[bytes | None]) -> Found | None:
        try:
            await written
        except Conflict:
            raw = await stored
        except BaseException:
            discard(stored)
            raise
        else:
            await stored
            self._known = run_id
            return None
        if raw is None:
            raise StoreUnavailable(f"{self._store.url} lost the claim of a request; send it again")
        request = Request.decode(raw)
        if request.body != self._body:
            raise RequestConflict(
                f"request_id {self._call.request_id!r} was used for another message; a new message takes a new id",
                request_id=self._call.request_id,
            )
        self._known = request.run_id
        return await self._look_up(request.run_id)

    async def _look_up(self, run_id: str) -> Found:
        self._stands = await self._store.get(run_key(run_id))
        if self._stands is None:
            return Found(run_id, None)
        record = Record.decode(self._stands, run_id=run_id)
        self._record = replace(self._record, root=record.root, at=record.at)
        return Found(run_id, record)

    def open(self, run_id: str, root: str, *, at: int = -1) -> list[Awaitable[None]]:
        """Notes that the run is under way here, from length `at` of its history on, or that it waits (-1).

        To be awaited: SessionBusy when another owner has changed it since, and then nothing is written.
        """
        self._record = replace(self._record, root=root, at=at)
        notes = [self._write(run_id, self._record)]
        if root != run_id:
            notes.append(self._store.put_row(tree_key(root), run_id, self._record.agent.encode(), ttl=RUN_TTL_S))
        return notes

    def fail(self, run_id: str, error: MeshError) -> Awaitable[None]:
        """Notes that the run failed, as `close` does; a repeat of the request tries it again."""
        failed = replace(self._record, state=RunState.FAILED, reason=error.reason)
        return self._write(run_id, replace(failed, status=error.status.name, message=cut(error.message)))

    def close(self, run_id: str, state: RunState, *, reason: str = "", reply: Reply | None = None) -> Awaitable[None]:
        """Notes how the run ended; with a reply it is final, without one a repeat of the request goes on with it.

        To be awaited: SessionBusy when another owner has changed it since, and then nothing is written.
        """
        return self._write(run_id, replace(self._record, state=state, reason=reason, reply=reply))

    async def reread(self, run_id: str) -> Record | None:
        """The run's record as it stands, after a write that may not have come to its end. SessionBusy for another's."""
        raw = await self._store.get(run_key(run_id))
        record = None if raw is None else Record.decode(raw, run_id=run_id)
        if record is not None and record.ticket != self._record.ticket:
            raise SessionBusy(TAKEN_OVER)
        self._stands = raw
        return record

    def _write(self, run_id: str, record: Record) -> Awaitable[None]:
        expected, self._stands = self._stands, record.encode()
        return self._written(self._store.put(run_key(run_id), self._stands, expect=expected, ttl=RUN_TTL_S))

    async def _written(self, sent: Awaitable[None]) -> None:
        try:
            await sent
        except Conflict:
            raise SessionBusy(TAKEN_OVER) from None


async def _nothing() -> None:
    return None
