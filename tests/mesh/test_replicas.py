"""Three replicas and one session: turns keep their order and stay whole while replicas die and freeze."""

from __future__ import annotations

import asyncio
import random
import signal
from itertools import groupby
from pathlib import Path

import pytest
from kit.driver import Stage, Victim, staged
from kit.histories import check_effects, check_session, results_in, show
from kit.zygote import Zygote

from retinue.agent.session.history import Entry
from retinue.service.chat import Reply, RunState, ToolStatus
from retinue.service.errors import InternalError, MeshError, SessionBusy

TURNS = 20
# The first turn lasts until all others are in line; how long, seconds, and how long the tools of the others take.
HOLD_S = 1.0
DELAYS_S = (0.01, 0.06)
ACCEPTED = "clerk acquire lease 1 after"


class Crowd:
    """Twenty turns of one session, in line one behind the other, and what came of each."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        chance = random.Random(20)
        delays = [HOLD_S, *(chance.uniform(*DELAYS_S) for _ in range(TURNS - 1))]
        self._messages = [f"pay:{number}:{delay:.3f}" for number, delay in enumerate(delays)]
        self.outcomes: list[asyncio.Task[Reply | MeshError]] = []
        self.owners: list[Victim] = []

    async def gather(self) -> None:
        """Sends each turn once the one before has its place; `owners` are the replicas that took them."""
        for number in range(TURNS):
            self.outcomes.append(asyncio.create_task(self._ask(number)))
            self.owners.append(await self._stage.at(ACCEPTED, request_id=f"t{number}"))
        assert not self.outcomes[0].done(), "the first turn was over before all others were in line"

    def to_kill(self) -> int:
        """The turn in which its replica is to die: some are done by then, and most are not."""
        return TURNS // 4

    def to_freeze(self) -> int:
        """The turn in which another replica is to freeze, which has further turns in line."""
        killed = self.owners[self.to_kill()]
        return next(
            number
            for number in range(TURNS // 2, TURNS)
            if self.owners[number] is not killed and self.owners[number] in self.owners[number + 1 :]
        )

    async def of(self, *owners: Victim) -> dict[int, Reply | MeshError]:
        """What came of the turns that these replicas had taken, once it has."""
        return {number: await self.outcomes[number] for number in range(TURNS) if self.owners[number] in owners}

    async def moved(self, killed: Victim, *, frozen: Victim) -> None:
        """Returns once what the killed replica had is done elsewhere, but for what came to the frozen one."""
        for number, outcome in enumerate(self.outcomes):
            if self.owners[number] is killed and not outcome.done():
                new = await self._stage.at("clerk turn 1 asked", request_id=f"t{number}", beside=killed)
                if new is not frozen:
                    await outcome

    def order(self, entries: list[Entry]) -> list[int]:
        """The numbers of the turns as they stand in the history."""
        return [self._messages.index(entry.message.text) for entry in entries if entry.message.role == "user"]

    async def _ask(self, number: int) -> Reply | MeshError:
        try:
            return await self._stage.ask("clerk", self._messages[number], session="one", request_id=f"t{number}")
        except MeshError as error:
            return error


def check_outcomes(outcomes: list[Reply | MeshError], entries: list[Entry]) -> None:
    """Each is a whole turn, with its own call and result in the history, or a typed refusal."""
    groups = {run: list(of) for run, of in groupby(entries, key=lambda entry: entry.message.run_id)}
    for outcome in outcomes:
        if isinstance(outcome, MeshError):
            assert not isinstance(outcome, InternalError), outcome
        else:
            roles = [entry.message.role for entry in groups[outcome.run_id]]
            whole = outcome.state is RunState.COMPLETED and roles == ["user", "assistant", "tool", "assistant"]
            assert whole, f"{outcome}\n{show(groups[outcome.run_id])}"


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
async def test_turns_of_one_session_stay_whole_and_in_order_while_a_replica_dies_and_one_freezes(
    zygote: Zygote, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("redis_url") if kind == "redis" else f"sqlite://{tmp_path}/store.db"
    async with asyncio.timeout(40), staged(zygote, tmp_path / "stage", url) as stage:
        replicas = [await stage.start("clerk") for _ in range(3)]
        crowd = Crowd(stage)
        await crowd.gather()
        dies, freezes = crowd.to_kill(), crowd.to_freeze()
        killed, frozen = crowd.owners[dies], crowd.owners[freezes]
        (sound,) = {*replicas} - {killed, frozen}
        stage.arm("clerk tool pay 1 middle", request_id=f"t{dies}")
        stage.arm("clerk tool pay 1 end", signal.SIGSTOP, request_id=f"t{freezes}")

        await killed.dead()
        await frozen.still()
        refused = [each for each in (await crowd.of(sound)).values() if isinstance(each, MeshError)]
        assert not refused, refused
        await crowd.moved(killed, frozen=frozen)
        frozen.thaw()
        outcomes = await crowd.of(killed, frozen, sound)
        assert isinstance(outcomes[freezes], SessionBusy)
        assert (await stage.ask("clerk", "and now?", session="one")).state is RunState.COMPLETED

        entries = await check_session(stage.mesh.store, "clerk", "one")
        check_effects(stage.effects(), entries)
        check_outcomes(list(outcomes.values()), entries)
        check_order(stage, crowd.order(entries[:-2]))
        check_stale_writer(stage, freezes, entries)


def check_order(stage: Stage, order: list[int]) -> None:
    """Turns stand in the order in which they came; those that came twice, as their replica died, may stand later."""
    asked = [passed.request_id for _, passed in stage.passed if passed.point == "clerk turn 1 asked"]
    once = [number for number in order if asked.count(f"t{number}") == 1]
    assert once == sorted(once), f"the history has {order}"


def check_stale_writer(stage: Stage, number: int, entries: list[Entry]) -> None:
    """The owner that woke up wrote its result, and the store refused it: the result there is its successor's."""
    points = [passed.point for _, passed in stage.passed if passed.request_id == f"t{number}"]
    assert "clerk append history 3 before" in points
    assert "clerk append history 3 after" not in points
    (call,) = [call for call in results_in(entries) if f'"item":"{number}"' in call.arguments]
    assert call.status is ToolStatus.UNKNOWN
