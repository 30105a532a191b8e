"""Redis goes away and comes back: nothing that was acknowledged is lost, and nodes say once that they cannot work."""

from __future__ import annotations

import asyncio
import os
from itertools import groupby
from pathlib import Path

import pytest
from kit.driver import Stage, staged
from kit.histories import check_effects, check_session, show
from kit.redis import RedisServer
from kit.watching import closing, until
from kit.zygote import Zygote

from retinue.service.chat import Reply, RunState
from retinue.service.errors import StoreUnavailable

SESSIONS, TURNS = 10, 5
AWAY_S = 60.0 if os.environ.get("FAULTS") == "all" else 3.0
WHOLE = ["user", "assistant", "tool", "assistant"]


class Outage:
    """Fifty turns in ten sessions side by side; once a third is done, Redis is away until each session has felt it."""

    def __init__(self, stage: Stage, redis: RedisServer, how: str) -> None:
        self._stage = stage
        self._redis = redis
        self._how = how
        self._enough, self._felt, self._back = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.done: dict[tuple[str, int], Reply] = {}
        self.failed: set[tuple[str, int]] = set()

    async def run(self) -> None:
        """Returns once all fifty have ended, this way or that. Any error but the store's is raised."""
        async with asyncio.TaskGroup() as group:
            for number in range(SESSIONS):
                group.create_task(self._talk(f"s{number}"))
            await self._enough.wait()
            await (self._redis.stop() if self._how == "stopped" else self._redis.kill())
            await self._felt.wait()
            await self._redis.start()
            self._back.set()

    async def ask(self, session: str, turn: int) -> Reply:
        """One turn; asked again, it is the same request."""
        return await self._stage.ask("clerk", f"pay:{turn}:0.02", session=session, request_id=f"{session}-{turn}")

    async def _talk(self, session: str) -> None:
        for turn in range(TURNS):
            try:
                self.done[session, turn] = await self.ask(session, turn)
            except StoreUnavailable:
                self.failed.add((session, turn))
                if len({session for session, _ in self.failed}) == SESSIONS:
                    self._felt.set()
                await self._back.wait()
            if len(self.done) == SESSIONS * TURNS // 3:
                self._enough.set()


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_redis_away_in_the_middle_of_fifty_turns_loses_none_that_was_answered(
    zygote: Zygote, tmp_path: Path, redis_server: RedisServer, how: str
) -> None:
    async with asyncio.timeout(60), staged(zygote, tmp_path / "stage", redis_server.url) as stage:
        clerk = await stage.start("clerk")
        outage = Outage(stage, redis_server, how)
        await outage.run()
        assert len(outage.done) + len(outage.failed) == SESSIONS * TURNS
        assert len(outage.failed) >= SESSIONS
        await check_kept(stage, outage)

        later = [await stage.ask("clerk", "pay:9", session=f"s{number}") for number in range(SESSIONS)]
        assert {reply.state for reply in later} == {RunState.COMPLETED}
        assert clerk.alive
        for session, turn in sorted(outage.failed):
            repeated = await outage.ask(session, turn)
            assert repeated.state in (RunState.COMPLETED, RunState.INTERRUPTED)
            assert await outage.ask(session, turn) == repeated
        await check_kept(stage, outage)


async def check_kept(stage: Stage, outage: Outage) -> None:
    """Every session is sound, and each turn that was answered is whole in it, as it was answered."""
    for number in range(SESSIONS):
        session = f"s{number}"
        entries = await check_session(stage.mesh.store, "clerk", session)
        check_effects([effect for effect in stage.effects() if effect.session == session], entries)
        groups = {run: list(of) for run, of in groupby(entries, key=lambda entry: entry.message.run_id)}
        for (of, _), reply in outage.done.items():
            if of == session:
                group = groups.get(reply.run_id, [])
                kept = [entry.message.role for entry in group] == WHOLE and group[-1].message.text == reply.text
                assert kept, f"{reply} is not there as it was answered:\n{show(entries)}"


@pytest.mark.timeout(AWAY_S + 60)
async def test_a_node_without_its_store_goes_out_once_and_comes_in_once(
    zygote: Zygote, tmp_path: Path, redis_server: RedisServer, consul_url: str
) -> None:
    async with (
        asyncio.timeout(AWAY_S + 50),
        staged(zygote, tmp_path / "stage", redis_server.url, registry=consul_url) as stage,
        closing(stage.mesh.registry.watch("clerk")) as watch,
    ):
        await stage.start("clerk")
        await until(watch, lambda nodes: len(nodes) == 1 and nodes[0].healthy)
        await redis_server.stop()
        assert not (await anext(watch))[0].healthy
        # Whatever was shown meanwhile would be a transition.
        shown = asyncio.ensure_future(anext(watch))
        await asyncio.wait([shown], timeout=AWAY_S)
        assert not shown.done(), shown.result()
        await redis_server.start()
        (node,) = await shown
        assert node.healthy
        said = (stage.folder / "clerk.log").read_text()
        assert said.count("is NOT_SERVING") == said.count("is SERVING again") == 1
