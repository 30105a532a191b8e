"""One process of a mesh: started, listened to, started again when it dies, and ended.

It decides nothing about order or readiness (supervisor.py does), and never outlives the process that started it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

# A node drains for at most 30 s; whoever is still there then is killed.
GRACE_S = 35.0
# The wait before a dead process is started again doubles from the first to the most, and is forgotten after a
# steady life.
FIRST_WAIT_S, MOST_WAIT_S, STEADY_S = 0.5, 30.0, 60.0
_LINE_BYTES = 16 * 1024
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Makes the kernel end this process when process `parent`, which started it, dies: also across an exec.

    Exits when it is dead already. Only Linux can do this; elsewhere a killed parent leaves its children behind.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise SystemExit(1)


class Child:
    """A process by name. `say` takes the lines that it prints and what happens to it, as (name, line)."""

    def __init__(
        self, name: str, argv: Sequence[str], *, environ: Mapping[str, str], say: Callable[[str, str], None]
    ) -> None:
        self.name = name
        self.served = False
        self.failed = asyncio.Event()
        self.last_line = ""
        self._argv = tuple(argv)
        self._environ = dict(environ)
        self._say = say
        self._stopping = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Keeps the process running until `stop`. Ends, setting `failed`, when it dies before `served` was set."""
        wait = FIRST_WAIT_S
        clock = asyncio.get_running_loop().time
        while not self._stopping.is_set():
            began = clock()
            code = await self._live()
            if self._stopping.is_set():
                return
            if not self.served:
                self.failed.set()
                return
            wait = FIRST_WAIT_S if clock() - began > STEADY_S else wait
            self._say(self.name, f"ended ({_outcome(code)}); it is started again in {wait:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait)
            wait = min(2 * wait, MOST_WAIT_S)

    def stop(self) -> None:
        """Asks the process to end (SIGTERM), and `keep` with it; it is killed when it takes longer than GRACE_S."""
        self._stopping.set()
        if self._process is not None:
            with suppress(ProcessLookupError):  # it has just ended by itself
                self._process.terminate()
            asyncio.get_running_loop().call_later(GRACE_S, self.kill)

    def kill(self) -> None:
        """Ends the process and what it started, at once."""
        self._stopping.set()
        if self._process is not None:
            _kill_group(self._process.pid)

    async def _live(self) -> int:
        """One life of the process: its exit code."""
        process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environ,
            # Ctrl-C at the terminal is for the parent alone, which then ends its children in order.
            process_group=0,
        )
        assert process.stdout is not None
        self._process = process
        if self._stopping.is_set():
            self.stop()
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._listen(process.stdout))
                code = await process.wait()
                # Whatever the process left behind in its group would keep the pipe open.
                _kill_group(process.pid)
                await reading
        finally:
            self._process = None
            if process.returncode is None:
                _kill_group(process.pid)
        return code

    async def _listen(self, output: asyncio.StreamReader) -> None:
        pending = b""
        while piece := await output.read(_LINE_BYTES):
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                self._hear(line)
            if len(pending) > _LINE_BYTES:
                self._hear(pending)
                pending = b""
        if pending:
            self._hear(pending)

    def _hear(self, raw: bytes) -> None:
        line = raw.decode("utf-8", "replace").rstrip()
        if line:
            self.last_line = line
            self._say(self.name, line)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _outcome(code: int) -> str:
    return f"exit {code}" if code >= 0 else signal.Signals(-code).name
