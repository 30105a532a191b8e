"""The model providers that Retinue knows: where they are, what unlocks them, what they are asked for by default.

The data is catalogue.toml beside this file; nothing else knows a provider by name.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One provider. `key` and `address` are the variables of its key and of its base URL ("": it has none).

    `dialect` is the API that it speaks, `path` what stands between the base URL and the dialect's own path; `model`
    is asked for when nobody names one.
    """

    name: str
    dialect: str
    key: str = ""
    address: str = ""
    url: str = ""
    path: str = ""
    model: str = ""


_DATA = tomllib.loads(resources.files(__package__).joinpath("catalogue.toml").read_text())

# In the order of the smart choice.
PROVIDERS = {each["name"]: Provider(**each) for each in _DATA["provider"]}

ALIASES: dict[str, str] = _DATA["aliases"]

_WINDOWS: dict[str, int] = _DATA["windows"]


def window_of(model: str) -> int | None:
    """Tokens that fit a model, by its name at its server; None where nobody knows."""
    known = [begin for begin in _WINDOWS if model.startswith(begin)]
    return _WINDOWS[max(known, key=len)] if known else None
