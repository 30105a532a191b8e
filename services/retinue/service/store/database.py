"""One SQLite file and the one thread that touches it, so that a disk or a lock never holds up the event loop.

It runs transactions and waits for other processes' locks; it knows no tables.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self, TypeVar

from retinue.service.errors import StoreUnavailable

# The thread waits this long for a lock (seconds); what is longer is waited for in the event loop.
_BUSY: Final = 0.05
_LONGEST_PAUSE: Final = 0.25

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]


class Database:
    """A SQLite file in WAL mode, made (0600) when it is not there, with the tables of `schema`.

    Every method raises StoreUnavailable, naming the file, when SQLite fails or when others lock it for longer than
    `patience` (seconds). A caller that is cancelled leaves its transaction wholly done or not done.
    """

    def __init__(self, path: Path, schema: tuple[str, ...], *, patience: float) -> None:
        self._path = path
        self._schema = schema
        self._patience = patience
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite")
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        # A transaction that waits for a lock is not overtaken by the next one: callers count on their order.
        self._order = asyncio.Lock()

    async def __aenter__(self) -> Self:
        try:
            await self._persist(self._open)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        # The thread works in order: when it comes to this, whatever was begun is done.
        try:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, self._close))
        finally:
            self._thread.shutdown(wait=False)

    async def read(self, work: Work[T]) -> T:
        """What `work` finds in one snapshot of the file."""
        return await self._run("BEGIN", work)

    async def write(self, work: Work[T]) -> T:
        """What `work` returns, its changes durable; an exception of its own undoes them and passes."""
        async with self._order:
            return await self._run("BEGIN IMMEDIATE", work)

    async def _run(self, begin: str, work: Work[T]) -> T:
        connection = self._connection
        if connection is None:
            raise self._unavailable("this store is not open")
        return await self._persist(lambda: self._transact(connection, begin, work))

    async def _persist(self, step: Callable[[], T]) -> T:
        """Does `step` in the thread, again and again while another process holds the lock."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self._patience, 0.005
        while True:
            try:
                return await loop.run_in_executor(self._thread, step)
            except sqlite3.ProgrammingError:
                raise
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise self._unavailable(f"{error}; look at the file, its disk and its permissions") from error
                if loop.time() + pause > deadline:
                    raise self._unavailable(f"another process has locked it for {self._patience:g} s") from error
            except OSError as error:
                raise self._unavailable(f"{error.strerror}; make its folder, or correct RETINUE_STORE") from error
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _unavailable(self, why: str) -> StoreUnavailable:
        return StoreUnavailable(f"sqlite store {self._path}: {why}")

    def _transact(self, connection: sqlite3.Connection, begin: str, work: Work[T]) -> T:
        if not self._is_there():
            raise self._unavailable("the file was removed or replaced while in use; start this process again")
        connection.execute(begin)
        try:
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            # Some failures, such as a full disk, have rolled back already.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _is_there(self) -> bool:
        """Whether the path still names the open file: SQLite would write on into one that nobody finds again."""
        try:
            return self._path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _open(self) -> None:
        self._close()
        if not self._path.exists():
            self._make()
        self._connection = connection = sqlite3.connect(self._path, timeout=_BUSY, isolation_level=None)
        self._inode = self._path.stat().st_ino
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        self._transact(connection, "BEGIN IMMEDIATE", self._make_tables)

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        for statement in self._schema:
            connection.execute(statement)

    def _make(self) -> None:
        """An empty file for the owner alone.

        It gets its name only once it is closed: closing a file that SQLite has open in this process, in another
        store perhaps, would drop SQLite's locks on it (https://sqlite.org/howtocorrupt.html, section 2.2).
        """
        descriptor, made = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
        os.close(descriptor)
        try:
            os.link(made, self._path)
        except FileExistsError:
            return  # another process was first, and its file is as good
        finally:
            os.unlink(made)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
