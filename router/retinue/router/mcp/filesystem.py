"""The MCP server `filesystem`: files and folders read, written, listed and moved, within the given folders.

Its tools go by the names of the well-known filesystem server. It deletes nothing, and follows no link out.
"""

from __future__ import annotations

import base64
import difflib
import mimetypes
import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from mcp_types import CallToolResult, ImageContent

from retinue.agent.tools import Invocation, ToolSpec
from retinue.agent.tools.threads import in_thread
from retinue.router.mcp.browsing import Browsing
from retinue.router.mcp.files import (
    FILE_BYTES,
    as_bytes,
    as_text,
    open_file,
    read_bytes,
    replace_file,
    state_of,
)
from retinue.router.mcp.folders import Folders, speaking_of
from retinue.router.mcp.offer import ADDS_ONCE, CHANGES, READS, REPLACES, Fixed, Offered, Progress, offered, said
from retinue.service.errors import AlreadyExists, Invalid, MeshError
from retinue.service.text import sane

ABOUT = "Files and folders within: {folders}. Relative paths are in the first of them."
_MOST_FILES = 50
_MEDIA_BYTES = 8 * 1024 * 1024

Path = Annotated[str, "Where: relative to the first allowed folder, or absolute within one."]


@dataclass
class Replacement:
    """One change of a file's text."""

    old_text: Annotated[str, "What is there now, exactly, and once only in the file."]
    new_text: Annotated[str, "What is to be there instead."]


class Filesystem:
    """The tools. Each raises a MeshError that tells the model what was wrong."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders

    def offer(self) -> Fixed:
        """The tools with what is true of them."""
        browsing = Browsing(self._folders)
        listing = (browsing.list_directory, browsing.list_directory_with_sizes, browsing.directory_tree)
        reading = (self.read_text_file, self.read_file, self.read_multiple_files, *listing, browsing.search_files)
        return Fixed(
            (
                *(offered(each, READS) for each in (*reading, self.get_file_info, self.list_allowed_directories)),
                Offered(_MEDIA, READS, self._read_media_file),
                offered(self.write_file, REPLACES),
                offered(self.edit_file, CHANGES),
                offered(self.create_directory, ADDS_ONCE),
                offered(self.move_file, CHANGES),
            )
        )

    def read_text_file(
        self,
        path: Path,
        head: Annotated[int | None, "Only so many lines from the beginning."] = None,
        tail: Annotated[int | None, "Only so many lines from the end."] = None,
    ) -> str:
        """Read a text file (UTF-8). A file over 1 MiB is read in part, with head or tail."""
        if head is not None and tail is not None:
            raise Invalid("give head or tail, not both", field="head")
        with self._folders.reach(path) as spot:
            if head is None and tail is None:
                return as_text(read_bytes(spot)[0], spot)
            with open(open_file(spot), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if tail is not None:
                    file.seek(max(0, size - FILE_BYTES))
                part = file.read(FILE_BYTES)
        # At the edge of the part a character may be torn.
        lines = part.decode("utf-8", "replace").split("\n")
        if tail is None:
            return "\n".join(lines[: max(head or 0, 0)])
        if lines[-1] == "":
            lines.pop()
        return "\n".join(lines[-tail:] if tail > 0 else [])

    def read_file(self, path: Path) -> str:
        """Read a text file (UTF-8): another name of read_text_file."""
        return self.read_text_file(path)

    def read_multiple_files(self, paths: Annotated[list[str], "At most 50 paths."]) -> str:
        """Read several text files. One that cannot be read is told so in its place; 1 MiB is read in all."""
        if len(paths) > _MOST_FILES:
            raise Invalid(f"{len(paths)} paths: give at most {_MOST_FILES}", field="paths")
        parts, left = [], FILE_BYTES
        for path in paths:
            try:
                with self._folders.reach(path) as spot:
                    data, _ = read_bytes(spot, most=left)
                    text = as_text(data, spot)
                left -= len(data)
            except MeshError as error:
                text = f"(not read: {error.message})"
            parts.append(f"{path}:\n{text}")
        return "\n---\n".join(parts)

    async def _read_media_file(self, invocation: Invocation, _: Progress) -> CallToolResult:
        path = str(invocation.arguments["path"])

        def read() -> bytes:
            with self._folders.reach(path) as spot:
                return read_bytes(spot, most=_MEDIA_BYTES)[0]

        mime, _encoding = mimetypes.guess_type(path)
        if mime is None or not mime.startswith("image/"):
            return said(f"{path} is no image by its name: read_text_file reads text", failed=True)
        data = base64.b64encode(await in_thread(read)).decode()
        return CallToolResult(content=[ImageContent(type="image", data=data, mime_type=mime)])

    def write_file(self, path: Path, content: Annotated[str, "The whole of the file from now on."]) -> str:
        """Write a file: it is made, or replaced as a whole, at once. Its folder has to be there."""
        with self._folders.reach(path) as spot:
            data = as_bytes(content)
            replace_file(spot, data)
        return f"wrote {len(data)} bytes to {path}"

    def edit_file(
        self,
        path: Path,
        edits: Annotated[list[Replacement], "Made one after the other, all or none."],
        dry_run: Annotated[bool, "Only show what would change."] = False,
    ) -> str:
        """Replace passages of a text file, each of which must be there exactly once; shows what changed as a diff."""
        with self._folders.reach(path) as spot:
            data, state = read_bytes(spot)
            before = after = as_text(data, spot)
            for number, edit in enumerate(edits, 1):
                count = after.count(edit.old_text) if edit.old_text else 0
                if count != 1:
                    raise Invalid(f"edit {number}: its old_text is {count} times in {path}, not once", field="edits")
                after = after.replace(edit.old_text, edit.new_text)
            if not dry_run and after != before:
                replace_file(spot, as_bytes(after), read_as=state)
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), path, path, lineterm="")
        return "\n".join(lines) or "nothing changes"

    def create_directory(self, path: Path) -> str:
        """Make a folder, and those above it that are not there; one that is there already is fine."""
        root, steps = self._folders.split(path)
        if ".." in steps:
            raise Invalid(f"{sane(path)}: write it without ..", field="path")
        made = False
        for end in range(len(steps) + 1):
            with self._folders.reach(str(root.joinpath(*steps[:end]))) as spot:
                if (state := state_of(spot)) is None:
                    os.mkdir(spot.name, dir_fd=spot.folder)
                    made = True
                elif not stat.S_ISDIR(state.st_mode):
                    raise AlreadyExists(f"{sane(str(spot.real))} is there already, and is no folder")
        return f"made {path}" if made else f"{path} is there already"

    def move_file(self, source: Path, destination: Path) -> str:
        """Move or rename a file or folder. Nothing is replaced: the destination must not be there."""
        with ExitStack() as stack:
            old = stack.enter_context(self._folders.reach(source, follow=False))
            new = stack.enter_context(self._folders.reach(destination, follow=False))
            if old.name == "." or new.name == ".":
                raise Invalid("an allowed folder itself is not moved", field="source")
            with speaking_of(source):
                os.stat(old.name, dir_fd=old.folder, follow_symlinks=False)
            if state_of(new) is not None:
                raise AlreadyExists(f"{destination} is there already, and was left as it is")
            os.rename(old.name, new.name, src_dir_fd=old.folder, dst_dir_fd=new.folder)
        return f"moved {source} to {destination}"

    def get_file_info(self, path: Path) -> dict[str, Any]:
        """Type, size in bytes, permissions and times of a file, folder or link."""
        with self._folders.reach(path, follow=False) as spot:
            state = os.stat(spot.name, dir_fd=spot.folder, follow_symlinks=False)
        return {
            "path": sane(str(spot.real)),
            "type": kind_of(state.st_mode),
            "size": state.st_size,
            "permissions": f"{stat.S_IMODE(state.st_mode):04o}",
            "modified": datetime.fromtimestamp(state.st_mtime, UTC),
            "accessed": datetime.fromtimestamp(state.st_atime, UTC),
        }

    def list_allowed_directories(self) -> list[str]:
        """The folders that may be used. Relative paths are in the first of them."""
        return [sane(str(root)) for root in self._folders.roots]


def kind_of(mode: int) -> str:
    """What a mode says that something is: file, directory, link or other."""
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
    return next((name for is_one, name in kinds if is_one(mode)), "other")


_MEDIA = ToolSpec(
    "read_media_file",
    "Read an image of at most 8 MiB.",
    {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "Where, as in read_text_file."}},
        "required": ["path"],
        "additionalProperties": False,
    },
)
