"""A live connection to an MCP server: requests and their results, and what is heard in between.

How it was opened is another module's; here it is only asked, and it says when it is lost or its tools have changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from retinue.service.text import sane, sane_json

Request: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class LinkLost(Exception):
    """The connection ended before an answer came. `unsent`: the server says that it did not take the request."""

    def __init__(self, text: str, *, unsent: bool = False) -> None:
        super().__init__(text)
        self.unsent = unsent


class RpcRefused(Exception):
    """The server answered with an error, or with something that is no answer; the text says what."""


class Link:
    """One connection. `news` is set when one of the flags below is: whoever owns the connection looks at them then.

    lost: it has ended, `why` says how, and `on_lost` was called; changed: the server's tools have; doubted: perhaps
    nobody is there any more.
    """

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self.news = asyncio.Event()
        self.lost = self.changed = self.doubted = False
        self.why = ""
        self._left = False
        self._on_lost = on_lost

    def lose(self, why: str) -> None:
        """Notes that the connection has ended. The first reason counts, and none that comes of its being left."""
        if not self._left:
            self.why = self.why or why
        self.lost = True
        self.news.set()
        self._on_lost()

    def leave(self) -> None:
        """Notes that its owner leaves it: nothing more will come."""
        self.lose("")
        self._left = True

    def change(self) -> None:
        """Notes that the tools are to be listed again."""
        self.changed = True
        self.news.set()

    def doubt(self) -> None:
        """Asks the owner to see whether the server is still there."""
        self.doubted = True
        self.news.set()


def checked(result: Mapping[Any, Any]) -> Mapping[str, Any]:
    """A result in which every text is sane."""
    return {sane(str(key)): sane_json(value) for key, value in result.items()}
