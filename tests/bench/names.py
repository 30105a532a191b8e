"""What a turn and a look-up cost in a mesh of one name and in one of a thousand, both on a real Consul."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from bench.stage import child, redis
from kit.consul import ConsulServer

from retinue.service.chat import Call
from retinue.service.mesh import Mesh

NAMES = 1000
ROUNDS, TURNS, FIRST, CACHED = 7, 40, 20, 20_000


@dataclass(slots=True)
class Subject:
    """A client of one mesh, and the seconds that it took, a figure a round."""

    mesh: Mesh
    turn: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    cached: list[float] = field(default_factory=list)

    async def round(self, number: int) -> None:
        directory, registry = self.mesh.client.directory, self.mesh.registry
        session = Call(session=f"s{number}")
        self.turn.append(await median(TURNS, lambda: self.mesh.peer("clerk").ask("hello", session)))
        self.first.append(await median(FIRST, lambda: registry.find("clerk")))
        begin = time.perf_counter()
        for _ in range(CACHED):
            await directory.nodes("clerk")
        self.cached.append((time.perf_counter() - begin) / CACHED)


async def median(times: int, call: Callable[[], Awaitable[object]]) -> float:
    """The median of the seconds that one call takes, one after another."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


@asynccontextmanager
async def subject(folder: Path, model: str, store: str, *, names: int) -> AsyncIterator[Subject]:
    """A Consul with so many names, of which one is an agent in a process of its own."""
    with ConsulServer(folder) as consul:
        for number in count(1):
            if number == names:
                break
            consul.put("agent/service/register", {"Name": f"name-{number}", "Address": "127.0.0.1", "Port": 1})
        async with child("agent", model, store, consul.url), Mesh.connect(consul.url, store=store) as mesh:
            yield Subject(mesh)


async def measure() -> None:
    """Prints all of it."""
    print(f"1 and {NAMES} names", file=sys.stderr)
    async with AsyncExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        model = await stack.enter_async_context(child("model"))
        few, many = [
            await stack.enter_async_context(
                subject(
                    folder,
                    f"http://{model.address}/v1",
                    await stack.enter_async_context(redis()),
                    names=names,
                )
            )
            for folder, names in zip(folders, (1, NAMES), strict=True)
        ]
        for number in range(ROUNDS):
            for each in (few, many):
                await each.round(number)
    print()
    for what, mine, yardstick in (
        ("a turn", many.turn, few.turn),
        ("a first look-up of a name", many.first, few.first),
        ("a look-up of a known name", many.cached, few.cached),
    ):
        print(
            f"{what} with {NAMES} names registered: {statistics.median(mine) * 1e3:.4g} ms,"
            f" {statistics.median(a / b for a, b in zip(mine, yardstick, strict=True)):.2f} x the same with one"
        )


if __name__ == "__main__":
    asyncio.run(measure())
