"""How one run is carried out: beside its caller or for it, in its time, and to a stored end whatever cuts it short.

It knows nothing of steps: what the turn does is the run's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from retinue.agent.host import Host
from retinue.agent.runs.cancels import CANCELLED as CANCELLED_REASON
from retinue.agent.runs.course import Course
from retinue.agent.runs.events import TAKEN_OVER
from retinue.agent.session.conversation import Conversation
from retinue.agent.turn.ending import Ending
from retinue.service.chat import Completed, Failed, Reply, RunState
from retinue.service.envelope import HOP_MARGIN_S
from retinue.service.errors import Cancelled, DeadlinePassed, InternalError, MeshError, SessionBusy
from retinue.service.usage import Usage

log = logging.getLogger("retinue.agent")

SPENT = {
    "model_calls": "I used up the model calls for this task before I could finish.",
    "tokens": "I used up the tokens for this task before I could finish.",
    "deadline": "The time for this task ran out before I could finish.",
}
CANCELLED = "This was cancelled before I could finish."


class Execution:
    """Carries out `turn`, which ends with the reply of the run. `detached`: it has no caller that waits."""

    def __init__(
        self,
        host: Host,
        talk: Conversation,
        course: Course,
        turn: Callable[[], Awaitable[Reply]],
        *,
        ending: Ending,
        detached: bool,
    ) -> None:
        self._host = host
        self._talk = talk
        self._course = course
        self._turn = turn
        self._ending = ending
        self._detached = detached

    async def execute(self) -> Reply:
        """Runs the turn to its end, once it is its turn. Raises MeshError when it failed; the stored state says so."""
        try:
            reply = await self._carry_out()
        except MeshError as error:
            if self._course.begun:
                self._ending.tell(Failed(error))
            raise
        self._ending.tell(Completed(reply))
        return reply

    async def _carry_out(self) -> Reply:
        course, task = self._course, asyncio.current_task()
        assert task is not None, "a run is executed in a task"
        limit = asyncio.timeout_at(None if course.deadline is None else course.deadline - HOP_MARGIN_S / 2)
        course.timer = limit
        try:
            with self._host.cancels.listening(course, task):
                async with limit:
                    return await self._turn()
        except asyncio.CancelledError:
            return await self._cancelled(task)
        except TimeoutError:
            if limit.expired():
                return await self._out_of_time()
            await self._fail()
            raise
        except MeshError as error:
            return await self._refused(error)
        except Exception:
            await self._fail()
            raise

    async def _cancelled(self, task: asyncio.Task[object]) -> Reply:
        """The reply of a run that somebody ended; raises what else its cancellation means."""
        if self._talk.lost:
            task.uncancel()
            await self._ending.drop()
            raise SessionBusy(TAKEN_OVER)
        if self._course.stopped:
            task.uncancel()
            return await self._stop(RunState.CANCELLED, self._course.stopped, CANCELLED)
        if self._detached:
            await self._ending.abandon(RunState.INTERRUPTED, "its node stopped")
        else:
            await self._ending.abandon(RunState.CANCELLED, "its caller left")
        raise asyncio.CancelledError

    async def _out_of_time(self) -> Reply:
        if self._course.begun:
            return await self._stop(RunState.INCOMPLETE, "deadline", SPENT["deadline"])
        await self._ending.abandon(RunState.INCOMPLETE, "deadline")
        raise DeadlinePassed("the deadline passed while earlier turns of this session ran")

    async def _refused(self, error: MeshError) -> Reply:
        course = self._course
        # A model call that failed may have cost something too.
        error.usage = course.usage = course.usage + (error.usage or Usage())
        if isinstance(error, Cancelled) and course.begun:
            return await self._stop(RunState.CANCELLED, CANCELLED_REASON, CANCELLED)
        if isinstance(error, SessionBusy) and course.begun:
            await self._ending.drop()
        else:
            await self._ending.abandon(RunState.FAILED, error.reason, error=error)
        raise error

    async def _fail(self) -> None:
        fault = InternalError(f"{self._host.name} failed by a fault of its own; its log has the details")
        await self._ending.abandon(RunState.FAILED, fault.reason, error=fault)

    async def _stop(self, state: RunState, reason: str, text: str) -> Reply:
        """Ends the run for good in the middle; its reply, or the one that was stored just before."""
        outcome = await self._ending.abandon(state, reason, text=text)
        if isinstance(outcome, MeshError):
            raise outcome
        return outcome or self._ending.reply(text, state, reason)

    async def detach(self) -> Reply:
        """Runs the turn beside its caller; how it stands once it is known by its id. Raises what refused it."""
        driver = self._host.detached.start(self.outcome())
        accepted = self._host.detached.start(self._course.accepted.wait())
        try:
            await asyncio.wait({driver, accepted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            accepted.cancel()
        if not driver.done():
            return self._ending.reply("", RunState.RUNNING, "")
        outcome = driver.result()
        if isinstance(outcome, MeshError):
            raise outcome
        return outcome

    async def outcome(self) -> Reply | MeshError:
        """Runs the turn; its reply, or the error that it ended with."""
        try:
            return await self.execute()
        except MeshError as error:
            return error
        except Exception:
            log.exception("%s: a run failed by a fault of ours", self._host.name)
            return InternalError(f"{self._host.name} failed by a fault of its own; its log has the details")
