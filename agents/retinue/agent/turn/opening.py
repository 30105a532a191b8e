"""How a run begins: its turn comes, its request turns out to be new or known, and its message is stored.

A request that came before has its run already: what that replied is the answer, or the run is gone on with under its
own id. What a dead run left open in the session is closed first, once, before anything else is said.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from retinue.agent.host import Host
from retinue.agent.keys import RUN_TTL_S, run_key
from retinue.agent.runs.book import failure
from retinue.agent.runs.course import Course
from retinue.agent.runs.events import Events
from retinue.agent.runs.ledger import Found, Ledger
from retinue.agent.runs.record import Record
from retinue.agent.session.conversation import Conversation
from retinue.agent.session.followups import Steers
from retinue.agent.session.history import Entry, interrupted, open_calls, tool_entry, user_entry
from retinue.agent.tools import Tool
from retinue.agent.turn.budget import Purse
from retinue.agent.turn.ending import Ending
from retinue.agent.turn.pending import answers_to
from retinue.service.background import together
from retinue.service.chat import Call, Reply, RunState, StatusNote, ToolCall, ToolStatus
from retinue.service.errors import SessionBusy
from retinue.service.store import Conflict

log = logging.getLogger("retinue.agent")

GOES_ON = "this run was cut short and goes on"
ANSWERED = "this run has its answer and goes on"
UNANSWERED = "It was not approved before the conversation went on: it was not made."
OVERTAKEN = "the session has gone on without it"


@dataclass(frozen=True, slots=True)
class Start:
    """The run is under way. `offered`: its next model call is taken, and may offer tools or not; None: it is not taken,
    since the calls in `again` come first.
    """

    offered: bool | None
    again: Sequence[ToolCall] = ()


class Opening:
    """The beginning of one run."""

    def __init__(
        self,
        host: Host,
        talk: Conversation,
        call: Call,
        course: Course,
        *,
        ledger: Ledger,
        purse: Purse,
        events: Events,
        ending: Ending,
        tools: Callable[[], Awaitable[Mapping[str, Tool]]],
        steers: Steers | None = None,
    ) -> None:
        self._host = host
        self._talk = talk
        self._call = call
        self._course = course
        self._ledger = ledger
        self._purse = purse
        self._events = events
        self._ending = ending
        self._tools = tools
        self._steers = steers

    async def begin(self, message: str) -> Start | Reply:
        """Opens the run and stores the message, or finds the reply that the request has already."""
        found = await self._take(message)
        if isinstance(found, Reply):
            return found
        if found is not None:
            self._adopt(found)
            if found.record is not None and (reply := await self._resume(found.run_id, found.record)):
                return reply
        return await (self._go_on() if self._course.resumed else self._start(message))

    async def _take(self, message: str) -> Found | Reply | None:
        """Waits for the run's turn; what its request stands for by then."""
        groups = self._host.history_limit
        found: Found | None
        at_once, found = await together(self._talk.load(groups), self._ledger.claim(self._course.id))
        if not at_once and not (found and found.record and found.record.final):
            await self._queue(found, message)
            await self._talk.wait(groups)
            found = await self._ledger.look()
        if found and found.record and found.record.final:
            self._adopt(found)
            await together(self._events.resume(found.run_id), self._talk.close())
            return found.record.as_reply(found.run_id)
        self._course.begun = True
        self._course.start_clock(self._host.limits.time_s)
        return found

    async def _queue(self, found: Found | None, message: str) -> None:
        """Makes a run that waits for its turn known by its id, where its caller does not wait with it."""
        if not self._call.detach:
            return
        if found is not None:
            self._adopt(found)
        if found is None or found.record is None:
            self._course.begun = True
            try:
                await together(*self._ledger.open(self._course.id, self._course.root))
            except SessionBusy:
                # The same request came elsewhere at the same moment, and was noted first.
                self._course.begun = False
                if again := await self._ledger.look():
                    self._adopt(again)
        if self._steers is not None:
            await self._steers.offer(self._course.id, self._course.ticket, message, self._call)
        self._course.accepted.set()

    def _adopt(self, found: Found) -> None:
        if self._course.root == self._course.id:
            self._course.root = found.run_id
        if found.record is not None:
            self._course.root = found.record.root or found.run_id
        self._course.id = self._events.run_id = found.run_id
        self._purse.root = self._course.root

    async def _resume(self, run_id: str, record: Record) -> Reply | None:
        """The end of a run that was begun before; None when it has none and this goes on with it."""
        own = [entry.message for entry in self._talk.entries if entry.message.run_id == run_id]
        people = [entry.message.run_id for entry in self._talk.entries if entry.message.role == "user"]
        if record.state is RunState.WAITING:
            answers = await answers_to(self._host.store, run_id, record.as_reply(run_id).pending)
            if answers is None:
                await self._talk.close()
                return record.as_reply(run_id)
            self._course.answers = answers
        # Where its message stands, or was about to, tells a run that others came after from one that never began.
        waited = record.state is RunState.WAITING
        overtaken = people[-1] != run_id if own else waited or 0 <= record.at != self._talk.length
        if overtaken and record.state is RunState.FAILED:
            await self._talk.close()
            raise failure(record)
        if overtaken:
            state = RunState.INTERRUPTED if record.state in (RunState.RUNNING, RunState.WAITING) else record.state
            reply = self._ending.reply("", state, record.reason or OVERTAKEN)
        elif own and own[-1].role == "assistant" and not own[-1].tool_calls:
            self._recall(run_id)
            reply = self._ending.reply(own[-1].text, RunState.COMPLETED, "")
        else:
            self._course.resumed = bool(own)
            mine = record.ticket == self._course.ticket
            note = StatusNote(ANSWERED if waited else GOES_ON)
            await self._events.resume(run_id, note=None if mine or record.at < 0 else note)
            return None
        await self._events.resume(run_id)
        await self._ending.end(reply)
        return reply

    async def _go_on(self) -> Start:
        """Goes on with stored steps: closes what cannot be made again, and names the calls that can."""
        course, run_id = self._course, self._course.id
        course.tools = await self._tools()
        log.info("%s is gone on with: its request came again", run_id)
        left = open_calls(self._talk.entries)
        own = [call for call, run in left if run == run_id]
        again = [call for call in own if call.id in course.answers or self._may_repeat(call)]
        closed = [interrupted(call) for call in own if call not in again]
        repairs = await self._repairs([(call, run) for call, run in left if run != run_id])
        repairs += [tool_entry(call, run_id=run_id) for call in closed]
        at = self._talk.length
        await together(*self._ledger.open(run_id, course.root, at=at), self._talk.append(*repairs))
        self._recall(run_id)
        return Start(None, again) if again else Start(await self._purse.take_model_call())

    def _recall(self, run_id: str) -> None:
        """Takes from the history what the run had done: its calls with their results, and its last step."""
        course, mine = self._course, [entry for entry in self._talk.entries if entry.message.run_id == run_id]
        made = {entry.call.id: entry.call for entry in mine if entry.call}
        steps = [entry.message.tool_calls for entry in mine if entry.message.tool_calls]
        course.wanted = [call.id for step in steps for call in step]
        course.done = [made[call_id] for call_id in course.wanted if call_id in made]
        course.step = steps[-1] if steps else ()
        course.parts = [part for entry in mine if entry.message.role == "assistant" for part in entry.message.parts]

    def _may_repeat(self, call: ToolCall) -> bool:
        tool = self._course.tools.get(call.name)
        return tool is not None and tool.idempotent

    async def _start(self, message: str) -> Start | Reply:
        course = self._course
        if self._steers is not None:
            await self._steers.drop(course.id)
        repairs = await self._repairs(open_calls(self._talk.entries))
        if self._talk.lapsed:
            await self._leave_behind(next((e.message.run_id for e in reversed(self._talk.entries)), ""))
        if answered := self._steered():
            await self._ending.end(answered)
            return answered
        # Only a child can find its tree's budget spent, or its tree cancelled; then nothing is said in its session.
        child = course.root != course.id
        opened = self._ledger.open(course.id, course.root, at=self._talk.length)
        offered = None
        if child:
            *_, offered = await together(*opened, self._purse.take_model_call())
            opened = []
        said = user_entry(message, self._call, run_id=course.id)
        stored = (*opened, self._talk.append(*repairs, said))
        *_, taken = await together(*stored, *(() if child else (self._purse.take_model_call(),)))
        return Start(bool(taken if offered is None else offered))

    async def _repairs(self, left: Sequence[tuple[ToolCall, str]]) -> list[Entry]:
        """The one result for each call that an earlier run left open, and that run marked as over."""
        refused = {run for run in {run for _, run in left} if await self._leave_behind(run)}
        entries = []
        for call, run in left:
            closed = interrupted(call)
            if run in refused:
                closed = replace(closed, status=ToolStatus.REFUSED, error=UNANSWERED)
            entries.append(tool_entry(closed, run_id=run))
        return entries

    async def _leave_behind(self, run_id: str) -> bool:
        """Notes for good that a run was overtaken; whether it waited for answers."""
        key = run_key(run_id)
        raw = await self._host.store.get(key)
        record = None if raw is None else Record.decode(raw, run_id=run_id)
        if record is None or record.state not in (RunState.RUNNING, RunState.WAITING) or run_id == self._course.id:
            return False
        reply = replace(record.as_reply(run_id), pending=())
        over = replace(record, state=RunState.INTERRUPTED, reason=OVERTAKEN, reply=reply)
        try:
            await self._host.store.put(key, over.encode(), expect=raw, ttl=RUN_TTL_S)
        except Conflict:
            log.info("%s was ended by its owner meanwhile", run_id)
        return record.state is RunState.WAITING

    def _steered(self) -> Reply | None:
        """The answer of the turn that this run's message went into, if it did and was answered."""
        into = next((e.message.run_id for e in self._talk.entries if e.origin == self._course.id), "")
        last = [e.message for e in self._talk.entries if into and e.message.run_id == into][-1:]
        if not last or last[0].role != "assistant" or last[0].tool_calls:
            return None
        reply = self._ending.reply(last[0].text, RunState.COMPLETED, f"it went into {into}")
        return replace(reply, parts=last[0].parts)
