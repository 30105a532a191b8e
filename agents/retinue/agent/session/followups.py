"""Messages for a turn that is running: each goes in after the present step, or becomes a turn of its own.

Such a message has a run of its own that waits in the session's line. The running turn takes it in by storing it in
its own history; when the line comes to that run, it finds there whether it was answered.
"""

from __future__ import annotations

from dataclasses import replace

import orjson

from retinue.agent.keys import RUN_TTL_S, lease_key, steers_key
from retinue.agent.session.history import Entry, decode, encode, user_entry
from retinue.service.chat import Call
from retinue.service.store import Store


class Steers:
    """The messages that wait to go into the running turn of one session."""

    def __init__(self, store: Store, agent: str, session: str) -> None:
        self._store = store
        self._place = lease_key(agent, session)
        self._key = steers_key(agent, session)

    async def offer(self, run_id: str, ticket: str, message: str, call: Call) -> None:
        """Offers the message of run `run_id`, which waits in line as `ticket`, to the running turn."""
        entry = encode(user_entry(message, call, run_id=run_id, origin=run_id))
        row = orjson.dumps({"ticket": ticket, "entry": entry.decode()})
        await self._store.put_row(self._key, run_id, row, ttl=RUN_TTL_S)

    async def take(self, into: str) -> list[Entry]:
        """The messages offered to run `into`, in the order of the line; those whose run is gone are dropped."""
        rows = await self._store.rows(self._key)
        if not rows:
            return []
        waiting = {ticket: place for place, ticket in enumerate((await self._store.line(self._place)).waiting)}
        offers = {run: orjson.loads(row) for run, row in rows.items()}
        alive = [run for run, offer in offers.items() if offer["ticket"] in waiting]
        for run in offers.keys() - set(alive):
            await self.drop(run)
        alive.sort(key=lambda run: waiting[offers[run]["ticket"]])
        entries = [decode(offers[run]["entry"]) for run in alive]
        return [replace(entry, message=replace(entry.message, run_id=into)) for entry in entries]

    async def drop(self, run_id: str) -> None:
        """Takes an offer back: it was taken in, or its run is over."""
        await self._store.drop_row(self._key, run_id)
