"""What is said of one thing that was looked at, and the words that several checks share. It looks at nothing itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OK, WARNING, ERROR = "ok", "warning", "error"
# The other clock is asked for over the network, and Consul's is in whole seconds.
CLOCK_S = 2.0
# Certificates and tokens begin to fail somewhere here.
CLOCK_FAR_S = 300.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it stands (ok, warning, error), and what to do about it."""

    check: str
    status: str
    text: str


def clock(whose: str, ahead: float) -> Finding:
    """What a difference of clocks means: `ahead` is how far the other one is before this machine's, in seconds."""
    off = abs(ahead)
    if off < CLOCK_S:
        return Finding("clock", OK, f"less than {CLOCK_S:g} s from that of {whose}")
    way = "behind" if ahead > 0 else "ahead of"
    text = f"this machine's is {off:.0f} s {way} that of {whose}: set both by NTP"
    return Finding("clock", ERROR if off >= CLOCK_FAR_S else WARNING, text)


def to_be_made(check: str, url: str, path: Path) -> Finding:
    """A file that is not there yet: made by the first who runs, if its folder allows it."""
    if not path.parent.is_dir():
        return Finding(check, ERROR, f"{url}: there is no folder {path.parent}: make it, or correct the setting")
    if not os.access(path.parent, os.W_OK):
        return Finding(check, ERROR, f"{url}: {path.parent} cannot be written: chown or chmod it for this user")
    return Finding(check, OK, f"{url} is not there yet; `retinue run` makes it")


def worst(findings: Sequence[Finding]) -> str:
    """The gravest status of all."""
    found = {finding.status for finding in findings}
    return next((status for status in (ERROR, WARNING) if status in found), OK)
