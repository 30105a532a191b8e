"""What is in folders: lists, trees and searches by name, for the server `filesystem`.

Links are shown and never followed on the way down. Each answer has a bound, and says so when it was met.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from retinue.router.mcp.folders import Folders, Spot
from retinue.service.errors import Invalid
from retinue.service.text import sane

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LISTED, _MOST_IN_TREE, _MOST_FOUND = 2000, 2000, 500
_MOST_LEVELS = 40
_SEARCH_S = 10.0

Where = Annotated[str, "The folder: relative to the first allowed folder, or absolute within one."]
Exclude = Annotated[list[str] | None, "Patterns of what is left out, such as node_modules or *.pyc."]


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in a folder: its steps from where the walk began, and what it is. `size` is in bytes."""

    steps: tuple[str, ...]
    folder: bool
    link: bool
    size: int

    @property
    def kind(self) -> str:
        return "LINK" if self.link else "DIR" if self.folder else "FILE"

    @property
    def name(self) -> str:
        return sane(self.steps[-1])


class Browsing:
    """The tools that look and do not touch."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders

    def list_directory(self, path: Where = ".") -> str:
        """List a folder: a line for each entry, such as [FILE] notes.txt, [DIR] src or [LINK] latest."""
        entries = self._list(path)
        return _bounded([f"[{entry.kind}] {entry.name}" for entry in entries], _MOST_LISTED)

    def list_directory_with_sizes(
        self,
        path: Where = ".",
        sort_by: Annotated[Literal["name", "size"], "The order of the lines; the largest come first."] = "name",
    ) -> str:
        """List a folder with the size of each file in bytes, and the sum of them."""
        entries = self._list(path)
        if sort_by == "size":
            entries.sort(key=lambda entry: -entry.size)
        lines = [f"[{entry.kind}] {entry.name}{'' if entry.folder else f'  {entry.size}'}" for entry in entries]
        files = [entry for entry in entries if not entry.folder]
        total = (
            f"{len(files)} files with {sum(entry.size for entry in files)} bytes, {len(entries) - len(files)} folders"
        )
        return f"{_bounded(lines, _MOST_LISTED)}\n{total}"

    def directory_tree(self, path: Where = ".", exclude_patterns: Exclude = None) -> str:
        """A folder and all below it as JSON: name, type, and children for a folder. It ends after 2000 entries."""
        with self._folders.reach(path) as spot:
            root: list[dict[str, Any]] = []
            children: dict[tuple[str, ...], list[dict[str, Any]]] = {(): root}
            cut = False
            for count, entry in enumerate(_walk(spot, exclude_patterns or ())):
                if cut := count == _MOST_IN_TREE:
                    break
                node: dict[str, Any] = {"name": entry.name, "type": entry.kind.lower().replace("dir", "directory")}
                if entry.folder:
                    node["children"] = children[entry.steps] = []
                children[entry.steps[:-1]].append(node)
        note = f"\n(cut after {_MOST_IN_TREE} entries: look at a folder below, or leave some out)" if cut else ""
        return json.dumps(root, ensure_ascii=False, indent=1) + note

    def search_files(
        self,
        path: Where,
        pattern: Annotated[str, "Such as *.txt for a name anywhere below, or src/**/*.py for a path."],
        exclude_patterns: Exclude = None,
    ) -> str:
        """Find files and folders by name, below a folder: a path a line, at most 500, within 10 seconds."""
        if not pattern:
            raise Invalid("the pattern is empty: * is everything", field="pattern")
        until = time.monotonic() + _SEARCH_S
        found: list[str] = []
        with self._folders.reach(path) as spot:
            for entry in _walk(spot, exclude_patterns or ()):
                if time.monotonic() > until:
                    found.append(f"(stopped after {_SEARCH_S:g} s: search in a folder below)")
                    break
                if _matches(entry.steps, pattern):
                    found.append(sane(os.path.join(path, *entry.steps)))
                    if len(found) > _MOST_FOUND:
                        break
        return _bounded(found, _MOST_FOUND) if found else "nothing matches"

    def _list(self, path: str) -> list[Entry]:
        with self._folders.reach(path) as spot, ExitStack() as stack:
            folder = os.open(spot.name, _FOLDER, dir_fd=spot.folder)
            stack.callback(os.close, folder)
            return _entries(folder, ())


def _entries(folder: int, above: tuple[str, ...]) -> list[Entry]:
    """What is in an open folder, by name. What vanishes meanwhile is left out."""
    entries = []
    with os.scandir(folder) as scan:
        for each in scan:
            try:
                size = each.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
            is_folder = each.is_dir(follow_symlinks=False)
            entries.append(Entry((*above, each.name), is_folder, each.is_symlink(), 0 if is_folder else size))
    return sorted(entries, key=lambda entry: entry.steps)


def _walk(spot: Spot, exclude: Sequence[str]) -> Iterator[Entry]:
    """Everything below, each folder before what is in it; at most _MOST_LEVELS deep."""

    def descend(at: int, above: tuple[str, ...]) -> Iterator[Entry]:
        for entry in _entries(at, above):
            if any(_matches(entry.steps, pattern) for pattern in exclude):
                continue
            yield entry
            if entry.folder and len(entry.steps) < _MOST_LEVELS:
                try:
                    inner = os.open(entry.steps[-1], _FOLDER, dir_fd=at)
                except (FileNotFoundError, NotADirectoryError, PermissionError):
                    continue  # it is gone, or was swapped for a link, or is not ours to read
                try:
                    yield from descend(inner, entry.steps)
                finally:
                    os.close(inner)

    root = os.open(spot.name, _FOLDER, dir_fd=spot.folder)
    try:
        yield from descend(root, ())
    finally:
        os.close(root)


def _matches(steps: Sequence[str], pattern: str) -> bool:
    """Whether a pattern fits: one without a slash a name anywhere, one with slashes the whole path."""
    if "/" not in pattern:
        return re.fullmatch(fnmatch.translate(pattern), steps[-1]) is not None
    # The set of how many parts of the pattern can be used up by the steps so far; ** takes any number of steps.
    parts = [part for part in pattern.split("/") if part]
    at = _skip({0}, parts)
    for step in steps:
        at = _skip(
            {
                place + (parts[place] != "**")
                for place in at
                if place < len(parts) and (parts[place] == "**" or fnmatch.fnmatchcase(step, parts[place]))
            },
            parts,
        )
    return len(parts) in at


def _skip(places: set[int], parts: Sequence[str]) -> set[int]:
    reached = set(places)
    for place in sorted(places):
        while place < len(parts) and parts[place] == "**":
            place += 1  # noqa: PLW2901
            reached.add(place)
    return reached


def _bounded(lines: Sequence[str], most: int) -> str:
    if len(lines) <= most:
        return "\n".join(lines)
    return "\n".join([*lines[:most], f"({len(lines) - most} more are left out: narrow it down)"])
