"""One turn of one session: the model's steps and their tool calls, from a message to a reply.

A run stores every step before it acts on it and always ends in a stored state, however it ends. It does not queue,
choose a model or know how it is served; its limits are the host's and the tree's, and it never exceeds them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeAlias

import orjson

from retinue.agent.batch import Batch, Wanted, parsed
from retinue.agent.budget import Purse
from retinue.agent.delegate import Errand, delegate_tool
from retinue.agent.history import Entry, interrupted, last_groups, open_calls, to_model, tool_entry, valid
from retinue.agent.host import Host
from retinue.agent.keys import RUN_TTL_S, result_key, run_key
from retinue.agent.model import (
    ModelEnd,
    ModelRequest,
    ModelText,
    ModelThinking,
    ModelToolInput,
    Stop,
    WantedCall,
)
from retinue.agent.plan import plan_tool
from retinue.agent.prompt import system_prompt
from retinue.agent.session import TAKEN_OVER, Conversation, Scratch
from retinue.agent.tools import Invocation, Tool, ToolResult, tool_name
from retinue.agent.tools.endpoint import EndpointTool
from retinue.service.background import together
from retinue.service.chat import (
    Body,
    Call,
    Event,
    Message,
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
from retinue.service.errors import DeadlinePassed, InternalError, MeshError, ModelUnavailable, SessionBusy
from retinue.service.names import new_id
from retinue.service.text import Joiner, sane, sane_json
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

Sink: TypeAlias = Callable[[Event], None]


class Run:
    """One turn. `sink` gets every event but the last, which whoever runs the run makes of the outcome."""

    def __init__(
        self,
        host: Host,
        conversation: Conversation,
        call: Call,
        *,
        run_id: str = "",
        parent: Run | None = None,
        sink: Sink | None = None,
    ) -> None:
        self.id = run_id or new_id("run-")
        self.begun = False
        self._host = host
        self._talk = conversation
        self._call = call
        self._parent = parent
        self._sink = sink
        self._seq = 0
        self._budget = call.envelope.budget or host.limits.budget
        self._root = call.envelope.root or self.id
        self._ancestors: int = parent._ancestors + 1 if parent else len(call.envelope.path)
        self._purse = Purse(host.store, self._root, self._budget, ancestors=self._ancestors)
        self._deadline = call.envelope.deadline or asyncio.get_running_loop().time() + host.limits.time_s
        self._usage = Usage()
        self._done: list[ToolCall] = []
        self._step: Sequence[ToolCall] = ()

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
            return self._reply(_SPENT["deadline"], RunState.INCOMPLETE, "deadline")
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

    def event(self, body: Body, *, run_id: str = "", parent_tool_id: str = "") -> Event:
        """The next event of this run."""
        self._seq += 1
        return Event(self._seq, run_id or self.id, body, parent_tool_id)

    async def _turn(self, message: str) -> Reply:
        offered = await self._begin(message)
        while True:
            tools = await self._tools() if offered else {}
            end = await self._think(tools)
            calls = end.calls if end.stop is Stop.TOOL_CALLS and offered else ()
            wanted = [self._wanted(call) for call in calls]
            entry = self._assistant(end, wanted)
            if not wanted and (end.stop is not Stop.PAUSE or not offered):
                return await self._conclude(end, offered, entry)
            await self._talk.append(entry)
            if wanted:
                await self._act(wanted, tools)
            offered = await self._purse.take_model_call()

    async def _begin(self, message: str) -> bool:
        """Records the run, then stores the message; whether the first model call may offer tools."""
        self.begun = True
        record = () if self._parent else (self._record(RunState.RUNNING),)
        load, take = self._talk.load(self._host.history_limit), self._purse.take_model_call()
        offered: bool = (await together(*record, load, take))[-1]
        # A turn that was killed left calls open: each gets its one result before anything else is said.
        repairs = [
            tool_entry(interrupted(call), run_id=run, time=_now()) for call, run in open_calls(self._talk.entries)
        ]
        if self._call.context:
            context = orjson.dumps(sane_json(dict(self._call.context)), option=orjson.OPT_INDENT_2).decode()
            message = f"{message}\n\n## Context\n{context}"
        user = Message(role="user", text=sane(message), parts=self._call.parts, run_id=self.id, time=_now())
        await self._talk.append(*repairs, Entry(message=user))
        return offered

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
                        self._say(TextDelta, text.feed(piece))
                    case ModelThinking(piece):
                        self._say(ThinkingDelta, thinking.feed(piece))
                    case ModelToolInput(index, _, delta):
                        self._emit(ToolInput(str(index), sane(delta)))
                    case ModelEnd():
                        self._say(TextDelta, text.close())
                        self._usage += replace(event.usage, model_calls=0)
                        await self._purse.count(event.usage)
                        return event
        raise ModelUnavailable(f"{host.model.name} broke off in the middle of its answer")

    def _wanted(self, call: WantedCall) -> Wanted:
        # The server's ids repeat or are missing: ours are unique, and theirs stay on the wire.
        arguments = sane_json(dict(call.arguments)) if call.arguments is not None else {}
        # Not orjson, which refuses integers beyond 64 bits.
        text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
        return Wanted(ToolCall(id=new_id("call-"), name=sane(call.name), arguments=text), call)

    def _assistant(self, end: ModelEnd, wanted: Sequence[Wanted]) -> Entry:
        """The model's message as it is stored: with the calls that are going to be made, and no others."""
        message = Message(
            role="assistant",
            text=sane(end.text),
            tool_calls=tuple(each.call for each in wanted),
            run_id=self.id,
            time=_now(),
        )
        return Entry(message=message, model=self._host.model.name, provider_parts=end.provider_parts)

    async def _act(self, wanted: Sequence[Wanted], tools: Mapping[str, Tool]) -> None:
        self._step = [each.call for each in wanted]
        batch = Batch(
            tools,
            limits=self._host.limits,
            hooks=self._host.hooks,
            invocation=self._invocation,
            started=lambda call: self._emit(ToolStarted(call.id, call.name)),
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
        await self._talk.append(tool_entry(call, run_id=self.id, time=_now()))
        self._done.append(call)
        self._emit(ToolDone(call))

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
        self._emit(PlanChanged(plan))

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
            self._emit(event.body, run_id=event.run_id, parent_tool_id=event.parent_tool_id or invocation.id)

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
        record = () if self._parent else (self._record(state, reason),)
        await together(self._talk.append(entry), *record, self._talk.close())
        return self._reply(text, state, reason)

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
                await self._talk.append(*(tool_entry(call, run_id=self.id, time=_now()) for call in closing))
                self._done += closing
            await together(self._record(state, reason), self._talk.close())
        except MeshError as error:
            log.error("the end of %s (%s) could not be stored: %s", self.id, state.name, error)
            return error
        return None

    def _record(self, state: RunState, reason: str = "") -> Awaitable[None]:
        record = {
            "agent": self._host.name,
            "session": self._call.session,
            "state": state.name,
            "reason": reason,
            "root": self._root,
            "parent": self._call.envelope.parent,
        }
        return self._host.store.put(run_key(self.id), orjson.dumps(record), ttl=RUN_TTL_S)

    def _say(self, kind: type[TextDelta] | type[ThinkingDelta], piece: str) -> None:
        if piece:
            self._emit(kind(piece))

    def _emit(self, body: Body, *, run_id: str = "", parent_tool_id: str = "") -> None:
        if self._sink is None and self._host.hooks.on_event is None:
            return
        event = self.event(body, run_id=run_id, parent_tool_id=parent_tool_id)
        if self._host.hooks.on_event is not None:
            self._host.hooks.on_event(event)
        if self._sink is not None:
            self._sink(event)


def _target(call: ToolCall) -> str:
    """What tells calls of one step to the same peer: delegate to X and invoke_X go to the same."""
    return tool_name("invoke", str(parsed(call).get("to", ""))) if call.name == "delegate" else call.name


def _now() -> datetime:
    return datetime.now(UTC)
