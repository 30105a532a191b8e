"""The process that keeps one command of `shell` within its limits: it starts it, listens to it, and ends all of it.

It is run as a script of its own and imports nothing of Retinue, so that it starts at once. One line of JSON on standard
input is the order, the end of standard input calls it off, and one line on standard output is the report.

On Linux it is the reaper of everything that the command starts: children that fork twice, or begin a session of their
own, become its children when their parents end, and are ended with the rest. Elsewhere it ends the process group, and
what leaves that is out of its reach. It is no sandbox: what runs may do whatever its user may.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

LINUX = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.1
# What the command leaves behind has so long to end by itself once it is told to, seconds.
_GRACE_S = 0.5
_KILL_S = 2.0
_PIECE = 65536


def become_reaper() -> None:
    """Makes orphans among this process's descendants its own children. Linux only."""
    if LINUX and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants(of: int, *, but: frozenset[int] = frozenset()) -> set[int]:
    """The living processes below process `of`, without `but` and what is below those. Linux only: else empty."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if LINUX else ():
        if entry.isdecimal():
            with suppress(OSError):  # it has ended meanwhile
                with open(f"/proc/{entry}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    children.setdefault(int(parent), []).append(int(entry))
    found: set[int] = set()
    waiting = deque([of])
    while waiting:
        below = set(children.get(waiting.popleft(), ())) - but - found
        found |= below
        waiting.extend(below)
    return found


def end_descendants(of: int, *, but: frozenset[int] = frozenset()) -> int:
    """Ends every process below `of`, and returns how many that were; gives up on what the kernel holds after 2 s.

    All are stopped before any is killed: one that is stopped starts no other in the meantime.
    """
    ended: set[int] = set()
    until = time.monotonic() + _KILL_S
    while (found := descendants(of, but=but)) and time.monotonic() < until:
        stopped: set[int] = set()
        while fresh := found - stopped:
            _tell(fresh, signal.SIGSTOP)
            stopped |= fresh
            found = descendants(of, but=but)
        _tell(stopped, signal.SIGKILL)
        ended |= stopped
        time.sleep(0.002)
    for pid in ended:
        with suppress(ChildProcessError):  # it was another's child, or is taken note of already
            os.waitpid(pid, os.WNOHANG)
    return len(ended)


def _tell(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclass
class Output:
    """What a command prints: its beginning and its end, at most `keep` bytes of each, and how much it was in all."""

    keep: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    size: int = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        room = self.keep - len(self.head)
        self.head += piece[:room]
        self.tail = (self.tail + piece[room:])[-self.keep :]

    def text(self) -> str:
        gone = self.size - len(self.head) - len(self.tail)
        cut = f"\n... ({gone} bytes are left out) ...\n".encode() if gone else b""
        return bytes(self.head + cut + self.tail).decode("utf-8", "replace")


class Keeper:
    """One command under `order`: argv, cwd, env, and the limits seconds, cpu, processes, output and keep (bytes)."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        self._output = Output(order["keep"])
        self._stopped = ""
        self._code: int | None = None

    def run(self) -> dict[str, Any]:
        """Runs the command to its end or to a limit, ends what is left of it, and reports. OSError: it cannot start."""
        until = time.monotonic() + self._order["seconds"]
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        command = subprocess.Popen(
            self._order["argv"],
            cwd=self._order["cwd"],
            env=self._order["env"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=self._limit,  # noqa: PLW1509 - this process has one thread
        )
        assert command.stdout is not None
        out = command.stdout.fileno()
        os.set_blocking(out, False)
        self._follow(command.pid, out, wake, until=until)
        left = self._end(command.pid)
        self._read(out)
        return {
            "code": self._code,
            "stopped": self._stopped,
            "left": left,
            "output": self._output.text(),
            "size": self._output.size,
        }

    def _limit(self) -> None:
        cpu = self._order["cpu"]
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def _follow(self, pid: int, out: int, wake: int, *, until: float) -> None:
        """Returns once the command has ended, a limit was met, or it was called off."""
        listening = [out, wake, sys.stdin.fileno()]
        counted = 0.0
        while not self._ended(pid) and not self._stopped:
            now = time.monotonic()
            if now >= until:
                self._stopped = "time"
            if now - counted >= _TICK_S:
                counted = now
                if len(descendants(os.getpid())) > self._order["processes"]:
                    self._stopped = "processes"
            ready, _, _ = select.select(listening, [], [], min(_TICK_S, max(0.0, until - now)))
            if sys.stdin.fileno() in ready:
                self._stopped = "call"
            if wake in ready:
                os.read(wake, _PIECE)
            if out in ready and not self._read(out):
                listening.remove(out)
            if self._output.size > self._order["output"]:
                self._stopped = "output"

    def _ended(self, pid: int) -> bool:
        """Whether the command itself has ended; takes note of every other child that has."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == pid:
                    self._code = os.waitstatus_to_exitcode(found[1])
        return self._code is not None

    def _read(self, out: int) -> bool:
        """Takes what there is to read, up to the limit; False at its end."""
        while self._output.size <= self._order["output"]:
            try:
                piece = os.read(out, _PIECE)
            except BlockingIOError:
                return True
            if not piece:
                return False
            self._output.add(piece)
        return True

    def _end(self, pid: int) -> int:
        """Ends what is left, politely at first where it was not the command's own end; how many were left behind."""
        left = len(descendants(os.getpid()))
        if self._stopped:
            _tell(descendants(os.getpid()), signal.SIGTERM)
            until = time.monotonic() + _GRACE_S
            while descendants(os.getpid()) and time.monotonic() < until:
                time.sleep(0.02)
                self._ended(pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        end_descendants(os.getpid())
        self._ended(pid)
        return left


def main() -> None:
    """Carries out the order on standard input and reports."""
    become_reaper()
    # Read without a buffer, so that what select says of standard input is true.
    line = b""
    while not line.endswith(b"\n"):
        if not (piece := os.read(0, _PIECE)):
            return
        line += piece
    try:
        report = Keeper(json.loads(line)).run()
    except OSError as error:
        report = {"wrong": error.strerror or str(error)}
    if report.get("stopped") != "call":  # nobody listens any more
        sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
