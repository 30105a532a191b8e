"""A real Consul for tests: one for the whole session, and others that a test may stop, kill and freeze.

It refuses to stand in for Consul: where it is not installed, the tests that need it fail and say so.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.request import ProxyHandler, Request, build_opener

import pytest

TOOLS = Path(__file__).parents[2] / ".tools" / "bin"
START_S = 30
_CONFIG = "performance { raft_multiplier = 1 } disable_update_check = true "
_GUARDED = """
acl {{
  enabled = true
  default_policy = "deny"
  tokens {{
    master = "{token}"
    agent = "{token}"
  }}
}}
"""


class ConsulServer:
    """A Consul process on free loopback ports, its data in `folder`: started again, it has what it had.

    `with` starts it, and ends it whatever state it is in. With a `token`, who does not show it may do nothing.
    """

    def __init__(self, folder: Path, *, token: str = "") -> None:
        self._ports = _free_ports(3)
        self.url = f"consul://127.0.0.1:{self._ports[0]}"
        self._folder = folder
        self._config = _CONFIG + (_GUARDED.format(token=token) if token else "")
        self._headers = {"X-Consul-Token": token} if token else {}
        self._opener = build_opener(ProxyHandler({}))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGKILL)

    async def start(self, *, empty: bool = False) -> None:
        """Starts it on the same ports, without what it knew when `empty`; returns once it has a leader."""
        if empty:
            await asyncio.to_thread(shutil.rmtree, self._folder / "data")
        await asyncio.to_thread(self._start)

    async def stop(self) -> None:
        """SIGTERM: it ends in order."""
        await asyncio.to_thread(self._end, signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL, also while it is frozen."""
        await asyncio.to_thread(self._end, signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP: connections are taken and nothing is answered. Returns once it stands still."""
        pid = self._running().pid
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)

    def thaw(self) -> None:
        """SIGCONT: it goes on, with what was sent meanwhile."""
        os.kill(self._running().pid, signal.SIGCONT)

    def get(self, path: str) -> Any:
        """The answer of Consul's HTTP API to GET /v1/`path`."""
        return self._request("GET", path)

    def put(self, path: str, body: Any = None) -> None:
        self._request("PUT", path, body)

    def checks(self) -> list[dict[str, Any]]:
        """How each check was defined, times in nanoseconds: Consul's API does not tell, its own files do."""
        files = (self._folder / "data" / "checks").iterdir()
        return [json.loads(file.read_text())["ChkType"] for file in files]

    def writes(self) -> dict[str, int]:
        """The time of the last registration of each service, in nanoseconds: it writes a file for each."""
        files = (self._folder / "data" / "services").iterdir()
        return {file.name: file.stat().st_mtime_ns for file in files}

    def clear(self) -> None:
        """Deregisters every service, and returns once the catalogue shows none but Consul's own."""
        for service in self.get("agent/services"):
            self.put(f"agent/service/deregister/{service}")
        give_up = time.monotonic() + 10
        while set(self.get("catalog/services")) != {"consul"}:
            if time.monotonic() > give_up or not self._outlives(0.01):
                pytest.fail(f"consul still lists {self.get('catalog/services')}", pytrace=False)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "this Consul is not running"
        return self._process

    def _start(self) -> None:
        assert self._process is None, "this Consul runs already"
        log_file = self._folder / "consul.log"
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        give_up = time.monotonic() + START_S
        while not self._led():
            if time.monotonic() > give_up or not self._outlives(0.05):
                self._end(signal.SIGKILL)
                pytest.fail(f"consul did not start:\n{log_file.read_text()[-2000:]}", pytrace=False)

    def _command(self) -> list[str]:
        http, serf, server = self._ports
        options = {
            "bootstrap-expect": 1,
            "data-dir": self._folder / "data",
            "node": "test",
            "bind": "127.0.0.1",
            "client": "127.0.0.1",
            "http-port": http,
            "serf-lan-port": serf,
            "server-port": server,
            "serf-wan-port": -1,
            "dns-port": -1,
            "grpc-port": -1,
            "hcl": self._config,
        }
        return [_binary(), "agent", "-server", *(f"-{name}={value}" for name, value in options.items())]

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=10)
            self._process = None

    def _led(self) -> bool:
        """Whether it has a leader that has listed itself, which is the last thing that a new leader does."""
        try:
            return "consul" in self.get("catalog/services")
        except OSError:
            return False

    def _outlives(self, seconds: float) -> bool:
        try:
            self._running().wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"http://127.0.0.1:{self._ports[0]}/v1/{path}", data, self._headers, method=method)
        with self._opener.open(request, timeout=5) as answer:
            return json.loads(answer.read() or "null")


def _binary() -> str:
    found = shutil.which("consul", path=os.pathsep.join([os.environ.get("PATH", ""), str(TOOLS)]))
    if found is None:
        pytest.fail("no consul here: `make tools` installs it", pytrace=False)
    return found


def _free_ports(count: int) -> list[int]:
    # All are held until all are found, so that none is found twice.
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@pytest.fixture(scope="session")
def session_consul(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsulServer]:
    """The Consul that tests share: look at it, leave it running, and take its address from `consul_url`."""
    with ConsulServer(tmp_path_factory.mktemp("consul")) as server:
        yield server


@pytest.fixture
def consul_url(session_consul: ConsulServer) -> str:
    """The URL of a Consul that lists no service as the test begins."""
    session_consul.clear()
    return session_consul.url


@pytest.fixture
def consul_server(tmp_path: Path) -> Iterator[ConsulServer]:
    """A running Consul of this test's own, to be stopped, killed, frozen and started again."""
    folder = tmp_path / "consul-server"
    folder.mkdir()
    with ConsulServer(folder) as server:
        yield server
