"""A node dies, drains or comes back while it is called, with real processes, Consul and Redis: what its callers see."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from kit.driver import Stage, staged
from kit.histories import check_effects, check_session
from kit.watching import closing, listening, until
from kit.zygote import Zygote

from office.v1 import task_pb2, task_pb2_grpc
from retinue.service.chat import RunState
from retinue.service.errors import CallFailed, NoNode, UnknownName

# At once, on a machine that is busy with other tests.
AT_ONCE_S = 1.0
CALLS = 200


@pytest.fixture
async def stage(zygote: Zygote, tmp_path: Path, consul_url: str, redis_url: str) -> AsyncIterator[Stage]:
    """An empty mesh on the real servers; the test has 60 seconds."""
    async with asyncio.timeout(60), staged(zygote, tmp_path / "stage", redis_url, registry=consul_url) as stage:
        yield stage


def tasks(stage: Stage) -> Any:
    return task_pb2_grpc.TaskStub(stage.mesh.client.channel("task"))


async def unlisted(stage: Stage, name: str, node_id: str) -> None:
    """Returns once the registry does not list this node, or holds it for unhealthy."""
    async with closing(stage.mesh.registry.watch(name)) as watch:
        await until(watch, lambda nodes: node_id not in {node.id for node in nodes if node.healthy})


async def test_an_unknown_target_is_refused_at_once(stage: Stage) -> None:
    await stage.start("clerk")
    await stage.ask("clerk", "hello")
    async with asyncio.timeout(AT_ONCE_S):
        with pytest.raises(UnknownName, match="clerk"):
            await stage.ask("clerc", "hello")


async def test_a_death_in_a_call_that_may_not_be_repeated_is_told_at_once_and_done_nowhere_else(stage: Stage) -> None:
    for _ in range(2):
        await stage.start("task")
    call = asyncio.create_task(tasks(stage).Create(task_pb2.CreateTaskRequest(title="30"), timeout=60))
    asked = await stage.at("create 30", request_id=None)
    await asked.kill()
    async with asyncio.timeout(AT_ONCE_S):
        with pytest.raises(CallFailed) as caught:
            await call
    assert caught.value.status is grpc.StatusCode.UNAVAILABLE
    assert [effect.item for effect in stage.effects()] == ["30"]


async def test_a_chat_without_another_node_ends_as_no_node_at_its_deadline(stage: Stage) -> None:
    clerk = await stage.start("clerk")
    turn = asyncio.create_task(stage.ask("clerk", "look:1:30", seconds=4.0))
    await stage.at("clerk tool look 1 begin", request_id=None)
    await clerk.kill()
    async with asyncio.timeout(4.0 + AT_ONCE_S):
        with pytest.raises(NoNode):
            await turn


@pytest.mark.parametrize("kind", ["calls that may be repeated", "chats"])
async def test_of_two_hundred_calls_none_is_lost_with_the_node_that_is_killed(stage: Stage, kind: str) -> None:
    name = "clerk" if kind == "chats" else "task"
    killed, _ = [await stage.start(name) for _ in range(2)]
    client = tasks(stage)

    async def call(number: int) -> Any:
        if name == "clerk":
            return await stage.ask("clerk", f"pay:{number}:0.2", session=f"s{number}")
        return await client.List(task_pb2.ListTasksRequest(owner="0.5"), timeout=30)

    await call(CALLS)
    with listening("retinue.client") as lines:
        calls = [asyncio.create_task(call(number)) for number in range(CALLS)]
        if name == "clerk":
            await stage.at("clerk turn 1 answered", request_id=None, beside=None)
        else:
            await asyncio.sleep(0.2)  # nobody tells that a plain service is at work
        await killed.kill()
        async with asyncio.timeout(AT_ONCE_S):
            # The connections of all calls break in one moment, and count once.
            assert "passed over" in await lines.get()
        answers = await asyncio.gather(*calls)
    assert len(answers) == CALLS
    if name == "clerk":
        assert {answer.state for answer in answers} == {RunState.COMPLETED}
        for number in range(CALLS):
            entries = await check_session(stage.mesh.store, "clerk", f"s{number}")
            check_effects([effect for effect in stage.effects() if effect.session == f"s{number}"], entries)
    else:
        assert str(killed.pid) not in {answer.tasks[0].owner for answer in answers}


@pytest.mark.skipif(os.environ.get("FAULTS") != "all", reason="Consul takes more than a minute: FAULTS=all")
@pytest.mark.timeout(200)
async def test_a_node_that_was_killed_is_off_the_list_within_two_minutes(
    zygote: Zygote, tmp_path: Path, consul_url: str, redis_url: str
) -> None:
    async with asyncio.timeout(150), staged(zygote, tmp_path / "stage", redis_url, registry=consul_url) as stage:
        await (await stage.start("clerk")).kill()
        async with closing(stage.mesh.registry.watch("clerk")) as watch:
            await until(watch, lambda nodes: not nodes, within=120.0)


async def test_a_node_that_drains_is_off_the_list_first_and_ends_its_turn_while_others_take_what_is_new(
    stage: Stage,
) -> None:
    leaving = await stage.start("clerk")
    (node,) = await stage.mesh.registry.find("clerk")
    turn = asyncio.create_task(stage.ask("clerk", "pay:1:3", session="long"))
    await stage.at("clerk tool pay 1 begin", request_id=None)
    await stage.start("clerk")
    end = asyncio.create_task(leaving.end())
    await unlisted(stage, "clerk", node.id)
    assert not turn.done()
    replies = await asyncio.gather(*(stage.ask("clerk", "pay:2", session=f"s{number}") for number in range(20)))
    assert {reply.state for reply in replies} == {RunState.COMPLETED}
    assert not turn.done()
    assert (await turn).state is RunState.COMPLETED
    await end
    assert not [passed for pid, passed in stage.passed if pid == leaving.pid and passed.session.startswith("s")]


@pytest.mark.parametrize("how", ["killed", "ended"])
async def test_the_first_call_after_a_restart_is_answered(stage: Stage, how: str) -> None:
    for _ in range(3):
        clerk = await stage.start("clerk")
        assert (await stage.ask("clerk", "hello")).state is RunState.COMPLETED
        await (clerk.kill() if how == "killed" else clerk.end())
    await stage.start("clerk")
    async with asyncio.timeout(5 * AT_ONCE_S):
        assert (await stage.ask("clerk", "hello")).state is RunState.COMPLETED


async def test_a_message_over_the_limit_leaves_the_session_as_it_was(stage: Stage) -> None:
    await stage.start("clerk")
    assert (await stage.ask("clerk", "x" * 5 * 1024 * 1024, session="one")).state is RunState.COMPLETED
    before = await check_session(stage.mesh.store, "clerk", "one")
    with pytest.raises(CallFailed, match=r"bytes; grpc.max_send_message_length allows"):
        await stage.ask("clerk", "x" * 65 * 1024 * 1024, session="one")
    assert await check_session(stage.mesh.store, "clerk", "one") == before
    assert (await stage.ask("clerk", "and now?", session="one")).state is RunState.COMPLETED
