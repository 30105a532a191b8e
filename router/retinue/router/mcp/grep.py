"""The MCP server `grep`: regular expressions over files, with limits on time, size and matches.

A search runs in a process of its own (searching.py), which is kept for the next one: a pattern that never comes to an
end takes that process with it and not the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Annotated, Any, Self

from retinue.router.mcp.folders import Folders
from retinue.router.mcp.offer import READS, Fixed, offered
from retinue.service.errors import DeadlinePassed, InternalError, Invalid
from retinue.service.text import sane

ABOUT = "Searches text with regular expressions, within: {folders}. Relative paths are in the first of them."
# How long the process may take beyond the time of the search, to begin and to tell what it has, seconds.
_GRACE_S = 5.0
_ANSWER_BYTES = 4 * 1024 * 1024


class Grep:
    """The tool, to be entered. A search ends after `seconds`, with what it found until then."""

    def __init__(self, folders: Folders, *, seconds: float) -> None:
        self._folders = folders
        self._seconds = seconds
        self._idle: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._idle:
            await _end(self._idle.pop())

    def offer(self) -> Fixed:
        """The tool with what is true of it."""
        return Fixed((offered(self.grep, READS),))

    async def grep(
        self,
        pattern: Annotated[str, "A regular expression of Python, matched within each line."],
        path: Annotated[str, "A file, or a folder with all below it."] = ".",
        *,
        glob: Annotated[str, "Only files of such names, as *.py."] = "",
        ignore_case: bool = False,
        context: Annotated[int, "How many lines to show around each match, at most 10."] = 0,
        hidden: Annotated[bool, "Look into files and folders whose names begin with a dot, too."] = False,
        max_matches: Annotated[int, "Stop after so many lines, at most 1000."] = 100,
    ) -> str:
        """Search files for a pattern: matches as FILE:LINE:TEXT, lines around them as FILE-LINE-TEXT.

        Binary files and those over 8 MiB are passed over, links are not followed, and long lines are cut.
        """
        with self._folders.reach(path) as spot:  # refuses what leads out, before a process is started
            os.stat(spot.name, dir_fd=spot.folder, follow_symlinks=False)
        asked = {
            "folders": [os.fsdecode(root) for root in self._folders.roots],
            "path": path,
            "pattern": pattern,
            "glob": glob,
            "ignore_case": ignore_case,
            "context": min(max(context, 0), 10),
            "hidden": hidden,
            "most": min(max(max_matches, 1), 1000),
            "seconds": self._seconds,
        }
        return self._told(await self._search(json.dumps(asked).encode() + b"\n"))

    def _told(self, answer: dict[str, Any]) -> str:
        if wrong := answer.get("wrong"):
            raise Invalid(wrong, field="pattern")
        lines = [sane(line) for line in answer["lines"]]
        if answer["stopped"] == "time":
            at = sane(answer["at"])
            notice = f"stopped after {self._seconds:g} s, at {at}: narrow the path or simplify the pattern"
            raise DeadlinePassed("\n".join([notice, *lines]))
        lines = lines or ["nothing matches"]
        if answer["stopped"]:
            lines.append(f"(stopped at the limit of {answer['stopped']})")
        if answer["passed_over"]:
            lines.append(f"({answer['passed_over']} binary, large or unreadable files were passed over)")
        return "\n".join(lines)

    async def _search(self, request: bytes) -> dict[str, Any]:
        process = self._idle.pop() if self._idle else await _start()
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(self._seconds + _GRACE_S):
                process.stdin.write(request)
                line = await process.stdout.readline()
        except TimeoutError:
            await _end(process)
            text = f"the search did not end within {self._seconds:g} s and was stopped: simplify the pattern"
            raise DeadlinePassed(text) from None
        except BaseException:
            await _end(process)
            raise
        if not line:
            await _end(process)
            raise InternalError("the search died: it may have run out of memory; narrow the path")
        self._idle.append(process)
        answer: dict[str, Any] = json.loads(line)
        return answer


async def _start() -> asyncio.subprocess.Process:
    """A process that searches; it ends when its standard input does, so also when this process is killed."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "retinue.router.mcp.searching"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_ANSWER_BYTES,
        process_group=0,
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself
        process.kill()
    await process.wait()
