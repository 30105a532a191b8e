"""The process that searches for `grep`: each line of standard input is a request in JSON, each of its output an answer.

It bounds its own time and memory. A pattern that backtracks for ever is broken off by a timer, which the engine of
regular expressions lets through; whoever started this kills it when even that does not help.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import resource
import signal
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from retinue.router.mcp.files import open_file
from retinue.router.mcp.folders import Folders, Spot
from retinue.service.errors import Invalid, MeshError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_BYTES = 8 * 1024 * 1024
_MEMORY_BYTES = 1024 * 1024 * 1024
_OUT_BYTES = 256 * 1024
_LINE_CHARS = 500
_MOST_LEVELS = 40


class Overtime(BaseException):
    """The time of the search is over. No Exception, so that nothing on the way takes it for its own."""


@dataclass(slots=True)
class Search:
    """A search and what it has found. `at` is the file that it is in, `stopped` the limit that ended it."""

    asked: dict[str, Any]
    pattern: re.Pattern[str]
    lines: list[str] = field(default_factory=list)
    matches: int = 0
    size: int = 0
    passed_over: int = 0
    at: str = ""
    stopped: str = ""

    def run(self, spot: Spot) -> None:
        """Searches the file or folder there, until it is done or a limit is met."""
        try:
            signal.setitimer(signal.ITIMER_REAL, self.asked["seconds"])
            self._search_all(spot)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Overtime:
            self.stopped = "time"

    def _search_all(self, spot: Spot) -> None:
        for name, place in _files(spot, hidden=self.asked["hidden"]):
            if self.asked["glob"] and not fnmatch.fnmatch(place.name, self.asked["glob"]):
                continue
            self.at = name
            if not self._search(name, place):
                return

    def _search(self, name: str, place: Spot) -> bool:
        """Searches one file; False when a limit is met."""
        text = _text(place)
        if text is None:
            self.passed_over += 1
            return True
        context = self.asked["context"]
        before: deque[tuple[int, str]] = deque(maxlen=context)
        after = last = 0
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.removesuffix("\r")
            if self.pattern.search(line):
                if context and last and number - len(before) > last + 1:
                    self._say("--")
                for earlier, kept in before:
                    self._say(f"{name}-{earlier}-{_cut(kept)}")
                before.clear()
                self._say(f"{name}:{number}:{_cut(line)}")
                self.matches += 1
                after, last = context, number
                if self.matches >= self.asked["most"]:
                    self.stopped = f"{self.matches} matches"
                    return False
            elif after:
                self._say(f"{name}-{number}-{_cut(line)}")
                after, last = after - 1, number
            else:
                before.append((number, line))
            if self.size > _OUT_BYTES:
                self.stopped = f"{_OUT_BYTES} bytes"
                return False
        return True

    def _say(self, line: str) -> None:
        self.lines.append(line)
        self.size += len(line)


def _files(spot: Spot, *, hidden: bool) -> Iterator[tuple[str, Spot]]:
    """The files there or below, each with the path to show. A file of the last step of the path is never hidden."""
    try:
        folder = os.open(spot.name, _FOLDER, dir_fd=spot.folder)
    except NotADirectoryError:
        yield spot.shown, spot
        return
    try:
        yield from _below(folder, spot, os.path.normpath(spot.shown), hidden=hidden, levels=_MOST_LEVELS)
    finally:
        os.close(folder)


def _below(folder: int, spot: Spot, shown: str, *, hidden: bool, levels: int) -> Iterator[tuple[str, Spot]]:
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        if (entry.name.startswith(".") and not hidden) or entry.is_symlink():
            continue
        name = os.path.normpath(os.path.join(shown, entry.name))
        place = Spot(folder, entry.name, name, spot.real / entry.name)
        if not entry.is_dir(follow_symlinks=False):
            yield name, place
        elif levels:
            try:
                inner = os.open(entry.name, _FOLDER, dir_fd=folder)
            except OSError:
                continue  # it is gone, or was swapped for a link, or is not ours to read
            try:
                yield from _below(inner, place, name, hidden=hidden, levels=levels - 1)
            finally:
                os.close(inner)


def _text(place: Spot) -> str | None:
    """The file's text; None for a binary or large one, or one that cannot be read."""
    try:
        with open(open_file(place), "rb") as file:
            data = file.read(_FILE_BYTES + 1)
    except (OSError, Invalid):
        return None
    if len(data) > _FILE_BYTES or b"\0" in data[:8192]:
        return None
    return data.decode("utf-8", "replace").removesuffix("\n")


def _cut(line: str) -> str:
    return line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}…"


def _overtime(*_: object) -> NoReturn:
    raise Overtime


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        pattern = re.compile(asked["pattern"], re.IGNORECASE if asked["ignore_case"] else 0)
        search = Search(asked, pattern)
        with Folders([Path(folder) for folder in asked["folders"]]) as folders, folders.reach(asked["path"]) as spot:
            search.run(spot)
        return {name: getattr(search, name) for name in ("lines", "at", "stopped", "passed_over")}
    except re.error as error:
        place = "" if error.pos is None else f" at character {error.pos + 1}"
        return {"wrong": f"the pattern is no regular expression: {error.msg}{place}"}
    except (RecursionError, OverflowError) as error:
        return {"wrong": f"the pattern cannot be used: {error}"}
    except MeshError as error:
        return {"wrong": error.message}


def main() -> None:
    """Answers the requests on standard input, one by one, until it ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _overtime)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
