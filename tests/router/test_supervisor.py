"""`retinue run` as a supervisor: order, deaths, restarts and the end, with real processes on the embedded backends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from kit.commands import Started, processes_of, retinue, started, wait_until_gone

# A part that serves until it is told to end, as any service would.
PART = """
import asyncio, logging
from retinue.service.mesh import Mesh
from retinue.service.testing import Stub

async def main():
    async with Mesh.connect() as mesh:
        await mesh.run(Stub(mesh.settings.name, type="service"))

logging.basicConfig(level="INFO")
asyncio.run(main())
"""
MESH = """
[services.db]
run = "python part.py"

[agents.clerk]
prompt = "You keep the rows."
services = ["db"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "part.py").write_text(PART)
    (tmp_path / "mesh.toml").write_text(MESH)
    return tmp_path


def order(command: Started, what: str) -> list[str]:
    """The names whose lines say `what`, in the order in which they do."""
    return [line.split("|")[0].strip() for line in command.lines if what in line and "|" in line]


def test_services_start_first_and_the_router_last_and_they_stop_the_other_way(folder: Path) -> None:
    with started(folder, "run", extra={"RETINUE_LOG": "info"}) as command:
        command.wait_for("ready: db, clerk, router")
        assert command.end() == 0
    assert order(command, "serves on") == ["db", "clerk", "router"]
    assert order(command, "is gone") == ["router", "clerk", "db"]
    assert processes_of(folder) == {}


def test_ctrl_c_drains_too(folder: Path) -> None:
    with started(folder, "run", "--log-level", "info") as command:
        command.wait_for("ready:")
        assert command.end(signal.SIGINT) == 0
    assert order(command, "is gone") == ["router", "clerk", "db"]


def test_killed_with_9_it_leaves_no_process(folder: Path) -> None:
    with started(folder, "run") as command:
        command.wait_for("ready:")
        # A service's own process, two agents' worth of ours: the exec must not lose the tie to the parent.
        assert len(processes_of(folder)) == 4
        command.end(signal.SIGKILL)
        wait_until_gone(folder)
    assert processes_of(folder) == {}


@pytest.mark.parametrize("part", ["part.py", "--only clerk"])
def test_a_part_that_dies_later_is_started_again(folder: Path, part: str) -> None:
    with started(folder, "run", extra={"RETINUE_LOG": "info"}) as command:
        command.wait_for("ready:")
        (victim,) = [pid for pid, words in processes_of(folder).items() if part in words]
        os.kill(victim, signal.SIGKILL)
        name = command.wait_for("ended (SIGKILL); it is started again in 0.5 s").split("|")[0].strip()
        assert command.wait_for("serves on").startswith(name)
        assert retinue(folder, "call", name, "Agent.Describe").returncode == 0


def test_a_part_that_ends_before_it_served_ends_the_run_with_its_line(folder: Path) -> None:
    (folder / "mesh.toml").write_text(MESH.replace("part.py", "-c \\\"import sys; sys.exit('no such table')\\\""))
    ended = retinue(folder, "run")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "retinue: db ended before it served: no such table"
    assert processes_of(folder) == {}


def test_a_program_that_is_not_there_is_named(folder: Path) -> None:
    (folder / "mesh.toml").write_text(MESH.replace("python part.py", "no-such-program"))
    ended = retinue(folder, "run")
    assert ended.returncode == 1
    assert "[services.db]: run: no-such-program: No such file or directory" in ended.stderr.splitlines()[-1]


def test_children_do_not_inherit_the_address_of_their_parent(folder: Path) -> None:
    ended = retinue(folder, "run", "--ask", "@clerk hello", extra={"RETINUE_LISTEN": "127.0.0.1:1"})
    assert ended.returncode == 0, ended.stderr


def test_several_only_run_just_these(folder: Path) -> None:
    with started(folder, "run", "--only", "db", "--only", "router") as command:
        command.wait_for("ready: db, router")
        assert len(processes_of(folder)) == 3
