"""Every node of a mesh is restarted, one after the other, and nobody who asks notices."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kit.driver import Backing, staged
from kit.load import LEASE_S, Load
from kit.zygote import Zygote

CALLERS = 50


async def test_a_rolling_restart_under_fifty_callers_fails_loses_and_doubles_nothing(
    zygote: Zygote, tmp_path: Path, backing: Backing
) -> None:
    async with (
        asyncio.timeout(100),
        staged(zygote, tmp_path / "stage", backing.store, registry=backing.registry, lease=LEASE_S) as stage,
    ):
        replicas = [await stage.start("clerk") for _ in range(3)]
        router = await stage.start("router")
        async with Load(stage, "router", CALLERS) as load:
            for old in replicas:
                await old.end()
                await stage.start("clerk")
            # The only one: until the next is there, nobody bears the name.
            await router.end()
            await stage.start("router")
        print(f"{load.turns} turns, the slowest took {load.slowest:.2f} s")
        await load.check("clerk")
