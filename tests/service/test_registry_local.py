"""What the registry in a file promises beyond the contract: heartbeats, several processes, a file that misbehaves."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path

import pytest
from kit.watching import closing, listening, until

from retinue.service.errors import RegistryUnavailable
from retinue.service.registry import Node
from retinue.service.registry.local import LocalRegistry

CLERK = Node(name="clerk", id="clerk-00000001", address="127.0.0.1:9001", type="agent")
TASK = Node(name="task", id="task-00000001", address="127.0.0.1:9003")

PROCESS = """
import asyncio, sys
from pathlib import Path
from retinue.service.registry import Node
from retinue.service.registry.local import LocalRegistry

async def main():
    async with LocalRegistry(Path(sys.argv[1])) as registry:
        await registry.find("task")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print("registering", flush=True)
        await registry.register(Node(name="task", id="task-00000001", address="127.0.0.1:9003"))
        async for nodes in registry.watch("clerk"):
            if nodes:
                print("seen", flush=True)

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.db"


async def test_a_node_that_stops_registering_turns_unhealthy_and_is_gone_after_its_ttl(path: Path) -> None:
    async with LocalRegistry(path, heartbeat=0.2, ttl=1.2) as registry, closing(registry.watch("clerk")) as watch:
        begun = asyncio.get_running_loop().time()
        await registry.register(CLERK)
        (shown,) = await until(watch, lambda nodes: nodes != ())
        assert shown.healthy
        (shown,) = await until(watch, lambda nodes: not nodes or not nodes[0].healthy)
        assert not shown.healthy
        assert await until(watch, lambda nodes: nodes == ()) == ()
        assert 1.2 <= asyncio.get_running_loop().time() - begun < 2.2
        assert await registry.find("clerk") == ()
        assert await registry.names() == {}


async def test_a_node_that_is_gone_comes_back_when_it_registers_again(path: Path) -> None:
    async with LocalRegistry(path, heartbeat=0.1, ttl=0.3) as registry, closing(registry.watch("clerk")) as watch:
        await registry.register(CLERK)
        await until(watch, lambda nodes: nodes != ())
        await until(watch, lambda nodes: nodes == ())
        await registry.register(CLERK)
        await until(watch, lambda nodes: nodes == (CLERK,))


async def test_rows_of_the_gone_are_removed_by_those_who_stay(path: Path) -> None:
    async with LocalRegistry(path, heartbeat=0.1, ttl=0.3) as registry, closing(registry.watch("clerk")) as watch:
        await registry.register(CLERK)
        await until(watch, lambda nodes: nodes != ())
        await until(watch, lambda nodes: nodes == ())
        await registry.register(TASK)
    with sqlite3.connect(path) as file:
        rows = file.execute("select id from nodes").fetchall()
    file.close()
    assert rows == [(TASK.id,)]


async def test_two_processes_see_each_other_within_half_a_second(path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROCESS, str(path)), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20), LocalRegistry(path) as registry, closing(registry.watch("task")) as watch:
            assert await process.stdout.readline() == b"ready\n"
            assert await anext(watch) == ()
            process.stdin.write(b"\n")
            assert await process.stdout.readline() == b"registering\n"
            assert await until(watch, lambda nodes: nodes != (), within=0.5) == (TASK,)
            await registry.register(CLERK)
            async with asyncio.timeout(0.5):
                assert await process.stdout.readline() == b"seen\n"
    finally:
        process.send_signal(signal.SIGKILL)
        await process.communicate()


async def test_a_lock_that_others_hold_for_a_moment_is_waited_out(path: Path) -> None:
    async with LocalRegistry(path) as registry:
        await registry.register(TASK)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("begin immediate")
        asyncio.get_running_loop().call_later(0.2, other.rollback)
        async with asyncio.timeout(5):
            await registry.register(CLERK)
        other.close()
        assert await registry.names() == {"clerk": "agent", "task": "service"}


async def test_a_lock_that_is_never_given_back_is_a_registry_out_of_reach_and_the_loop_goes_on(path: Path) -> None:
    async with LocalRegistry(path, patience=0.3) as registry:
        await registry.register(TASK)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("begin immediate")
        ticks: list[int] = []
        for tick in (1, 2):
            asyncio.get_running_loop().call_later(tick / 10, ticks.append, tick)
        with pytest.raises(RegistryUnavailable, match="kept busy") as caught:
            await registry.register(CLERK)
        assert ticks == [1, 2]
        other.close()
    assert "locked" not in caught.value.message


async def test_the_files_are_nobody_elses_to_read(path: Path) -> None:
    async with LocalRegistry(path) as registry:
        await registry.register(CLERK)
        assert {file.stat().st_mode & 0o777 for file in path.parent.glob("registry.db*")} == {0o600}


async def test_a_file_that_was_deleted_is_made_again_with_the_next_heartbeat(path: Path) -> None:
    async with LocalRegistry(path) as registry:
        await registry.register(CLERK)
        for file in path.parent.glob("registry.db*"):
            file.unlink()
        await registry.register(CLERK)
        async with LocalRegistry(path) as elsewhere:
            assert await elsewhere.find("clerk") == (CLERK,)


@pytest.fixture
def garbage(path: Path) -> Path:
    path.write_text("these are not the nodes that you look for " * 100)
    return path


async def test_a_file_that_is_no_registry_says_what_to_do(garbage: Path) -> None:
    async with LocalRegistry(garbage) as registry:
        with pytest.raises(RegistryUnavailable, match="delete the file"):
            await registry.find("clerk")


async def test_a_watch_lives_through_a_file_that_is_out_of_reach_for_a_while(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    os.mkdir(folder)
    async with LocalRegistry(folder / "registry.db") as registry, closing(registry.watch("clerk")) as watch:
        assert await anext(watch) == ()
        with listening("retinue.registry") as lines:
            os.rename(folder, tmp_path / "elsewhere")
            async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
                shown = tasks.create_task(until(watch, lambda nodes: nodes == (CLERK,)))
                assert (await lines.get()).startswith("WARNING registry local://")
                os.mkdir(folder)
                await registry.register(CLERK)
                await shown
                assert (await lines.get()).endswith("is back")
            assert lines.empty()
