"""`retinue doctor` as a person or a script runs it: with what is there and right, and with each thing that is not."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import time
from typing import Any

import pytest
from kit.commands import retinue
from kit.redis import RedisServer

from retinue.service.registry import Node, open_registry

OFFICE = Path(__file__).parents[2] / "agents" / "office"
OFFLINE = {"RETINUE_MODEL": "offline/rules"}


def findings(folder: Path, *args: str, code: int = 0, **extra: str) -> list[dict[str, str]]:
    """What `retinue doctor --json` finds, which ends with that code."""
    done = retinue(folder, "doctor", *args, "--json", extra={**OFFLINE, **extra})
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stderr == ""
    found: list[dict[str, str]] = json.loads(done.stdout)
    assert {each["status"] for each in found} <= {"ok", "warning", "error"}
    assert ("error" in {each["status"] for each in found}) == bool(code)
    return found


def of(found: list[dict[str, str]], check: str) -> list[tuple[str, str]]:
    return [(each["status"], each["text"]) for each in found if each["check"] == check]


def only(found: list[dict[str, str]], check: str) -> tuple[str, str]:
    (one,) = of(found, check)
    return one


def write(folder: Path, text: str) -> None:
    (folder / "mesh.toml").write_text(text)


# What is there and right


def test_a_mesh_on_consul_and_redis_is_found_right(tmp_path: Path, consul_url: str, redis_url: str) -> None:
    found = findings(tmp_path, str(OFFICE), RETINUE_REGISTRY=consul_url, RETINUE_STORE=redis_url)
    assert {each["status"] for each in found} == {"ok"}, found
    assert only(found, "registry")[1].startswith(f"{consul_url} answers")
    assert only(found, "store")[1] == f"{redis_url} answers"
    assert only(found, "consul server")[1].startswith("1.")
    assert only(found, "redis server")[1][:1].isdigit()
    assert [text for _, text in of(found, "clock")] == [
        f"less than 2 s from that of the {other}" for other in ("registry", "store")
    ]
    assert "office: task, project, notify" in only(found, "mesh file")[1]
    assert only(found, "model") == ("ok", "the mesh: offline/rules answers: RETINUE_MODEL names it")
    assert only(found, "ports") == ("ok", "127.0.0.1:0 can be listened on")
    assert only(found, "python")[1] == ".".join(map(str, sys.version_info[:3]))
    for package in ("grpcio", "protobuf", "redis", "py-consul", "retinue"):
        assert only(found, package)[0] == "ok"


def test_in_an_empty_folder_it_says_what_to_do_and_makes_nothing(tmp_path: Path) -> None:
    done = retinue(tmp_path, "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert all(line.startswith(("ok ", "warning ")) for line in lines)
    for check in ("registry", "store"):
        (line,) = (line for line in lines if line.split()[1] == check and line.startswith("warning"))
        assert "start one with `retinue run`" in line
    (model,) = (line for line in lines if line.split()[1] == "model")
    assert model.startswith("warning") and "set GEMINI_API_KEY" in model
    assert list(tmp_path.iterdir()) == []


def test_embedded_files_that_are_not_there_yet_are_not_made(tmp_path: Path) -> None:
    (tmp_path / ".retinue").mkdir()
    found = findings(tmp_path)
    assert "is not there yet; `retinue run` makes it" in only(found, "registry")[1]
    assert "is not there yet; `retinue run` makes it" in only(found, "store")[1]
    assert list((tmp_path / ".retinue").iterdir()) == []


def test_what_the_mesh_file_names_is_looked_at_where_the_environment_names_nothing(tmp_path: Path) -> None:
    write(tmp_path, '[mesh]\nname = "m"\nstore = "redis://127.0.0.1:1/0"\n[agents.a]\nmodel = "offline/rules"\n')
    found = findings(tmp_path, code=1)
    assert only(found, "store")[0] == "error"
    assert ("ok", "agent a: offline/rules answers: the agent names it") in of(found, "model")
    assert only(found, "mesh file")[1].startswith("m: a, router")


# What is not


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (
            {
                "RETINUE_REGISTRY": "consul://127.0.0.1:1",
                "RETINUE_STORE": "redis://:s3cret@127.0.0.1:1/0",
                "RETINUE_MODEL": "opnai/gpt",
                "RETINUE_LISTEN": "0.0.0.0:0",
            },
            {
                "registry": "see that Consul runs there",
                "store": "start it, or correct RETINUE_STORE",
                "model": "did you mean openai",
                "ports": "set RETINUE_ADVERTISE",
            },
        ),
        (
            {
                "RETINUE_REGISTRY": "zoo://x",
                "RETINUE_STORE": "mysql://x",
                "RETINUE_MODEL": "openai/gpt-5",
                "RETINUE_LISTEN": "9000",
            },
            {
                "registry": "use consul://host:port",
                "store": "use redis://host:port/db",
                "model": "set OPENAI_API_KEY",
                "ports": "use host:port",
            },
        ),
        (
            {
                "RETINUE_REGISTRY": "local://relative.db",
                "RETINUE_STORE": "sqlite:///nowhere/at/all.db",
                "RETINUE_MODEL": "openai/gpt-5",
                "OPENAI_API_KEY": "k",
                "OPENAI_BASE_URL": "http://127.0.0.1:1",
                "RETINUE_ADVERTISE": "nonsense",
            },
            {
                "registry": "the path is absolute",
                "store": "there is no folder /nowhere/at: make it",
                "model": "the server cannot be reached",
                "ports": "use host:port",
            },
        ),
        ({"RETINUE_REGISTRY": "local:///nowhere/at/all.db"}, {"registry": "there is no folder /nowhere/at: make it"}),
    ],
)
def test_each_broken_setting_is_an_error_that_says_what_to_do(
    tmp_path: Path, extra: Mapping[str, str], says: Mapping[str, str]
) -> None:
    found = findings(tmp_path, code=1, **extra)
    for check, words in says.items():
        status, text = only(found, check)
        assert (status, words in text) == ("error", True), text
        assert "s3cret" not in text
    assert {each["check"] for each in found if each["status"] == "error"} == set(says)


def test_a_broken_mesh_file_is_an_error_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    write(tmp_path, "[agents.a]\npromt = 'x'\n")
    found = findings(tmp_path, code=1)
    assert "did you mean prompt?" in only(found, "mesh file")[1]
    assert only(found, "ports")[0] == "ok"
    assert "no mesh file" in only(findings(tmp_path, "nowhere", code=1), "mesh file")[1]


def test_files_that_are_no_databases_are_errors(tmp_path: Path) -> None:
    for name in ("registry", "store"):
        (tmp_path / name).write_text("no database, but a text that is long enough to be told from an empty file" * 20)
    found = findings(
        tmp_path, code=1, RETINUE_REGISTRY=f"local://{tmp_path}/registry", RETINUE_STORE=f"sqlite://{tmp_path}/store"
    )
    assert [only(found, check)[0] for check in ("registry", "store")] == ["error", "error"]


def test_a_redis_with_another_password_or_one_that_forgets_is_told(tmp_path: Path, redis_server: RedisServer) -> None:
    wrong = redis_server.url.replace("s3cret", "other")
    assert only(findings(tmp_path, code=1, RETINUE_STORE=wrong), "store")[0] == "error"
    with redis_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
    found = findings(tmp_path, RETINUE_STORE=redis_server.url)
    told = [text for status, text in of(found, "redis server") if status == "warning"]
    assert [text.rpartition(": ")[2] for text in told] == ["set appendonly yes", "set maxmemory-policy noeviction"]


def test_an_address_that_a_stranger_has_is_told_from_one_that_our_own_node_has(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        status, text = only(findings(tmp_path, code=1, RETINUE_LISTEN=address), "ports")
        assert (status, "stop what listens there" in text) == ("error", True)
        found = asyncio.run(_with_node(tmp_path, address, code=0, RETINUE_LISTEN=address))
    assert only(found, "ports") == ("ok", f"clerk serves at {address}")
    assert of(found, "nodes") == []


def test_a_node_that_is_listed_where_nobody_listens_is_an_error(tmp_path: Path) -> None:
    found = asyncio.run(_with_node(tmp_path, "127.0.0.1:1", code=1))
    status, text = only(found, "nodes")
    assert status == "error"
    assert "clerk-00000001 is listed at 127.0.0.1:1" in text and "correct RETINUE_ADVERTISE" in text


async def _with_node(folder: Path, address: str, *, code: int, **extra: str) -> list[dict[str, str]]:
    """What is found while a node is registered at that address."""
    url = f"local://{folder / 'registry.db'}"
    node = Node(name="clerk", id="clerk-00000001", address=address, type="agent")

    async def beat() -> None:
        async with open_registry(url) as registry:
            while True:
                await registry.register(node)
                registered.set()
                await asyncio.sleep(1)

    registered = asyncio.Event()
    beating = asyncio.create_task(beat())
    try:
        await registered.wait()
        return await asyncio.to_thread(findings, folder, code=code, RETINUE_REGISTRY=url, **extra)
    finally:
        beating.cancel()


@contextmanager
def consul_of_another_time(seconds: float) -> Iterator[str]:
    """The URL of what answers as an empty Consul does, its clock so many seconds before ours."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = {"Config": {"Version": "1.99"}} if self.path.startswith("/v1/agent/self") else {}
            self.send_response(200)
            self.send_header("X-Consul-Index", "1")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time() + seconds, usegmt=True)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"consul://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("seconds", "status", "way"), [(60, "warning", "behind"), (-3600, "error", "ahead of")])
def test_a_clock_that_is_off_is_told_with_its_direction(tmp_path: Path, seconds: float, status: str, way: str) -> None:
    with consul_of_another_time(seconds) as url:
        found = findings(tmp_path, code=int(status == "error"), RETINUE_REGISTRY=url)
    told, text = only(found, "clock")
    assert (told, f" s {way} that of the registry: set both by NTP" in text) == (status, True), text
    assert only(found, "consul server") == ("ok", "1.99")
