"""Direct access: while no agent is there, the endpoints of every registered service are the router's own tools.

The router is then an agent itself, made anew when services come or go; turns that run keep the one they began with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from retinue.agent import Agent
from retinue.agent.model import Model
from retinue.service.background import Background
from retinue.service.errors import MeshError

if TYPE_CHECKING:
    from retinue.service.mesh import Mesh

_PROMPT = """\
You give a person direct access to the services of this mesh, which are your tools. Use them to do what is asked and
say briefly what came of it. When none of them can do it, say so and name what they can do."""


class _Inner:
    """The router as an agent with these services. A task of its own enters and leaves it."""

    def __init__(self, router: str, services: tuple[str, ...], model: Model) -> None:
        self.services = services
        self.agent = Agent(router, _PROMPT, services=services, can_invoke=(), model=model)
        self.settled = asyncio.Event()
        self.failed: MeshError | None = None
        self._users = 0
        self._replaced = False
        self._over = asyncio.Event()

    async def hold(self, mesh: Mesh) -> None:
        """Keeps the agent open until it was replaced and nobody uses it any more."""
        try:
            async with self.agent.mounted(mesh):
                self.settled.set()
                await self._over.wait()
        except MeshError as error:
            self.failed = error
        finally:
            self.settled.set()

    def replace(self) -> None:
        self._replaced = True
        self._leave()

    @asynccontextmanager
    async def used(self) -> AsyncIterator[Agent]:
        self._users += 1
        try:
            await self.settled.wait()
            if self.failed is not None:
                raise self.failed
            yield self.agent
        finally:
            self._users -= 1
            self._leave()

    def _leave(self) -> None:
        if self._replaced and not self._users:
            self._over.set()


class Direct:
    """The agents that `router` is itself, one at a time, while it is mounted."""

    def __init__(self, router: str, model: Model) -> None:
        self._router = router
        self._model = model
        self._inner: _Inner | None = None

    @asynccontextmanager
    async def mounted(self, mesh: Mesh) -> AsyncIterator[None]:
        """Nothing is opened before the first use; all is closed with the block."""
        self._mesh = mesh
        async with Background() as self._background:
            yield

    @asynccontextmanager
    async def agent(self, services: tuple[str, ...]) -> AsyncIterator[Agent]:
        """The router as an agent with `services`, for one turn. Raises what kept it from starting."""
        if self._inner is None or self._inner.services != services or self._inner.failed:
            if self._inner is not None:
                self._inner.replace()
            self._inner = _Inner(self._router, services, self._model)
            self._background.start(self._inner.hold(self._mesh))
        async with self._inner.used() as agent:
            yield agent
