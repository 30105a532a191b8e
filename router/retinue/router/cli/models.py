"""`retinue models`: which model providers there are, and which model would answer, and why."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from retinue.router.cli.options import Json, LogLevel
from retinue.router.cli.printing import note, out, out_json, out_table
from retinue.router.cli.reach import Stop, execute

if TYPE_CHECKING:
    from retinue.agent.model.catalogue import Provider


def models(json_: Json = False, log_level: LogLevel = None) -> None:
    """Show the model providers, the aliases, and which model would be chosen and why, where no mesh file names one."""
    execute(_models(json_))


async def _models(as_json: bool) -> None:
    from retinue.agent.model.catalogue import ALIASES, PROVIDERS
    from retinue.agent.model.choice import choose
    from retinue.service.errors import MeshError

    why_not = ""
    try:
        chosen = await choose()
    except MeshError as error:
        # What is listed below is what helps to mend it.
        why_not = error.message
    wanted = "" if why_not else chosen.model.name
    told = [await _told(one, wanted) for one in PROVIDERS.values()]
    for one in told:
        if one["missing"]:
            note(f"the server of {one['name']} does not list {one['missing']}")
    if as_json:
        name, why = ("", why_not) if why_not else (chosen.model.name, chosen.why)
        out_json({"chosen": name, "why": why, "providers": told, "aliases": ALIASES})
    else:
        out(f"no model can be chosen: {why_not}" if why_not else chosen.why)
        out("")
        rows = [[one["name"], one["model"], one["needs"], _found(one)] for one in told]
        out_table(["PROVIDER", "DEFAULT MODEL", "NEEDS", "ITS SERVER SAYS"], rows)
        out("")
        out_table(["ALIAS", "MODEL"], [list(pair) for pair in ALIASES.items()])
    if why_not:
        raise Stop(why_not)


async def _told(provider: Provider, wanted: str) -> dict[str, Any]:
    """What is known of a provider: with a key or an address set, its server is asked. `wanted` is the chosen model."""
    from retinue.agent.model.choice import names_at
    from retinue.service.errors import MeshError

    at = os.environ.get(provider.address) or provider.url
    needs = provider.key or (f"a server at {at}" if at else "nothing")
    told: dict[str, Any] = {"name": provider.name, "model": provider.model, "needs": needs}
    told |= {"configured": provider.name == "offline", "models": [], "error": "", "missing": ""}
    if provider.url:
        try:
            names = await names_at(provider)
        except MeshError as error:
            return told | {"configured": True, "error": error.message}
        told |= {"configured": names is not None, "models": sorted(names or ())}
        name = wanted.removeprefix(f"{provider.name}/")
        if names and name != wanted and name not in names and f"{name}:latest" not in names:
            told["missing"] = name
    return told


def _found(told: dict[str, Any]) -> str:
    if told["error"]:
        return str(told["error"])
    if not told["configured"]:
        return "not set"
    count = len(told["models"])
    has = "it has it" if told["model"] in told["models"] else "the default is not among them"
    return f"{count} models; {has}" if count else ""
