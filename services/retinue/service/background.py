"""Tasks that end with their owner: what goes on beside a call, and what is waited for at once.

It starts and ends tasks; it neither restarts nor times them. A task that fails ends its owner's whole block, so
what may go wrong in ordinary life is caught inside the task.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Background:
    """A task group that is left with what its body raised, unwrapped: its tasks are cancelled then, or finished."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._endless: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._endless:
            task.cancel()
        # Told of no exception: the group would wrap the block's own error in an ExceptionGroup.
        await self._group.__aexit__(None, None, None)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work` beside the owner; the task is cancelled when the owner is left."""
        task = self._group.create_task(work)
        self._endless.add(task)
        task.add_done_callback(self._endless.discard)
        return task

    async def settle(self, *, within: float) -> bool:
        """Waits until what was started has ended by itself; False when `within` seconds pass first."""
        if not self._endless:
            return True
        _, left = await asyncio.wait(self._endless, timeout=within)
        return not left

    def finish(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work` beside the owner, who waits for its end when it is left."""
        return self._group.create_task(work)


async def together(*work: Awaitable[Any]) -> list[Any]:
    """The results of `work` in its order; when some fail, the first error, once all have ended.

    It starts no task: what began when it was called goes on side by side, and the rest is done one by one.
    """
    results: list[Any] = []
    errors: list[Exception] = []
    for at, each in enumerate(work):
        try:
            results.append(await each)
        except Exception as error:
            errors.append(error)
        except BaseException:
            discard(*work[at + 1 :])
            raise
    if errors:
        raise errors[0]
    return results


def discard(*waiting: object) -> None:
    """Closes coroutines that were not begun, and those that they were given to await: nobody will."""
    for each in waiting:
        if inspect.iscoroutine(each) and inspect.getcoroutinestate(each) == inspect.CORO_CREATED:
            given = list(each.cr_frame.f_locals.values()) if each.cr_frame else []
            each.close()
            for one in given:
                discard(*one) if isinstance(one, tuple | list) else discard(one)
