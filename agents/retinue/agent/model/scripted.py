"""The test double for a model: it answers what its script says and keeps the requests that it got.

Scripted("hello", call("task_Task_List", owner="ada"), ModelRate("slow down"), lambda request: "done")
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from retinue.agent.model import ModelEnd, ModelEvent, ModelRequest, ModelText, WantedCall
from retinue.agent.model.said import UNKNOWN, say
from retinue.service.errors import ModelError
from retinue.service.names import new_id
from retinue.service.usage import Usage

Said: TypeAlias = str | WantedCall | Sequence[str | WantedCall] | ModelEnd | BaseException
# What one request is answered with. A function gets the request; a coroutine function may wait for the test.
Step: TypeAlias = Said | Callable[[Any], Said | Awaitable[Said]]


def call(name: str, /, **arguments: Any) -> WantedCall:
    """A wanted call for a script; it gets an id of its own each time it is said."""
    return WantedCall("", name, arguments)


async def resolve(step: Step, request: Any) -> Said:
    """What `step` says to that request."""
    while callable(step):
        said = step(request)
        step = await said if inspect.isawaitable(said) else said
    return step


def text_and_calls(said: str | WantedCall | Sequence[str | WantedCall]) -> tuple[str, tuple[WantedCall, ...]]:
    """The two parts of a step, each call with an id."""
    items = [said] if isinstance(said, str | WantedCall) else said
    text = "".join(item for item in items if isinstance(item, str))
    calls = [item for item in items if isinstance(item, WantedCall)]
    return text, tuple(each if each.id else replace(each, id=new_id("call_")) for each in calls)


class Scripted:
    """A model with a script: one step a request, then `then` for ever, or a ModelError that the script ran out.

    Requests may overlap; each takes the next step when its stream begins.
    """

    def __init__(self, *steps: Step, then: Step | None = None, name: str = "scripted/script", usage: Usage = UNKNOWN):
        self.name = name
        self.requests: list[ModelRequest] = []
        self._steps = deque(steps)
        self._then = then
        self._usage = usage

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.requests.append(request)
        step = self._steps.popleft() if self._steps else self._then
        if step is None:
            raise ModelError(f"{self.name}: the script has no step for request {len(self.requests)}", kind="script")
        said = await resolve(step, request)
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, ModelEnd):
            if said.text:
                yield ModelText(said.text)
            yield said
            return
        text, calls = text_and_calls(said)
        for event in say(text, calls, usage=self._usage):
            yield event
