"""The command line as a person runs it: real processes in a folder of their own, with no model key and no settings."""

from __future__ import annotations

import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

COMMAND = (sys.executable, "-P", "-m", "retinue.router.cli")
_LIMIT_S = 60.0


def environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which the embedded defaults and the offline model are chosen."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        # Nothing answers there, so that the machine's own Ollama is not the model.
        "OLLAMA_HOST": "127.0.0.1:1",
        # A checkout beside the installed one is named so.
        **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
        **(extra or {}),
    }


def retinue(
    folder: Path, *args: str, stdin: str = "", extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """One command from beginning to end."""
    return subprocess.run(
        [*COMMAND, *args],
        cwd=folder,
        env=environment(folder, extra),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )


class Started:
    """A command that runs: its lines of standard error as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._new: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, text: str) -> str:
        """The next line with `text` in it."""
        until = time.monotonic() + _LIMIT_S
        while (line := self._new.get(timeout=max(0.0, until - time.monotonic()))) is not None:
            if text in line:
                return line
        raise AssertionError(f"no line with {text!r} in:\n" + "\n".join(self.lines))

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal and returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(_LIMIT_S)
        self._reader.join(_LIMIT_S)
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            self._new.put(line.rstrip("\n"))
        self._new.put(None)


@contextmanager
def started(folder: Path, *args: str, extra: Mapping[str, str] | None = None) -> Iterator[Started]:
    """A command that runs for the length of the block."""
    process = subprocess.Popen(
        [*COMMAND, *args],
        cwd=folder,
        env=environment(folder, extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    command = Started(process)
    try:
        yield command
    finally:
        if process.poll() is None:
            command.end()
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stderr.close()


def processes_of(folder: Path) -> dict[int, str]:
    """The processes whose environment belongs to the mesh in `folder`, with their command lines."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                environ, words = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended meanwhile, or is another user's
            if str(folder).encode() in environ:
                found[int(entry.name)] = words.replace(b"\0", b" ").decode()
    return found


def wait_until_gone(folder: Path) -> None:
    """Returns when no process of the mesh in `folder` is left; the kernel's own notice, without polling."""
    for pid in processes_of(folder):
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ready, _, _ = select.select([descriptor], [], [], 20)
            assert ready, f"{pid} is still there: {processes_of(folder).get(pid)}"
        finally:
            os.close(descriptor)
