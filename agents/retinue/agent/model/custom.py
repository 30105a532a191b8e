"""Any async function as a model: it gets the messages and the tools, and returns or yields what the model says.

    async def parrot(messages, tools):
        return messages[-1].text

It is not asked twice, and has no server whose limits would be kept.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeAlias

from retinue.agent.model import ModelEnd, ModelEvent, ModelRequest, ModelText, WantedCall
from retinue.agent.model.said import say
from retinue.agent.model.scripted import text_and_calls
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Message
from retinue.service.errors import MeshError, ModelError

# What it may say at once; a function that yields says texts and calls, one after another.
Saying: TypeAlias = str | WantedCall | Sequence[str | WantedCall] | ModelEnd
CustomModel: TypeAlias = Callable[
    [Sequence[Message], Sequence[ToolSpec]], Awaitable[Saying] | AsyncIterable[str | WantedCall]
]


def is_model(given: object) -> bool:
    """Whether it can be a model: something with a name and a stream, or a function that is async."""
    if isinstance(given, type):
        return False
    if hasattr(given, "stream"):
        return isinstance(getattr(given, "name", None), str)
    called = given if inspect.isroutine(given) else getattr(given, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)


class Custom:
    """A model that is that function. The first message is the system prompt's (role "system"), if there is one.

    What it raises is a ModelError, unless it is an error of the mesh already.
    """

    def __init__(self, function: CustomModel, *, name: str = "") -> None:
        self.name = name or f"custom/{getattr(function, '__name__', type(function).__name__)}"
        self._function = function

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        messages = [each.message for each in request.messages]
        if request.system:
            messages.insert(0, Message(role="system", text=request.system))
        try:
            async with AsyncExitStack() as stack:
                said: Any = self._function(messages, request.tools)
                if inspect.isawaitable(said):
                    for event in self._events(await said):
                        yield event
                    return
                if inspect.isasyncgen(said):
                    await stack.enter_async_context(aclosing(said))
                pieces: list[str | WantedCall] = []
                async for piece in said:
                    pieces.append(piece)
                    if isinstance(piece, str):
                        yield ModelText(piece)
                yield [*self._events(pieces)][-1]
        except (MeshError, GeneratorExit):
            raise
        except Exception as error:
            raise ModelError(f"{self.name} failed: {error!r}", kind="custom") from error

    def _events(self, said: Saying) -> Sequence[ModelEvent]:
        if isinstance(said, ModelEnd):
            return [*([ModelText(said.text)] if said.text else []), said]
        if not isinstance(said, str | WantedCall | list | tuple):
            raise TypeError(f"a model says text, calls, a list of them or a ModelEnd, and not {type(said).__name__}")
        return list(say(*text_and_calls(said)))
