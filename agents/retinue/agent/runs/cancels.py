"""Ends the runs of this node that somebody, at whatever node, asked to be ended.

Who wants a run ended writes its id into a table of its agent, which each node of the agent reads while it runs
something: no node has to know another's address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from retinue.agent.keys import cancels_key
from retinue.agent.runs.course import Course
from retinue.service.background import Background
from retinue.service.errors import StoreUnavailable
from retinue.service.store import Store

log = logging.getLogger("retinue.agent")

# How soon a wish is seen, seconds.
LOOK_S = 0.25
CANCELLED = "cancelled"


class Cancels:
    """The runs of one serving agent that can be ended from outside."""

    def __init__(self, store: Store, agent: str) -> None:
        self._store = store
        self._key = cancels_key(agent)
        self._running: dict[Course, asyncio.Task[object]] = {}
        self._any = asyncio.Event()

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Looks for wishes for as long as the block runs."""
        async with Background() as background:
            background.start(self._follow())
            yield

    @contextmanager
    def listening(self, course: Course, task: asyncio.Task[object]) -> Iterator[None]:
        """Cancels `task`, and notes why in `course`, when somebody wants that run ended while the block runs."""
        self._running[course] = task
        self._any.set()
        try:
            yield
        finally:
            self._running.pop(course, None)

    async def _follow(self) -> None:
        away = False
        while True:
            await self._any.wait()
            await asyncio.sleep(LOOK_S)
            if not self._running:
                self._any.clear()
                continue
            try:
                wanted = await self._store.rows(self._key)
            except StoreUnavailable as error:
                if not away:
                    log.warning("runs cannot be cancelled while the store is away: %s", error)
                away = True
                continue
            away = False
            for course in [course for course in self._running if course.id in wanted]:
                log.info("%s is cancelled from outside", course.id)
                course.stopped = CANCELLED
                self._running.pop(course).cancel()
