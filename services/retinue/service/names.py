"""The names that people and models type, checked before they are used, and the nearest when one is unknown."""

from __future__ import annotations

import difflib
import re
import secrets
from collections.abc import Iterable

from retinue.service.errors import Invalid
from retinue.service.text import sane

DEFAULT_SESSION = "default"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SESSION = re.compile(r"[A-Za-z0-9._-]{1,128}")
_DERIVED = re.compile(r"[A-Za-z0-9._~-]{1,1024}")
_RUN = re.compile(r"[A-Za-z0-9._~:-]{1,200}")
_REQUEST = re.compile(r"[!-~]{1,256}")


def check_name(name: str, *, field: str = "name") -> str:
    """`name` when an agent or service may bear it; Invalid otherwise."""
    if not _NAME.fullmatch(name):
        raise Invalid(f"{field} {name!r}: use 1 to 63 of a-z, 0-9 and -, beginning with a letter or digit", field=field)
    return name


def is_name(name: str) -> bool:
    """Whether an agent or service of the mesh may bear it."""
    return _NAME.fullmatch(name) is not None


def check_session(session: str, *, derived: bool = False) -> str:
    """The session that a request means: "" for the default one (which "default" spells too); Invalid for no session.

    `derived` allows the `~` of a delegate's session, which only a caller with an envelope may name.
    """
    if session in ("", DEFAULT_SESSION):
        return ""
    if not (_DERIVED if derived else _SESSION).fullmatch(session):
        raise Invalid(f"session {session!r}: use 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-'", field="session")
    return session


def check_request_id(request_id: str) -> str:
    """`request_id` when it is printable ASCII of at most 256 characters, or empty; Invalid otherwise."""
    if request_id and not _REQUEST.fullmatch(request_id):
        raise Invalid("request_id: use 1 to 256 printable ASCII characters without spaces", field="request_id")
    return request_id


def check_run_id(run_id: str, *, field: str = "run_id") -> str:
    """`run_id` when a run may have it; Invalid otherwise."""
    if not _RUN.fullmatch(run_id):
        raise Invalid(f"{field} {run_id!r} is no run id", field=field)
    return run_id


def check_text(text: str, *, field: str, most: int, required: bool = False) -> str:
    """`text` made sane and trimmed; Invalid when it is longer than `most` characters, or empty and `required`."""
    text = sane(text).strip()
    if required and not text:
        raise Invalid(f"{field} is empty: give it a value", field=field)
    if len(text) > most:
        raise Invalid(f"{field} has {len(text)} characters: use at most {most}", field=field)
    return text


def new_id(prefix: str = "") -> str:
    """A random id of 128 bits in hexadecimal, after `prefix`."""
    return prefix + secrets.token_hex(16)


def nearest(name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.6) -> list[str]:
    """The known names that `name` may be a slip for, best first; letters' case does not count.

    `cutoff` (0 to 1) is how like they must be.
    """
    by_folded = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_folded, n=most, cutoff=cutoff)
    return [by_folded[folded] for folded in close]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error line: the nearest names, else all of them when they are few, else nothing."""
    known = sorted(known)
    if close := nearest(name, known):
        return f"; did you mean {' or '.join(close)}?"
    if 0 < len(known) <= 12:
        return f"; there are: {', '.join(known)}"
    return ""
