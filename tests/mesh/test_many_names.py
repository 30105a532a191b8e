"""Hundreds of names used by many processes of one host: Consul's limit for a host is kept, and all stay fresh."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from kit.consul import ConsulServer
from kit.driver import Victim
from kit.points import Passed
from kit.watcher import Watching
from kit.zygote import Zygote

from retinue.service.errors import UnknownName
from retinue.service.mesh import Mesh
from retinue.service.settings import Settings

NAMES, PROCESSES, EACH = 260, 15, 18
CHANGED = 20 if os.environ.get("FAULTS") == "all" else 6
CLIENTS = 200
FRESH_S = 5.0
# Consul refuses further connections from one address.
LIMIT = 200
_ESTABLISHED = "01"


class Seen:
    """What each process was last told of each name."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, str], str] = {}
        self._new = asyncio.Event()

    def tell(self, pid: int, passed: Passed) -> None:
        """A line of a watcher: the name, and the addresses of its nodes."""
        self._told[pid, passed.session] = passed.request_id
        self._new.set()

    async def all_see(self, name: str, address: str) -> None:
        """Returns once every process that uses the name was last told this address."""
        while {told for (_, of), told in self._told.items() if of == name} != {address}:
            self._new.clear()
            await self._new.wait()


def register(consul: ConsulServer, name: str, port: int) -> None:
    consul.put("agent/service/register", {"Name": name, "Address": "127.0.0.1", "Port": port})


def connections(url: str) -> int:
    """How many connections to that port of the loopback are open."""
    port = int(url.rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == _ESTABLISHED for row in rows)


def refused(folder: Path) -> list[str]:
    """The watchers that could not reach Consul at some time."""
    return [log.name for log in folder.glob("watcher-*.log") if "cannot be reached" in log.read_text()]


@asynccontextmanager
async def watchers(zygote: Zygote, folder: Path, url: str, names: list[str], seen: Seen) -> AsyncIterator[None]:
    """The processes, once each has used all its names; together they use every name."""
    async with AsyncExitStack() as stack:
        started = []
        for number in range(PROCESSES):
            used = [names[(number * EACH + at) % len(names)] for at in range(EACH)]
            watching = Watching(registry=url, folder=str(folder), agents=[f"watcher-{number}"], names=used)
            started.append(await Victim.start(zygote, watching, seen.tell))
            stack.push_async_callback(started[-1].close)
        for each in started:
            await each.serving()
        yield


async def test_many_processes_that_use_many_names_keep_to_the_limit_of_consul_and_see_each_change(
    zygote: Zygote, tmp_path: Path, consul_server: ConsulServer
) -> None:
    clock = asyncio.get_running_loop().time
    names = [f"name-{number}" for number in range(NAMES)]
    for name in names:
        register(consul_server, name, 1000)
    seen, most, slowest = Seen(), 0, 0.0
    async with asyncio.timeout(100), watchers(zygote, tmp_path, consul_server.url, names, seen):
        for number, name in enumerate(names[:: NAMES // CHANGED], 2000):
            register(consul_server, name, number)
            begun = clock()
            async with asyncio.timeout(FRESH_S):
                await seen.all_see(name, f"127.0.0.1:{number}")
            slowest = max(slowest, clock() - begun)
            most = max(most, connections(consul_server.url))
    print(f"{NAMES} names, {PROCESSES} processes: at most {most} connections, a change is seen within {slowest:.2f} s")
    assert not refused(tmp_path)
    assert most < LIMIT


async def test_clients_that_come_and_go_leave_no_connection_and_no_task(consul_url: str, redis_url: str) -> None:
    settings = Settings(registry=consul_url, store=redis_url)

    async def come_and_go() -> None:
        async with Mesh(settings) as mesh:
            with pytest.raises(UnknownName):
                await mesh.ask("nobody", "hello")

    await come_and_go()
    tasks, files = asyncio.all_tasks(), len(os.listdir("/proc/self/fd"))
    async with asyncio.timeout(60):
        for _ in range(CLIENTS // 20):
            await asyncio.gather(*(come_and_go() for _ in range(20)))
    assert asyncio.all_tasks() == tasks
    assert len(os.listdir("/proc/self/fd")) <= files
