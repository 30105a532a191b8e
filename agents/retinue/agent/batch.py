"""The tool calls of one step: checked one by one, run side by side, each result stored as it comes.

A call that cannot be made, or that raises, ends as a result for the model; only a store that fails, or the end of
the run itself, leaves here as an exception.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from retinue.agent.hooks import Block, Change, Hooks
from retinue.agent.limits import Limits
from retinue.agent.model import WantedCall
from retinue.agent.tools import Handler, Invocation, Tool, ToolResult
from retinue.service.chat import ToolCall, ToolStatus
from retinue.service.errors import MeshError, cut
from retinue.service.names import did_you_mean, new_id
from retinue.service.text import sane, sane_json
from retinue.service.usage import Usage

log = logging.getLogger("retinue.agent")

# Bytes of a malformed argument text that the model is shown again.
SHOWN_RAW = 500
CUT_NOTE = "\n[cut: this is the beginning of {size} bytes; the whole result is kept with the run]"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call of the model under the id it has in our history, with what was wrong about its arguments."""

    call: ToolCall
    model_call: WantedCall


def wanted(call: WantedCall) -> Wanted:
    """The call under an id of ours: the server's repeat or are missing, and stay on the wire."""
    arguments = sane_json(dict(call.arguments)) if call.arguments is not None else {}
    # Not orjson, which refuses integers beyond 64 bits.
    text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return Wanted(ToolCall(id=new_id("call-"), name=sane(call.name), arguments=text), call)


class Batch:
    """Runs the calls of one step. `keep` stores a finished call, with the whole text where its result was cut."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        *,
        limits: Limits,
        hooks: Hooks,
        invocation: Callable[[ToolCall], Invocation],
        started: Callable[[ToolCall], None],
        keep: Callable[[ToolCall, ToolResult, str | None], Awaitable[None]],
    ) -> None:
        self._tools = tools
        self._limits = limits
        self._hooks = hooks
        self._invocation = invocation
        self._started = started
        self._keep = keep

    async def run(self, wanted: Sequence[Wanted]) -> None:
        """Makes all calls; when it returns, each has its one result stored."""
        ready = [await self._prepare(each, position) for position, each in enumerate(wanted)]
        if len(wanted) == 1:
            await self._finish(wanted[0].call, ready[0])
            return
        try:
            async with asyncio.TaskGroup() as group:
                for each, one in zip(wanted, ready, strict=True):
                    group.create_task(self._finish(each.call, one))
        except* MeshError as errors:
            raise _first(errors) from errors

    async def _prepare(self, wanted: Wanted, position: int) -> Invocation | ToolResult:
        """The invocation to be made, or the result that stands in for it."""
        call, name = wanted.call, wanted.call.name
        if position >= self._limits.fan_out:
            return _refused(f"at most {self._limits.fan_out} calls are made in one step; ask again for the rest")
        tool = self._tools.get(name)
        if tool is None:
            return _failed(f"there is no tool {name!r}{did_you_mean(name, self._tools)}")
        if wanted.model_call.arguments is None:
            raw = cut(sane(wanted.model_call.raw), SHOWN_RAW)
            return _failed(f"the arguments are not one JSON object: {wanted.model_call.error}; they were: {raw}")
        invocation = self._invocation(call)
        if wrong := _mismatch(tool, invocation.arguments):
            return _failed(wrong)
        if self._hooks.before_tool_call is None:
            return invocation
        try:
            decision = await self._hooks.before_tool_call(invocation)
        except Exception as error:
            log.exception("before_tool_call failed for %s", name)
            return _failed(f"the check before this call failed: {describe(error)}")
        match decision:
            case Block(reason):
                return _refused(reason)
            case Change(arguments):
                wrong = _mismatch(tool, arguments)
                return _failed(wrong) if wrong else replace(invocation, arguments=arguments)
            case None:
                return invocation

    async def _finish(self, call: ToolCall, ready: Invocation | ToolResult) -> None:
        begin = time.monotonic()
        if isinstance(ready, Invocation):
            self._started(call)
            result = await _attempt(self._tools[call.name].handler, ready)
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
            return await self._hooks.after_tool_call(invocation, result) or result
        except Exception as error:
            log.exception("after_tool_call failed for %s", invocation.name)
            return _failed(f"the check after this call failed: {describe(error)}")

    def _fit(self, text: str) -> tuple[str, str | None]:
        """The text as the model gets it, and the whole of it where something is gone."""
        size = len(text.encode())
        if size <= self._limits.result_bytes:
            return text, None
        return cut(text, self._limits.result_bytes) + CUT_NOTE.format(size=size), text


def parsed(call: ToolCall) -> Mapping[str, object]:
    """The arguments of a call as they stand in the history: always one JSON object."""
    arguments: Mapping[str, object] = json.loads(call.arguments)
    return arguments


def describe(error: Exception) -> str:
    """An exception in words for the model: the reason of one of ours, the type of any other."""
    if isinstance(error, MeshError):
        return f"{error.reason}: {error.message}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def _attempt(handler: Handler, invocation: Invocation) -> ToolResult:
    try:
        return await handler(invocation)
    except Exception as error:
        if isinstance(error, MeshError):
            return replace(_failed(describe(error)), usage=error.usage or Usage())
        log.warning("tool %s of %s raised", invocation.name, invocation.agent, exc_info=error)
        return _failed(describe(error))


def _mismatch(tool: Tool, arguments: Mapping[str, object]) -> str:
    """What the schema says against the arguments; empty when they fit."""
    worst = best_match(Draft202012Validator(tool.spec.parameters).iter_errors(arguments))
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
