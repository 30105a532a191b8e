"""The server `shell` as an MCP client meets it: limits that hold, and nothing left running whatever a command does."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.commands import processes_of, retinue, wait_until_gone
from kit.jsonrpc import Speaker, speaking

LIMITS = ("--timeout", "60", "--cpu", "1", "--processes", "12", "--env", "WANTED")
# Ends the parent twice over and begins a session of its own, as daemons do; says who it is and stays.
DAEMON = """
    import os, sys, time
    if os.fork(): os._exit(0)
    os.setsid()
    if os.fork(): os._exit(0)
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("shell")
    (home / "daemon.py").write_text(textwrap.dedent(DAEMON))
    (home / "sub").mkdir()
    return home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Speaker]:
    """A shell that may run everything, within small limits, on a machine whose bubblewrap does not work."""
    bwrap = script(home / "broken" / "bwrap", "echo no namespaces >&2\nexit 1\n")
    extra = {"KEY": "secret", "WANTED": "yes", "PATH": f"{bwrap.parent}:{os.environ['PATH']}"}
    with speaking(home, "mcp", "run", "shell", ".", "--allow", "*", *LIMITS, extra=extra) as speaker:
        yield speaker
    wait_until_gone(home)


@pytest.fixture(autouse=True)
def nothing_is_left(home: Path, server: Speaker) -> Iterator[None]:
    """After each test the server is the only process of its folder."""
    yield
    left = {pid: line for pid, line in processes_of(home).items() if pid != server.process.pid}
    assert left == {}


def test_a_command_runs_in_the_folder_and_its_end_is_told(server: Speaker, home: Path) -> None:
    assert server.call("run_command", command="pwd; echo two >&2") == f"{home}\ntwo\n"
    assert server.call("run_command", command="pwd", cwd="sub") == f"{home}/sub\n"
    assert server.refused("run_command", command="echo no; exit 3") == "(exit 3)\nno"
    assert server.refused("run_command", command="kill -9 $$") == "(ended by SIGKILL)"
    assert server.call("run_command", command="true") == "(no output)"
    assert server.call("run_command", command="cat") == "(no output)"
    assert "leads out" in server.refused("run_command", command="pwd", cwd="..")


def test_keys_of_the_environment_are_kept_from_programs(server: Speaker) -> None:
    said = server.call("run_command", command="env")
    assert "secret" not in said and "PATH=" in said and "WANTED=yes" in said


def test_an_endless_program_is_stopped_by_the_clock(server: Speaker) -> None:
    said = server.refused("run_command", command="echo begun; sleep 600", timeout=0.7)
    assert said == "(stopped: it took longer than 0.7 s)\nbegun"


def test_a_busy_program_is_stopped_by_its_cpu_time(server: Speaker) -> None:
    said = server.refused("run_command", command=f"exec {sys.executable} -c 'while True: pass'")
    assert said == "(stopped: it took more than 1 s of CPU time)"


def test_output_without_end_is_stopped_and_its_ends_are_shown(server: Speaker) -> None:
    said = server.refused("run_command", command="echo first; head -c 100000000 /dev/zero | tr '\\0' 'x'")
    assert said.startswith("(stopped: it printed more than 8388608 bytes)\nfirst\nxxx")
    assert "bytes are left out" in said and len(said) < 40_000


def test_children_that_stay_behind_are_ended_and_that_is_told(server: Speaker) -> None:
    said = server.refused("run_command", command="sleep 600 & sleep 600 & echo done")
    assert said == "(2 processes that it left running were ended)\ndone"


def test_a_daemon_that_forks_twice_in_a_session_of_its_own_is_ended(server: Speaker, home: Path) -> None:
    wait = "while ! test -s daemon.pid; do sleep 0.05; done"
    said = server.refused("run_command", command=f"{sys.executable} daemon.py daemon.pid; {wait}; cat daemon.pid")
    assert said.startswith("(1 processes that it left running were ended)")
    assert not Path(f"/proc/{(home / 'daemon.pid').read_text()}").exists()


def test_too_many_processes_are_stopped(server: Speaker) -> None:
    said = server.refused("run_command", command="while true; do sleep 600 & done")
    assert said.startswith("(stopped: it had more than 12 processes at once)")


def test_a_command_that_kills_its_keeper_is_ended_all_the_same(server: Speaker) -> None:
    said = server.refused("run_command", command="sleep 600 & setsid sleep 600 & kill -9 $PPID; sleep 600")
    assert "ended the process that kept it within its limits; all of it was ended" in said
    assert server.call("run_command", command="echo well") == "well\n"


def test_a_call_that_is_cancelled_ends_its_command_and_no_other(server: Speaker, home: Path) -> None:
    os.mkfifo(home / "begun")
    call = server.start("run_command", command="echo x > begun; sleep 600")
    (home / "begun").read_text()
    other = server.start("run_command", command="sleep 0.5; echo well")
    running = [pid for pid, line in processes_of(home).items() if "sleep 600" in line]
    server.cancel(call)
    for pid in running:
        gone(pid)
    assert running and server.ended(other) == ("well\n", False)


def test_nothing_is_left_when_the_server_itself_is_killed(home: Path) -> None:
    folder = home / "sub"
    os.mkfifo(folder / "begun")
    with speaking(folder, "mcp", "run", "shell", "--allow", "*", ends=(-signal.SIGKILL,)) as server:
        server.start("run_command", command=f"{sys.executable} ../daemon.py daemon.pid; echo x > begun; sleep 600")
        (folder / "begun").read_text()
        server.process.kill()
    wait_until_gone(folder)


def test_a_shell_is_off_unless_programs_are_allowed_by_name(home: Path) -> None:
    done = retinue(home, "mcp", "run", "shell")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the shell is off: allow programs by name, as in --allow git" in done.stderr
    done = retinue(home, "mcp", "run", "shell", "--allow", "/bin/ls")
    assert done.returncode == 2 and "use a program's name without its folder" in done.stderr


def test_only_programs_that_are_named_run_and_no_shell_reads_their_arguments(home: Path) -> None:
    """With them comes a bubblewrap, of which this one only shows how it is called."""
    lines = 'echo "$@" >> "$HOME/sub/wrapped"\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    bwrap = script(home / "bin" / "bwrap", lines)
    extra = {"PATH": f"{bwrap.parent}:{os.environ['PATH']}"}
    with speaking(home, "mcp", "run", "shell", "--allow", "echo", "--allow", "nowhere", extra=extra) as server:
        assert server.call("run_program", program="echo", args=["a; b", "$HOME"]) == "a; b $HOME\n"
        assert "'ls' is not one of ['echo', 'nowhere']" in server.refused("run_program", program="ls")
        assert "is not on this machine" in server.refused("run_program", program="nowhere")
        assert "there is no tool 'run_command'" in server.refused("run_command", command="ls")
        about = server.tools()["run_program"]["description"]
    assert "bubblewrap keeps it from writing outside" in about
    assert f"--bind {home} {home} --unshare-pid -- echo a; b $HOME" in (home / "sub" / "wrapped").read_text()


def test_a_bubblewrap_that_does_not_work_is_said_and_not_used(server: Speaker, home: Path) -> None:
    assert "bubblewrap" not in server.tools()["run_command"]["description"]
    assert f"{home}/broken/bwrap does not work here and is not used: no namespaces" in server.stderr


def test_the_tool_says_that_it_is_no_sandbox_and_promises_nothing(server: Speaker) -> None:
    tool = server.tools()["run_command"]
    assert "This is not a sandbox" in tool["description"]
    assert tool["annotations"]["destructiveHint"] and not tool["annotations"]["readOnlyHint"]


def script(path: Path, lines: str) -> Path:
    """A program of these lines of sh."""
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{lines}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def gone(pid: int) -> None:
    """Returns when the process has ended; the kernel's own notice, without polling."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([descriptor], [], [], 20)
        assert ready, f"{pid} is still there"
    finally:
        os.close(descriptor)
