"""Blocking functions beside the event loop: each in a thread of its own, which cannot be stopped.

A pool would be used up by functions that never return, and would keep the process from ending; these threads do
neither. Whoever stops waiting leaves the function to itself, and what it returns is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], **arguments: Any) -> T:
    """What `function` returns; raises what it raises. Context variables are the caller's."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def tell(settle: Callable[[Any], None], value: object) -> None:
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if outcome.done() else settle(value))

    def work() -> None:
        try:
            result = context.run(function, **arguments)
        except StopIteration as error:
            # A future takes no StopIteration, which would end the coroutine that waits.
            tell(outcome.set_exception, RuntimeError(f"{function.__name__} raised StopIteration: {error}"))
        except BaseException as error:  # whatever it is, its caller waits for it
            tell(outcome.set_exception, error)
        else:
            tell(outcome.set_result, result)

    threading.Thread(target=work, name=f"tool {function.__name__}", daemon=True).start()
    return await outcome
