"""Kill points: every awaited step of a turn has a name and a number, and the process can be made to die at any of them.

Names count per agent and turn, so that they are the same in every run. What goes on beside the turns (renewals, pings)
has no name. Nothing is caught and nothing is changed: a process without an order only tells where it is.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from retinue.agent import Agent
from retinue.agent.model import Model, ModelEvent, ModelRequest
from retinue.service.chat import Call, Event, Reply
from retinue.service.store import Lease

_KIND = re.compile(r".*\}(?:/([a-z]+))?")


@dataclass(frozen=True, slots=True)
class Passed:
    """A place that a turn was at: `point` is the agent, the step, its number and the place."""

    session: str
    request_id: str
    point: str

    def encode(self) -> bytes:
        """A line for the standard output, which the driver reads."""
        return f"{self.session}\t{self.request_id}\t{self.point}\n".encode()

    @classmethod
    def decode(cls, line: str) -> Self:
        return cls(*line.split("\t"))


@dataclass(frozen=True, slots=True)
class Order:
    """What an agent does to its own process at a point: SIGKILL or SIGSTOP, once, in the turn of one request or any."""

    point: str
    number: int
    request_id: str = ""

    def give(self, folder: Path) -> None:
        """Makes it known to the processes of that folder, also for turns that run already."""
        file = _order_file(folder, self.point.partition(" ")[0], self.request_id)
        new = file.with_suffix(".new")
        new.write_text(f"{self.number} {self.point}")
        new.rename(file)  # in one piece: it may be looked for at this moment


def _order_file(folder: Path, agent: str, request_id: str) -> Path:
    return folder / f"{agent}@{request_id}.order"


class Turn:
    """One turn of one agent in this process: counts its steps, tells each place, and obeys orders."""

    def __init__(self, folder: Path, agent: str, call: Call) -> None:
        self._agent, self._session, self._request_id = agent, call.session, call.request_id
        self._counts: Counter[str] = Counter()
        self._orders = [_order_file(folder, agent, name) for name in (call.request_id, "")]

    def step(self, what: str) -> str:
        """The name of the next step of that kind."""
        self._counts[what] += 1
        return f"{self._agent} {what} {self._counts[what]}"

    def passes(self, step: str, place: str) -> None:
        """The process is at this place of this step; where its order is for here, it goes no further."""
        passed = Passed(self._session, self._request_id, f"{step} {place}")
        os.write(1, passed.encode())
        for file in self._orders:
            if file.exists():
                number, _, point = file.read_text().partition(" ")
                if point == passed.point:
                    file.unlink()  # so that whoever is started next lives
                    if int(number) == signal.SIGSTOP:
                        _finish_writes()
                    os.kill(os.getpid(), int(number))


def _finish_writes() -> None:
    """Returns once no transaction is under way: who stands still in one keeps SQLite's lock from everybody else."""
    for thread in threading.enumerate():
        while thread.name.startswith("sqlite") and not _idle(thread):
            time.sleep(0.001)


def _idle(thread: threading.Thread) -> bool:
    """Whether a thread of a pool waits for work: nobody gives it any while this one waits here."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is None or frame.f_code.co_name == "_worker"


_turn: ContextVar[Turn | None] = ContextVar("turn", default=None)


@contextmanager
def step_of_turn(what: str) -> Iterator[Callable[[str], None]]:
    """One step of the turn that runs here: what is yielded is called at each place of it."""
    turn = _turn.get()
    if turn is None:
        yield lambda _: None
    else:
        step = turn.step(what)
        yield lambda place: turn.passes(step, place)


class Killing:
    """Any object whose async methods are steps: `before` nothing is sent, `after` the caller has not seen the reply.

    A method may begin when it is called and not only when it is awaited: `before` is in front of the call.
    """

    def __init__(self, real: Any, *, kind: Callable[..., str]) -> None:
        self._real, self._kind = real, kind

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        turn = _turn.get()
        if turn is None or not inspect.ismethod(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            step = turn.step(f"{name} {self._kind(*args)}".rstrip())
            turn.passes(step, "before")
            answer = found(*args, **options)
            return self._seen(answer, turn, step) if inspect.isawaitable(answer) else answer

        return call

    @staticmethod
    async def _seen(answer: Awaitable[Any], turn: Turn, step: str) -> Any:
        result = await answer
        turn.passes(step, "after")
        return result


def kind_of_key(what: str | Lease, *_: object) -> str:
    """What is kept under a key of the store: history, lease, run and so on, without whose it is."""
    key = what.key if isinstance(what, Lease) else what
    found = _KIND.match(key)
    return (found[1] if found else None) or key.partition("/")[0]


class KillingModel:
    """A model each of whose events is a place, reached before the run sees it."""

    def __init__(self, real: Model) -> None:
        self._real = real
        self.name = real.name

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        with step_of_turn("model") as at:
            at("asked")
            async with aclosing(self._real.stream(request)) as events:
                number = 0
                async for event in events:
                    number += 1
                    at(f"event {number}")
                    yield event


class KillingAgent(Agent):
    """An agent whose turns have kill points; the first is when the request is there, the last before the reply goes."""

    folder: Path

    async def ask(self, message: str, call: Call = Call()) -> Reply:
        turn = Turn(self.folder, self.name, call)
        token = _turn.set(turn)
        try:
            with step_of_turn("turn") as at:
                at("asked")
                reply = await super().ask(message, call)
                at("answered")
                return reply
        finally:
            _turn.reset(token)

    async def stream(self, message: str, call: Call = Call()) -> AsyncGenerator[Event, None]:
        # Not reset: a generator may be closed in another context than it was begun in, and its task ends with it.
        _turn.set(Turn(self.folder, self.name, call))
        async with aclosing(super().stream(message, call)) as events:
            async for event in events:
                yield event
