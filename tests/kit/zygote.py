"""One process that has imported everything and opened nothing, and forks a victim for each request.

An import costs a second, a fork some milliseconds. It has one thread and neither an event loop nor a channel of gRPC,
since those do not survive a fork. It ends with whoever started it, and its victims with it.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Self

_BYTES = 65536
_PR_SET_PDEATHSIG = 1


class Zygote:
    """The process, running while it is entered. It forks one victim at a time, for one caller."""

    def __init__(self) -> None:
        self._control, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kit.zygote", str(self._far.fileno())],
            env=os.environ | {"PYTHONPATH": path.rstrip(os.pathsep)},
            stdin=subprocess.DEVNULL,
            pass_fds=[self._far.fileno()],
        )
        self._far.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        if self._process is not None:
            self._process.wait(timeout=30)

    def fork(self, life: str, setting: str, *, stdout: int, stderr: int) -> int:
        """The process id of a new victim or watcher with this setting, whose standard streams are these descriptors."""
        socket.send_fds(self._control, [f"{life} {setting}".encode()], [stdout, stderr])
        return int(self._control.recv(_BYTES))


def breed(control: socket.socket, lives: Mapping[str, Callable[[str], None]]) -> None:
    """Forks a child that lives one of `lives` for each request, until the other end is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, _BYTES, 2)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            life, _, setting = request.decode().partition(" ")
            _become(lives[life], setting, descriptors)
        for each in descriptors:
            os.close(each)
        control.send(str(pid).encode())


def _become(live: Callable[[str], None], setting: str, streams: Sequence[int]) -> NoReturn:
    code = 1
    try:
        # It ends with the zygote also where nobody is left to tell it.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        random.seed()
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
            os.close(stream)
        live(setting)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    # Imported here, so that a child finds them in memory: backends are imported where they are used.
    import retinue.service.registry.consul
    import retinue.service.registry.local
    import retinue.service.store.redis
    import retinue.service.store.sqlite  # noqa: F401
    from kit import victim, watcher

    breed(socket.socket(fileno=int(sys.argv[1])), {"victim": victim.run, "watcher": watcher.run})
