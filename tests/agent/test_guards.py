"""Guards hold when a call is made, whatever the model was offered or guesses, and for sub-agents too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from retinue.agent import Agent, Hooks, Invocation, Limits, ToolResult, tool
from retinue.agent.guards import allow, deny
from retinue.agent.model import WantedCall
from retinue.agent.model.scripted import Scripted, call
from retinue.service.chat import Call, Reply, RunState, ToolStatus


class Desk:
    """Two tools that keep what they were asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.tools = [tool(self.read), tool(self.wipe)]

    async def read(self, name: str) -> str:
        """Reads it."""
        self.asked.append(f"read {name}")
        return f"{name} is empty"

    async def wipe(self, name: str) -> str:
        """Wipes it."""
        self.asked.append(f"wipe {name}")
        return "wiped"

    async def ask(self, *script: str | WantedCall | Sequence[str | WantedCall], **options: object) -> Reply:
        model = Scripted(*script, then="done")
        async with asyncio.timeout(20), Agent("clerk", model=model, tools=self.tools, **options) as clerk:  # type: ignore[arg-type]
            return await clerk.ask("go")


def statuses(reply: Reply) -> list[tuple[str, ToolStatus]]:
    return [(each.name, each.status) for each in reply.tool_calls]


@pytest.mark.parametrize("guard", [deny("wipe"), allow("read", "delegate")])
async def test_a_tool_that_is_not_allowed_is_refused_when_it_is_called(guard: object) -> None:
    desk = Desk()
    reply = await desk.ask(call("wipe", name="a"), call("read", name="a"), hooks=Hooks(guards=[guard]))  # type: ignore[list-item]
    assert statuses(reply) == [("wipe", ToolStatus.REFUSED), ("read", ToolStatus.OK)]
    assert "wipe" in reply.tool_calls[0].error
    assert desk.asked == ["read a"]


async def test_a_sub_agent_has_its_parents_guards() -> None:
    desk = Desk()
    hooks = Hooks(guards=[deny("wipe")])
    await desk.ask(call("delegate", task="wipe it"), call("wipe", name="a"), "I could not", hooks=hooks)
    assert desk.asked == []


async def test_the_same_call_with_the_same_result_is_refused_after_so_many_times() -> None:
    desk = Desk()
    same = call("read", name="a")
    reply = await desk.ask(same, same, call("read", name="b"), same, limits=Limits(repeats=2))
    assert desk.asked == ["read a", "read a", "read b"]
    assert [each.status for each in reply.tool_calls] == [*[ToolStatus.OK] * 3, ToolStatus.REFUSED]
    assert "2 times" in reply.tool_calls[-1].error


async def test_a_call_whose_result_changes_may_go_on() -> None:
    results = iter(range(100))

    @tool
    async def poll() -> str:
        """How far it is."""
        return str(next(results))

    model = Scripted(*[call("poll")] * 4, then="done")
    async with Agent("clerk", model=model, tools=[poll], limits=Limits(repeats=2)) as clerk:
        reply = await clerk.ask("go")
    assert [each.result for each in reply.tool_calls] == ["0", "1", "2", "3"]


async def test_a_call_that_takes_too_long_is_cancelled_and_its_outcome_is_called_unknown() -> None:
    cancelled = asyncio.Event()

    @tool
    async def hang() -> str:
        """Never ends."""
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    model = Scripted(call("hang"), then="done")
    async with asyncio.timeout(20), Agent("clerk", model=model, tools=[hang], limits=Limits(call_s=0.05)) as clerk:
        reply = await clerk.ask("go")
    assert cancelled.is_set()
    assert statuses(reply) == [("hang", ToolStatus.UNKNOWN)]
    assert "unknown" in reply.tool_calls[0].error


@pytest.mark.parametrize(("sequential", "most"), [(True, 1), (False, 3)])
async def test_the_calls_of_a_step_are_made_one_after_another_where_that_is_wanted(sequential: bool, most: int) -> None:
    running, peaks = 0, []

    @tool
    async def work(number: int) -> int:
        """Works."""
        nonlocal running
        running += 1
        for _ in range(10):
            await asyncio.sleep(0)
            peaks.append(running)
        running -= 1
        return number

    model = Scripted([call("work", number=number) for number in range(3)], then="done")
    async with Agent("clerk", model=model, tools=[work], sequential=sequential) as clerk:
        reply = await clerk.ask("go")
    assert [each.result for each in reply.tool_calls] == ["0", "1", "2"]
    assert max(peaks) == most


async def test_a_step_of_which_one_result_is_not_final_goes_on() -> None:
    async def after(invocation: Invocation, result: ToolResult) -> ToolResult:
        return ToolResult(result.text, final=invocation.arguments["name"] == "a")

    desk = Desk()
    reply = await desk.ask([call("read", name="a"), call("read", name="b")], hooks=Hooks(after_tool_call=after))
    assert (reply.text, len(reply.tool_calls)) == ("done", 2)


async def test_a_hook_may_end_the_run_with_a_result_and_the_next_turn_knows_it() -> None:
    async def after(invocation: Invocation, result: ToolResult) -> ToolResult:
        return ToolResult(result.text, final=True)

    desk = Desk()
    model = Scripted(call("read", name="a"), "second")
    agent = Agent("clerk", model=model, tools=desk.tools, hooks=Hooks(after_tool_call=after))
    async with agent:
        reply = await agent.ask("go", Call(session="s"))
        assert (reply.text, reply.state, len(model.requests)) == ("a is empty", RunState.COMPLETED, 1)
        assert (await agent.ask("and now?", Call(session="s"))).text == "second"
    told = [(each.message.role, each.message.text) for each in model.requests[-1].messages]
    assert told[1:] == [
        ("assistant", ""),
        ("tool", "a is empty"),
        ("assistant", "a is empty"),
        ("user", "and now?"),
    ]
