"""Tasks that are given away without waiting: their answers are asked for later, also after a restart."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from retinue.agent import Agent, Limits, tool
from retinue.agent.keys import lease_key, tree_key
from retinue.agent.model import ModelRequest
from retinue.agent.model.scripted import Scripted, call
from retinue.service.chat import Call, RunState, ToolStatus
from retinue.service.envelope import Budget, Envelope
from retinue.service.server.pulse import Timing
from retinue.service.testing import LocalMesh


def away(to: str, task: str = "do it") -> Any:
    return call("delegate", to=to, task=task, wait=False)


def last(request: ModelRequest) -> str:
    return request.messages[-1].message.text


async def hang(request: ModelRequest) -> str:
    await asyncio.Event().wait()
    return ""


async def test_three_of_five_answer_one_dies_one_never_does_and_all_are_there_after_a_restart() -> None:
    model = Scripted(
        [away("ann"), away("bob"), away("cat"), away("dies"), away("hangs")],
        call("wait_task", seconds=1.5),
        "told",
        call("wait_task", seconds=0),
        "told again",
    )
    boss = Agent("boss", model=model)
    others = [Agent(name, model=Scripted(f"{name} did it")) for name in ("ann", "bob", "cat")]
    begun = asyncio.Event()

    async def die(request: ModelRequest) -> str:
        begun.set()
        return await hang(request)

    others += [Agent("dies", model=Scripted(die)), Agent("hangs", model=Scripted(hang))]
    timing = Timing(quiet=0.0, lease=0.5, drain=0.2)
    async with asyncio.timeout(30), LocalMesh(timing=timing) as mesh, mesh.serve(*others):
        async with mesh.serve(boss):
            boss_turn = asyncio.create_task(mesh.ask("boss", "give it all away"))
            # Its owner dies: nobody renews the lease, and nobody gives it back.
            await begun.wait()
            await mesh.store.delete(lease_key("dies", "default~boss"))
            reply = await boss_turn
        first = json.loads(reply.tool_calls[-1].result)
        again = Agent("boss", model=model)
        async with mesh.serve(again):
            second = json.loads((await mesh.ask("boss", "and now?")).tool_calls[-1].result)
    by_agent = {task["agent"]: task for task in first}
    assert [by_agent[name].get("reply") for name in ("ann", "bob", "cat")] == ["ann did it", "bob did it", "cat did it"]
    assert by_agent["dies"]["state"] == "INTERRUPTED"
    assert "died" in by_agent["dies"]["error"]
    assert by_agent["hangs"]["state"] == "RUNNING"
    assert {task["run_id"]: task.get("reply") for task in second} == {
        task["run_id"]: task.get("reply") for task in first
    }


async def test_any_returns_with_the_first_and_check_tells_how_one_stands() -> None:
    def check(request: ModelRequest) -> Any:
        done = next(task for task in json.loads(last(request)) if task["state"] == "COMPLETED")
        return call("check_task", run_id=done["run_id"])

    model = Scripted(
        [away("fast"), away("slow")], call("wait_task", mode="any"), check, call("check_task", run_id="run-x"), "done"
    )
    timing = Timing(quiet=0.0, drain=0.2)
    async with asyncio.timeout(20), LocalMesh(timing=timing) as mesh:
        fast, slow = Agent("fast", model=Scripted("quick")), Agent("slow", model=Scripted(hang))
        async with mesh.serve(fast, slow, Agent("boss", model=model)):
            reply = await mesh.ask("boss", "race")
            stands = {task["agent"]: task["state"] for task in json.loads(reply.tool_calls[2].result)}
            assert stands == {"fast": "COMPLETED", "slow": "RUNNING"}
            (checked,) = json.loads(reply.tool_calls[3].result)
            assert (checked["agent"], checked["reply"]) == ("fast", "quick")
            assert reply.tool_calls[4].status is ToolStatus.ERROR
            assert reply.tool_calls[0].run_id in reply.tool_calls[4].error
            assert await mesh.peer("slow").cancel(reply.tool_calls[1].run_id) == 1


async def test_another_session_asks_for_none_of_them() -> None:
    model = Scripted(away("ann"), "given", call("wait_task"), "nothing")
    parts = Agent("ann", model=Scripted("did it")), Agent("boss", model=model)
    async with asyncio.timeout(20), LocalMesh() as mesh, mesh.serve(*parts):
        await mesh.ask("boss", "give it away")
        reply = await mesh.ask("boss", "what is there?", session="other")
    assert reply.tool_calls[0].status is ToolStatus.ERROR


async def test_a_sub_agent_that_nobody_waits_for_has_a_run_of_its_own() -> None:
    steps = iter([call("delegate", task="think", wait=False), "later", call("wait_task"), "told"])

    def answer(request: ModelRequest) -> Any:
        return "thought" if "know nothing but the task" in request.system else next(steps)

    async with asyncio.timeout(20), LocalMesh() as mesh, mesh.serve(Agent("boss", model=Scripted(*[answer] * 5))):
        first = await mesh.ask("boss", "think about it")
        second = await mesh.ask("boss", "and?")
        (task,) = json.loads(second.tool_calls[0].result)
        assert (task["run_id"], task["reply"]) == (first.tool_calls[0].run_id, "thought")
        assert (await mesh.peer("boss").run(task["run_id"])).text == "thought"


async def test_cancelling_a_tree_leaves_no_descendant_whoever_waits_for_it() -> None:
    begun = 0
    all_begun, left = asyncio.Event(), asyncio.Event()

    async def hold(request: ModelRequest) -> str:
        nonlocal begun
        begun += 1
        if begun == 4:
            all_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            begun -= 1
            if begun == 0:
                left.set()
        return ""

    async def root(request: ModelRequest) -> Any:
        if request.messages[-1].message.role == "user":
            return [
                call("delegate", to="middle", task="go on"),
                call("delegate", to="apart", task="go on", wait=False),
                call("delegate", task="help"),
            ]
        return await hold(request)

    def boss(request: ModelRequest) -> Any:
        return hold(request) if "know nothing but the task" in request.system else root(request)

    async with asyncio.timeout(20), LocalMesh() as mesh:
        parts = [
            Agent("boss", model=Scripted(*[boss] * 3)),
            Agent(
                "middle", model=Scripted([call("delegate", to="leaf", task="x"), call("delegate", to="leaf", task="y")])
            ),
            Agent("apart", model=Scripted(hold)),
            Agent("leaf", model=Scripted(hold, hold)),
        ]
        async with mesh.serve(*parts):
            turn = asyncio.create_task(mesh.ask("boss", "begin"))
            await all_begun.wait()
            run_id = (await mesh.peer("boss").history()).messages[0].run_id
            # boss, its helper, middle, apart, and leaf twice
            async with asyncio.timeout(5):
                assert await mesh.peer("boss").cancel(run_id, tree=True) == 6
            assert left.is_set()
            assert (await turn).state is RunState.CANCELLED
            members = await mesh.store.rows(tree_key(run_id))
            assert len(members) == 4
            for member, agent in members.items():
                assert (await mesh.peer(agent.decode()).run(member)).state is RunState.CANCELLED
            assert await mesh.peer("boss").cancel(run_id, tree=True) == 0


async def test_a_run_that_begins_in_a_cancelled_tree_is_refused() -> None:
    leaf = Agent("leaf", model=Scripted("never"))
    async with asyncio.timeout(20), LocalMesh() as mesh, mesh.serve(leaf, Agent("boss", model=Scripted("done"))):
        root = (await mesh.ask("boss", "hi")).run_id
        await mesh.peer("boss").cancel(root, tree=True)
        envelope = Envelope(root=root, parent=root, path=("boss",), budget=Budget())
        reply = await leaf.ask("late", Call(session="default~boss", envelope=envelope))
        assert (reply.state, reply.usage.model_calls) == (RunState.CANCELLED, 0)
        assert not (await leaf.history("default~boss")).messages


async def test_sixteen_children_side_by_side_spend_no_more_than_the_budget_of_their_tree() -> None:
    made = 0

    def child(request: ModelRequest) -> Any:
        nonlocal made
        made += 1
        return call("look")

    def boss(request: ModelRequest) -> Any:
        nonlocal made
        made += 1
        if request.messages[-1].message.role == "user":
            return [call("delegate", to="child", task=f"task {number}") for number in range(16)]
        return "done"

    @tool
    async def look() -> str:
        """Looks."""
        return "nothing yet"

    async with asyncio.timeout(30), LocalMesh() as mesh:
        parts = [
            Agent("boss", model=Scripted(*[boss] * 30), limits=Limits(model_calls=20)),
            Agent("child", model=Scripted(*[child] * 60), tools=[look]),
        ]
        async with mesh.serve(*parts):
            reply = await mesh.ask("boss", "all at once")
    print(f"16 children, budget 20: {made} model calls, {reply.usage.model_calls} counted, {reply.state.name}")
    assert made <= 20
    assert reply.text == "done"
    assert len(reply.tool_calls) == 16
