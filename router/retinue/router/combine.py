"""Several agents at once: their streams side by side as one, and their replies as one reply under their names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from retinue.router.log import Outcome
from retinue.service.background import Background
from retinue.service.chat import Completed, Event, Failed, Reply, RunState
from retinue.service.errors import InternalError, MeshError
from retinue.service.usage import Usage


def combined(outcomes: Sequence[Outcome]) -> Reply:
    """The one reply of one agent as it is, or the replies of several, each under its agent's name.

    An agent that failed is named with its reason, and the whole is INCOMPLETE. Raises the first error when all did.
    """
    replies = [one.result for one in outcomes if isinstance(one.result, Reply)]
    errors = [one.result for one in outcomes if isinstance(one.result, MeshError)]
    if not replies:
        raise errors[0]
    if len(outcomes) == 1:
        return replies[0]
    unfinished = [f"{one.errand.agent}: {_shortfall(one.result)}" for one in outcomes if _shortfall(one.result)]
    return Reply(
        text="\n\n".join(f"{one.errand.agent}:\n{_said(one.result)}" for one in outcomes),
        agent=", ".join(one.errand.agent for one in outcomes),
        tool_calls=tuple(call for reply in replies for call in reply.tool_calls),
        session=replies[0].session,
        state=RunState.INCOMPLETE if unfinished else RunState.COMPLETED,
        usage=sum((_used(one.result) for one in outcomes), Usage()),
        pending=tuple(pending for reply in replies for pending in reply.pending),
        reason="; ".join(unfinished),
        parts=tuple(part for reply in replies for part in reply.parts),
    )


async def side_by_side(streams: Sequence[AsyncGenerator[Event, None]]) -> AsyncGenerator[tuple[int, Event], None]:
    """The events of all streams as they come, each with its stream's place; each stream ends with one last event."""
    queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    async def pour(place: int, stream: AsyncGenerator[Event, None]) -> None:
        error: MeshError = InternalError("the stream ended without a reply")
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    queue.put_nowait((place, event))
                    if isinstance(event.body, Completed | Failed):
                        return
        except MeshError as refusal:
            error = refusal
        queue.put_nowait((place, Event(0, "", Failed(error))))

    running = len(streams)
    async with Background() as background:
        for place, stream in enumerate(streams):
            background.start(pour(place, stream))
        while running:
            place, event = await queue.get()
            running -= isinstance(event.body, Completed | Failed)
            yield place, event


def _said(result: Reply | MeshError) -> str:
    return result.text if isinstance(result, Reply) else f"(no answer: {result.message})"


def _shortfall(result: Reply | MeshError) -> str:
    if isinstance(result, MeshError):
        return result.reason
    return "" if result.state is RunState.COMPLETED else result.reason or result.state.name


def _used(result: Reply | MeshError) -> Usage:
    return result.usage or Usage()
