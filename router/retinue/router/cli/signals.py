"""Ctrl-C and SIGTERM as calls in the event loop, for the commands that do more with them than end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_interrupt(react: Callable[[], object]) -> Iterator[None]:
    """Calls `react` at each SIGINT while the block runs."""
    with on_signals((signal.SIGINT,), lambda _: react()):
        yield


@contextmanager
def on_signals(numbers: tuple[signal.Signals, ...], react: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Calls `react` with each of these signals while the block runs."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, react, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
