"""Whose turn a lease is that nobody holds: the one rule that the stores written in Python share.

It knows no clock and keeps nothing; what it is given is alive.
"""

from __future__ import annotations

from collections.abc import Mapping


def whose_turn(waiting: Mapping[str, str], owner: str, *, claim: str, lapsed: str) -> str:
    """Who may take the lease: one of `waiting` (claims by owner, in their order), or `owner`, who asks with `claim`.

    `lapsed` is the claim of a holder that ran out of time, "" when it had none or gave the lease up.
    """
    if lapsed:
        for waiter, its_claim in waiting.items():
            if its_claim == lapsed:
                return waiter
        if claim == lapsed:
            return owner
    return next(iter(waiting), owner)
