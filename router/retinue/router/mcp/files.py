"""Reading and replacing the files at a Spot: whole or not at all, never through a link, and never a device.

Sizes are bounded, because what is read here is read by a model.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress

from retinue.router.mcp.folders import Spot
from retinue.service.errors import AlreadyExists, Forbidden, Invalid
from retinue.service.text import sane

# The largest file that is read or written whole, bytes.
FILE_BYTES = 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_file(spot: Spot) -> int:
    """A descriptor of the regular file there, to be closed; Invalid for anything else."""
    descriptor = os.open(spot.name, _READ, dir_fd=spot.folder)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    what = "a folder" if stat.S_ISDIR(kind) else "no regular file"
    raise Invalid(f"{sane(spot.shown)} is {what}", field="path")


def read_bytes(spot: Spot, *, most: int = FILE_BYTES) -> tuple[bytes, os.stat_result]:
    """What is in the file, and its state when it was read. Invalid when that is more than `most` bytes."""
    with open(open_file(spot), "rb") as file:
        state = os.fstat(file.fileno())
        data = file.read(most + 1)
    if len(data) > most:
        size = max(state.st_size, len(data))
        raise Invalid(f"{sane(spot.shown)} has {size} bytes, over the limit of {most}: read a part of it", field="path")
    return data, state


def as_text(data: bytes, spot: Spot) -> str:
    """UTF-8 as text. Invalid for what is none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"{sane(spot.shown)} is no UTF-8 text (byte {error.start})", field="path") from None


def as_bytes(text: str) -> bytes:
    """Text as UTF-8, code points that are no characters mended; Invalid when it is too much for one file."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        data = sane(text).encode("utf-8")
    if len(data) > FILE_BYTES:
        raise Invalid(f"the text has {len(data)} bytes, over the limit of {FILE_BYTES}", field="content")
    return data


def create_file(spot: Spot, data: bytes) -> None:
    """Makes the file with `data` in it. AlreadyExists when something of that name is there."""
    temporary = _write_beside(spot, data, mode=None)
    try:
        # A link fails where the name is taken; a rename would replace what is there.
        os.link(temporary, spot.name, src_dir_fd=spot.folder, dst_dir_fd=spot.folder, follow_symlinks=False)
    except FileExistsError:
        raise AlreadyExists(f"{sane(spot.shown)} is there already, and was left as it is") from None
    finally:
        os.unlink(temporary, dir_fd=spot.folder)


def replace_file(spot: Spot, data: bytes, *, read_as: os.stat_result | None = None) -> None:
    """Puts `data` in the file's place at once, keeping its permissions; a file that is not there is made.

    `read_as` is its state when it was read: Forbidden when it has changed since.
    """
    state = state_of(spot)
    if state is not None and not stat.S_ISREG(state.st_mode):
        what = "a folder" if stat.S_ISDIR(state.st_mode) else "no regular file"
        raise Invalid(f"{sane(spot.shown)} is {what}", field="path")
    temporary = _write_beside(spot, data, mode=None if state is None else stat.S_IMODE(state.st_mode))
    try:
        if read_as is not None and _version(state_of(spot)) != _version(read_as):
            raise Forbidden(f"{sane(spot.shown)} was changed by somebody else meanwhile: read it again")
        os.rename(temporary, spot.name, src_dir_fd=spot.folder, dst_dir_fd=spot.folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=spot.folder)
        raise


def state_of(spot: Spot) -> os.stat_result | None:
    """The state of what is there, links not followed; None when nothing is."""
    try:
        return os.stat(spot.name, dir_fd=spot.folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _write_beside(spot: Spot, data: bytes, *, mode: int | None) -> str:
    """A new file with `data` in the same folder: its name."""
    if spot.name == ".":
        raise Invalid(f"{sane(spot.shown)} is a folder", field="path")
    temporary = f".{secrets.token_hex(8)}.tmp"
    try:
        with open(os.open(temporary, _NEW, 0o666, dir_fd=spot.folder), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=spot.folder)
        raise
    return temporary


def _version(state: os.stat_result | None) -> tuple[int, ...]:
    return () if state is None else (state.st_ino, state.st_mtime_ns, state.st_size)
