"""The tool calls of one step: checked one by one, run side by side, each result stored as it comes.

A call that cannot be made, or that raises, ends as a result for the model; only a store that fails, or the end of
the run itself, leaves here as an exception.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import UnknownType, best_match
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from retinue.agent.guards import Guard, guarded
from retinue.agent.hooks import Ask, Block, Change, Hooks
from retinue.agent.limits import Limits
from retinue.agent.model import WantedCall
from retinue.agent.session.history import INTERRUPTED
from retinue.agent.tools import Handler, Invocation, Tool, ToolResult
from retinue.service.chat import Answer, Pending, ToolCall, ToolStatus
from retinue.service.errors import MeshError, cut
from retinue.service.names import did_you_mean, new_id
from retinue.service.text import sane, sane_json
from retinue.service.usage import Usage

log = logging.getLogger("retinue.agent")

# Bytes of a malformed argument text that the model is shown again.
SHOWN_RAW = 500
CUT_NOTE = "\n[cut: this is the beginning of {size} bytes; the whole result is kept with the run]"


def wanted(call: WantedCall) -> ToolCall:
    """The call under an id of ours, which is unique: the server's repeat or are missing, and stay on the wire."""
    arguments = sane_json(dict(call.arguments)) if call.arguments is not None else {}
    # Not orjson, which refuses integers beyond 64 bits.
    text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return ToolCall(id=new_id("call-"), name=sane(call.name), arguments=text)


def malformed(call: ToolCall, model_call: WantedCall) -> ToolCall:
    """The outcome of a call whose arguments are not one JSON object, and which therefore is never made."""
    raw = cut(sane(model_call.raw), SHOWN_RAW)
    error = f"the arguments are not one JSON object: {model_call.error}; they were: {raw}"
    return replace(call, status=ToolStatus.ERROR, error=error)


class Batch:
    """Runs calls of one step. `keep` stores a finished call, with the whole text where its result was cut.

    `answers` is what was said to calls that waited for it, by call id; `use` notes that an approval is used up, and is
    False when it was before. `guards` are around each call; `sequential` makes them one after another. Without `waits`
    nobody can be asked, and such a call is refused.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        *,
        step: Sequence[ToolCall],
        limits: Limits,
        hooks: Hooks,
        invocation: Callable[[ToolCall], Invocation],
        started: Callable[[ToolCall], None],
        keep: Callable[[ToolCall, ToolResult, str | None], Awaitable[None]],
        answers: Mapping[str, Answer],
        use: Callable[[Pending], Awaitable[bool]],
        guards: Sequence[Guard] = (),
        sequential: bool = False,
        waits: bool = True,
    ) -> None:
        self._tools = tools
        self._places = {call.id: place for place, call in enumerate(step)}
        self._limits = limits
        self._hooks = hooks
        self._invocation = invocation
        self._started = started
        self._keep = keep
        self._answers = answers
        self._use = use
        self._guards = guards
        self._sequential = sequential
        self._waits = waits

    async def run(self, calls: Sequence[ToolCall]) -> tuple[Pending, ...]:
        """Makes the calls; each has its one result stored in the end, or is among those that wait for an answer."""
        prepared = [(call, await self._prepare(call)) for call in calls]
        ready = [(call, each) for call, each in prepared if not isinstance(each, Pending)]
        if len(ready) == 1 or self._sequential:
            for call, each in ready:
                await self._finish(call, each)
        else:
            try:
                async with asyncio.TaskGroup() as group:
                    for call, each in ready:
                        group.create_task(self._finish(call, each))
            except* MeshError as errors:
                raise _first(errors) from errors
        return tuple(each for _, each in prepared if isinstance(each, Pending))

    async def _prepare(self, call: ToolCall) -> Invocation | ToolResult | Pending:
        """The invocation to be made, the result that stands in for it, or what it waits for."""
        if self._places[call.id] >= self._limits.fan_out:
            return _refused(f"at most {self._limits.fan_out} calls are made in one step; ask again for the rest")
        tool = self._tools.get(call.name)
        if tool is None:
            return _failed(f"there is no tool {call.name!r}{did_you_mean(call.name, self._tools)}")
        invocation = self._invocation(call)
        if wrong := _mismatch(tool, invocation.arguments):
            return _failed(wrong)
        try:
            decision = await self._decide(invocation)
        except Exception as error:
            log.exception("before_tool_call failed for %s", call.name)
            return _failed(f"the check before this call failed: {describe(error)}")
        match decision:
            case Block(reason):
                return _refused(reason)
            case Change(arguments):
                wrong = _mismatch(tool, arguments)
                return _failed(wrong) if wrong else replace(invocation, arguments=arguments)
            case Ask():
                return await self._ask(decision, call, invocation)
            case None:
                return invocation
        return _failed(f"the check before this call failed: it returned {decision!r}, not None, Block, Change or Ask")

    async def _decide(self, invocation: Invocation) -> Block | Change | Ask | None:
        hook, decision = self._hooks.before_tool_call, None
        if hook is not None:
            decision = await hook(invocation)
        if decision is None and invocation.name in self._hooks.approvals:
            return Ask(f"{invocation.agent} wants to call {invocation.name}")
        return decision

    async def _ask(self, ask: Ask, call: ToolCall, invocation: Invocation) -> Invocation | ToolResult | Pending:
        pending = pending_of(call, ask)
        answer = self._answers.get(call.id)
        if not self._waits:
            return _refused("it needs somebody's answer, and nobody can be asked from here")
        if answer is None:
            return pending
        if not answer.approved:
            return _refused(f"it was not approved: {answer.reason}" if answer.reason else "it was not approved")
        if ask.kind != "approval":
            return ToolResult(answer.result)
        if not await self._use(pending):
            return ToolResult(INTERRUPTED, ToolStatus.UNKNOWN)
        return invocation

    async def _finish(self, call: ToolCall, ready: Invocation | ToolResult) -> None:
        begin = time.monotonic()
        if isinstance(ready, Invocation):
            self._started(call)
            result = await _attempt(guarded(self._tools[call.name].handler, self._guards), ready)
            result = await self._after(ready, result)
        else:
            result = ready
        text, whole = self._fit(sane(result.text))
        fine = result.status is ToolStatus.OK
        done = replace(
            call,
            result=text if fine else "",
            error="" if fine else text,
            status=result.status,
            duration_ms=int((time.monotonic() - begin) * 1000),
            run_id=result.run_id,
        )
        await self._keep(done, result, whole)

    async def _after(self, invocation: Invocation, result: ToolResult) -> ToolResult:
        if self._hooks.after_tool_call is None:
            return result
        try:
            after = await self._hooks.after_tool_call(invocation, result)
            if not isinstance(after, ToolResult | None):
                return _failed(f"the check after this call failed: it returned {after!r}, no ToolResult")
            return after or result
        except Exception as error:
            log.exception("after_tool_call failed for %s", invocation.name)
            return _failed(f"the check after this call failed: {describe(error)}")

    def _fit(self, text: str) -> tuple[str, str | None]:
        """The text as the model gets it, and the whole of it where something is gone."""
        size = len(text.encode())
        if size <= self._limits.result_bytes:
            return text, None
        return cut(text, self._limits.result_bytes) + CUT_NOTE.format(size=size), text


def pending_of(call: ToolCall, ask: Ask) -> Pending:
    """What is to be answered before `call` is made. Its id is bound to this very call and these arguments."""
    digest = hashlib.sha256(f"{call.id} {call.name} {call.arguments}".encode()).hexdigest()
    return Pending(
        id=f"pending-{digest[:32]}",
        kind=ask.kind,
        tool_call_id=call.id,
        name=call.name,
        arguments=call.arguments,
        text=ask.text,
    )


def parsed(call: ToolCall) -> Mapping[str, object]:
    """The arguments of a call as they stand in the history: always one JSON object."""
    arguments: Mapping[str, object] = json.loads(call.arguments)
    return arguments


def describe(error: BaseException) -> str:
    """An exception in words for the model: the reason of one of ours, the type of any other."""
    if isinstance(error, MeshError):
        return f"{error.reason}: {error.message}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def _attempt(handler: Handler, invocation: Invocation) -> ToolResult:
    """What the tool returns, or what it raises as a result. Only a cancellation from outside leaves here."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        result = await handler(invocation)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and task.cancelling() > before:
            raise
        if isinstance(error, MeshError):
            return replace(_failed(describe(error)), usage=error.usage or Usage())
        log.warning("tool %s of %s raised", invocation.name, invocation.agent, exc_info=error)
        return _failed(describe(error))
    if task.cancelling() > before:
        raise asyncio.CancelledError  # the tool has kept it to itself
    return result


def _mismatch(tool: Tool, arguments: Mapping[str, object]) -> str:
    """What the schema says against the arguments; empty when they fit."""
    schema = tool.spec.parameters
    try:
        checked: Any = validator_for(schema, default=Draft202012Validator)
        # A registry of its own: nothing that a schema refers to is ever fetched.
        worst = best_match(checked(schema, registry=Registry()).iter_errors(arguments))
    except (Unresolvable, UnknownType, re.error, RecursionError, AttributeError, TypeError) as error:
        return f"this tool cannot be called: its schema cannot be read ({describe(error)})"
    if worst is None:
        return ""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in worst.absolute_path)
    return f"the arguments do not fit{f' at {place.lstrip(chr(46))}' if place else ''}: {worst.message}"


def _failed(text: str) -> ToolResult:
    return ToolResult(text, ToolStatus.ERROR)


def _refused(text: str) -> ToolResult:
    return ToolResult(text, ToolStatus.REFUSED)


def _first(errors: ExceptionGroup[MeshError]) -> MeshError:
    inner = errors.exceptions[0]
    return _first(inner) if isinstance(inner, ExceptionGroup) else inner
