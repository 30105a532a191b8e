"""One call's way through the nodes of a name: which one is asked, and whether another is asked after it failed.

The rule: what was not sent may go to the next node; what was sent is sent again only when the node says that it did
not take it (DRAINING, WRONG_NODE), or when the method may be repeated and the node broke off. No text is read.
"""

from __future__ import annotations

import asyncio
import contextlib

from retinue.service.client.directory import Directory, Nodes
from retinue.service.client.nodes import Line, Pool, broke_off
from retinue.service.errors import (
    Draining,
    MeshError,
    NoNode,
    RegistryUnavailable,
    UnknownName,
    WrongNode,
)

# How long a call whose nodes all refuse waits for another one, seconds.
WAIT_S = 10.0
_PAUSE_S = (0.05, 0.5)
# What the loop's timers may be early by, seconds.
_TICK_S = 0.001


class Search:
    """Finds the nodes for one call; `deadline` is a time of the running loop's clock."""

    __slots__ = ("_broken", "_deadline", "_directory", "_name", "_pause", "_pool", "_time", "_tried", "_until")

    def __init__(self, directory: Directory, pool: Pool, name: str, *, deadline: float) -> None:
        self._directory, self._pool, self._name = directory, pool, name
        self._deadline = deadline
        self._time = asyncio.get_running_loop().time
        self._tried: set[str] = set()
        self._broken: tuple[Line, MeshError] | None = None
        self._until: float | None = None
        self._pause = _PAUSE_S[0]

    async def next(self) -> Line:
        """A line that is ready to be sent on.

        Raises UnknownName, RegistryUnavailable, NoNode when every node refused for min(deadline, WAIT_S) or the last
        one left a moment ago and none came, or the last error of a node that answered.
        """
        nodes: Nodes = self._directory.cached(self._name) or await self._look_up()
        while True:
            line = self._pool.choose(self._name, nodes, skip=self._tried)
            if line is None:
                nodes = await self._wait(nodes)
            elif line.sound or await line.connect(self._give_up_at()):
                return line
            else:
                self._tried.add(line.node.id)

    def again(self, line: Line, error: MeshError, *, repeatable: bool) -> bool:
        """Whether the call that `error` ended on `line` is to be sent to another node."""
        line.failed(error)
        if not isinstance(error, Draining | WrongNode):
            if not (repeatable and broke_off(error)):
                return False
            self._broken = line, error
        self._tried.add(line.node.id)
        self._give_up_at()
        return True

    async def _look_up(self) -> Nodes:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._directory.nodes(self._name)
        except TimeoutError:
            raise RegistryUnavailable(f"the registry did not say in time where {self._name} is") from None
        except UnknownName:
            if self._until is None and not self._directory.restarting(self._name):
                raise
            return ()

    def _give_up_at(self) -> float:
        if self._until is None:
            self._until = min(self._deadline, self._time() + WAIT_S)
        return self._until

    async def _wait(self, nodes: Nodes) -> Nodes:
        """Waits for a change of the nodes, or a little, and returns what there is then; none when they are gone."""
        until = self._give_up_at()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._pause, until - self._time())):
                await self._directory.changed(self._name, since=nodes)
        if self._broken:
            line, error = self._broken
            if line.ready:  # the node never left: that was its own answer, and no other has a better one
                raise error
            self._broken = None
        if self._time() >= until - _TICK_S:
            where = ", ".join(node.address for node in nodes[:3]) or "none is left"
            raise NoNode(f"{self._name} is known, but no node of it answers ({where})")
        self._pause = min(self._pause * 2, _PAUSE_S[1])
        self._tried.clear()
        return await self._look_up()
