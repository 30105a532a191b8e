"""Guards around tools: what may be called, for how long, and how often, checked when the call is made.

A guard is a plain wrapper, Handler -> Handler; whatever the model was offered, or guesses, goes through it. An agent's
guards hold for its sub-agents too. Write your own as these are written.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeAlias

from retinue.agent.limits import Limits
from retinue.agent.tools import Handler, Invocation, ToolResult
from retinue.service.chat import ToolStatus

Guard: TypeAlias = Callable[[Handler], Handler]

# How many runs a guard that counts remembers at once.
_MOST_RUNS = 1024


def guarded(handler: Handler, guards: Sequence[Guard]) -> Handler:
    """The handler with the guards around it, the first outermost."""
    for guard in reversed(guards):
        handler = guard(handler)
    return handler


def guards_of(limits: Limits) -> Sequence[Guard]:
    """The guards that an agent's limits ask for."""
    counted = (unrepeated(limits.repeats),) if limits.repeats else ()
    timed = (within(limits.call_s),) if limits.call_s else ()
    return (*counted, *timed)


def allow(*names: str) -> Guard:
    """Refuses every tool but those of exactly these names."""
    return _refusing(lambda call: "" if call.name in names else f"{call.name} is not among the tools allowed here")


def deny(*names: str) -> Guard:
    """Refuses the tools of exactly these names."""
    return _refusing(lambda call: f"{call.name} is denied here" if call.name in names else "")


def within(seconds: float) -> Guard:
    """Cancels a call that takes longer; what came of it is unknown then, and the model is told so."""

    def guard(handler: Handler) -> Handler:
        async def handle(invocation: Invocation) -> ToolResult:
            try:
                async with asyncio.timeout(seconds) as limit:
                    return await handler(invocation)
            except TimeoutError:
                if not limit.expired():
                    raise
                text = f"no result within {seconds:g} s: the call was cancelled, and its outcome is unknown"
                return ToolResult(text, ToolStatus.UNKNOWN)

        return handle

    return guard


def unrepeated(times: int) -> Guard:
    """Refuses a call that its run has made so many times, with the same arguments and always the same result."""
    runs: OrderedDict[str, dict[str, tuple[ToolResult, int]]] = OrderedDict()

    def guard(handler: Handler) -> Handler:
        async def handle(invocation: Invocation) -> ToolResult:
            made = runs.setdefault(invocation.run_id, {})
            runs.move_to_end(invocation.run_id)
            if len(runs) > _MOST_RUNS:
                runs.popitem(last=False)
            what = json.dumps([invocation.name, dict(invocation.arguments)], sort_keys=True)
            last, count = made.get(what, (None, 0))
            if count >= times:
                text = f"this very call was made {count} times with the same result each time: do something else"
                return ToolResult(text, ToolStatus.REFUSED)
            result = await handler(invocation)
            same = last is not None and (result.text, result.status) == (last.text, last.status)
            made[what] = result, count + 1 if same else 1
            return result

        return handle

    return guard


def _refusing(reason: Callable[[Invocation], str]) -> Guard:
    def guard(handler: Handler) -> Handler:
        async def handle(invocation: Invocation) -> ToolResult:
            if said := reason(invocation):
                return ToolResult(said, ToolStatus.REFUSED)
            return await handler(invocation)

        return handle

    return guard
