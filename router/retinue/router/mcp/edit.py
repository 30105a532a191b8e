"""The MCP server `edit`: text files read and changed by lines that are named with a short hash.

The hash of a line holds for the file as it was read: an edit with a hash of another state is refused, so that a model
never changes lines that it has not seen. All edits of a call are made at once, or none.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

from retinue.router.mcp.files import as_bytes, as_text, create_file, read_bytes, replace_file
from retinue.router.mcp.folders import Folders
from retinue.router.mcp.offer import ADDS, CHANGES, READS, Fixed, offered
from retinue.service.errors import Forbidden, Invalid

ABOUT = "Text files by lines with hashes, within: {folders}. Relative paths are in the first of them."
_AT = re.compile(r"([0-9]{1,9}):([0-9a-f]{6})")
# How many lines a read shows at most, and how many around each edit.
_MOST_LINES, _AROUND = 2000, 3

Path = Annotated[str, "The file: relative to the first allowed folder, or absolute within one."]


@dataclass
class LineEdit:
    """A change at a line, or at the lines from `at` to `to`."""

    at: Annotated[str, "A line with its hash, as read_lines shows it: 12:a1b2c3."]
    action: Annotated[
        Literal["replace", "delete", "insert_before", "insert_after"], "What is done with, or beside, the line."
    ]
    text: Annotated[str, "The new lines, without a line end at the end; nothing for delete."] = ""
    to: Annotated[str, "The last line of several that are replaced or deleted, with its hash."] = ""


@dataclass(frozen=True, slots=True)
class _Change:
    """Lines `begin` to `end` (from 0, the end not included) become `lines`."""

    begin: int
    end: int
    lines: tuple[str, ...]


class _Text:
    """A file's text as lines without their ends."""

    def __init__(self, text: str) -> None:
        self.end = "\r\n" if "\r\n" in text else "\n"
        self.closed = not text or text.endswith("\n")
        # At LF alone: other separators are characters of a line.
        self.lines = text.split("\n")
        if self.closed:
            self.lines.pop()
        self._seal = hashlib.sha256(text.encode()).digest()

    def mark(self, number: int) -> str:
        """The line's number, from 1, with its hash: 12:a1b2c3. Line 0 is the top of the file."""
        line = self.lines[number - 1] if number else ""
        digest = hashlib.sha256(self._seal + f"{number}:{line}".encode()).hexdigest()
        return f"{number}:{digest[:6]}"

    def show(self, numbers: range) -> str:
        return "\n".join(f"{self.mark(number)}|{self.lines[number - 1].removesuffix(chr(13))}" for number in numbers)

    def with_changes(self, changes: Sequence[_Change]) -> str:
        """The text after `changes`, which do not overlap."""
        lines = list(self.lines)
        carriage = self.end[:-1]
        for change in reversed(changes):
            lines[change.begin : change.end] = [line + carriage for line in change.lines]
        if not lines:
            return ""
        return "\n".join(lines) + ("\n" if self.closed else "")


class LineEdits:
    """The tools. Each raises a MeshError that tells the model what was wrong."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._writing = threading.Lock()

    def offer(self) -> Fixed:
        """The tools with what is true of them."""
        return Fixed((offered(self.read_lines, READS), offered(self.edit_lines, CHANGES), offered(self.create, ADDS)))

    def read_lines(
        self,
        path: Path,
        first: Annotated[int, "The first line, from 1."] = 1,
        last: Annotated[int | None, "The last line; at most 2000 are shown."] = None,
    ) -> str:
        """Read a text file: each line as NUMBER:HASH|TEXT. edit_lines takes NUMBER:HASH."""
        text = self._read(path)
        count = len(text.lines)
        if not count:
            return f"{text.mark(0)}| (the file is empty: insert_after this line 0)"
        begin = max(first, 1)
        if begin > count:
            raise Invalid(f"{path} has {count} lines", field="first")
        end = min(count if last is None else last, count, begin + _MOST_LINES - 1)
        shown = text.show(range(begin, end + 1))
        return shown if end == count else f"{shown}\n(lines {begin} to {end} of {count})"

    def edit_lines(self, path: Path, edits: Annotated[list[LineEdit], "All are made at once, or none."]) -> str:
        """Change lines that read_lines showed. Refused when the file has changed since: then read it again.

        The hashes of all lines are new after an edit; the answer shows them for the lines around it. Put several
        changes of one file into one call.
        """
        if not edits:
            raise Invalid("give at least one edit", field="edits")
        with self._writing, self._folders.reach(path) as spot:
            data, state = read_bytes(spot)
            text = _Text(as_text(data, spot))
            changes = sorted(
                (self._change(text, path, edit) for edit in edits), key=lambda change: (change.begin, change.end)
            )
            for one, next_one in pairwise(changes):
                if next_one.begin < one.end or one.begin == next_one.begin:
                    raise Invalid(f"two edits are about line {next_one.begin + 1}: make them one", field="edits")
            changed = text.with_changes(changes)
            replace_file(spot, as_bytes(changed), read_as=state)
        return self._shown(path, _Text(changed), changes)

    def create(self, path: Path, content: Annotated[str, "The whole text."]) -> str:
        """Make a new text file. One that is there already is left as it is, and that is an error."""
        with self._folders.reach(path) as spot:
            data = as_bytes(content)
            create_file(spot, data)
        return f"made {path} with {len(data)} bytes"

    def _read(self, path: str) -> _Text:
        with self._folders.reach(path) as spot:
            return _Text(as_text(read_bytes(spot)[0], spot))

    @staticmethod
    def _change(text: _Text, path: str, edit: LineEdit) -> _Change:
        first = _line(text, path, edit.at)
        last = _line(text, path, edit.to) if edit.to else first
        lines = tuple(line.removesuffix("\r") for line in edit.text.split("\n"))
        match edit.action:
            case "insert_before" | "insert_after" if edit.to:
                raise Invalid(f"{edit.action} is at one line: leave out `to`", field="edits")
            case "insert_before":
                return _Change(max(first - 1, 0), max(first - 1, 0), lines)
            case "insert_after":
                return _Change(first, first, lines)
            case _ if not 0 < first <= last:
                raise Invalid(f"{edit.at} to {edit.to or edit.at} are no lines in order", field="edits")
            case "delete" if edit.text:
                raise Invalid("delete takes no text: use replace", field="edits")
            case "delete":
                return _Change(first - 1, last, ())
        return _Change(first - 1, last, lines)

    @staticmethod
    def _shown(path: str, text: _Text, changes: Sequence[_Change]) -> str:
        """The lines around each change, as they are now."""
        parts, moved, shown = [f"{path} has {len(text.lines)} lines now"], 0, 0
        for change in changes:
            begin, end = change.begin + moved, change.begin + moved + len(change.lines)
            moved += len(change.lines) - (change.end - change.begin)
            around = range(max(begin + 1 - _AROUND, shown + 1), min(end + _AROUND, len(text.lines)) + 1)
            shown = max(shown, around.stop - 1)
            if around:
                parts.append(text.show(around))
        return "\n...\n".join(parts) if len(parts) > 2 else "\n".join(parts)


def _line(text: _Text, path: str, mark: str) -> int:
    """The number of the line that `mark` names. Forbidden when its hash is of another state of the file."""
    found = _AT.fullmatch(mark)
    if found is None:
        raise Invalid(f"{mark!r} is no line with its hash, such as 12:a1b2c3", field="edits")
    number = int(found[1])
    if number > len(text.lines) or text.mark(number) != mark:
        raise Forbidden(f"{path} has changed since {mark} was read, or never had it: nothing was done; read it again")
    return number
