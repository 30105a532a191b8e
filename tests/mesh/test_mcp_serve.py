"""`retinue mcp serve` over a mesh of real processes: what a stock MCP client, and one by hand, find and call."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from kit.commands import COMMAND, Started, environment, processes_of, retinue, started
from kit.jsonrpc import Poster, RpcError, speaking
from kit.nodes import closed_port
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent

MESH = """
[services.task]
run = "python {services}/task/main.py"

[agents.clerk]
description = 'Keeps the "list".'
services = ["task"]
"""
TOOLS = {"ask_clerk", "ask_router", "task_Task_Create", "task_Task_List", "task_Task_Complete", "task_Task_Delete"}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a mesh that runs: a service, an agent with the offline model, and the router."""
    folder = tmp_path_factory.mktemp("mesh")
    (folder / "mesh.toml").write_text(MESH.format(services=Path(__file__).parents[2] / "services"))
    with started(folder, "run") as command:
        command.wait_for("ready:")
        yield folder
        assert command.end() == 0
    assert processes_of(folder) == {}


@pytest.fixture(scope="module")
def url(mesh: Path) -> Iterator[str]:
    """Where the mesh is served over HTTP."""
    with started(mesh, "mcp", "serve", "--http", "127.0.0.1:0") as command:
        yield address_of(command)
        assert command.end() == 0
        assert command.process.stdout is not None and command.process.stdout.read() == ""


def address_of(command: Started) -> str:
    return command.wait_for("serving MCP at ").rpartition(" ")[2]


def text_of(result: CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, TextContent)
    return block.text


async def use(client: Client) -> None:
    """What a client of the `mcp` package does with the mesh."""
    async with asyncio.timeout(60), client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == TOOLS
        assert tools["ask_clerk"].description == (
            'Ask the agent clerk, in words; it answers in words. It says of itself: "Keeps the \\"list\\"."'
        )
        assert tools["ask_clerk"].input_schema["required"] == ["message"]
        made = await client.call_tool("task_Task_Create", {"title": "buy milk", "owner": "ada"})
        assert not made.is_error and json.loads(text_of(made))["title"] == "buy milk"
        asked = await client.call_tool("ask_clerk", {"message": "what tasks does ada have?"})
        assert not asked.is_error and "buy milk" in text_of(asked)
        wrong = await client.call_tool("task_Task_Create", {"title": ""})
        assert wrong.is_error and text_of(wrong) == "INVALID_ARGUMENT: title is empty: give it a value"
        assert (await client.call_tool("task_Task_Create", {"name": "x"})).is_error


async def test_the_client_of_the_mcp_package_lists_and_calls_over_standard_streams(mesh: Path) -> None:
    server = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], "mcp", "serve"], cwd=mesh, env=environment(mesh)
    )
    await use(Client(server))


async def test_the_client_of_the_mcp_package_lists_and_calls_over_http(url: str) -> None:
    await use(Client(url))


def test_a_client_by_hand_lists_and_calls_over_standard_streams(mesh: Path) -> None:
    with speaking(mesh, "mcp", "serve") as client:
        tools = client.tools()
        assert tools.keys() == TOOLS
        hints = {name: tool["annotations"] for name, tool in tools.items()}
        assert hints["task_Task_List"]["readOnlyHint"] and not hints["task_Task_Create"]["readOnlyHint"]
        assert hints["task_Task_Create"]["destructiveHint"] and not hints["ask_clerk"]["readOnlyHint"]
        client.call("task_Task_Create", title="feed the cat", owner="bob")
        assert "feed the cat" in client.call("ask_clerk", message="what tasks does bob have?")
        assert "feed the cat" in client.call("ask_router", message="what tasks does bob have?", session="own")
        assert "did you mean ask_clerk" in client.refused("ask_clrk", message="x")
        assert "'message' is a required property" in client.refused("ask_clerk")
        assert client.refused("ask_clerk", message="x", session="a b").startswith("INVALID_ARGUMENT: session 'a b'")
    said = retinue(mesh, "agent", "history", "clerk", "--session", "own").stdout
    assert said.startswith("user: what tasks does bob have?")


async def test_a_client_by_hand_lists_and_calls_over_http(url: str) -> None:
    async with asyncio.timeout(60), httpx.AsyncClient(timeout=60) as http:
        client = Poster(http, url)
        await client.hello()
        assert {tool["name"] for tool in (await client.request("tools/list"))["tools"]} == TOOLS
        await client.call("task_Task_Create", title="water the fern", owner="eve")
        text, failed = await client.call("ask_clerk", message="what tasks does eve have?")
        reply, _, session = text.rpartition("\n(session: ")
        assert "water the fern" in reply and not failed
        # Who goes on with the conversation is not told its name again.
        again, _ = await client.call(
            "ask_clerk", message="what tasks does eve have?", session=session.removesuffix(")")
        )
        assert again == reply
        assert await client.call("ask_nobody", message="x") != ("", False)


@pytest.mark.parametrize(
    ("headers", "status"), [({"Host": "evil.example"}, 421), ({"Origin": "http://evil.example"}, 403)]
)
async def test_a_page_from_elsewhere_cannot_call_over_http(url: str, headers: dict[str, str], status: int) -> None:
    async with httpx.AsyncClient() as http:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        accept = {"Accept": "application/json, text/event-stream"}
        assert (await http.post(url, json=message, headers=accept | headers)).status_code == status


def test_a_mesh_that_is_away_says_so(tmp_path: Path) -> None:
    address = closed_port()
    with speaking(tmp_path, "mcp", "serve", extra={"RETINUE_REGISTRY": f"consul://{address}"}) as client:
        with pytest.raises(RpcError, match=f"UNAVAILABLE: .*{address}"):
            client.request("tools/list")
        assert client.refused("ask_clerk", message="x").startswith("UNAVAILABLE: ")


def test_what_cannot_be_served_is_one_line(tmp_path: Path) -> None:
    done = retinue(tmp_path, "mcp", "serve")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("retinue: no mesh here: no .retinue/ in ")
    assert retinue(tmp_path, "mcp", "serve", "127.0.0.1:0").returncode == 2
    (tmp_path / ".retinue").mkdir()
    done = retinue(tmp_path, "mcp", "serve", "--http", "0.0.0.0:0")
    assert "name the address that clients use" in done.stderr


def test_retinue_call_loads_no_mcp() -> None:
    """And neither does any other command before it runs."""
    lines = "import sys, retinue.router.cli; sys.exit(any(name.split('.')[0] == 'mcp' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-P", "-c", lines], check=False).returncode == 0
