"""One turn of one session: the model's steps and their tool calls, from a message to a reply.

A run stores every step before it acts on it and always ends in a stored state, however it ends. It does not choose a
model or know how it is served; its limits are the host's and the tree's, and it never exceeds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from retinue.agent.delegate import Delegation, Errand
from retinue.agent.discovery import discovered
from retinue.agent.host import Host
from retinue.agent.keys import RUN_TTL_S, errand_key, result_key, tree_key
from retinue.agent.model import ModelEnd, Stop
from retinue.agent.plan import plan_tool
from retinue.agent.runs.course import Course
from retinue.agent.runs.events import EventLog, Events, Sink
from retinue.agent.runs.ledger import Ledger
from retinue.agent.session.conversation import Conversation, Scratch, Session
from retinue.agent.session.followups import Steers
from retinue.agent.session.history import Entry, assistant_entry, tool_entry, user_entry
from retinue.agent.tasks import Tasks
from retinue.agent.tools import Invocation, Tool, ToolResult, tool_name
from retinue.agent.tools.endpoint import EndpointTool
from retinue.agent.turn.batch import Batch, malformed, parsed, wanted
from retinue.agent.turn.budget import Purse
from retinue.agent.turn.ending import Ending
from retinue.agent.turn.execution import SPENT, Execution
from retinue.agent.turn.opening import Opening, Start
from retinue.agent.turn.pending import use_answer
from retinue.agent.turn.thinking import Thinking
from retinue.service.background import together
from retinue.service.chat import (
    Call,
    Event,
    Pending,
    PendingRaised,
    Plan,
    PlanChanged,
    Reply,
    RunState,
    StatusNote,
    ToolCall,
    ToolDone,
    ToolStarted,
)
from retinue.service.envelope import Envelope
from retinue.service.errors import BudgetSpent
from retinue.service.names import new_id
from retinue.service.text import sane

_CUT = {
    Stop.LENGTH: ("length", "The answer was cut off by the model's length limit."),
    Stop.CONTENT_FILTER: ("content_filter", "The model's content filter cut the answer off."),
}


# The reply to what a model refuses without a word.
REFUSED = "The model refused to answer."


class Run:
    """One turn of `talk`, for `message`. Without a `ledger` it is a sub-agent's, and only its `parent` knows of it.

    `steers` are the messages that may go into it while it runs; with `offered` its own message may go into another.
    """

    def __init__(
        self,
        host: Host,
        call: Call,
        message: str,
        *,
        course: Course,
        talk: Conversation,
        events: Events,
        ledger: Ledger | None = None,
        parent: Run | None = None,
        steers: Steers | None = None,
        offered: bool = False,
    ) -> None:
        self.course = course
        self.events = events
        self._host = host
        self._call = call
        self._message = message
        self._talk = talk
        self._parent = parent
        self._ledger = ledger
        self._steers = steers
        self._tasks = Tasks(host.store, host.name, call.session)
        self._budget = call.envelope.budget or host.limits.budget
        self._ancestors: int = parent._ancestors + 1 if parent else len(call.envelope.path)
        self._purse = Purse(host.store, course.root, self._budget, ancestors=self._ancestors, gate=host.gate)
        course.deadline = call.envelope.deadline
        if course.deadline is None and not call.detach:
            course.start_clock(host.limits.time_s)
        self._again: frozenset[str] = frozenset()
        self._told: set[str] = set()
        self._thinking = Thinking(host, talk, course, purse=self._purse, events=events, helper=parent is not None)
        self._ending = Ending(host, talk, call, course, ledger=ledger, events=events)
        self.execution = Execution(host, talk, course, self._turn, ending=self._ending, detached=call.detach)
        self._opening = ledger and Opening(
            host,
            talk,
            call,
            course,
            ledger=ledger,
            purse=self._purse,
            events=events,
            ending=self._ending,
            tools=self._tools,
            steers=steers if offered else None,
        )

    @classmethod
    def of_session(
        cls, host: Host, call: Call, message: str, *, sink: Sink | None = None, known: str = "", steer: bool = False
    ) -> Run:
        """A turn of the call's session. `known` is the run to be gone on with, if it is not the request that tells.

        `sink` gets every event but the last, which whoever runs the run makes of the outcome. With `steer` the
        message goes into the turn that runs in the session, where there is one.
        """
        run_id, ticket = new_id("run-"), new_id()
        course = Course(id=run_id, root=call.envelope.root or run_id, ticket=ticket)
        claim = call.request_id or known
        talk = Session(
            host.store,
            host.name,
            call.session,
            places=host.places,
            tails=host.tails,
            ticket=ticket,
            claim=claim,
        )
        kept = EventLog(host.store, host.name, call.session, lambda: talk.lease)
        events = Events(run_id, kept=kept, tasks=host.tasks, hook=host.hooks.on_event, live=sink)
        ledger = Ledger(host.store, host.name, call, message, place=talk.place, ticket=ticket, known=known)
        steers = Steers(host.store, host.name, call.session)
        return cls(
            host, call, message, course=course, talk=talk, events=events, ledger=ledger, steers=steers, offered=steer
        )

    async def _turn(self) -> Reply:
        course = self.course
        start = await (self._opening.begin(self._message) if self._opening else self._begin_alone())
        course.accepted.set()
        if isinstance(start, Reply):
            return start
        offered = start.offered
        if start.again:
            self._again = frozenset(call.id for call in start.again if call.id not in course.answers)
            if waiting := await self._act(start.again):
                return waiting
            offered = await self._next()
        while True:
            course.tools = await self._tools() if offered else {}
            end = await self._thinking.think(course.tools)
            course.parts += end.parts
            calls = end.calls if end.stop is Stop.TOOL_CALLS and offered else ()
            step = [wanted(call) for call in calls]
            entry = assistant_entry(end, step, run_id=course.id, model=self._host.model.name, cuts=self._thinking.cuts)
            if not step and (end.stop is not Stop.PAUSE or not offered):
                return await self._conclude(end, bool(offered), entry)
            # What is no call at all has its result at once, in one piece with the step: nothing ever makes it.
            spoilt = [malformed(one, call) for one, call in zip(step, calls, strict=True) if call.arguments is None]
            entries = [entry, *(tool_entry(one, run_id=course.id) for one in spoilt)]
            await together(self.events.flush(), self._talk.append(*entries))
            course.step = step
            course.wanted += [call.id for call in step]
            for one in spoilt:
                self._done(one)
            over = {one.id for one in spoilt}
            if waiting := await self._act([call for call in step if call.id not in over]):
                return waiting
            try:
                offered = await self._next()
            except BudgetSpent as spent:
                return await self._run_out(spent.facts["limit"])

    async def _run_out(self, limit: str) -> Reply:
        """The reply of a run whose tree has nothing left for another model call."""
        reply = self._ending.reply(SPENT[limit], RunState.INCOMPLETE, limit)
        await self._ending.end(reply)
        return reply

    async def _begin_alone(self) -> Start:
        """Begins a sub-agent's run, which only its parent and the list of its tree know of."""
        await self._talk.append(user_entry(self._message, self._call, run_id=self.course.id))
        listed = self._host.store.put_row(
            tree_key(self.course.root), self.course.id, self._host.name.encode(), ttl=RUN_TTL_S
        )
        _, offered = await together(listed, self._purse.take_model_call())
        return Start(offered)

    async def _next(self) -> bool:
        """Takes the next model call, and takes in what was said meanwhile; whether tools may be offered with it."""
        if self._steers is None:
            return await self._purse.take_model_call()
        _, offered, said = await together(
            self.events.flush(), self._purse.take_model_call(), self._steers.take(self.course.id)
        )
        here = {entry.origin for entry in self._talk.entries if entry.origin}
        if fresh := [entry for entry in said if entry.origin not in here]:
            await self._talk.append(*fresh)
        for entry in said:
            await self._steers.drop(entry.origin)
        return bool(offered)

    async def _tools(self) -> Mapping[str, Tool]:
        """The tools of the next step by name, in a stable order: a changed prefix would cost the server's cache."""
        host = self._host
        self._tell_troubles()
        tools = list(await host.tools())
        self._tell_troubles()
        if host.discover:
            tools = discovered(tools, self._talk.entries)
        if not self._parent:
            tools += [
                plan_tool(self._save_plan),
                Delegation(host.peers, host.services, self._errand, self._tasks).tool(),
            ]
            tools += [*host.peers.invoke_tools, *self._tasks.tools()]
        return {tool.spec.name: tool for tool in sorted(tools, key=lambda tool: tool.spec.name)}

    def _tell_troubles(self) -> None:
        """Tells the person which tool servers are not there, each state of each once; a sub-agent's parent does it."""
        for line in () if self._parent else self._host.troubles():
            if line not in self._told:
                self._told.add(line)
                self.events.emit(StatusNote(f"MCP server {line}"))

    async def _act(self, calls: Sequence[ToolCall]) -> Reply | None:
        """Makes these calls of the present step; the reply, if they end the run or it has to wait for an answer."""
        course = self.course
        batch = Batch(
            course.tools,
            step=course.step,
            limits=self._host.limits,
            hooks=self._host.hooks,
            invocation=self._invocation,
            started=self._started,
            keep=self._keep,
            answers=course.answers,
            use=self._use,
            guards=self._host.guards,
            sequential=self._host.sequential,
            waits=self._parent is None,
        )
        pending = await batch.run(calls)
        order = {call_id: place for place, call_id in enumerate(course.wanted)}
        course.done.sort(key=lambda call: order[call.id])
        if course.final and not pending and all(call.id in course.final for call in course.step):
            end = ModelEnd(stop=Stop.STOP, text="\n\n".join(course.final[call.id] for call in course.step))
            entry = assistant_entry(end, (), run_id=course.id, model=self._host.model.name)
            return await self._conclude(end, True, entry)
        if not pending:
            return None
        for each in pending:
            self.events.emit(PendingRaised(each))
        text = "I wait for an answer before I go on: " + ", ".join(f"{each.kind} of {each.name}" for each in pending)
        reply = self._ending.reply(text, RunState.WAITING, pending[0].kind, pending=pending)
        await self._ending.end(reply)
        return reply

    async def _use(self, pending: Pending) -> bool:
        return await use_answer(self._host.store, self.course.id, pending.id)

    def _started(self, call: ToolCall) -> None:
        self.course.started.add(call.id)
        self.events.emit(ToolStarted(call.id, call.name))

    async def _keep(self, call: ToolCall, result: ToolResult, whole: str | None) -> None:
        self.course.usage += result.usage
        if whole is not None and self._ledger is not None:
            await self._host.store.put(result_key(self.course.id, call.id), whole.encode(), ttl=RUN_TTL_S)
        await self._talk.append(tool_entry(call, run_id=self.course.id, parts=result.parts))
        if result.final:
            self.course.final[call.id] = result.text
        self._done(call)

    def _done(self, call: ToolCall) -> None:
        self.course.done.append(call)
        self.events.emit(ToolDone(call))

    def _invocation(self, call: ToolCall) -> Invocation:
        host, arguments = self._host, parsed(call)
        twins = [each.id for each in self.course.step if _target(each) == _target(call)]
        return Invocation(
            id=call.id,
            name=call.name,
            arguments=arguments,
            agent=host.name,
            session=self._call.session,
            run_id=self.course.id,
            envelope=self._envelope(),
            ordinal=twins.index(call.id) + 1,
            again=call.id in self._again,
        )

    def _envelope(self) -> Envelope:
        """The envelope of what this run calls. A sub-agent's is its parent's, with its own run id."""
        if self._parent:
            return replace(self._parent._envelope(), parent=self.course.id, deadline=self.course.deadline)
        call = self._call.envelope
        child = call.child(agent=self._host.name, run_id=self.course.id, to="", budget=self._budget)
        return replace(child, root=self.course.root, deadline=self.course.deadline)

    async def _save_plan(self, plan: Plan) -> None:
        await self._talk.set_plan(plan)
        self.events.emit(PlanChanged(plan))

    async def _errand(self, errand: Errand, invocation: Invocation) -> Reply:
        """Runs an ephemeral sub-agent: this agent's tools or fewer, this tree's budget, and no memory."""
        prompt = f"You do one task for {self._host.name}, and you know nothing but the task."
        if errand.role:
            prompt += f" Your role: {errand.role}."

        async def tools() -> Sequence[Tool]:
            own = await self._host.tools()
            if not errand.service:
                return own
            return [tool for tool in own if isinstance(tool, EndpointTool) and tool.service == errand.service]

        host = replace(self._host, prompt=prompt, tools=tools)
        if not errand.wait:
            return await self._send(host, errand.message)
        run_id = new_id("run-")

        def sink(event: Event) -> None:
            self.events.emit(event.body, run_id=run_id, parent_tool_id=event.parent_tool_id or invocation.id)

        run = Run(
            host,
            Call(envelope=self._envelope()),
            errand.message,
            course=Course(id=run_id, root=self.course.root, ticket=""),
            talk=Scratch(),
            events=Events(run_id, kept=None, tasks=host.tasks, live=sink),
            parent=self,
        )
        try:
            return await run._turn()
        finally:
            self.course.usage += run.course.usage
            await host.store.drop_row(tree_key(self.course.root), run_id)

    async def _send(self, host: Host, message: str) -> Reply:
        """Starts a sub-agent that nobody waits for, as a run with a record of its own; how it stands."""
        run_id, ticket = new_id("run-"), new_id()
        call = Call(envelope=replace(self._envelope(), deadline=None), detach=True)
        talk = Scratch(host.places, place=errand_key(host.name, run_id), ticket=ticket)
        run = Run(
            host,
            call,
            message,
            course=Course(id=run_id, root=self.course.root, ticket=ticket),
            talk=talk,
            events=Events(run_id, kept=EventLog(host.store, host.name, "", lambda: talk.lease), tasks=host.tasks),
            ledger=Ledger(host.store, host.name, call, message, place=talk.place, ticket=ticket),
            parent=self,
        )
        return await run.execution.detach()

    async def _conclude(self, end: ModelEnd, offered: bool, entry: Entry) -> Reply:
        """The reply of the last step, once that and the end of the run are stored."""
        state, reason, text = RunState.COMPLETED, "", sane(end.text)
        if end.stop is Stop.REFUSAL:
            reason, text = "refusal", text or REFUSED
        elif end.stop in _CUT:
            reason, fallback = _CUT[end.stop]
            state, text = RunState.INCOMPLETE, text or fallback
        elif not offered:
            state, reason = RunState.INCOMPLETE, "model_calls"
            text = text or SPENT[reason]
        reply = self._ending.reply(text, state, reason)
        await self._ending.end(reply, self._talk.append(entry))
        return reply


def _target(call: ToolCall) -> str:
    """What tells calls of one step to the same peer: delegate to X and invoke_X go to the same."""
    return tool_name("invoke", str(parsed(call).get("to", ""))) if call.name == "delegate" else call.name
