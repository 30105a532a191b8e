"""Values of JSON that servers do not all write alike: each is read as what it should be, or as nothing.

It is for what an answer can do without. What it cannot is read strictly, and fails aloud.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def count(value: object) -> int | None:
    """A number of tokens; some servers write it as a float."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def mapping(value: object) -> Mapping[str, Any]:
    """An object; anything else is an empty one."""
    return value if isinstance(value, dict) else {}


def present(value: Any) -> list[Any]:
    """The items of a list but for its nulls. TypeError when it is something else that holds none."""
    return [each for each in value or () if each is not None]
