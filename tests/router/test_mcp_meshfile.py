"""MCP servers in a mesh file: what it may say of them, and that no process of theirs outlives its agent."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from pathlib import Path

import pytest
from kit.commands import Started, processes_of, retinue, started

from retinue.agent.mcp import McpServer
from retinue.router.meshfile import AgentSpec, load, servers_of
from retinue.service.errors import Invalid

ODD = Path(__file__).parents[1] / "kit" / "mcp_odd.py"


def agent_of(folder: Path, servers: str, tools: str) -> list[McpServer]:
    (folder / "mesh.toml").write_text(f"{servers}\n[agents.a]\ntools = {tools}\n")
    file = load(folder)
    spec = file.find("a")
    assert isinstance(spec, AgentSpec)
    return servers_of(file, spec)


def test_every_key_of_a_server_is_kept_also_as_eunice_spells_it(tmp_path: Path) -> None:
    text = """
    [mcpServers.files]
    command = "npx"
    args = ["-y", "fs", "."]
    env = { DEBUG = "1" }
    cwd = "data"
    timeout = 5
    allowedTools = ["read"]
    denied_tools = ["write"]
    [mcpServers.Web]
    url = "https://example.org/mcp"
    headers = { Authorization = "Bearer x" }
    """
    files, web = agent_of(tmp_path, text, '["files", "Web"]')
    assert files == McpServer(
        "files",
        command="npx",
        args=("-y", "fs", "."),
        env={"DEBUG": "1"},
        cwd=tmp_path / "data",
        timeout=5,
        allowed_tools=("read",),
        denied_tools=("write",),
    )
    assert (web.url, web.headers) == ("https://example.org/mcp", {"Authorization": "Bearer x"})
    assert "Bearer" not in repr(web)


def test_an_agent_names_whole_servers_or_exact_tools(tmp_path: Path) -> None:
    servers = '[mcpServers.web]\ncommand = "x"\n[mcpServers.web_search]\ncommand = "y"\n[mcpServers.z]\ncommand = "z"'
    one, two = agent_of(tmp_path, servers, '["web_search_all", "web_get"]')
    assert (one.name, one.allows("search_all"), one.allows("get"), one.allows("put")) == ("web", True, True, False)
    assert (two.name, two.allows("all"), two.allows("all_of_it")) == ("web_search", True, False)
    (whole,) = agent_of(tmp_path, servers, '["z_a", "z"]')
    assert whole.only is None
    assert [server.name for server in agent_of(tmp_path, servers, '["web_search"]')] == ["web_search"]


@pytest.mark.parametrize(
    ("servers", "tools", "says"),
    [
        ('[mcpServers.files]\ncommand = "x"', '["fils"]', r"no MCP server is named 'fils' .*; did you mean files\?"),
        (
            '[mcpServers.files]\ncomand = "x"',
            "[]",
            r"\[mcpServers.files\]: .*unknown key 'comand'; did you mean command",
        ),
        ("[mcpServers.files]", "[]", "use one of command, url and rpc"),
        ('[mcpServers.files]\ncommand = "x"\nargs = "y"', "[]", "args: use a list of texts, not 'y'"),
        ('[mcpServers.files]\nurl = "y"', "[]", "url: use http"),
        ('[mcpServers.files]\ncommand = "x"', '[]\ntools_mode = "some"', 'tools_mode: use "all" or "discover"'),
    ],
)
def test_what_is_wrong_with_a_server_is_said_with_its_place(
    tmp_path: Path, servers: str, tools: str, says: str
) -> None:
    with pytest.raises(Invalid, match=says):
        agent_of(tmp_path, servers, tools)


def seen(command: Started, text: str) -> str:
    """The line with `text` in it, whether it was read before or is to come."""
    return next((line for line in command.lines if text in line), "") or command.wait_for(text)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_mesh_runs_its_servers_and_none_is_left_when_an_agent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "mesh.toml").write_text(
        f"""
        [mcpServers.odd]
        command = "python"
        args = ["-I", "-S", "{ODD}", "stubborn"]
        [mcpServers.gone]
        command = "no-such-program-here"
        [agents.clerk]
        prompt = "You repeat."
        tools = ["odd_echo", "gone"]
        """
    )
    with started(tmp_path, "run", extra={"RETINUE_LOG": "info"}) as command:
        command.wait_for("ready: clerk, router")
        pids = [int(word) for word in seen(command, "pids").split() if word.isdecimal()]
        seen(command, "MCP server odd is ready: 1 tools")
        assert [pid in processes_of(tmp_path) for pid in pids] == [True, True]
        about = json.loads(retinue(tmp_path, "agent", "describe", "clerk", "--json").stdout)
        assert [name for name in about["tools"] if name.startswith("odd")] == ["odd_echo"]
        assert "no-such-program-here" in about["description"]
        ends = [os.pidfd_open(pid) for pid in pids]
        (node,) = [pid for pid, words in processes_of(tmp_path).items() if "--only clerk" in words]
        os.kill(node, signal.SIGKILL)
        for end in ends:
            assert select.select([end], [], [], 20)[0]
            os.close(end)
