"""Delegation over real processes: circles, budgets that a whole tree shares, and tasks that nobody waits for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from kit.driver import Backing, Stage, staged
from kit.histories import check_effects, check_session
from kit.zygote import Zygote

from retinue.service.chat import RunState, ToolStatus


def model_calls(stage: Stage) -> int:
    """How many model calls all processes have made."""
    return sum(" model " in passed.point and passed.point.endswith("asked") for _, passed in stage.passed)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ("ann>pay:1", "ann → ann"),
        ("bob>ann>pay:1", "ann → bob → ann"),
        ("bob>cat>ann>pay:1", "ann → bob → cat → ann"),
    ],
    ids=["self", "two", "three"],
)
async def test_a_circle_is_refused_with_its_path_and_the_first_still_answers(
    zygote: Zygote, tmp_path: Path, backing: Backing, message: str, path: str
) -> None:
    async with (
        asyncio.timeout(40),
        staged(zygote, tmp_path / "stage", backing.store, registry=backing.registry) as stage,
    ):
        for name in ("ann", "bob", "cat"):
            await stage.start(name)
        replies = await asyncio.gather(
            *(stage.ask("ann", message, session=f"s{number}", request_id=f"r{number}") for number in range(3))
        )
        for reply in replies:
            assert reply.state is RunState.COMPLETED
            # The refusal is the innermost agent's result, and comes up in the answers.
            assert f"CYCLE: ann is already at work on this: {path}" in reply.text
        assert stage.effects() == []
        depth = path.count("→")
        assert model_calls(stage) == 3 * 2 * depth
        print(f"{path}: {model_calls(stage)} model calls for three circles at once")
        assert (await stage.ask("ann", "and now?", session="s0")).state is RunState.COMPLETED


async def test_agents_that_ask_each_other_in_ever_new_words_stay_within_the_budget(
    zygote: Zygote, tmp_path: Path, backing: Backing
) -> None:
    words = " | ".join(f"bob>look:{number}" for number in range(40))
    async with (
        asyncio.timeout(40),
        staged(zygote, tmp_path / "stage", backing.store, registry=backing.registry) as stage,
    ):
        await stage.start("ann")
        await stage.start("bob")
        reply = await stage.ask("ann", words, session="s", request_id="r")
        print(f"budget 25: {model_calls(stage)} model calls, {reply.usage.model_calls} counted")
        assert model_calls(stage) <= 25
        assert (reply.state, reply.reason) == (RunState.INCOMPLETE, "model_calls")
        assert reply.text
        await check_session(stage.mesh.store, "ann", "s")


async def test_sixteen_children_side_by_side_make_no_more_model_calls_than_their_tree_may(
    zygote: Zygote, tmp_path: Path, backing: Backing
) -> None:
    async with (
        asyncio.timeout(60),
        staged(zygote, tmp_path / "stage", backing.store, registry=backing.registry) as stage,
    ):
        await stage.start("ann", model_calls=20)
        for _ in range(2):
            await stage.start("bob")
        reply = await stage.ask("ann", " ".join(["bob>look:1"] * 16), session="s", request_id="r", seconds=40)
        print(f"16 children, budget 20: {model_calls(stage)} model calls, {reply.usage.model_calls} counted")
        assert model_calls(stage) <= 20
        assert reply.text
        assert len(reply.tool_calls) == 16
        await check_session(stage.mesh.store, "ann", "s")


async def test_of_five_tasks_given_away_three_answer_one_dies_and_one_never_does(
    zygote: Zygote, tmp_path: Path, backing: Backing
) -> None:
    async with (
        asyncio.timeout(60),
        staged(zygote, tmp_path / "stage", backing.store, registry=backing.registry) as stage,
    ):
        await stage.start("ann", "bob", "cat")
        for name in ("dan", "eve", "boss"):
            await stage.start(name)
        given = "ann>>post:1 bob>>post:2 cat>>post:3 dan>>pay:4:60 eve>>pay:5:60 | wait:3"
        turn = asyncio.create_task(stage.ask("boss", given, session="s", request_id="r"))
        await (await stage.at("dan tool pay 1 begin", request_id=None)).kill()
        reply = await turn
        assert [call.status for call in reply.tool_calls] == [ToolStatus.OK] * 6
        first = {task["agent"]: task for task in json.loads(reply.tool_calls[-1].result)}
        await stage.victims["boss"].kill()
        await stage.start("boss")
        reply = await stage.ask("boss", "wait:0", session="s", request_id="again")
        second = {task["agent"]: task for task in json.loads(reply.tool_calls[-1].result)}
        for tasks in (first, second):
            assert {name: tasks[name].get("reply") for name in ("ann", "bob", "cat")} == {
                "ann": "done: post 1",
                "bob": "done: post 2",
                "cat": "done: post 3",
            }
            assert tasks["dan"]["state"] == "INTERRUPTED"
            assert "died" in tasks["dan"]["error"]
            assert "not finished" in tasks["eve"]["error"]
        assert {name: task["run_id"] for name, task in first.items()} == {
            name: task["run_id"] for name, task in second.items()
        }
        check_effects(stage.effects(), await check_session(stage.mesh.store, "boss", "s"))
