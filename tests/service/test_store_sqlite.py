"""What the SQLite store promises beyond the contract: files, processes and locks."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path

import pytest

from retinue.service.errors import StoreUnavailable
from retinue.service.store import REMEMBERED_S, Lease, Line
from retinue.service.store.sqlite import SqliteStore

WRITER = """
import asyncio, sys
from pathlib import Path
from retinue.service.store.sqlite import SqliteStore

async def main():
    async with SqliteStore(Path(sys.argv[1])) as store:
        for number in range(50):
            await store.append("log", [f"{sys.argv[2]} {number}".encode()])
            await store.take("sum", 1)

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Another process' write lock on the file, held until it is rolled back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


async def test_everything_is_there_when_the_file_is_opened_again(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.append("log", [b"a", b"b"])
        await store.put("record", b"\x00")
        await store.put_row("table", "row", b"1")
        await store.take("counter", 7)
        lease = await store.acquire("lease", "node-a", ttl=60)
        await store.acquire("lease", "node-b", ttl=60)
    async with SqliteStore(path) as store:
        assert (await store.read("log")).entries == (b"a", b"b")
        assert await store.get("record") == b"\x00"
        assert await store.rows("table") == {"row": b"1"}
        assert await store.take("counter", 1) == 8
        assert await store.line("lease") == Line("node-a", ("node-b",))
        assert isinstance(lease, Lease) and await store.renew(lease, ttl=60)


async def test_the_file_and_its_journal_are_for_the_owner_alone(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.put("record", b"secret")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


async def test_two_processes_write_one_file(path: Path) -> None:
    async with asyncio.timeout(60), SqliteStore(path) as store:
        writers = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", WRITER, str(path), name, stderr=asyncio.subprocess.PIPE
            )
            for name in ("a", "b")
        ]
        assert [(await writer.communicate())[1] for writer in writers] == [b"", b""]
        entries = (await store.read("log")).entries
        for name in ("a", "b"):
            assert [e for e in entries if e.startswith(name.encode())] == [f"{name} {n}".encode() for n in range(50)]
        assert await store.take("sum", 0) == 100


async def test_many_writers_of_one_file_all_get_their_turn(path: Path) -> None:
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        opened = await asyncio.gather(*(stack.enter_async_context(SqliteStore(path)) for _ in range(8)))
        await asyncio.gather(*(store.append("log", [b"x"]) for store in opened for _ in range(20)))
        assert (await opened[0].read("log")).length == 160


async def test_a_locked_file_is_waited_for_and_the_loop_goes_on(path: Path) -> None:
    async with asyncio.timeout(10), SqliteStore(path) as store:
        with locked(path) as other:
            append = asyncio.create_task(store.append("log", [b"a"]))
            end, turns = time.monotonic() + 0.3, 0
            while time.monotonic() < end:
                await asyncio.sleep(0)
                turns += 1
            assert not append.done()
            assert turns > 200  # a loop that waits for the lock itself gets a handful
            other.execute("ROLLBACK")
            assert await append == 1


async def test_reads_go_on_while_another_process_writes(path: Path) -> None:
    async with asyncio.timeout(10), SqliteStore(path) as store:
        await store.append("log", [b"a"])
        with locked(path):
            assert (await store.read("log")).entries == (b"a",)
            await store.ping()


async def test_a_file_locked_for_too_long_is_unavailable_and_nothing_is_written(path: Path) -> None:
    async with asyncio.timeout(10), SqliteStore(path, patience=0.2) as store:
        with locked(path):
            with pytest.raises(StoreUnavailable, match="another process has locked it") as caught:
                await store.append("log", [b"a"])
            assert str(path) in str(caught.value)
        assert (await store.read("log")).length == 0
        assert await store.append("log", [b"b"]) == 1


async def test_a_cancelled_append_is_wholly_done_or_not_done(path: Path) -> None:
    async with asyncio.timeout(60), SqliteStore(path) as store:
        for turn in range(30):
            append = asyncio.create_task(store.append("log", [b"1"] * 50))
            for _ in range(turn):
                await asyncio.sleep(0)
            append.cancel()
            await asyncio.gather(append, return_exceptions=True)
        assert (await store.read("log", 0, 0)).length % 50 == 0


async def test_the_end_of_a_long_log_is_read_as_fast_as_that_of_a_short_one(path: Path) -> None:
    async with asyncio.timeout(60), SqliteStore(path) as store:
        await store.append("long", [b"x" * 200] * 100_000)
        await store.append("short", [b"x" * 200] * 100)

        async def fastest(key: str) -> float:
            times = []
            for _ in range(20):
                begin = time.perf_counter()
                assert len((await store.read(key, -50)).entries) == 50
                times.append(time.perf_counter() - begin)
            return min(times)

        assert await fastest("long") < 5 * await fastest("short")


async def test_what_has_ended_is_removed_from_the_file_by_later_writes(path: Path) -> None:
    async with asyncio.timeout(10), SqliteStore(path) as store:
        for number in range(20):
            await store.append(f"run/{number}", [b"x"], ttl=0)
            await store.put_row(f"table/{number}", "1", b"x", ttl=0)
            await store.acquire(f"lease/{number}", "node-a", ttl=-REMEMBERED_S)
            await store.acquire(f"lease/{number}", "node-b", ttl=-REMEMBERED_S)
            await store.put("other", b"", ttl=60)
    with closing(sqlite3.connect(path)) as file:
        for kind in ("entries", "cells", "holders", "places"):
            assert file.execute(f"SELECT count(*) FROM {kind}").fetchone() == (0,)
        assert file.execute("SELECT key FROM ends").fetchall() == [("other",)]


async def test_a_missing_folder_a_folder_and_a_file_of_something_else_are_unavailable(tmp_path: Path) -> None:
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"this is no database, it only has the name of one" * 100)
    for bad in (tmp_path / "missing" / "store.db", tmp_path, junk):
        with pytest.raises(StoreUnavailable) as caught:
            await SqliteStore(bad).__aenter__()
        assert str(bad) in str(caught.value)
    assert junk.read_bytes().startswith(b"this is no database")


async def test_a_file_that_was_removed_while_in_use_is_unavailable_instead_of_forgetting(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.append("log", [b"a"])
        for file in list(path.parent.iterdir()):
            file.unlink()
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            await store.append("log", [b"b"])
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            await store.ping()


async def test_a_disk_that_takes_no_more_is_unavailable_undoes_the_write_and_heals(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.append("log", [b"a"])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
        try:
            with pytest.raises(StoreUnavailable) as caught:
                await store.append("log", [b"x" * 100_000] * 10)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert str(path) in str(caught.value)
        assert await store.append("log", [b"x" * 100_000] * 10, at=1) == 11


async def test_a_closed_store_is_unavailable(path: Path) -> None:
    async with SqliteStore(path) as store:
        pass
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.append("log", [b"a"], lease=Lease("lease", "node-a", 1))
