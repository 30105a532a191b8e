"""Consul goes away for a while under load and comes back knowing nobody: who was known is called all the same."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from kit.consul import ConsulServer
from kit.driver import Stage, staged
from kit.load import LEASE_S, Load
from kit.zygote import Zygote

from retinue.service.errors import RegistryUnavailable
from retinue.service.mesh import Mesh

AWAY_S = 60.0 if os.environ.get("FAULTS") == "all" else 5.0
# Promised is that all are listed again so long after Consul is there; see docs/promises.md.
BACK_S = 5.0
CALLERS = 20


async def listed(consul: ConsulServer, names: dict[str, int]) -> None:
    """Returns once Consul lists so many healthy nodes of each name."""
    while {name: len(consul.get(f"health/service/{name}?passing")) for name in names} != names:  # noqa: ASYNC110 -- Consul tells nobody else
        await asyncio.sleep(0.1)


async def check_cold(stage: Stage) -> None:
    """Who comes while Consul is away is told so, and not that there is no such agent."""
    async with Mesh(stage.mesh.settings) as cold:
        with pytest.raises(RegistryUnavailable, match="cannot be reached"):
            await cold.ask("clerk", "hello")


@pytest.mark.timeout(AWAY_S + 120)
async def test_consul_away_and_back_empty_under_load_fails_no_call_to_a_known_name(
    zygote: Zygote, tmp_path: Path, consul_server: ConsulServer, redis_url: str
) -> None:
    clock = asyncio.get_running_loop().time
    async with (
        asyncio.timeout(AWAY_S + 100),
        staged(zygote, tmp_path / "stage", redis_url, registry=consul_server.url, lease=LEASE_S) as stage,
    ):
        for _ in range(3):
            await stage.start("clerk")
        await stage.start("helper")
        await stage.start("router")
        async with Load(stage, "router", CALLERS, prefix="@clerk ") as load:
            await consul_server.stop()
            await check_cold(stage)
            await asyncio.sleep(AWAY_S)
            before = load.turns
            await consul_server.start(empty=True)
            begun = clock()
            await listed(consul_server, {"clerk": 3, "helper": 1, "router": 1})
            back = clock() - begun
            # Some seconds more, in which what is held since before is looked at anew.
            await asyncio.sleep(BACK_S)
        print(
            f"{load.turns} turns, {before} of them while it was away, the slowest took {load.slowest:.2f} s; "
            f"back in {back:.2f} s"
        )
        await load.check("clerk")
        assert back < BACK_S
