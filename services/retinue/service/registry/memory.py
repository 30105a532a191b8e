"""Nodes in this process's memory, for tests and for programs that are a whole mesh by themselves.

It forgets nothing by itself: there is no heartbeat, a node is there until it deregisters.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import TypeVar

from retinue.service.registry import Node
from retinue.service.registry.listing import nodes_of, types_of

T = TypeVar("T")


class MemoryRegistry:
    """One list of nodes. It may be shared by several meshes of one process, each of which may enter it."""

    url = "memory:"
    rejoining = False

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._watchers: set[asyncio.Event] = set()

    async def __aenter__(self) -> MemoryRegistry:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing: another mesh may be using the list."""

    async def register(self, node: Node) -> None:
        if self._nodes.get(node.id) != node:
            self._nodes[node.id] = node
            self._wake()

    async def deregister(self, node: Node) -> None:
        if self._nodes.pop(node.id, None) is not None:
            self._wake()

    async def find(self, name: str) -> tuple[Node, ...]:
        return nodes_of(name, self._nodes.values())

    async def names(self) -> Mapping[str, str]:
        return types_of(self._nodes.values())

    def watch(self, name: str) -> AsyncIterator[tuple[Node, ...]]:
        return self._follow(lambda: nodes_of(name, self._nodes.values()))

    def watch_names(self) -> AsyncIterator[Mapping[str, str]]:
        return self._follow(lambda: types_of(self._nodes.values()))

    def _wake(self) -> None:
        for woken in self._watchers:
            woken.set()

    async def _follow(self, view: Callable[[], T]) -> AsyncIterator[T]:
        woken = asyncio.Event()
        self._watchers.add(woken)
        try:
            shown = view()
            yield shown
            while True:
                await woken.wait()
                woken.clear()
                if (now := view()) != shown:
                    shown = now
                    yield shown
        finally:
            self._watchers.discard(woken)
