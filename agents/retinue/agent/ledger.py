"""The book of runs: which request stands for which run, how each run stands, and what it replied.

It is written by the node that holds the session, so that two nodes never run one request: the second one to come
waits for the session, and finds here what the first has done.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from retinue.agent.keys import RUN_TTL_S, request_key, run_key
from retinue.agent.record import Record, Request, body_hash
from retinue.service.chat import Call, Reply, RunState
from retinue.service.errors import RequestConflict
from retinue.service.store import Store


class Ledger:
    """The entries of one request to `agent`. Without a request id nothing is looked up, and only the run is noted."""

    def __init__(self, store: Store, agent: str, call: Call, message: str) -> None:
        self._store = store
        self._agent = agent
        self._call = call
        self._body = body_hash(message, call) if call.request_id else ""

    def find(self) -> Awaitable[tuple[str, Record] | None]:
        """The run that this request stands for already, and its record; to be awaited.

        Awaiting it raises RequestConflict when the id came with another body.
        """
        return self._found(self._store.get(self._key) if self._call.request_id else _nothing())

    async def _found(self, stored: Awaitable[bytes | None]) -> tuple[str, Record] | None:
        raw = await stored
        if raw is None:
            return None
        request = Request.decode(raw)
        if request.body != self._body:
            raise RequestConflict(
                f"request_id {self._call.request_id!r} was used for another message; a new message takes a new id",
                request_id=self._call.request_id,
            )
        record = await self._store.get(run_key(request.run_id))
        return None if record is None else (request.run_id, Record.decode(record, run_id=request.run_id))

    def open(self, run_id: str, root: str) -> list[Awaitable[None]]:
        """Notes that the run is under way, and then that the request stands for it; to be awaited in this order."""
        record = Record(agent=self._agent, session=self._call.session, root=root, parent=self._call.envelope.parent)
        notes = [self._store.put(run_key(run_id), record.encode(), ttl=RUN_TTL_S)]
        if self._call.request_id:
            notes.append(self._store.put(self._key, Request(run_id, self._body).encode(), ttl=RUN_TTL_S))
        return notes

    def close(
        self, run_id: str, root: str, state: RunState, *, reason: str = "", reply: Reply | None = None
    ) -> Awaitable[None]:
        """Notes how the run ended; with a reply it is final, without one a repeat of the request goes on with it."""
        record = Record(agent=self._agent, session=self._call.session, root=root, parent=self._call.envelope.parent)
        ended = replace(record, state=state, reason=reason, reply=reply)
        return self._store.put(run_key(run_id), ended.encode(), ttl=RUN_TTL_S)

    @property
    def _key(self) -> str:
        return request_key(self._agent, self._call.session, self._call.request_id)


async def _nothing() -> None:
    return None
