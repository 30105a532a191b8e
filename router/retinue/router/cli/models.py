"""`retinue models`: which model providers there are, and which model would answer, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.router.cli.options import Json, LogLevel
from retinue.router.cli.printing import out, out_json, out_table
from retinue.router.cli.reach import execute, in_own_words

if TYPE_CHECKING:
    from retinue.agent.model.catalogue import Provider


def models(json_: Json = False, log_level: LogLevel = None) -> None:
    """Show the model providers, the aliases, and which model would be chosen and why."""
    execute(_models(json_))


async def _models(as_json: bool) -> None:
    from retinue.agent.model.catalogue import ALIASES, PROVIDERS
    from retinue.agent.model.choice import choose

    with in_own_words():
        chosen = await choose()
    if as_json:
        providers = [{"name": one.name, "model": one.model, "needs": _needs(one)} for one in PROVIDERS.values()]
        out_json({"chosen": chosen.model.name, "why": chosen.why, "providers": providers, "aliases": ALIASES})
        return
    out(chosen.why)
    out("")
    out_table(
        ["PROVIDER", "DEFAULT MODEL", "NEEDS"], [[one.name, one.model, _needs(one)] for one in PROVIDERS.values()]
    )
    out("")
    out_table(["ALIAS", "MODEL"], [list(pair) for pair in ALIASES.items()])


def _needs(provider: Provider) -> str:
    return provider.key or (f"a server at {provider.url}" if provider.url else "nothing")
