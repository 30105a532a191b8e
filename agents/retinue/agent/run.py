"""One turn of one session: the model's steps and their tool calls, from a message to a reply.

A run stores every step before it acts on it and always ends in a stored state, however it ends. It does not queue,
choose a model or know how it is served; its limits are the host's and the tree's, and it never exceeds them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace

from retinue.agent.batch import Batch, Wanted, parsed, wanted
from retinue.agent.budget import Purse
from retinue.agent.delegate import Errand, delegate_tool
from retinue.agent.events import Events, Sink
from retinue.agent.history import (
    Entry,
    assistant_entry,
    interrupted,
    last_groups,
    open_calls,
    to_model,
    tool_entry,
    user_entry,
    valid,
)
from retinue.agent.host import Host
from retinue.agent.keys import RUN_TTL_S, result_key
from retinue.agent.ledger import Ledger
from retinue.agent.model import (
    ModelEnd,
    ModelRequest,
    ModelText,
    ModelThinking,
    ModelToolInput,
    Stop,
)
from retinue.agent.plan import plan_tool
from retinue.agent.prompt import system_prompt
from retinue.agent.record import Record
from retinue.agent.session import TAKEN_OVER, Conversation, Scratch
from retinue.agent.tools import Invocation, Tool, ToolResult, tool_name
from retinue.agent.tools.endpoint import EndpointTool
from retinue.service.background import together
from retinue.service.chat import (
    Call,
    Event,
    Plan,
    PlanChanged,
    Reply,
    RunState,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolDone,
    ToolInput,
    ToolStarted,
)
from retinue.service.envelope import HOP_MARGIN_S, Envelope
from retinue.service.errors import (
    DeadlinePassed,
    InternalError,
    MeshError,
    ModelUnavailable,
    RequestConflict,
    SessionBusy,
)
from retinue.service.names import new_id
from retinue.service.text import Joiner, sane
from retinue.service.usage import Usage

log = logging.getLogger("retinue.agent")

CANCELLED = "This call was cancelled: its outcome is unknown."
_CUT = {
    Stop.LENGTH: ("length", "The answer was cut off by the model's length limit."),
    Stop.CONTENT_FILTER: ("content_filter", "The model's content filter cut the answer off."),
}
_SPENT = {
    "model_calls": "I used up the model calls for this task before I could finish.",
    "tokens": "I used up the tokens for this task before I could finish.",
    "deadline": "The time for this task ran out before I could finish.",
}


class Run:
    """One turn. `sink` gets every event but the last, which whoever runs the run makes of the outcome."""

    def __init__(
        self,
        host: Host,
        conversation: Conversation,
        call: Call,
        *,
        parent: Run | None = None,
        sink: Sink | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.id = new_id("run-")
        self.events = Events(self.id, host.hooks.on_event, sink)
        self.begun = False
        self._host = host
        self._talk = conversation
        self._call = call
        self._parent = parent
        self._ledger = ledger
        self._budget = call.envelope.budget or host.limits.budget
        self._root = call.envelope.root or self.id
        self._ancestors: int = parent._ancestors + 1 if parent else len(call.envelope.path)
        self._purse = Purse(host.store, self._root, self._budget, ancestors=self._ancestors)
        self._deadline = call.envelope.deadline or asyncio.get_running_loop().time() + host.limits.time_s
        self._usage = Usage()
        self._done: list[ToolCall] = []
        self._step: Sequence[ToolCall] = ()
        self._resumed = False

    async def execute(self, message: str, queue: AbstractAsyncContextManager[None]) -> Reply:
        """Runs the turn to its end, once `queue` lets it. Raises MeshError when it failed; the stored state says so."""
        try:
            async with asyncio.timeout_at(self._deadline - HOP_MARGIN_S / 2) as limit, queue:
                return await self._turn(message)
        except TimeoutError:
            if not limit.expired():
                raise
            if not self.begun:
                raise DeadlinePassed("the deadline passed while earlier turns of this session ran") from None
            if error := await self._abandon(RunState.INCOMPLETE, "deadline"):
                raise error from None
            return self._out_of_time()
        except asyncio.CancelledError:
            if self._talk.lost and (task := asyncio.current_task()):
                task.uncancel()
                raise SessionBusy(TAKEN_OVER) from None
            await self._abandon(RunState.CANCELLED, "cancelled")
            raise
        except MeshError as error:
            error.usage = self._usage
            await self._abandon(RunState.FAILED, error.reason)
            raise
        except Exception:
            await self._abandon(RunState.FAILED, InternalError.reason)
            raise

    async def _turn(self, message: str) -> Reply:
        offered = await self._begin(message)
        if isinstance(offered, Reply):
            return offered
        while True:
            tools = await self._tools() if offered else {}
            end = await self._think(tools)
            calls = end.calls if end.stop is Stop.TOOL_CALLS and offered else ()
            to_make = [wanted(call) for call in calls]
            entry = assistant_entry(end, [each.call for each in to_make], run_id=self.id, model=self._host.model.name)
            if not to_make and (end.stop is not Stop.PAUSE or not offered):
                return await self._conclude(end, offered, entry)
            await self._talk.append(entry)
            if to_make:
                await self._act(to_make, tools)
            offered = await self._purse.take_model_call()

    async def _begin(self, message: str) -> bool | Reply:
        """Opens the run and stores the message; whether the first model call may offer tools.

        A request that came before has its run already: what that replied is the answer, or this goes on with it.
        """
        self.begun = True
        found = await self._take_session()
        if found and (reply := await self._resume(*found)):
            return reply
        # A turn that was killed left calls open: each gets its one result before anything else is said.
        repairs = [tool_entry(interrupted(call), run_id=run) for call, run in open_calls(self._talk.entries)]
        if self._resumed:
            await self._talk.append(*repairs)
            self._done = [entry.call for entry in self._talk.entries if entry.call and entry.message.run_id == self.id]
            return await self._purse.take_model_call()
        # Only a child can find its tree's budget spent, and then nothing of it is written.
        child = self._root != self.id
        offered = await self._purse.take_model_call() if child else None
        opened = self._ledger.open(self.id, self._root) if self._ledger else ()
        stored = (*opened, self._talk.append(*repairs, user_entry(message, self._call, run_id=self.id)))
        *_, taken = await together(*stored, *(() if child else (self._purse.take_model_call(),)))
        return bool(taken if offered is None else offered)

    async def _take_session(self) -> tuple[str, Record] | None:
        """Takes the session, and looks up under its lease whether this request has a run already."""
        load = self._talk.load(self._host.history_limit)
        if self._ledger is None:
            await load
            return None
        try:
            at_once, found = await together(load, self._ledger.find())
            return found if at_once else await self._ledger.find()
        except RequestConflict:
            await self._talk.close()
            self.begun = False
            raise

    async def _resume(self, run_id: str, record: Record) -> Reply | None:
        """The end of the run that this request had before; None when it has none and this goes on with it."""
        own = [entry.message for entry in self._talk.entries if entry.message.run_id == run_id]
        people = [entry.message.run_id for entry in self._talk.entries if entry.message.role == "user"]
        self.id, self._root, self.events.run_id = run_id, record.root, run_id
        self._purse = Purse(self._host.store, self._root, self._budget, ancestors=self._ancestors)
        reply = record.reply
        if reply is None and own and people[-1] != run_id:
            # A later turn has begun: what this one was about to do does not fit any more.
            reply = self._reply("", RunState.INTERRUPTED, "its owner died, and the session has gone on since")
        elif reply is None and own and own[-1].role == "assistant" and not own[-1].tool_calls:
            reply = self._reply(own[-1].text, RunState.COMPLETED, "")
        if reply is None:
            log.info("%s is gone on with: its request came again", run_id)
            self._resumed = bool(own)
            return None
        await together(*self._end(reply))
        return reply

    async def _tools(self) -> Mapping[str, Tool]:
        """The tools of the next step by name, in a stable order: a changed prefix would cost the server's cache."""
        tools = list(await self._host.tools())
        if not self._parent:
            tools += [plan_tool(self._save_plan), delegate_tool(self._host.peers, self._host.services, self._errand)]
            tools += self._host.peers.invoke_tools
        return {tool.spec.name: tool for tool in sorted(tools, key=lambda tool: tool.spec.name)}

    async def _think(self, tools: Mapping[str, Tool]) -> ModelEnd:
        """One model call. Its text goes out as it comes."""
        host = self._host
        messages = to_model(last_groups(valid(self._talk.entries), host.history_limit), model=host.model.name)
        for hook in (host.hooks.prepare_context, host.hooks.format_messages):
            if hook is not None:
                messages = await hook(messages)
        peers = () if self._parent else host.peers.lines()
        request = ModelRequest(
            system=system_prompt(host.prompt, self._talk.plan, peers),
            messages=messages,
            tools=tuple(tool.spec for tool in tools.values()),
        )
        self._usage += Usage(model_calls=1)
        text, thinking = Joiner(), Joiner()
        async with aclosing(host.model.stream(request)) as events:
            async for event in events:
                match event:
                    case ModelText(piece):
                        self.events.say(TextDelta, text.feed(piece))
                    case ModelThinking(piece):
                        self.events.say(ThinkingDelta, thinking.feed(piece))
                    case ModelToolInput(index, _, delta):
                        self.events.emit(ToolInput(str(index), sane(delta)))
                    case ModelEnd():
                        self.events.say(TextDelta, text.close())
                        self._usage += replace(event.usage, model_calls=0)
                        await self._purse.count(event.usage)
                        return event
        raise ModelUnavailable(f"{host.model.name} broke off in the middle of its answer")

    async def _act(self, wanted: Sequence[Wanted], tools: Mapping[str, Tool]) -> None:
        self._step = [each.call for each in wanted]
        batch = Batch(
            tools,
            limits=self._host.limits,
            hooks=self._host.hooks,
            invocation=self._invocation,
            started=lambda call: self.events.emit(ToolStarted(call.id, call.name)),
            keep=self._keep,
        )
        before = len(self._done)
        await batch.run(wanted)
        order = {call.id: place for place, call in enumerate(self._step)}
        self._done[before:] = sorted(self._done[before:], key=lambda call: order[call.id])

    async def _keep(self, call: ToolCall, result: ToolResult, whole: str | None) -> None:
        self._usage += result.usage
        if whole is not None and not self._parent:
            await self._host.store.put(result_key(self.id, call.id), whole.encode(), ttl=RUN_TTL_S)
        await self._talk.append(tool_entry(call, run_id=self.id))
        self._done.append(call)
        self.events.emit(ToolDone(call))

    def _invocation(self, call: ToolCall) -> Invocation:
        host, arguments = self._host, parsed(call)
        twins = [each.id for each in self._step if _target(each) == _target(call)]
        return Invocation(
            id=call.id,
            name=call.name,
            arguments=arguments,
            agent=host.name,
            session=self._call.session,
            run_id=self.id,
            envelope=self._envelope(),
            ordinal=twins.index(call.id) + 1,
        )

    def _envelope(self) -> Envelope:
        """The envelope of what this run calls. A sub-agent's is its parent's, with its own run id."""
        if self._parent:
            return replace(self._parent._envelope(), parent=self.id)
        child = self._call.envelope.child(agent=self._host.name, run_id=self.id, to="", budget=self._budget)
        return replace(child, deadline=self._deadline)

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

        def sink(event: Event) -> None:
            self.events.emit(event.body, run_id=event.run_id, parent_tool_id=event.parent_tool_id or invocation.id)

        call = Call(envelope=replace(self._envelope(), parent=self.id))
        run = Run(replace(self._host, prompt=prompt, tools=tools), Scratch(), call, parent=self, sink=sink)
        try:
            return await run._turn(errand.message)
        finally:
            self._usage += run._usage

    async def _conclude(self, end: ModelEnd, offered: bool, entry: Entry) -> Reply:
        """The reply of the last step, once that and the end of the run are stored."""
        state, reason, text = RunState.COMPLETED, "", sane(end.text)
        if end.stop in _CUT:
            reason, fallback = _CUT[end.stop]
            state, text = RunState.INCOMPLETE, text or fallback
        elif not offered:
            state, reason = RunState.INCOMPLETE, "model_calls"
            text = text or _SPENT[reason]
        reply = self._reply(text, state, reason)
        await together(self._talk.append(entry), *self._end(reply))
        return reply

    def _end(self, reply: Reply) -> list[Awaitable[None]]:
        """Stores the reply as the end of the run, and gives the session back; to be awaited."""
        return [*self._noted(reply.state, reply.reason, reply), self._talk.close()]

    def _noted(self, state: RunState, reason: str, reply: Reply | None) -> list[Awaitable[None]]:
        if self._ledger is None:
            return []
        return [self._ledger.close(self.id, self._root, state, reason=reason, reply=reply)]

    def _reply(self, text: str, state: RunState, reason: str) -> Reply:
        return Reply(
            text=text,
            agent=self._host.name,
            tool_calls=tuple(self._done),
            session=self._call.session,
            run_id=self.id,
            state=state,
            usage=self._usage,
            plan=self._talk.plan,
            reason=reason,
        )

    async def _abandon(self, state: RunState, reason: str) -> MeshError | None:
        """Stores the end of a run that did not come to its own; what spoke against that is logged and returned."""
        if not self.begun or self._talk.lost:
            return None
        return await asyncio.shield(self._host.tasks.finish(self._store_end(state, reason)))

    async def _store_end(self, state: RunState, reason: str) -> MeshError | None:
        try:
            # What was being written when the run was cut short may or may not stand there: look before adding to it.
            if self._talk.taken:
                await self._talk.load(self._host.history_limit)
            left = [call for call, run in open_calls(self._talk.entries) if run == self.id]
            closing = [interrupted(call, text=CANCELLED) for call in left]
            if closing:
                await self._talk.append(*(tool_entry(call, run_id=self.id) for call in closing))
                self._done += closing
            # A run that ran out of time is over; any other may be gone on with when its request comes again.
            reply = self._out_of_time() if state is RunState.INCOMPLETE else None
            await together(*self._noted(state, reason, reply), self._talk.close())
        except MeshError as error:
            log.error("the end of %s (%s) could not be stored: %s", self.id, state.name, error)
            return error
        return None

    def _out_of_time(self) -> Reply:
        return self._reply(_SPENT["deadline"], RunState.INCOMPLETE, "deadline")


def _target(call: ToolCall) -> str:
    """What tells calls of one step to the same peer: delegate to X and invoke_X go to the same."""
    return tool_name("invoke", str(parsed(call).get("to", ""))) if call.name == "delegate" else call.name
