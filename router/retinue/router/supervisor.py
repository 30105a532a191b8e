"""Runs the parts of a mesh, each in a process of its own: in order, watched, and ended in the opposite order.

Whether a part is up is what the registry and its own health service say, and nothing else. It serves nothing itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from retinue.router.child import Child
from retinue.service.errors import Unavailable
from retinue.service.registry import Node, Registry
from retinue.service.transport import CHANNEL_OPTIONS

START_S = 60.0
log = logging.getLogger("retinue.run")


class ChildFailed(Unavailable):
    """A part of the mesh ended, or kept silent, before it was ever SERVING."""


class Supervisor:
    """Holds the groups of processes while it is entered. Entering waits until every group is SERVING, one by one.

    Entering raises ChildFailed, with the part's last line, when one ends before; nothing is left running then.
    """

    def __init__(self, registry: Registry, groups: Sequence[Sequence[Child]]) -> None:
        self._registry = registry
        self._groups = groups
        self._started: list[tuple[Sequence[Child], list[asyncio.Task[None]]]] = []
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Supervisor:
        await self._tasks.__aenter__()
        try:
            for group in self._groups:
                await self._start(group)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def kill(self) -> None:
        """Ends every process at once."""
        for group in self._groups:
            for child in group:
                child.kill()

    async def _start(self, group: Sequence[Child]) -> None:
        before = {child.name: {node.id for node in await self._registry.find(child.name)} for child in group}
        self._started.append((group, [self._tasks.create_task(child.keep()) for child in group]))
        waits = [asyncio.create_task(self._up(child, before[child.name])) for child in group]
        try:
            await asyncio.gather(*waits)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _up(self, child: Child, before: Collection[str]) -> None:
        """Returns when the child is SERVING."""
        ended = asyncio.create_task(child.failed.wait())
        serving = asyncio.create_task(self._serving(child.name, before))
        try:
            await asyncio.wait((ended, serving), timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving
                child.served = True
            elif ended.done():
                raise ChildFailed(f"{child.name} ended before it served: {child.last_line or 'it said nothing'}")
            else:
                raise ChildFailed(f"{child.name} is not serving after {START_S:g} s: {child.last_line}")
        finally:
            for task in (ended, serving):
                task.cancel()
            await asyncio.gather(ended, serving, return_exceptions=True)

    async def _serving(self, name: str, before: Collection[str]) -> None:
        """Returns when a node that was not there before is listed, healthy and says that it is SERVING."""
        watch = cast("AsyncGenerator[tuple[Node, ...], None]", self._registry.watch(name))
        async with aclosing(watch) as views:
            async for nodes in views:
                fresh = [node for node in nodes if node.id not in before and node.healthy]
                if fresh:
                    await _says_serving(fresh[0].address)
                    log.info("%s is serving at %s", name, fresh[0].address)
                    return

    async def _stop(self) -> None:
        """Ends the groups, last first; each only when the one after it is gone."""
        for group, tasks in reversed(self._started):
            for child in group:
                child.stop()
            await asyncio.wait(tasks)
        await self._tasks.__aexit__(None, None, None)


async def _says_serving(address: str) -> None:
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        async for answer in watch:
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return
