"""MCP servers over streamable HTTP and by a function, and all kinds of servers in one agent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from itertools import cycle
from typing import Any

import httpx2
from hypothesis import given
from hypothesis import strategies as st
from kit.clerks import clerk, do, logged, names, odd, wares
from kit.mcp_http import wares_over_http, web_page
from kit.nodes import closed_port

from retinue.agent.mcp import McpServer
from retinue.agent.mcp.http import Mended
from retinue.service.chat import ToolStatus
from retinue.service.text import sane_json

SUM = {"a": 2, "b": 3}


async def test_three_kinds_of_servers_in_one_agent_each_killed_in_a_call_and_back() -> None:
    with logged() as lines:
        async with (
            wares_over_http() as http,
            clerk(odd(), wares(), McpServer("web", url=http.url, timeout=20)) as (agent, model),
        ):
            sums = await do(agent, ("odd_echo", {"text": "5"}), ("wares_add", SUM), ("web_add", SUM))
            assert [call.result for call in sums] == ["5", "5", "5"]
            assert {"odd_pid", "wares_add", "web_add"} <= names(model, 0)

            calls = await do(agent, "odd_die", "wares_die", "web_die", ("odd_echo", {"text": "6"}), ("wares_add", SUM))
            assert [call.status for call in calls[:3]] == [ToolStatus.ERROR] * 3
            assert [call.result for call in calls[3:]] == ["6", "5"]
            await lines.wait_for("MCP server web is lost")
            await http.kill()
            await http.start()
            await lines.wait_for("MCP server web is ready", times=2)
            assert (await do(agent, ("web_add", SUM)))[0].result == "5"


async def test_a_server_that_was_started_again_meanwhile_costs_no_call() -> None:
    async with wares_over_http() as http, clerk(McpServer("web", url=http.url)) as (agent, _):
        assert (await do(agent, ("web_add", SUM)))[0].result == "5"
        await http.kill()
        await http.start()
        assert (await do(agent, ("web_add", SUM)))[0].result == "5"


async def test_cancelling_changes_and_pictures_over_http() -> None:
    with logged() as lines:
        async with wares_over_http() as http, clerk(McpServer("web", url=http.url, timeout=2)) as (agent, _):
            calls = await do(agent, "web_picture", ("web_wait", {"name": "ada"}), "web_waited", "web_grow")
            assert calls[0].result.startswith("[image: image/png")
            assert "no answer within 2 s" in calls[1].error
            assert calls[2].result == "ada"
            await lines.wait_for("web has other tools now")
            assert (await do(agent, "web_grown"))[0].result == "ada"


async def test_a_server_that_answers_html_or_nothing_or_nonsense_stops_no_agent() -> None:
    with logged() as lines:
        async with web_page() as page, web_page(b'{"a": 1}', "application/json") as nonsense:
            servers = [McpServer("page", url=page), McpServer("none", url=f"http://{closed_port()}/mcp")]
            async with clerk(*servers, McpServer("odd", url=nonsense), odd(name="good")) as (agent, model):
                assert (await do(agent, ("good_echo", {"text": "fine"})))[0].result == "fine"
                for name in ("page", "none", "odd"):
                    await lines.wait_for(f"MCP server {name} is starting", times=2)
    system = model.requests[-1].system
    assert "page: Unexpected content type: text/html" in system
    assert "none: All connection attempts failed" in system
    assert "- 'odd: " in system


async def test_a_function_is_a_server_that_speaks_json_rpc() -> None:
    asked: list[Mapping[str, Any]] = []

    async def rpc(request: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(request)
        about = {"jsonrpc": "2.0", "id": request["id"]}
        if request["method"] == "tools/list":
            schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
            return about | {"result": {"tools": [{"name": "double", "inputSchema": schema}]}}
        if request["params"]["arguments"]["n"] < 0:
            return about | {"error": {"code": -32602, "message": "no negative\ud800 numbers"}}
        doubled = {"doubled": 2 * request["params"]["arguments"]["n"]}
        return about | {"result": {"content": [], "structuredContent": doubled}}

    async with clerk(McpServer("sum", rpc=rpc)) as (agent, _):
        calls = await do(agent, ("sum_double", {"n": 4}), ("sum_double", {"n": -1}), ("sum_double", {"n": "x"}))
    assert calls[0].result == '{"doubled":8}'
    assert (calls[1].status, calls[1].error) == (ToolStatus.ERROR, "no negative\ufffd numbers")
    assert "is not of type 'integer'" in calls[2].error
    assert [request["method"] for request in asked] == ["tools/list", "tools/call", "tools/call"]
    assert asked[1]["params"] == {"name": "double", "arguments": {"n": 4}}


TEXT = st.text(st.sampled_from('\\u\ud83d\ude00\ude00a"1d8é'), max_size=12)


@given(TEXT, st.lists(st.integers(1, 5), min_size=1))
async def test_json_is_mended_wherever_it_is_cut_and_says_the_same_otherwise(text: str, sizes: list[int]) -> None:
    written = json.dumps({"text": text}, ensure_ascii=bool(len(text) % 2)).encode("utf-8", "replace")

    class Body(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            at = 0
            for size in cycle(sizes):
                yield written[at : at + size]
                at += size
                if at >= len(written):
                    return

    read = b"".join([chunk async for chunk in Mended(Body())])
    assert json.loads(read) == sane_json(json.loads(written))
