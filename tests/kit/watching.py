"""Waits for what a test expects: what a watch of a registry shows, what a logger says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from typing import Any, TypeVar, cast

T = TypeVar("T")


def closing(watch: AsyncIterator[T]) -> AbstractAsyncContextManager[AsyncIterator[T]]:
    """The watch, ended when the block is left."""
    return aclosing(cast(AsyncGenerator[T, Any], watch))


async def until(watch: AsyncIterator[T], wanted: Callable[[T], bool], *, within: float = 10.0) -> T:
    """The first thing shown from now on that is wanted; TimeoutError when there is none `within` seconds."""
    async with asyncio.timeout(within):
        while not wanted(shown := await anext(watch)):
            pass
        return shown


class _Ear(logging.Handler):
    def __init__(self, lines: asyncio.Queue[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put_nowait(f"{record.levelname} {record.getMessage()}")


@contextmanager
def listening(name: str) -> Iterator[asyncio.Queue[str]]:
    """The lines that the logger `name` says in the block, from INFO on, each after its level."""
    logger, lines = logging.getLogger(name), asyncio.Queue[str]()
    ear, level = _Ear(lines), logger.level
    logger.addHandler(ear)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(ear)
        logger.setLevel(level)
