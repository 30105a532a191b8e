"""A real Consul for tests: one server on loopback, on free ports, with its data in a temporary folder.

Tests that break it take `lone_consul`, which is theirs; all others share one through `consul_url`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
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


class Consul:
    """One Consul server, to be started; it keeps its ports, and its data unless told otherwise, over restarts.

    Everything here blocks: a test that has a loop calls start and stop through asyncio.to_thread.
    """

    def __init__(self, folder: Path, *, token: str = "") -> None:
        """With a `token`, nobody who does not show it may do anything."""
        self._folder = folder
        self._config = _CONFIG + (_GUARDED.format(token=token) if token else "")
        self._headers = {"X-Consul-Token": token} if token else {}
        self._ports = _free_ports(3)
        self._process: subprocess.Popen[bytes] | None = None
        self._opener = build_opener(ProxyHandler({}))

    @property
    def url(self) -> str:
        return f"consul://127.0.0.1:{self._ports[0]}"

    def start(self, *, empty: bool = False) -> None:
        """Starts it, without what it knew before when `empty`; returns once it has a leader."""
        data = self._folder / "data"
        if empty and data.exists():
            shutil.rmtree(data)
        http, serf, server = self._ports
        with (self._folder / "consul.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(_binary(), "agent", "-server", "-bootstrap-expect=1", f"-data-dir={data}", "-node=test"),
                    *("-bind=127.0.0.1", "-client=127.0.0.1", f"-http-port={http}", f"-serf-lan-port={serf}"),
                    *(f"-server-port={server}", "-serf-wan-port=-1", "-dns-port=-1", "-grpc-port=-1"),
                    *("-hcl", self._config),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        give_up = time.monotonic() + START_S
        while not self._led():
            if time.monotonic() > give_up or not self._outlives(0.05):
                self.kill()
                pytest.fail(f"consul did not start:\n{(self._folder / 'consul.log').read_text()[-2000:]}", False)

    def stop(self) -> None:
        """Asks it to end, and waits until it has."""
        self._signal(signal.SIGTERM)
        if self._process is not None:
            self._process.wait(10)

    def kill(self) -> None:
        """Ends it as kill -9 does."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(10)

    def freeze(self) -> None:
        """Stops it in its tracks: it takes connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

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
                pytest.fail(f"consul still lists {self.get('catalog/services')}", False)

    def _led(self) -> bool:
        """Whether it has a leader that has listed itself, which is the last thing that a new leader does."""
        try:
            return "consul" in self.get("catalog/services")
        except OSError:
            return False

    def _outlives(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"http://127.0.0.1:{self._ports[0]}/v1/{path}", data, self._headers, method=method)
        with self._opener.open(request, timeout=5) as answer:
            return json.loads(answer.read() or "null")


def _binary() -> str:
    found = shutil.which("consul", path=os.pathsep.join([os.environ.get("PATH", ""), str(TOOLS)]))
    if found is None:
        pytest.fail("no consul here: `make tools` installs it", False)
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
def consul_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consul]:
    """The Consul that all tests share: leave it running, and take it through `consul_url`, which empties it."""
    server = Consul(tmp_path_factory.mktemp("consul"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def consul_url(consul_server: Consul) -> str:
    """The URL of a running Consul that lists no service."""
    consul_server.clear()
    return consul_server.url


@pytest.fixture
def lone_consul(tmp_path: Path) -> Iterator[Consul]:
    """A running Consul of this test alone, to be stopped, killed, frozen and started again."""
    folder = tmp_path / "consul"
    folder.mkdir()
    server = Consul(folder)
    server.start()
    yield server
    server.kill()
