"""The router's streams: the chosen agent's own events, live, and those of several agents as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from kit.stubs import Heard, office, served

from retinue.service.chat import (
    Call,
    Completed,
    Event,
    Reply,
    StatusNote,
    TextDelta,
)
from retinue.service.testing import LocalMesh, Stub


async def events_of(mesh: LocalMesh, message: str, call: Call = Call()) -> list[Event]:
    return [event async for event in mesh.peer("router").stream(message, call)]


async def test_a_stream_is_the_agents_own_as_it_comes() -> None:
    go_on = asyncio.Event()

    class Slow(Stub):
        async def stream(self, message: str, call: Call = Call()) -> AsyncGenerator[Event, None]:
            yield Event(1, "run-1", TextDelta("first "))
            await go_on.wait()
            yield Event(2, "run-1", TextDelta("second"))
            yield Event(3, "run-1", Completed(Reply(text="first second", agent="one", run_id="run-1")))

    async with served(Slow("one")) as mesh:
        seen: list[Event] = []
        async for event in mesh.peer("router").stream("hello"):
            seen.append(event)
            go_on.set()
    assert [event.seq for event in seen] == [1, 2, 3]
    assert [type(event.body) for event in seen] == [TextDelta, TextDelta, Completed]
    assert {event.run_id for event in seen} == {"run-1"}


async def test_a_stream_of_several_agents_ends_with_the_text_of_all() -> None:
    async with office(Heard()) as mesh:
        events = await events_of(mesh, "@task-mgr @comms-mgr hello")
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    notes = [event.body.text for event in events if isinstance(event.body, StatusNote)]
    assert {"task-mgr is asked", "comms-mgr is asked"} <= set(notes)
    texts = [event.body.text for event in events if isinstance(event.body, TextDelta)]
    assert isinstance(events[-1].body, Completed)
    assert "".join(texts) == events[-1].body.reply.text
    assert "task-mgr:\n" in texts[0] and "comms-mgr:\n" in texts[0]


async def test_a_stream_that_is_left_early_ends_at_the_agent() -> None:
    left = asyncio.Event()

    class Endless(Stub):
        async def stream(self, message: str, call: Call = Call()) -> AsyncGenerator[Event, None]:
            try:
                yield Event(1, "run-1", TextDelta("one"))
                await asyncio.Event().wait()
            finally:
                left.set()

    async with served(Endless("one")) as mesh:
        async with aclosing(mesh.peer("router").stream("hello")) as events:
            await anext(events)
        await left.wait()
