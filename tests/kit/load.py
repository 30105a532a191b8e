"""Callers that ask one agent again and again, as long as a test does something to the mesh; nothing may be lost by it.

Each has a session of its own and says each thing once. What it was told is held against what is stored, afterwards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Self

from kit.driver import Stage
from kit.histories import check_session
from retinue.service.chat import RunState
from retinue.service.errors import MeshError

# The lease of a mesh in ordinary life: no owner dies here, and the machine is busy.
LEASE_S = 5.0
WHOLE = ("user", "assistant", "tool", "assistant")


class Load:
    """So many callers of `name`, for the length of the block.

    Each turn lasts `seconds` at least, and its message begins with `prefix`.
    """

    def __init__(self, stage: Stage, name: str, callers: int, *, seconds: float = 0.1, prefix: str = "") -> None:
        self._stage, self._name, self._seconds, self._prefix = stage, name, seconds, prefix
        self._callers = callers
        self._stopped = False
        self._tasks = asyncio.TaskGroup()
        self._first = asyncio.Event()
        self.said: dict[str, list[str]] = {}
        self.failed: list[str] = []
        self.slowest = 0.0

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        for number in range(self._callers):
            self._tasks.create_task(self._talk(f"caller-{number}"))
        await self._first.wait()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stopped = True
        await self._tasks.__aexit__(None, None, None)

    @property
    def turns(self) -> int:
        """How many turns were begun."""
        return sum(len(said) for said in self.said.values())

    async def check(self, agent: str) -> None:
        """No call failed, and each turn is in the history of `agent` once, whole, its tool run once."""
        assert not self.failed, f"{len(self.failed)} of {self.turns} failed: {self.failed[:3]}"
        for session, said in self.said.items():
            entries = [entry.message for entry in await check_session(self._stage.mesh.store, agent, session)]
            assert [message.text for message in entries if message.role == "user"] == said
            assert tuple(message.role for message in entries) == WHOLE * len(said)
        effects = Counter((effect.session, effect.item) for effect in self._stage.effects() if effect.tool == "pay")
        assert set(effects.values()) == {1}, effects.most_common(3)
        assert len(effects) == self.turns

    async def _talk(self, session: str) -> None:
        said = self.said.setdefault(session, [])
        clock = asyncio.get_running_loop().time
        while not self._stopped:
            begun = clock()
            said.append(f"{self._prefix}pay:{len(said)}:{self._seconds}")
            try:
                reply = await self._stage.ask(self._name, said[-1], session=session)
            except MeshError as error:
                self.failed.append(f"{type(error).__name__}: {error}")
            else:
                if reply.state is not RunState.COMPLETED or "pay" not in reply.text:
                    self.failed.append(f"{reply.state.name} {reply.reason}: {reply.text}")
            self.slowest = max(self.slowest, clock() - begun)
            if len(self.said) == self._callers and all(self.said.values()):
                self._first.set()
