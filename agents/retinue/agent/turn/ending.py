"""How a run ends: its reply is stored together with its state, and its session is given back.

However a run ends, its end is stored: also when it is cancelled, and then under a shield. What cannot be stored is
said aloud and never taken for done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence

from retinue.agent.host import Host
from retinue.agent.runs.course import Course
from retinue.agent.runs.events import Events
from retinue.agent.runs.ledger import Ledger
from retinue.agent.session.conversation import Conversation
from retinue.agent.session.history import interrupted, open_calls, tool_entry
from retinue.service.background import together
from retinue.service.chat import Call, Completed, Failed, Pending, Reply, RunState, ToolCall
from retinue.service.errors import InternalError, MeshError

log = logging.getLogger("retinue.agent")

STOPPED = "This call was cancelled: its outcome is unknown."
STILL_RUNNING = (
    "This call was cancelled, but it runs in a thread, which cannot be stopped: it may still be running, and its "
    "outcome is unknown."
)


class Ending:
    """The end of one run. Without a `ledger` (a sub-agent's, which its parent waits for) nothing is stored of it."""

    def __init__(
        self,
        host: Host,
        talk: Conversation,
        call: Call,
        course: Course,
        *,
        ledger: Ledger | None,
        events: Events,
    ) -> None:
        self._host = host
        self._talk = talk
        self._call = call
        self._course = course
        self._ledger = ledger
        self._events = events
        self._storing: asyncio.Task[Exception | None] | None = None

    def reply(self, text: str, state: RunState, reason: str, *, pending: tuple[Pending, ...] = ()) -> Reply:
        """The reply of the run as far as it has come."""
        course = self._course
        return Reply(
            text=text,
            agent=self._host.name,
            tool_calls=tuple(course.done),
            session=self._call.session,
            run_id=course.id,
            state=state,
            usage=course.usage,
            plan=self._talk.plan,
            pending=pending,
            reason=reason,
            parts=tuple(course.parts),
        )

    async def end(self, reply: Reply, *before: Awaitable[object]) -> None:
        """Stores the reply as the end of the run, behind its events and what is in `before`; gives the session back."""
        work = (self._events.flush(), *before, *self._noted(reply.state, reply.reason, reply), self._talk.close())
        # Whoever leaves now leaves a run that is about to be stored: it is, and only then it is looked at again.
        self._storing = self._host.tasks.finish(_all(work))
        if error := await asyncio.shield(self._storing):
            raise error

    async def abandon(
        self, state: RunState, reason: str, *, text: str = "", error: MeshError | None = None
    ) -> Reply | MeshError | None:
        """Stores the end of a run that did not come to its own; what spoke against that is logged and returned.

        With `text` as its reply it is over for good; without, it is gone on with when its request comes again. A run
        that was cut short while its reply was being stored may have that: it is returned then, and stays.
        """
        work = self._store_end(state, reason, text, error) if self._course.begun else self._leave()
        return await asyncio.shield(self._host.tasks.finish(work))

    def tell(self, body: Completed | Failed) -> None:
        """Tells the hook how the run ended."""
        self._events.tell(body)

    async def drop(self) -> None:
        """Forgets a run that another owner has taken over: nothing of it can be stored here any more."""
        self._host.dropped.count += 1
        log.warning("%s was taken over by another owner; what came of it here is dropped", self._course.id)
        await asyncio.shield(self._host.tasks.finish(self._leave()))

    async def _leave(self) -> MeshError | None:
        try:
            await self._talk.close()
        except MeshError as error:
            log.warning("the place of %s in its session's line is left to run out: %s", self._course.id, error)
            return error
        return None

    async def _store_end(
        self, state: RunState, reason: str, text: str, error: MeshError | None
    ) -> Reply | MeshError | None:
        course = self._course
        try:
            if stored := await self._recover():
                await self._talk.close()
                return stored
            left = [call for call, run in open_calls(self._talk.entries) if run == course.id]
            closing = [interrupted(call, text=self._cut_off(call)) for call in left]
            before = []
            if closing:
                before.append(self._talk.append(*(tool_entry(call, run_id=course.id) for call in closing)))
                course.done += closing
            reply = self.reply(text, state, reason) if text else None
            noted = self._noted(state, reason, reply, error)
            await together(self._events.flush(), *before, *noted, self._talk.close())
        except MeshError as fault:
            log.error("the end of %s (%s) could not be stored: %s", course.id, state.name, fault)
            await self._leave()
            return fault
        except Exception:
            # Such as of a hook that is shown the last events: the task that does this is not its owner's to end.
            log.exception("the end of %s (%s) met a fault", course.id, state.name)
            await self._leave()
            return InternalError(f"{self._host.name} failed by a fault of its own; its log has the details")
        return None

    async def _recover(self) -> Reply | None:
        """Reads again what the run was writing when it was cut short; the reply, if that stands there."""
        if self._storing is not None:
            await asyncio.wait([self._storing])
        if self._talk.taken:
            await self._talk.reload(self._host.history_limit)
        await self._events.recover()
        record = await self._ledger.reread(self._course.id) if self._ledger else None
        return record.as_reply(self._course.id) if record is not None and record.reply is not None else None

    def _cut_off(self, call: ToolCall) -> str:
        tool = self._course.tools.get(call.name)
        if tool is None or not tool.threaded or call.id not in self._course.started:
            return STOPPED
        self._host.dropped.count += 1
        log.warning("%s of %s may still run in its thread; what it returns is dropped", call.name, self._course.id)
        return STILL_RUNNING

    def _noted(
        self, state: RunState, reason: str, reply: Reply | None, error: MeshError | None = None
    ) -> list[Awaitable[None]]:
        if self._ledger is None:
            return []
        if error is not None:
            return [self._ledger.fail(self._course.id, error)]
        return [self._ledger.close(self._course.id, state, reason=reason, reply=reply)]


async def _all(work: Sequence[Awaitable[object]]) -> Exception | None:
    """Does all of it; what went wrong is returned, since the task that does it is not its owner's to end."""
    try:
        await together(*work)
    except Exception as error:
        return error
    return None
