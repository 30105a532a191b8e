"""Our own MCP servers as an agent's tools: every schema is legal in each dialect, and missing commands stop nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from kit.clerks import clerk, do, odd, wares
from kit.commands import retinue
from kit.dialects import CHECKS, requests_of
from kit.mcp_http import wares_over_http

from retinue.agent.mcp import McpServer
from retinue.agent.testing import ModelServer, call
from retinue.service.chat import ToolStatus

OWN = {"filesystem": (), "edit": (), "grep": (), "shell": ("--allow", "echo")}


def own(name: str, folder: Path) -> McpServer:
    """One of the servers that `retinue mcp run` starts."""
    return McpServer(name, command="retinue", args=["mcp", "run", name, str(folder), *OWN[name]])


async def test_every_tool_of_every_server_is_offered_in_each_dialect_as_that_takes_it(tmp_path: Path) -> None:
    servers = [own(name, tmp_path) for name in OWN]
    async with clerk(*servers, odd(), wares()) as (agent, model):
        await do(agent)
        (request,) = model.requests
    names = {spec.name for spec in request.tools}
    assert {"filesystem_read_text_file", "edit_edit_lines", "grep_grep", "shell_run_program", "odd_echo"} <= names
    for dialect, body in requests_of(request.messages, request.tools).items():
        CHECKS[dialect](body)
        told = json.dumps(body["tools"])
        assert [name for name in names if f'"{name}"' not in told] == [], dialect


async def test_one_of_ours_one_of_the_package_and_one_over_http_work_in_one_agent(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    async with (
        wares_over_http() as http,
        clerk(own("filesystem", tmp_path), wares(), McpServer("web", url=http.url)) as (agent, _),
    ):
        calls = await do(
            agent,
            ("filesystem_read_text_file", {"path": "a.txt"}),
            ("filesystem_read_text_file", {"path": "../secret"}),
            ("wares_add", {"a": 2, "b": 3}),
            ("web_add", {"a": 4, "b": 5}),
        )
    assert [each.status for each in calls] == [ToolStatus.OK, ToolStatus.ERROR, ToolStatus.OK, ToolStatus.OK], calls
    assert calls[0].result == "hello\n"


async def test_commands_of_a_eunice_file_that_are_not_on_this_machine_are_told_and_the_rest_works(
    tmp_path: Path,
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "eunice.json").write_text(
        json.dumps(
            {
                "mcpServers": {
                    "filesystem": {"command": "npx-that-is-not-here", "args": ["-y", "server-filesystem", "."]},
                    "time": {"command": "uvx-that-is-not-here", "args": ["mcp-server-time"], "env": {"TZ": "UTC"}},
                    "notes": {"command": "retinue", "args": ["mcp", "run", "filesystem", "notes"]},
                }
            }
        )
    )

    def answer(body: Any) -> Any:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return f"done: {last['content']}"
        return call("notes_write_file", path="a.txt", content="milk")

    async with ModelServer(answer) as server:
        extra = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none", "RETINUE_MODEL": "openai/scripted"}
        done = await asyncio.to_thread(retinue, tmp_path, "run", "--ask", "note milk", extra=extra)
        system = server.requests[-1].body["messages"][0]["content"]
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("done: ")
    assert (tmp_path / "notes" / "a.txt").read_text() == "milk"
    for missing in ("npx-that-is-not-here", "uvx-that-is-not-here"):
        assert missing in done.stderr
        assert missing in system
