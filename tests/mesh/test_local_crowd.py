"""Many processes on one registry file and one store file: some are killed, some frozen, and the list is right."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from kit.driver import Stage, Victim, staged
from kit.load import LEASE_S
from kit.watching import closing, until
from kit.zygote import Zygote

from retinue.service.chat import RunState
from retinue.service.errors import MeshError
from retinue.service.registry import TTL_S

MANY, KILLED, FROZEN = (50, 10, 10) if os.environ.get("FAULTS") == "all" else (15, 3, 3)
# Seconds beyond the TTL: a watch looks every fifth of a second, and the machine is busy.
LATE_S = 2.0


async def freeze(victim: Victim, file: Path) -> None:
    """Freezes it, but not in the middle of a write, which would keep the file from everybody else."""
    while True:
        await victim.freeze()
        other = sqlite3.connect(file, timeout=1.0, isolation_level=None)
        try:
            other.execute("begin immediate")
            other.rollback()
        except sqlite3.OperationalError:
            victim.thaw()
        else:
            return
        finally:
            other.close()


async def shown(stage: Stage, names: Sequence[str], *, within: float) -> float:
    """How long it takes until exactly these names are listed; TimeoutError after `within` seconds."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    async with closing(stage.mesh.registry.watch_names()) as watch:
        await until(watch, lambda listed: sorted(listed) == sorted(names), within=within)
    return clock() - begun


async def ask_all(stage: Stage, names: Sequence[str], session: str) -> None:
    """Each of them takes a turn, all at once."""
    replies = await asyncio.gather(*(stage.ask(name, "pay:1", session=session, seconds=60.0) for name in names))
    assert {reply.state for reply in replies} == {RunState.COMPLETED}


async def test_the_list_is_right_within_the_ttl_and_nobody_sees_a_locked_database(
    zygote: Zygote, tmp_path: Path
) -> None:
    names = [f"clerk-{number}" for number in range(MANY)]
    async with (
        asyncio.timeout(110),
        staged(zygote, tmp_path / "stage", f"sqlite://{tmp_path}/store.db", lease=LEASE_S) as stage,
    ):
        await asyncio.gather(*(stage.start(name) for name in names))
        await shown(stage, names, within=20.0)
        await ask_all(stage, names, "before")

        dead, frozen, rest = names[:KILLED], names[KILLED : KILLED + FROZEN], names[KILLED + FROZEN :]
        for name in dead:
            await stage.victims[name].kill()
        for name in frozen:
            await freeze(stage.victims[name], stage.folder / "registry.db")
        gone = await shown(stage, rest, within=TTL_S + LATE_S)
        errors = await asyncio.gather(*(refusal(stage, name) for name in (*dead, *frozen)))
        await ask_all(stage, rest, "meanwhile")

        for name in frozen:
            stage.victims[name].thaw()
        back = await shown(stage, [*frozen, *rest], within=20.0)
        await ask_all(stage, [*frozen, *rest], "after")
        print(
            f"{MANY} processes: {KILLED} killed and {FROZEN} frozen are gone in {gone:.1f} s, "
            f"those that thawed are back in {back:.1f} s"
        )
        said = [*errors, *(log.read_text() for log in stage.folder.glob("*.log"))]
        assert not [line for text in said for line in text.splitlines() if "locked" in line]


async def refusal(stage: Stage, name: str) -> str:
    """What a caller of somebody who is gone is told."""
    try:
        reply = await stage.ask(name, "hello", seconds=1.0)
    except MeshError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"{name} answered: {reply}")
