"""The MCP server `shell`: programs run in a folder, each under limits and with nothing of it left running.

It is off unless programs are allowed by name. It is not a sandbox, and its tools say so: what a program does is its
own matter. Where bubblewrap is there and works, programs can write nowhere but in the given folders.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_types import CallToolResult

from retinue.agent.tools import Invocation, ToolSpec
from retinue.agent.tools.annotation import object_schema
from retinue.router.mcp import keeper
from retinue.router.mcp.folders import Folders
from retinue.router.mcp.offer import ANYTHING, Fixed, Offered, Progress, said
from retinue.router.mcp.server import ToolServer
from retinue.router.mcp.transport import serve_stdio
from retinue.service.errors import Forbidden, InternalError, Invalid

log = logging.getLogger("retinue.mcp")

ALL = "*"
# What programs get of this process's environment; the rest, keys above all, only by name.
_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_NO_SANDBOX = "This is not a sandbox: it runs with all rights of the user who started it"
# How long a keeper may take to end all of its command, seconds.
_END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may take. `output` is where a program is stopped, `keep` what is shown of each end of it, bytes.

    `cpu` is the seconds of CPU time of each process, `processes` how many there may be at once.
    """

    seconds: float = 60.0
    cpu: int = 60
    processes: int = 128
    output: int = 8 * 1024 * 1024
    keep: int = 16 * 1024


class Shell:
    """Runs programs in `folders`. `allowed` are their names, * for all; `wrap` goes before each command line."""

    def __init__(
        self, folders: Folders, allowed: Sequence[str], *, limits: Limits, env: Sequence[str], wrap: Sequence[str] = ()
    ) -> None:
        self._folders = folders
        self._limits = limits
        self._wrap = tuple(wrap)
        self._allowed = tuple(dict.fromkeys(allowed))
        self._environ = {name: os.environ[name] for name in (*_VARIABLES, *env) if name in os.environ}
        self._keepers: set[int] = set()

    def about(self) -> str:
        """What is true of every call, for the model."""
        walls = "; bubblewrap keeps it from writing outside of the folders" if self._wrap else ""
        folders = ", ".join(map(str, self._folders.roots))
        return (
            f"{_NO_SANDBOX}{walls}. It runs in {folders}, without input, for at most {self._limits.seconds:g} s, with "
            f"{self._limits.cpu} s of CPU time and {self._limits.output // 1024} KiB of output. Whatever it leaves "
            "running is ended with it."
        )

    def offer(self) -> Fixed:
        """One tool: a command line where everything is allowed, else a program by name with its arguments."""
        spec = _any_command(self.about()) if ALL in self._allowed else _named_program(self.about(), self._allowed)

        async def handle(invocation: Invocation, _: Progress) -> CallToolResult:
            given = dict[str, Any](invocation.arguments)
            argv = ["/bin/sh", "-c", given["command"]] if "command" in given else self._named(given)
            seconds = min(given.get("timeout", self._limits.seconds), self._limits.seconds)
            return await self._run(argv, cwd=given.get("cwd", "."), seconds=seconds)

        return Fixed((Offered(spec, ANYTHING, handle),))

    def _named(self, given: dict[str, Any]) -> list[str]:
        name = given["program"]
        if name not in self._allowed:
            raise Forbidden(f"{name} may not be run; allowed are {', '.join(self._allowed)}")
        if shutil.which(name, path=self._environ.get("PATH")) is None:
            raise Invalid(f"{name} is allowed, and is not on this machine", field="program")
        return [name, *given.get("args", [])]

    async def _run(self, argv: Sequence[str], *, cwd: str, seconds: float) -> CallToolResult:
        """Runs a command line to its end or to a limit; a cancelled call ends it. Invalid when it cannot be started."""
        if any("\0" in word for word in argv):
            raise Invalid("the command has a NUL in it", field="command")
        with self._folders.reach(cwd) as spot:
            place = str(spot.real)
        limits = self._limits
        order = {
            "argv": [*self._wrap, *argv],
            "cwd": place,
            "env": self._environ,
            "seconds": seconds,
            "cpu": limits.cpu,
            "processes": limits.processes,
            "output": limits.output,
            "keep": limits.keep,
        }
        report = await self._keep(json.dumps(order).encode() + b"\n")
        if wrong := report.get("wrong"):
            raise Invalid(f"{argv[0]} in {cwd}: {wrong}", field="command")
        return self._told(report, seconds)

    async def _keep(self, order: bytes) -> dict[str, Any]:
        """Has a keeper carry out the order; when this is cancelled, returns once nothing is left of it."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", keeper.__file__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
        )
        assert process.stdin is not None and process.stdout is not None
        self._keepers.add(process.pid)
        try:
            process.stdin.write(order)
            out = await process.stdout.read()
        finally:
            # The end of its input calls it off; when this process is killed, the kernel closes it.
            process.stdin.close()
            await _ended(process)
            self._keepers.discard(process.pid)
            if process.returncode != 0:
                # It was killed by what it kept, which is this process's own now.
                count = keeper.end_descendants(os.getpid(), but=frozenset(self._keepers))
                log.warning("a command ended its keeper; %d processes that it left were ended", count)
        if process.returncode != 0:
            raise InternalError("the command ended the process that kept it within its limits; all of it was ended")
        report: dict[str, Any] = json.loads(out)
        return report

    def _told(self, report: dict[str, Any], seconds: float) -> CallToolResult:
        limits, code, output = self._limits, report["code"], report["output"]
        match report["stopped"]:
            case "time":
                notice = f"stopped: it took longer than {seconds:g} s"
            case "output":
                notice = f"stopped: it printed more than {limits.output} bytes"
            case "processes":
                notice = f"stopped: it had more than {limits.processes} processes at once"
            case _ if code in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
                notice = f"stopped: it took more than {limits.cpu} s of CPU time"
            case _ if code is not None and code < 0:
                notice = f"ended by {signal.Signals(-code).name}"
            case _:
                notice = f"exit {code}" if code else ""
        if report["left"] and not report["stopped"]:
            notice = "; ".join(filter(None, [notice, f"{report['left']} processes that it left running were ended"]))
        if notice:
            return said(f"({notice})\n{output}".rstrip("\n"), failed=True)
        return said(output or "(no output)")


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Waits for the end of a keeper that was called off; kills one that does not come to it."""
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def serve_shell(given: Sequence[Path], allowed: Sequence[str], *, env: Sequence[str], limits: Limits) -> None:
    """Serves the programs `allowed` in the given folders until the client hangs up. Invalid for a folder that is none.

    What runs then is ended, also when this process is killed.
    """
    keeper.become_reaper()
    with Folders(given) as folders:
        shell = Shell(folders, allowed, limits=limits, env=env, wrap=await _bubblewrap(folders.roots))
        await serve_stdio(ToolServer("retinue-shell", shell.offer(), instructions=shell.about()))


async def _bubblewrap(folders: Sequence[Path]) -> tuple[str, ...]:
    """What goes before a command line where bubblewrap works; nothing where it is missing or, said aloud, does not."""
    if (program := shutil.which("bwrap")) is None:
        return ()
    binds = [word for folder in folders for word in ("--bind", str(folder), str(folder))]
    rest = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", *binds, "--unshare-pid"]
    wrap = (program, "--die-with-parent", *rest, "--")
    probe = await asyncio.create_subprocess_exec(
        *wrap,
        "true",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said_by_it = await probe.communicate()
    if probe.returncode == 0:
        return wrap
    log.warning("%s does not work here and is not used: %s", program, said_by_it.decode(errors="replace").strip())
    return ()


_CWD = {"type": "string", "description": "The folder to run in; default: the first one.", "default": "."}
_TIMEOUT = {"type": "number", "exclusiveMinimum": 0, "description": "Seconds; the limit stays the limit."}


def _any_command(about: str) -> ToolSpec:
    command = {"type": "string", "minLength": 1, "description": "A command line, as /bin/sh takes it."}
    schema = object_schema({"command": command, "cwd": _CWD, "timeout": _TIMEOUT}, ["command"])
    return ToolSpec("run_command", f"Run a command line and return what it prints. {about}", schema)


def _named_program(about: str, allowed: Sequence[str]) -> ToolSpec:
    program = {"type": "string", "enum": list(allowed), "description": "No other may be run."}
    args = {"type": "array", "items": {"type": "string"}, "description": "One by one; no shell reads them."}
    schema = object_schema({"program": program, "args": args, "cwd": _CWD, "timeout": _TIMEOUT}, ["program"])
    return ToolSpec("run_program", f"Run a program and return what it prints. {about}", schema)
