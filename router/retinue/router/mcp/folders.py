"""The folders that a file tool may touch, and the way from a path to a place in them that no link leads out of.

Each step of a path is opened relative to the folder before it and without following links; links are read and walked
by the same rules. So a link that is swapped in between is met as an error and never followed. What it cannot see: hard
links, mounts, and a whole folder that somebody moves out while it is in use. POSIX only.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from retinue.service.errors import Forbidden, Invalid, MeshError, UnknownName
from retinue.service.text import sane

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a path leads: a name in an open folder (a descriptor), "." for a given folder itself.

    `shown` is the path as the model knows it, `real` where that is once links are resolved.
    """

    folder: int
    name: str
    shown: str
    real: Path


class Folders:
    """The given folders, open while entered. A relative path is in the first of them.

    Entering raises Invalid for one that is no folder.
    """

    def __init__(self, given: Sequence[Path]) -> None:
        self._given = tuple(path.absolute() for path in given) or (Path.cwd(),)
        # By both spellings, as it was given and with links resolved: the resolved one, and the open folder.
        self._open: dict[Path, tuple[Path, int]] = {}
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for given in self._given:
                try:
                    descriptor = os.open(given, _FOLDER)
                except OSError as error:
                    raise Invalid(f"{given}: {error.strerror}", field="DIR") from None
                stack.callback(os.close, descriptor)
                opened = given.resolve(), descriptor
                self._open |= {opened[0]: opened, given: opened}
            self._exits = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()
        self._open.clear()

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders, links resolved."""
        return tuple(dict.fromkeys(root for root, _ in self._open.values()))

    def split(self, path: str) -> tuple[Path, tuple[str, ...]]:
        """The folder that `path` begins in, and its steps from there, which are not looked at. Raises as `reach`."""
        (root, _), steps = self._locate(path, path)
        return root, tuple(steps)

    @contextmanager
    def reach(self, path: str, *, follow: bool = True) -> Iterator[Spot]:
        """The place that `path` names, for the length of the block; without `follow`, its last step may be a link.

        Raises Forbidden for a path that leads out, UnknownName for a folder on the way that is not there, Invalid
        for what is no path; OSErrors of the block come out as one of these too.
        """
        with speaking_of(path), ExitStack() as stack:
            yield self._walk(path, follow, stack)

    def _walk(self, path: str, follow: bool, stack: ExitStack) -> Spot:
        (root, opened), steps = self._locate(path, path)
        way, names, links = [opened], list[str](), 0
        while steps:
            step = steps.popleft()
            if step == "..":
                if not names:
                    raise self._outside(path)
                names.pop()
                way.pop()
                continue
            target = _link_at(way[-1], step) if steps or follow else None
            if target is None and not steps:
                return Spot(way[-1], step, path, Path(root, *names, step))
            if target is None:
                way.append(os.open(step, _FOLDER | os.O_NOFOLLOW, dir_fd=way[-1]))
                stack.callback(os.close, way[-1])
                names.append(step)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise Invalid(f"{sane(path)}: links lead in a circle", field="path")
            if target.startswith("/"):
                (root, opened), further = self._locate(target, path)
                way, names = [opened], []
            else:
                further = _steps(target)
            steps.extendleft(reversed(further))
        return Spot(way[-1], ".", path, Path(root, *names))

    def _locate(self, path: str, shown: str) -> tuple[tuple[Path, int], deque[str]]:
        """The folder that `path` begins in, resolved and open, and the steps from there."""
        if not path or "\0" in path:
            what = "has a NUL in it" if path else 'is empty: "." is the folder itself'
            raise Invalid(f"the path {what}", field="path")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise Invalid("the path has characters that no file name can have", field="path") from None
        if not path.startswith("/"):
            return next(iter(self._open.values())), _steps(path)
        steps = tuple(_steps(path))
        for spelt in sorted(self._open, key=lambda root: -len(root.parts)):
            begin = spelt.parts[1:]
            if steps[: len(begin)] == begin:
                return self._open[spelt], deque(steps[len(begin) :])
        raise self._outside(shown)

    def _outside(self, path: str) -> Forbidden:
        allowed = ", ".join(str(root) for root in self.roots)
        return Forbidden(f"{sane(path)} leads out of the folders that may be used: {allowed}")


@contextmanager
def speaking_of(path: str) -> Iterator[None]:
    """What the system says against `path` in here, as an error for the model."""
    try:
        yield
    except FileNotFoundError:
        raise UnknownName(f"{sane(path)}: there is no such file or folder") from None
    except OSError as error:
        raise _meaning(sane(path), error) from None


def _meaning(path: str, error: OSError) -> MeshError:
    if isinstance(error, PermissionError):
        return Forbidden(f"{path}: the system does not permit that")
    # The name was a link when it was opened, though not when it was looked at, or it is one that is not followed.
    said = "it is a link" if error.errno == errno.ELOOP else error.strerror or str(error)
    return Invalid(f"{path}: {said}", field="path")


def _steps(path: str) -> deque[str]:
    return deque(step for step in path.split("/") if step not in ("", "."))


def _link_at(folder: int, name: str) -> str | None:
    """Where the link `name` points to; None for what is no link, or not there."""
    try:
        if not stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return None
    except FileNotFoundError:
        return None
    return os.readlink(name, dir_fd=folder)
