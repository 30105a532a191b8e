"""Nodes of one machine in an SQLite file of its own, for a mesh that needs no server.

A node is there as long as it registers again in time: rows older than the TTL are as good as gone, whatever became
of their process. It does not send heartbeats itself, and it reaches no other machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from retinue.service.errors import RegistryUnavailable
from retinue.service.registry import HEARTBEAT_S, TTL_S, Node
from retinue.service.registry.listing import nodes_of, types_of
from retinue.service.registry.outage import Outage

log = logging.getLogger("retinue.registry")

T = TypeVar("T")
POLL_S = 0.2
BUSY_S = 0.05
PATIENCE_S = 10.0
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_TABLE = """
create table if not exists nodes (
    id text primary key, name text not null, address text not null, type text not null, services text not null,
    model text not null, description text not null, version text not null, beat real not null
) without rowid
"""
_COLUMNS = "id, name, address, type, services, model, description, version, beat"


class LocalRegistry:
    """The registry in the file at `path`, whose folder must be there.

    `heartbeat` and `ttl` (seconds): a node that missed two heartbeats is shown as not healthy, and one that was not
    heard of for `ttl` is not shown at all. `patience` (seconds) is how long a call waits while others lock the file.
    """

    def __init__(
        self, path: Path, *, heartbeat: float = HEARTBEAT_S, ttl: float = TTL_S, patience: float = PATIENCE_S
    ) -> None:
        self.url = f"local://{path}"
        self._outage = Outage()
        # A file that somebody deleted knows nobody any more, as a registry does that restarted empty.
        self._file = _NodeFile(path, ttl=ttl, lost=self._outage.begin)
        self._healthy_s = 2.25 * heartbeat
        self._ttl = ttl
        self._patience = patience
        self._thread: ThreadPoolExecutor | None = None
        self._read: tuple[tuple[Node, float], ...] = ()
        self._read_at = float("-inf")
        self._away = False

    @property
    def rejoining(self) -> bool:
        return self._outage.recent

    async def __aenter__(self) -> LocalRegistry:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="registry")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._file.close)
            thread.shutdown()

    async def register(self, node: Node) -> None:
        await self._run(lambda: self._file.put(node))

    async def deregister(self, node: Node) -> None:
        await self._run(lambda: self._file.drop(node.id))

    async def find(self, name: str) -> tuple[Node, ...]:
        return nodes_of(name, await self._nodes())

    async def names(self) -> Mapping[str, str]:
        return types_of(await self._nodes())

    def watch(self, name: str) -> AsyncIterator[tuple[Node, ...]]:
        return self._follow(lambda nodes: nodes_of(name, nodes))

    def watch_names(self) -> AsyncIterator[Mapping[str, str]]:
        return self._follow(types_of)

    async def _nodes(self, *, age: float = 0.0) -> list[Node]:
        """The nodes of now, from rows that were read at most `age` seconds ago: many watchers share one reading."""
        loop = asyncio.get_running_loop()
        if not age or loop.time() - self._read_at > age:
            self._read = await self._run(self._file.rows)
            self._read_at = loop.time()
        now = time.time()
        return [
            replace(node, healthy=now - beat <= self._healthy_s) for node, beat in self._read if now - beat <= self._ttl
        ]

    async def _follow(self, view: Callable[[list[Node]], T]) -> AsyncIterator[T]:
        shown = view(await self._nodes())
        yield shown
        while True:
            await asyncio.sleep(POLL_S)
            try:
                now = view(await self._nodes(age=POLL_S / 2))
            except RegistryUnavailable as error:
                if not self._away:
                    self._away = True
                    log.warning("%s; watches go on when it is back", error)
                continue
            if self._away:
                self._away = False
                log.info("registry %s is back", self.url)
            if now != shown:
                shown = now
                yield shown

    async def _run(self, work: Callable[[], T]) -> T:
        """What `work` returns on the registry's own thread, tried again for a while when others lock the file."""
        if self._thread is None:
            raise RuntimeError("the registry is not entered: use it inside `async with`")
        loop = asyncio.get_running_loop()
        give_up, delay = loop.time() + self._patience, 0.005
        while True:
            try:
                result = await loop.run_in_executor(self._thread, work)
            except (sqlite3.Error, OSError) as error:
                if not _busy(error):
                    self._outage.begin()
                    raise RegistryUnavailable(
                        f"registry {self.url} cannot be used ({error}); check the path, or stop the mesh and "
                        "delete the file: every node registers again by itself"
                    ) from error
                if loop.time() + delay > give_up:
                    raise RegistryUnavailable(
                        f"registry {self.url} was kept busy by other processes for {self._patience:g} s; try again",
                        retry_after=1.0,
                    ) from error
            else:
                self._outage.end()
                return result
            await asyncio.sleep(random.uniform(0.5, 1.0) * delay)
            delay = min(2 * delay, 0.2)


def _busy(error: Exception) -> bool:
    # The low byte is the primary result code, whatever the extended one says; errors of the module itself have none.
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY


class _NodeFile:
    """The file itself, blocking; only ever touched by the registry's own thread. It opens itself at the first use."""

    def __init__(self, path: Path, *, ttl: float, lost: Callable[[], None]) -> None:
        self._path = path
        self._lost = lost
        self._ttl = ttl
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._stamp = (-1, -1)
        self._rows: tuple[tuple[Node, float], ...] = ()

    def put(self, node: Node) -> None:
        now = time.time()
        row = (node.id, node.name, node.address, node.type, ",".join(node.services), node.model)
        with self._open() as connection:
            connection.execute("begin immediate")
            connection.execute("delete from nodes where beat < ?", (now - self._ttl,))
            connection.execute(
                f"insert or replace into nodes ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, node.description, node.version, now),
            )

    def drop(self, node_id: str) -> None:
        self._open().execute("delete from nodes where id = ?", (node_id,))

    def rows(self) -> tuple[tuple[Node, float], ...]:
        """Every row with the time of its last heartbeat; read again only when something was written."""
        connection = self._open()
        # The first number counts what others wrote, the second what this connection wrote.
        stamp = (connection.execute("pragma data_version").fetchone()[0], connection.total_changes)
        if stamp != self._stamp:
            self._rows = tuple(_to_node(row) for row in connection.execute(f"select {_COLUMNS} from nodes"))
            self._stamp = stamp
        return self._rows

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            if not self._replaced():
                return self._connection
            self._lost()
        self.close()
        # Made first, so that the file and those that SQLite puts beside it are nobody else's to read.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
        try:
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = normal")
            connection.execute(_TABLE)
        except sqlite3.Error:
            connection.close()
            raise
        self._inode, self._stamp, self._connection = self._path.stat().st_ino, (-1, -1), connection
        return connection

    def _replaced(self) -> bool:
        """Whether somebody deleted the file, which this connection would go on writing for nobody."""
        try:
            return self._path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True


def _to_node(row: tuple[str, str, str, str, str, str, str, str, float]) -> tuple[Node, float]:
    node_id, name, address, kind, services, model, description, version, beat = row
    node = Node(
        name=name,
        id=node_id,
        address=address,
        type=kind,
        services=tuple(services.split(",")) if services else (),
        model=model,
        description=description,
        version=version,
    )
    return node, beat
