"""Asks a model server again when that is safe: only while nothing of the answer was handed on.

How long the whole may take is the caller's deadline; nothing here bounds it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from retinue.agent.model import ModelEvent, ModelNote
from retinue.service.errors import ModelError

logger = logging.getLogger("retinue.model")

RETRIES = 2
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 8.0
# A server that wants a longer wait than this gets no second request: the caller decides (seconds).
LONGEST_FLOOR = 60.0


async def retried(
    attempt: Callable[[], AsyncGenerator[ModelEvent, None]],
    *,
    ready: Callable[[], Awaitable[None]],
    refused: Callable[[ModelError], Awaitable[None]],
) -> AsyncGenerator[ModelEvent, None]:
    """The events of `attempt()`, begun anew at most twice, each time behind a note, when it failed before its first.

    `ready` is awaited before each attempt, and `refused` told of each failure.
    """
    for count in range(RETRIES + 1):
        begun = False
        await ready()
        try:
            async with aclosing(attempt()) as events:
                async for event in events:
                    begun = True
                    yield event
            return
        except ModelError as error:
            await refused(error)
            if begun or count == RETRIES or not may_help(error):
                raise
            wait = pause(count, error.retry_after)
            text = f"{error.message}; asking again in {wait:.1f} s"
            logger.warning("%s", text)
        yield ModelNote(text)
        await asyncio.sleep(wait)


def may_help(error: ModelError) -> bool:
    """Whether asking again may help; a server's own word on it (x-should-retry) goes before the error's type."""
    if (error.retry_after or 0.0) > LONGEST_FLOOR:
        return False
    said = error.facts.get("should_retry")
    return error.retryable if said is None else said == "true"


def pause(count: int, floor: float | None, draw: Callable[[], float] = random.random) -> float:
    """Seconds to wait before attempt `count` + 2; never under the server's floor, and spread above it.

    The spread keeps many callers that met the same limit from coming back together.
    """
    backoff: float = min(FIRST_PAUSE * 2.0**count, LONGEST_PAUSE) * (1 - 0.25 * draw())
    return backoff if floor is None else max(floor + max(floor / 4, 0.25) * draw(), backoff)
