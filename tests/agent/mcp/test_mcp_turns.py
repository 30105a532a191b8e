"""MCP tools in an agent's turns: found when they are wanted, repeated after a crash where that does no harm."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from kit.clerks import clerk, do, names, odd
from kit.replicas import replica

from retinue.agent import Agent, Invocation, Tool, ToolResult, tool
from retinue.agent.keys import lease_key
from retinue.agent.mcp import McpServer
from retinue.agent.model.scripted import Scripted, call
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Call, ToolStatus
from retinue.service.errors import Invalid, SessionBusy
from retinue.service.store import open_store

NONE = {"type": "object", "properties": {}}


@tool
async def clock() -> str:
    """Says what time it is."""
    return "noon"


async def test_a_discovering_agent_offers_list_tools_alone_and_what_that_finds_at_once() -> None:
    async with clerk(odd(), clock, tools_mode="discover") as (agent, model):
        calls = await do(agent, ("list_tools", {"query": "ECHO, please"}), ("odd_echo", {"text": "hi"}), "clock")
        assert names(model, 0) == {"list_tools"}
        assert calls[0].result == "These can be called now:\n- odd_echo"
        assert calls[1].result == "hi"
        assert "there is no tool 'clock'" in calls[2].error
        assert names(model, 1) == {"list_tools", "odd_echo"}

        await do(agent, ("list_tools", {"query": "time"}), "clock")
        assert names(model) == {"list_tools", "odd_echo", "clock"}
        (other,) = await do(agent, ("list_tools", {"query": "zebra"}), session="other")
        assert other.result.startswith("Nothing fits. There are: clock, odd_echo")
        await do(agent, "list_tools", session="third")
        assert {"clock", "odd_echo", "odd_pid"} <= names(model)
        assert {"list_tools", "odd_echo"} <= set(agent.describe().tools)
    with pytest.raises(Invalid, match="tools_mode is all or discover"):
        Agent("clerk", tools_mode="some")
    with pytest.raises(Invalid, match="two tools are named 'list_tools'"):
        Agent("clerk", tools=[tool(name="list_tools")(clock.function)], tools_mode="discover")


async def test_only_tools_that_the_server_calls_harmless_are_called_again_after_a_crash() -> None:
    made: list[str] = []
    all_made = asyncio.Event()

    async def rpc(request: Mapping[str, Any]) -> Mapping[str, Any]:
        if request["method"] == "tools/list":
            hints = {"look": {"readOnlyHint": True}, "set": {"idempotentHint": True}, "pay": {"readOnlyHint": False}}
            tools = [{"name": name, "inputSchema": NONE, "annotations": hint} for name, hint in hints.items()]
            return {"result": {"tools": tools}}
        made.append(request["params"]["name"])
        if len(made) == 3:
            all_made.set()
        if len(made) <= 3:
            await asyncio.Event().wait()
        return {"result": {"content": [{"type": "text", "text": "fine"}]}}

    bank = McpServer("bank", rpc=rpc)
    step = [call("bank_look"), call("bank_pay"), call("bank_set")]
    async with (
        asyncio.timeout(30),
        open_store("memory:") as store,
        replica(store, Agent("clerk", model=Scripted(step), tools=[bank])) as one,
        replica(store, Agent("clerk", model=Scripted("what came of it"), tools=[bank])) as two,
    ):
        dies = asyncio.create_task(one.ask("all", Call(request_id="one")))
        await all_made.wait()
        await store.delete(lease_key("clerk", ""))
        with pytest.raises(SessionBusy):
            await dies
        reply = await two.ask("all", Call(request_id="one"))
    assert [each.status for each in reply.tool_calls] == [ToolStatus.OK, ToolStatus.UNKNOWN, ToolStatus.OK]
    assert sorted(made) == ["look", "look", "pay", "set", "set"]


async def test_a_helper_has_the_servers_of_its_parent_and_no_more() -> None:
    async with clerk(odd(allowed_tools=["echo"])) as (agent, model):
        task = '[["odd_echo", {"text": "from the helper"}]]'
        (call_,) = await do(agent, ("delegate", {"task": task}))
    assert call_.status is ToolStatus.OK
    assert {spec.name for spec in model.requests[1].tools} == {"odd_echo"}


async def test_a_tool_whose_schema_cannot_be_read_fails_its_call_alone_and_nothing_is_fetched() -> None:
    async def never(invocation: Invocation) -> ToolResult:
        raise AssertionError

    for schema in ({"$ref": "http://127.0.0.1:9/x"}, {"properties": {"a": {"type": "strin"}}}, {"pattern": "("}):
        async with clerk(Tool(ToolSpec("strange", "", schema), never), clock) as (agent, _):
            calls = await do(agent, ("strange", {"a": 1}), "clock")
        assert calls[0].status is ToolStatus.ERROR
        assert calls[1].result == "noon"


async def test_calls_of_one_step_run_side_by_side_on_one_server() -> None:
    model = Scripted([call("odd_echo", text=str(number)) for number in range(9)], "done")
    async with asyncio.timeout(30), Agent("clerk", model=model, tools=[odd()]) as agent:
        reply = await agent.ask("all")
    assert [each.result for each in reply.tool_calls] == [str(number) for number in range(9)]
