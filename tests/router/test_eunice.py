"""Configurations of Eunice are read as they are, in TOML and JSON, and become agents that are registered."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from retinue.router.meshfile import load, servers_of
from retinue.service.errors import Invalid

ROOT = Path(__file__).parents[2]

TOML = """
[mcpServers.filesystem]
command = "npx"
args = ["-y", "@modelcontextprotocol/server-filesystem", "."]

[mcpServers.time]
command = "uvx"
args = ["mcp-server-time"]
timeout = 5

[mcpServers.web]
url = "http://127.0.0.1:1/mcp"
allowedTools = ["search"]

[agents.root]
prompt = "root.md"
tools = ["time"]
can_invoke = ["Head_Chef"]
model = "sonnet"

[agents.Head_Chef]
prompt = "You cook. See notes.md for more."
tools = ["filesystem", "web"]
deniedTools = ["filesystem_write_file", "move_file"]
model = "llama3.1:8b"
max_turns = 7
"""


def write(folder: Path, text: str, name: str = "eunice.toml") -> Path:
    (folder / "root.md").write_text("You are the root.")
    (folder / name).write_text(text)
    return folder


def test_agents_become_registered_ones_and_root_is_the_entry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        mesh = load(write(tmp_path, TOML))
    root, chef = mesh.agents
    assert (mesh.entry, root.name, root.prompt, root.model) == ("root", "root", "You are the root.", "sonnet")
    assert (root.can_invoke, chef.name, chef.can_invoke) == (("head-chef",), "head-chef", ())
    assert mesh.spelt == {"head-chef": "Head_Chef"}
    assert chef.model == "ollama/llama3.1:8b"
    assert chef.prompt == "You cook. See notes.md for more."
    files, web = servers_of(mesh, chef)
    assert (files.command, files.args[0], web.url) == ("npx", "-y", "http://127.0.0.1:1/mcp")
    assert [files.allows(name) for name in ("read_file", "write_file", "move_file")] == [True, False, False]
    assert [web.allows(name) for name in ("search", "fetch")] == [True, False]
    assert [server.name for server in servers_of(mesh, root)] == ["time"]
    assert "max_turns" in caplog.text


def test_json_says_the_same(tmp_path: Path) -> None:
    import tomllib

    told = load(write(tmp_path, TOML))
    again = load(write(tmp_path, json.dumps(tomllib.loads(TOML)), "eunice.json") / "eunice.json")
    assert (again.agents, again.mcp_servers, again.entry) == (told.agents, told.mcp_servers, told.entry)


def test_toml_goes_before_json_in_one_folder(tmp_path: Path) -> None:
    write(tmp_path, "{}", "eunice.json")
    assert load(write(tmp_path, TOML)).path.name == "eunice.toml"


def test_servers_without_agents_are_one_agent_that_has_them_all(tmp_path: Path) -> None:
    servers = {"a": {"command": "x"}, "b": {"command": "y", "disabled": True}, "c": {"type": "stdio", "command": "z"}}
    mesh = load(write(tmp_path, json.dumps({"mcpServers": servers}), "eunice.json"))
    (root,) = mesh.agents
    assert (root.tools, root.can_invoke, mesh.entry) == (("a", "c"), (), "root")


@pytest.mark.parametrize(
    ("written", "model"),
    [
        ("gpt-4.1", "openai/gpt-4.1"),
        ("o3-mini", "openai/o3-mini"),
        ("claude-opus-4-5", "anthropic/claude-opus-4-5"),
        ("gemini-3-pro", "gemini/gemini-3-pro"),
        ("haiku", "haiku"),
        ("openai/x", "openai/x"),
        ("qwen3:4b", "ollama/qwen3:4b"),
    ],
)
def test_models_are_named_without_their_provider(tmp_path: Path, written: str, model: str) -> None:
    (agent,) = load(write(tmp_path, f'[agents.root]\nmodel = "{written}"')).agents
    assert agent.model == model


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[agents.a]\ntools = ["fies"]\n[mcpServers.files]\ncommand = "x"', "no MCP server is named 'fies'"),
        ('[agents.a]\ncan_invoke = ["b"]', "no agent is named 'b'"),
        ('[agents.a]\nprompt = "gone.md"', "gone.md: No such file"),
        ("[agents.a]\nroot = true\n[agents.b]\nroot = true", "both root"),
        ("[agents.a_b]\n[agents.a-b]", "the name of two parts"),
        ("[agents.router]", "the name of two parts"),
        ('[mcpServers.x]\ncommand = "a"\nurl = "http://h"', "one of command, url"),
        ("[agents", "eunice.toml:1"),
    ],
)
def test_what_would_run_otherwise_than_it_says_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        load(write(tmp_path, text))


def test_json_that_is_none_is_an_error_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"eunice.json: no JSON: .*line 1"):
        load(write(tmp_path, "{", "eunice.json"))


def test_the_diner_is_such_a_configuration() -> None:
    mesh = load(ROOT / "agents" / "diner")
    assert [agent.name for agent in mesh.agents] == ["counter", "head-chef", "line-cook", "supplier"]
    assert mesh.entry == "counter"
    assert all("\n" in agent.prompt for agent in mesh.agents)
