"""What tests of meshes need: a whole mesh in memory with real gRPC on the loopback, and a Chat that follows a script.

Both are for users' tests as much as for ours. Nothing here is patched or faked between two ends of a call.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeAlias

from retinue.service.chat import Call, Completed, Description, Event, Reply, TextDelta
from retinue.service.mesh import Mesh
from retinue.service.names import new_id
from retinue.service.server.pulse import Timing
from retinue.service.settings import Settings

Answer: TypeAlias = Callable[[str, Call], "Reply | str | Awaitable[Reply | str]"]


class LocalMesh(Mesh):
    """A mesh of its own, gone when it is left: `async with LocalMesh() as mesh`."""

    def __init__(self, *, timing: Timing | None = None) -> None:
        super().__init__(Settings(registry="memory:", store="memory:"), timing=timing or Timing(quiet=0.0))


class Stub:
    """A Chat that answers by `answer(message, call)`: text or a Reply, at once or awaited.

    Without `answer` it repeats the message. What `answer` raises is raised by `ask` and `stream`.
    """

    def __init__(self, name: str, answer: Answer | None = None, *, type: str = "agent", description: str = "") -> None:
        self._name = name
        self._answer = answer or (lambda message, _: message)
        self._description = Description(name=name, type=type, description=description)

    @property
    def name(self) -> str:
        """The name it is asked under."""
        return self._name

    async def ask(self, message: str, call: Call = Call()) -> Reply:
        """The scripted answer."""
        answer = self._answer(message, call)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Reply):
            return answer
        return Reply(text=answer, agent=self._name, session=call.session, run_id=new_id())

    async def stream(self, message: str, call: Call = Call()) -> AsyncGenerator[Event, None]:
        """The scripted answer as one piece of text and the end."""
        reply = await self.ask(message, call)
        yield Event(1, reply.run_id, TextDelta(reply.text))
        yield Event(2, reply.run_id, Completed(reply))

    def describe(self) -> Description:
        """What was given to say."""
        return self._description
