"""MCP servers that are processes: what good and bad ones do to an agent, which goes on whatever they do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from kit.clerks import clerk, do, logged, names, odd, wares
from kit.dialects import check_all

from retinue.agent import tool
from retinue.agent.mcp import McpServer
from retinue.service.chat import Call, StatusNote, ToolStatus
from retinue.service.errors import Invalid

LOST = "\ufffd"


@tool
async def own() -> str:
    """The agent's own tool."""
    return "mine"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_tools_of_the_packages_server_come_with_names_schemas_and_all_kinds_of_results() -> None:
    async with clerk(wares()) as (agent, model):
        calls = await do(
            agent,
            ("wares_add", {"a": 2, "b": 3}),
            "wares_picture",
            "wares_paper",
            "wares_fail",
            ("wares_add", {"a": 1}),
        )
        assert "wares_add" in agent.describe().tools
        history = await agent.history()
    assert (calls[0].status, calls[0].result) == (ToolStatus.OK, "5")
    assert calls[1].result.startswith("[image: image/png, ")
    assert calls[2].result == "here\n[resource file:///paper.txt]\nIt says so."
    assert (calls[3].status, calls[4].status) == (ToolStatus.ERROR, ToolStatus.ERROR)
    assert "'b' is a required property" in calls[4].error
    (picture,) = (part.image for message in history.messages for part in message.parts if message.role == "tool")
    assert picture
    assert picture.data
    assert picture.data.startswith(b"\x89PNG")
    assert "wares_add" in names(model, 0)


async def test_a_server_that_dies_in_a_call_is_an_error_at_once_and_back_for_the_next() -> None:
    with logged() as lines:
        async with clerk(odd(), own) as (agent, _):
            calls = await do(agent, "odd_die", "own", "odd_pid", "odd_die", ("odd_echo", {"text": "here"}))
            assert (calls[0].status, calls[1].result) == (ToolStatus.ERROR, "mine")
            assert "was killed (SIGKILL)" in calls[0].error
            assert calls[2].status is ToolStatus.OK
            assert (calls[3].status, calls[4].result) == (ToolStatus.ERROR, "here")
            assert calls[0].duration_ms < 10_000
        await lines.wait_for("MCP server odd is lost: it was killed (SIGKILL)")
        await lines.wait_for("MCP server odd is starting", times=3)
        await lines.wait_for("MCP server odd: a line for the log")


async def test_a_tool_that_never_returns_ends_at_its_timeout_and_the_server_hears_of_it() -> None:
    async with clerk(odd(timeout=0.5)) as (agent, _):
        calls = await do(agent, "odd_hang", "odd_cancelled", ("odd_echo", {"text": "still"}))
    assert "no answer within 0.5 s" in calls[0].error
    assert (len(json.loads(calls[1].result)), calls[2].result) == (1, "still")


async def test_a_cancelled_turn_reaches_the_server() -> None:
    with logged() as lines:
        async with clerk(wares()) as (agent, _):
            turn = asyncio.create_task(do(agent, ("wares_wait", {"name": "ada"}), session="other"))
            await lines.wait_for("wares: ada waits")
            turn.cancel()
            await asyncio.wait([turn])
            assert turn.cancelled()
            assert (await do(agent, "wares_waited"))[0].result == "ada"


async def test_a_server_that_freezes_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.agent.mcp.connection.PING_S", 0.5)
    with logged() as lines:
        async with clerk(odd(timeout=0.5)) as (agent, _):
            (call,) = await do(agent, "odd_freeze")
            assert call.status is ToolStatus.ERROR
            await lines.wait_for("MCP server odd is lost: it does not answer within")
            await lines.wait_for("MCP server odd is ready", times=2)
            assert (await do(agent, ("odd_echo", {"text": "again"})))[0].result == "again"


async def test_a_banner_on_the_output_is_passed_over_and_logged() -> None:
    with logged() as lines:
        async with clerk(odd("banner")) as (agent, _):
            assert (await do(agent, ("odd_echo", {"text": "hi"})))[0].result == "hi"
        await lines.wait_for("printed what is no message: Welcome to the server!")


async def test_broken_servers_stop_no_agent_and_are_told_to_model_person_and_whoever_asks() -> None:
    gone = McpServer("gone", command="no-such-program-here")
    with logged() as lines:
        async with clerk(odd("exit"), gone, odd(name="good"), own) as (agent, model):
            notes = [event.body async for event in agent.stream('[["own", {}]]', Call(session="s"))]
            (call,) = await do(agent, ("good_echo", {"text": "fine"}))
            assert call.result == "fine"
            said = agent.describe().notes
            await lines.wait_for("MCP server odd cannot be started: it ended (exit 3): no licence found", times=2)
    system = model.requests[-1].system
    assert "odd: it ended (exit 3): no licence found" in system
    assert "gone: no-such-program-here: No such file or directory" in system
    assert "[MCP server gone: no-such-program-here: No such file or directory]" in said
    told = [note.text for note in notes if isinstance(note, StatusNote) and "MCP server gone" in note.text]
    assert told == [
        "MCP server gone: it is still starting",
        "MCP server gone: no-such-program-here: No such file or directory",
    ]
    assert not [name for name in names(model) if name.startswith("odd_")]


async def test_a_turn_waits_for_a_slow_server_but_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.agent.mcp.toolset.FIRST_WAIT_S", 0.5)
    async with clerk(odd("silent"), own) as (agent, model):
        assert (await do(agent, "own"))[0].result == "mine"
    assert "odd: it is still starting" in model.requests[0].system


async def test_all_pages_are_read_and_a_cursor_that_comes_again_ends_the_list() -> None:
    with logged() as lines:
        async with clerk(odd("pages")) as (agent, model):
            await do(agent)
    assert names(model) == {f"odd_t{number}" for number in range(250)}
    assert [line for line in lines.texts if "gives the cursor '2' again" in line]


async def test_a_list_that_changes_is_noticed() -> None:
    with logged() as lines:
        async with clerk(odd(), wares()) as (agent, model):
            await do(agent, "odd_more", "odd_less", "wares_grow")
            await lines.wait_for("odd has other tools now")
            await lines.wait_for("wares has other tools now")
            (call,) = await do(agent, "odd_less")
    assert {"odd_extra", "wares_grown"} <= names(model)
    assert "odd_less" not in names(model)
    assert "there is no tool 'odd_less'" in call.error


async def test_broken_text_is_mended_and_a_huge_result_is_cut_and_kept() -> None:
    async with clerk(odd()) as (agent, _):
        words, huge = await do(agent, "odd_words", "odd_huge")
        assert words.result == f"lone {LOST}|low {LOST}|turned {LOST}{LOST}|pair 😀|nul {LOST}|"
        assert len(huge.result) < 70_000
        assert "of 3000000 bytes" in huge.result
        run = await agent.run((await agent.history()).messages[-1].run_id)
        assert len(run.tool_calls[-1].result) == 3_000_000


async def test_schemas_that_no_model_server_takes_are_left_out_aloud_and_the_others_stay() -> None:
    with logged() as lines:
        async with clerk(odd("schemas")) as (agent, model):
            calls = await do(agent, "odd_fine")
    assert names(model) == {f"odd_{name}" for name in ("fine", "bare", "dots_and_spaces", "old", "one")}
    check_all(model.requests[0].messages, model.requests[0].tools)
    assert calls[0].error == "Unknown tool: fine"  # it did reach the server
    for name in (
        "'no schema'",
        "'list'",
        "'wrong type'",
        "'far'",
        "'near'",
        "'nowhere'",
        "'pattern'",
        "lists 'fine' twice",
        "a tool without a name",
    ):
        assert [line for line in lines.texts if name in line], name
    assert [line for line in lines.texts if "another tool is named odd_dots_and_spaces" in line]
    assert max(len(spec.description) for spec in model.requests[0].tools) <= 4096


async def test_noise_on_stderr_holds_up_nobody() -> None:
    async with clerk(odd("loud")) as (agent, _):
        assert (await do(agent, ("odd_echo", {"text": "hi"})))[0].result == "hi"


async def test_a_stubborn_server_and_its_children_are_gone_when_the_agent_ends() -> None:
    with logged() as lines:
        async with clerk(odd("stubborn")) as (agent, _):
            await do(agent)
            pids = [int(word) for word in (await lines.wait_for("pids")).split() if word.isdecimal()]
            assert [alive(pid) for pid in pids] == [True, True]
    assert [alive(pid) for pid in pids] == [False, False]


@pytest.mark.parametrize("settings", [{"allowed_tools": ["echo"]}, {"only": ["odd_echo"]}])
async def test_only_tools_that_are_allowed_by_their_exact_names_are_offered_and_run(
    settings: dict[str, Any],
) -> None:
    async with clerk(odd(**settings), odd(name="rest", denied_tools=["echo"])) as (agent, model):
        calls = await do(agent, "odd_pid", ("odd_echo", {"text": "a"}), ("rest_echo", {"text": "b"}))
    assert [call.status for call in calls] == [ToolStatus.ERROR, ToolStatus.OK, ToolStatus.ERROR]
    offered = names(model)
    assert {name for name in offered if name.startswith("odd_")} == {"odd_echo"}
    assert "rest_pid" in offered
    assert "rest_echo" not in offered


async def test_a_tool_whose_name_is_taken_is_left_out_aloud() -> None:
    @tool(name="odd_echo")
    async def mine(text: str) -> str:
        """Mine."""
        return f"mine: {text}"

    with logged() as lines:
        async with clerk(odd(), mine) as (agent, _):
            assert (await do(agent, ("odd_echo", {"text": "a"})))[0].result == "mine: a"
    assert [line for line in lines.texts if "its tool 'echo' is left out" in line]


async def test_settings_that_cannot_work_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {},
        {"command": "x", "url": "http://x"},
        {"url": "x"},
        {"command": "x", "timeout": 0},
    ]
    for settings in [*wrong, {"command": "x", "args": "y"}, {"command": "x", "env": {"A": 1}}]:
        with pytest.raises(Invalid):
            McpServer("x", **settings)
    with pytest.raises(Invalid, match="two MCP servers are named 'odd'"):
        async with clerk(odd(), odd()):
            pass
