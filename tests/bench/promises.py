"""`make promises`: breaks a real mesh in each way that docs/promises.md speaks of, and prints bounds and measurements.

Real processes, a real Consul, a real Redis, and the lease of ordinary life. It ends with 1 when a bound was not kept.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from kit.consul import ConsulServer
from kit.driver import Stage, staged
from kit.load import LEASE_S, Load
from kit.nodes import black_hole, client_of, registered
from kit.redis import RedisServer
from kit.watching import closing, listening, until
from kit.zygote import Zygote

from retinue.service.chat import Call, Reply, RunState
from retinue.service.client.peer import Peer
from retinue.service.errors import DeadlinePassed, MeshError, NoNode, RegistryUnavailable, StoreUnavailable
from retinue.service.mesh import Mesh
from retinue.service.registry import TTL_S, Node

CALLERS = 50
AWAY_S = 10.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One promise: its bound and what was measured, both in `unit`."""

    promise: str
    bound: float
    value: float
    unit: str = "s"

    @property
    def kept(self) -> bool:
        return self.value <= self.bound


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() - self._begun


class Bench:
    """The servers, and a new mesh on them for each measurement."""

    def __init__(self, zygote: Zygote, consul: ConsulServer, redis: RedisServer, folder: Path) -> None:
        self._zygote, self.consul, self.redis, self._folder = zygote, consul, redis, folder
        self._numbers = count()

    @asynccontextmanager
    async def mesh(self, *, local: bool = False) -> AsyncIterator[Stage]:
        """An empty mesh on Consul and Redis, or on files."""
        folder = self._folder / str(next(self._numbers))
        if local:
            store, registry = f"sqlite://{self._folder}/store.db", ""
        else:
            self.consul.clear()
            with self.redis.client() as client:
                client.flushall()
            store, registry = self.redis.url, self.consul.url
        async with asyncio.timeout(60), staged(self._zygote, folder, store, registry=registry, lease=LEASE_S) as stage:
            yield stage


async def shown(stage: Stage, name: str, wanted: Callable[[tuple[Node, ...]], bool]) -> float:
    """How long it takes until the registry shows what is wanted of a name."""
    clock = Clock()
    async with closing(stage.mesh.registry.watch(name)) as watch:
        await until(watch, wanted, within=30.0)
    return clock()


async def refused(call: Awaitable[Reply], *kinds: type[MeshError]) -> None:
    """The call ends with an error of one of these kinds."""
    try:
        reply = await call
    except kinds:
        return
    raise AssertionError(f"it was answered: {reply}")


async def dead_node(bench: Bench) -> list[Measured]:
    async with bench.mesh() as stage:
        killed, _ = [await stage.start("clerk") for _ in range(2)]
        await asyncio.gather(*(stage.ask("clerk", "hello", session=f"w{number}") for number in range(10)))
        with listening("retinue.client") as lines:
            turns = [
                asyncio.create_task(stage.ask("clerk", "look:1:0.5", session=f"s{number}", seconds=30.0))
                for number in range(20)
            ]
            await stage.at("clerk tool look 1 begin", request_id=None)
            clock = Clock()
            await killed.kill()
            await lines.get()
            ejected = clock()
            noticed = clock() + await shown(stage, "clerk", lambda nodes: sum(node.healthy for node in nodes) == 1)
            ended = await asyncio.gather(*turns, return_exceptions=True)
        failed = sum(isinstance(each, BaseException) for each in ended)
    return [
        Measured("a dead node: passed over by a client that called it", 1.0, ejected),
        Measured("a dead node: unhealthy in Consul", 4.0, noticed),
        Measured("a dead node: chats that were lost with it", 0, failed, "of 20"),
    ]


async def dead_local_nodes(bench: Bench) -> list[Measured]:
    async with bench.mesh(local=True) as stage:
        killed, frozen = await stage.start("killed"), await stage.start("frozen")
        await killed.kill()
        await frozen.freeze()
        gone = max(
            await asyncio.gather(*(shown(stage, name, lambda nodes: not nodes) for name in ("killed", "frozen")))
        )
        frozen.thaw()
        back = await shown(stage, "frozen", bool)
    return [
        Measured("local: a killed or frozen process is off the list", TTL_S + 0.5, gone),
        Measured("local: one that thaws is on it again", 2.5, back),
    ]


async def dead_owner(bench: Bench) -> list[Measured]:
    async with bench.mesh() as stage:
        for _ in range(2):
            await stage.start("clerk")
        clerk = stage.mesh.peer("clerk")
        begun = await clerk.ask("pay:1:30", Call(session="s", request_id="r", detach=True))
        owner = await stage.at("clerk tool pay 1 begin", request_id="r")
        (survivor,) = [victim for victim in stage.all if victim is not owner]
        node = await node_of(stage, survivor.pid)
        async with client_of(await registered("clerk", node)) as client:
            peer = Peer(client, "clerk")
            first = asyncio.Event()
            watcher = asyncio.create_task(follow(peer, begun.run_id, first))
            await first.wait()
            await owner.kill()
            clock = Clock()
            await watcher
            told = clock()
            assert (await peer.run(begun.run_id)).state is RunState.INTERRUPTED
    return [Measured("a dead owner: whoever watches its run is told (lease 5 s)", LEASE_S + 1.0, told)]


async def node_of(stage: Stage, pid: int) -> str:
    """The address of the node that this process serves: its log says it."""
    nodes = await stage.mesh.registry.find("clerk")
    text = "".join(log.read_text() for log in stage.folder.glob("*.log"))
    said = [line for line in text.splitlines() if line.startswith(f"{pid} ")]
    return next(node.address for node in nodes if any(node.id in line for line in said))


async def follow(peer: Peer, run_id: str, first: asyncio.Event) -> None:
    async with aclosing(peer.watch(run_id)) as events:
        async for _ in events:
            first.set()


async def lost_registry(bench: Bench) -> list[Measured]:
    async with bench.mesh() as stage:
        for _ in range(3):
            await stage.start("clerk")
        await stage.start("helper")
        await stage.start("router")
        async with Load(stage, "router", 10, prefix="@clerk ") as load:
            await bench.consul.stop()
            clock = Clock()
            async with Mesh(stage.mesh.settings) as cold:
                await refused(cold.ask("clerk", "hello"), RegistryUnavailable)
            told = clock()
            await asyncio.sleep(AWAY_S)
            await bench.consul.start(empty=True)
            counts = {"clerk": 3, "helper": 1, "router": 1}
            back = max(
                await asyncio.gather(
                    *(shown(stage, name, lambda nodes, n=n: len(nodes) == n) for name, n in counts.items())  # type: ignore[misc]
                )
            )
            await asyncio.sleep(5.0)
        await load.check("clerk")
    return [
        Measured("Consul away: a client that knows nobody is told", 6.0, told),
        Measured(
            f"Consul away for {AWAY_S:g} s and back empty: failed calls to known names",
            0,
            len(load.failed),
            f"of {load.turns}",
        ),
        Measured("Consul back empty: every node is listed again", 5.0, back),
    ]


async def lost_store(bench: Bench) -> list[Measured]:
    async with bench.mesh() as stage:
        await stage.start("clerk")
        await stage.ask("clerk", "hello")
        await bench.redis.stop()
        clock = Clock()
        await refused(stage.ask("clerk", "hello"), StoreUnavailable)
        told = clock()
        out = clock() + await shown(stage, "clerk", lambda nodes: not nodes[0].healthy)
        await bench.redis.start()
        back = await shown(stage, "clerk", lambda nodes: nodes[0].healthy)
    return [
        Measured("Redis away: a caller is told (STORE)", 15.0, told),
        Measured("Redis away: the node is unhealthy in Consul", 6.0, out),
        Measured("Redis back: the node is healthy again", 5.0, back),
    ]


async def drain(bench: Bench) -> list[Measured]:
    async with bench.mesh() as stage:
        leaving = await stage.start("clerk")
        turn = asyncio.create_task(stage.ask("clerk", "pay:1:3", session="long"))
        await stage.at("clerk tool pay 1 begin", request_id=None)
        await stage.start("clerk")
        leaving.signal(signal.SIGTERM)
        off = await shown(stage, "clerk", lambda nodes: len(nodes) == 1)
        lost = (await turn).state is not RunState.COMPLETED
        clock = Clock()
        await leaving.dead()
        gone = clock()
    return [
        Measured("drain: off the list after SIGTERM", 1.0, off),
        Measured("drain: running turns that were lost", 0, lost, "of 1"),
        Measured("drain: the process has ended after its last turn", 2.0, gone),
    ]


async def rolling_restart(bench: Bench) -> list[Measured]:
    async with bench.mesh() as stage:
        replicas = [await stage.start("clerk") for _ in range(3)]
        router = await stage.start("router")
        async with Load(stage, "router", CALLERS) as load:
            for old in replicas:
                await old.end()
                await stage.start("clerk")
            await router.end()
            await stage.start("router")
        await load.check("clerk")
    return [
        Measured("a rolling restart: failed, lost or doubled turns", 0, len(load.failed), f"of {load.turns}"),
        Measured("a rolling restart: the slowest turn", 10.0, load.slowest),
    ]


async def nobody_answers(bench: Bench) -> list[Measured]:
    clock = Clock()
    with black_hole() as address:
        async with client_of(await registered("clerk", address)) as client:
            await refused(Peer(client, "clerk").ask("hello", Stage.call("", "", 1.0)), NoNode, DeadlinePassed)
    return [Measured("every node black-holed: a deadline of 1 s is kept", 1.2, clock())]


PROMISES = (
    dead_node,
    dead_local_nodes,
    dead_owner,
    lost_registry,
    lost_store,
    drain,
    rolling_restart,
    nobody_answers,
)


async def measure() -> bool:
    """Prints each; whether all were kept."""
    kept = True
    logging.getLogger("retinue").addHandler(logging.NullHandler())  # what is broken on purpose is no news
    print(f"{'':64}{'bound':>8}{'now':>9}")
    with tempfile.TemporaryDirectory() as name, Zygote() as zygote:
        folder = Path(name)
        (folder / "consul").mkdir()
        (folder / "redis").mkdir()
        with ConsulServer(folder / "consul") as consul, RedisServer(folder / "redis") as redis:
            bench = Bench(zygote, consul, redis, folder / "meshes")
            for promise in PROMISES:
                try:
                    measured = await promise(bench)
                except (MeshError, AssertionError, TimeoutError) as error:
                    print(f"{promise.__name__}: not kept: {type(error).__name__}: {error}")
                    kept = False
                    continue
                for one in measured:
                    kept &= one.kept
                    print(
                        f"{one.promise:64}{one.bound:8g}{one.value:9.3g} {one.unit}{'' if one.kept else '  NOT KEPT'}"
                    )
    return kept


if __name__ == "__main__":
    begun = Clock()
    all_kept = asyncio.run(measure())
    print(f"measured in {begun():.0f} s")
    sys.exit(0 if all_kept else 1)
