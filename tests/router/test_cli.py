"""The command line, as a person or a script uses it: one office mesh runs for all tests here."""

from __future__ import annotations

import json
import os
import pty
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.commands import COMMAND, environment, processes_of, retinue, started

OFFICE = Path(__file__).parents[2] / "agents" / "office"


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a running office mesh."""
    folder = tmp_path_factory.mktemp("office")
    with started(folder, "run", str(OFFICE)) as command:
        assert command.wait_for("offline/rules answers")
        command.wait_for("ready:")
        yield folder
        assert command.end() == 0
    assert processes_of(folder) == {}


def data(folder: Path, *args: str, stdin: str = "") -> Any:
    done = retinue(folder, *args, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(folder: Path, *args: str, stdin: str = "", extra: dict[str, str] | None = None) -> str:
    """The one line on standard error that a command ends with, exit code 1."""
    done = retinue(folder, *args, stdin=stdin, extra=extra)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("model:")]
    assert len(lines) == 1, done.stderr
    return lines[0]


# What needs no mesh


def test_run_with_chat_answers_two_lines_and_leaves_nothing_behind(tmp_path: Path) -> None:
    lines = "add a task called buy milk for ada\nwhat tasks does ada have?\n"
    done = retinue(tmp_path, "run", str(OFFICE), "--chat", stdin=lines)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "buy milk" in first and "buy milk" in second
    assert "offline/rules answers: no model key is set" in done.stderr
    assert processes_of(tmp_path) == {}
    again = retinue(tmp_path, "run", str(OFFICE), "--ask", "what tasks does ada have?")
    assert (again.returncode, "buy milk" in again.stdout) == (0, True)


def test_without_a_mesh_it_is_said_where_was_looked_and_nothing_is_made(tmp_path: Path) -> None:
    for args in (("chat", "hello"), ("call", "task", "Task.List"), ("agent", "describe", "x")):
        line = refused(tmp_path, *args)
        assert line == f"retinue: no mesh here: no .retinue/ in {tmp_path} or above it; start one with `retinue run`"
    assert data(tmp_path, "agent", "list", "--json") == []
    assert data(tmp_path, "service", "list", "--json") == []
    assert list(tmp_path.iterdir()) == []


def test_a_mesh_that_is_not_running_is_told_from_none(tmp_path: Path) -> None:
    (tmp_path / ".retinue").mkdir()
    assert refused(tmp_path, "chat", "hello").startswith("retinue: no mesh is running: nothing is registered at local:")
    assert data(tmp_path, "agent", "list", "--json") == []


@pytest.mark.parametrize(
    ("mesh", "extra", "says"),
    [
        ("[agents.a]\nprompt 3\n", {}, "mesh.toml:2: Expected '='"),
        ("[agents.a]\nprompts = 3\n", {}, "unknown key 'prompts'; did you mean prompt?"),
        ('[agents.a]\nprompt = "gone.md"\n', {}, "gone.md: No such file or directory"),
        ('[agents.a]\nmodel = "opnai/gpt"\n', {}, "[agents.a]: no model provider 'opnai'"),
        ("[agents.a]\n", {"RETINUE_AI_PROVIDER": "opnai"}, "no model provider 'opnai'"),
        ("[agents.a]\n", {"RETINUE_STORE": "redis://:pw@127.0.0.1:1/0"}, "redis://:***@127.0.0.1:1/0 does not answer"),
        ("[agents.a]\n", {"RETINUE_REGISTRY": "consul://127.0.0.1:1"}, "consul://127.0.0.1:1 cannot be reached"),
        ("[agents.a]\n", {"RETINUE_REGISTRY": "etcd://x"}, "registry 'etcd://x': use consul://host:port"),
        ("[agents.a]\n", {"RETINUE_STORE": "memory:"}, "memory: is one process's own"),
    ],
)
def test_a_mesh_that_cannot_start_says_why_in_one_line(
    tmp_path: Path, mesh: str, extra: dict[str, str], says: str
) -> None:
    (tmp_path / "mesh.toml").write_text(mesh)
    line = refused(tmp_path, "run", extra=extra)
    assert line.startswith("retinue: ") and says in line


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "mesh.toml").write_text("[agents.a]\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused(tmp_path, "run", "--only", "a", "--listen", address)
    assert line.startswith(f"retinue: cannot listen on {address}: Address already in use")


def test_no_mesh_file_and_no_such_part_are_said(tmp_path: Path) -> None:
    assert f"no mesh.toml, eunice.toml or eunice.json in {tmp_path}" in refused(tmp_path, "run")
    assert "did you mean task-mgr" in refused(tmp_path, "run", str(OFFICE), "--only", "task-mgrr")


@pytest.mark.parametrize(
    "args",
    [
        ("run", "--listen", "127.0.0.1:9"),
        ("run", "--only", "a", "--only", "b", "--advertise", "a:9"),
        ("run", "--chat", "--ask", "x"),
        ("run", "--only", "a", "--chat"),
        ("call", "task"),
        ("call", "task", "Task.List", "--metadata", "novalue"),
        ("nonsense",),
        ("models", "--log-level", "loud"),
    ],
)
def test_wrong_usage_is_exit_code_2(tmp_path: Path, args: tuple[str, ...]) -> None:
    done = retinue(tmp_path, *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "args",
    [(), ("run",), ("chat",), ("call",), ("models",), ("agent",), ("service",), ("agent", "plan"), ("service", "list")],
)
def test_every_command_has_help(tmp_path: Path, args: tuple[str, ...]) -> None:
    done = retinue(tmp_path, *args, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: retinue")


def test_models_says_which_is_chosen_and_why(tmp_path: Path) -> None:
    assert retinue(tmp_path, "models").stdout.startswith("offline/rules answers: no model key is set")
    found = data(tmp_path, "models", "--json")
    assert found["chosen"] == "offline/rules"
    assert {"gemini", "anthropic", "openai", "ollama", "offline"} == {one["name"] for one in found["providers"]}


def test_call_loads_no_model_layer_and_no_terminal(tmp_path: Path) -> None:
    code = (
        "import sys, runpy; sys.argv = ['retinue', 'call', 'task', 'Task.List']\n"
        "try: runpy.run_module('retinue.router.cli', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('rich', 'prompt_toolkit', 'httpx', 'mcp', 'jsonschema')"
        " or m.startswith('retinue.agent')])"
    )
    (tmp_path / ".retinue").mkdir()
    done = subprocess.run(
        [*COMMAND[:2], "-c", code], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# What talks to the office


def test_call_prints_the_answer_as_one_object_with_all_fields(office: Path) -> None:
    task = data(office, "call", "task", "Task.Create", '{"title": "x", "owner": "zoe"}')
    assert {key: task[key] for key in ("title", "owner", "due", "done")} == {
        "title": "x",
        "owner": "zoe",
        "due": "",
        "done": False,
    }
    reply = data(office, "call", "task-mgr", "Agent.Chat", '{"message": "what tasks does zoe have?"}')
    assert (reply["agent"], reply["state"], "x" in reply["reply"]) == ("task-mgr", "COMPLETED", True)
    assert reply["tool_calls"][0]["status"] == "OK"


def test_call_reads_its_request_from_a_file_or_from_standard_input(office: Path) -> None:
    (office / "request.json").write_text('{"title": "from a file"}')
    assert data(office, "call", "task", "Task.Create", "@request.json")["title"] == "from a file"
    assert data(office, "call", "task", "Task.Create", "-", stdin='{"title": "typed"}')["title"] == "typed"
    assert (
        refused(office, "call", "task", "Task.Create", "@gone.json") == "retinue: gone.json: No such file or directory"
    )
    assert data(office, "call", "task", "Task.List", "--metadata", "x-bin=AAE=")["tasks"]


def test_call_prints_a_stream_one_object_a_line(office: Path) -> None:
    done = retinue(office, "call", "task-mgr", "Agent.StreamChat", '{"message": "what tasks does zoe have?"}')
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [int(event["seq"]) for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["completed"]["agent"] == "task-mgr"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("tsk", "Task.List"), "NOT_FOUND: no agent or service is called 'tsk'; did you mean task?"),
        (("task", "Task.Creat"), "NOT_FOUND: task has no endpoint 'Task.Creat'; did you mean Task.Create"),
        (("task", "Task.Create", "{"), "INVALID_ARGUMENT: the request is not JSON"),
        (("task", "Task.Create", "[]"), "INVALID_ARGUMENT: the request is an array: it must be a JSON object"),
        (
            ("task", "Task.Create", '{"titel": "x"}'),
            "INVALID_ARGUMENT: CreateTaskRequest has no field 'titel'; did you",
        ),
        (("task", "Task.Create", '{"title": 3}'), "INVALID_ARGUMENT: field 'title' must be a string"),
        (("task", "Task.Create", "{}"), "INVALID_ARGUMENT: title is empty"),
        (("task-mgr", "Agent.Chat", '{"message": ""}'), "INVALID_ARGUMENT: message"),
        (("task", "Task.List", "{}", "--metadata", "Bad Key=x"), "INVALID_ARGUMENT: metadata key 'Bad Key'"),
        (("task", "Task.List", "{}", "--metadata", "x-bin=!"), "INVALID_ARGUMENT: metadata 'x-bin'"),
        (
            ("task", "Task.List", "{}", "--metadata", f"x-a={'x' * 9000}"),
            "INVALID_ARGUMENT: the metadata has 9035 bytes",
        ),
        (
            ("task-mgr", "Agent.Chat", '{"message": "x", "parts": [{"image": []}]}'),
            "INVALID_ARGUMENT: field 'parts[0].image' must be an object, not an array",
        ),
        (
            ("task-mgr", "Agent.Chat", '{"message": "x", "parts": [{"file": {"data": "no base64!"}}]}'),
            "INVALID_ARGUMENT: field 'parts[0].file.data' must be bytes in base64, not 'no base64!'",
        ),
        (("task", "Task.Create", '{"title": "a", "title": "b"}'), "INVALID_ARGUMENT: the request has 'title' twice"),
    ],
)
def test_what_cannot_be_called_is_one_line_with_the_nearest(office: Path, args: tuple[str, ...], line: str) -> None:
    assert refused(office, "call", *args).startswith(line)


def test_agent_list_names_agents_and_router_with_their_nodes(office: Path) -> None:
    listed = data(office, "agent", "list", "--json")
    assert [part["name"] for part in listed] == ["comms-mgr", "project-mgr", "router", "task-mgr"]
    task_mgr = listed[-1]
    assert list(task_mgr) == ["name", "type", "services", "model", "description", "nodes"]
    assert (task_mgr["type"], task_mgr["services"], task_mgr["model"]) == ("agent", ["task"], "offline/rules")
    (node,) = task_mgr["nodes"]
    assert node["id"].startswith("task-mgr-") and node["healthy"] is True
    assert node["address"].startswith("127.0.0.1:")
    assert listed[2]["type"] == "router"
    table = retinue(office, "agent", "list").stdout
    assert table.splitlines()[0].split() == ["NAME", "TYPE", "SERVICES", "MODEL", "NODES", "DESCRIPTION"]
    assert [part["name"] for part in data(office, "service", "list", "--json")] == ["notify", "project", "task"]


def test_an_agent_and_a_service_are_described(office: Path) -> None:
    said = data(office, "agent", "describe", "task-mgr", "--json")
    assert (said["name"], said["invokes_any"], len(said["nodes"])) == ("task-mgr", True, 1)
    assert "task_Task_Create" in retinue(office, "agent", "describe", "task-mgr").stdout
    endpoints = data(office, "service", "describe", "task", "--json")["endpoints"]
    assert "/office.v1.Task/Create" in [one["path"] for one in endpoints]
    assert "Task.Create" in retinue(office, "service", "describe", "task").stdout
    assert refused(office, "agent", "describe", "task-mg").startswith("NOT_FOUND: no agent or service is called")


def test_chat_asks_the_router_in_the_default_session_and_does_not_read_input(office: Path) -> None:
    done = retinue(office, "chat", "add a task called sweep for yan", stdin="not read")
    assert (done.returncode, done.stderr) == (0, "")
    assert "sweep" in done.stdout and done.stdout.count("\n") == 1
    reply = data(office, "chat", "what tasks does yan have?", "--json")
    assert (reply["agent"], reply["session"], "sweep" in reply["reply"]) == ("task-mgr", "", True)
    history = data(office, "agent", "history", "task-mgr", "--json")
    assert history[0]["role"] == "user" and history[-1]["text"] == reply["reply"]
    assert data(office, "agent", "plan", "task-mgr", "--json") == {"steps": []}
    assert "route_to_agent" in retinue(office, "agent", "history", "router").stdout


def test_chat_with_an_agent_keeps_to_its_session(office: Path) -> None:
    reply = data(office, "chat", "what tasks are there?", "--agent", "task-mgr", "--session", "s.1", "--json")
    assert (reply["agent"], reply["session"]) == ("task-mgr", "s.1")
    assert len(data(office, "agent", "history", "task-mgr", "--session", "s.1", "--json")) == 4
    assert refused(office, "chat", "hi", "--session", "a b").startswith("INVALID_ARGUMENT: session 'a b'")
    assert "task is a service and cannot be spoken to" in refused(office, "chat", "hi", "--agent", "task")
    assert "did you mean task-mgr" in refused(office, "chat", "hi", "--agent", "task-mgrr")


def test_chat_reads_lines_where_there_is_no_terminal(office: Path) -> None:
    lines = (
        "add a task called dust for xi\n\nwhat tasks does xi have?\n/agents\n/plan\n/nope\n/clear\n/quit\nwhat else?\n"
    )
    done = retinue(office, "chat", stdin=lines)
    assert done.returncode == 0
    out, err = done.stdout.splitlines(), done.stderr.splitlines()
    assert "dust" in out[0] and "dust" in out[1]
    assert out[2].split() == ["NAME", "DESCRIPTION"]
    assert err[0].startswith("session: chat-")
    assert err[1:] == [
        "task-mgr has no plan in this session",
        "/nope: no such command; there are /yes /no /clear /plan /agents /quit",
        "14 messages forgotten",
    ]


def test_a_turn_that_fails_is_told_and_the_next_line_goes_on(office: Path) -> None:
    done = retinue(office, "chat", "--agent", "task-mgr", "--session", "~", stdin="one\ntwo\n")
    assert done.returncode == 1
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["INVALID_ARGUMENT"] * 2


def test_at_a_terminal_the_prompt_streams_and_ends_with_ctrl_d(office: Path) -> None:
    master, slave = pty.openpty()
    env = environment(office, {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"})
    process = subprocess.Popen([*COMMAND, "chat"], cwd=office, env=env, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        seen = read_until(master, b"/plan and", b">")
        assert b"session: chat-" in seen
        os.write(master, b"add a task called mop for wim\r")
        assert b"mop" in read_until(master, b"task-mgr", b"Created mop", b">")
        os.write(master, b"\x04")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read_until(descriptor: int, *wanted: bytes) -> bytes:
    """What a terminal shows until all of `wanted` has come, in order; answers the question for the cursor's place."""
    seen, at, until = b"", 0, time.monotonic() + 30
    for text in wanted:
        while (found := seen.find(text, at)) < 0:
            ready, _, _ = select.select([descriptor], [], [], until - time.monotonic())
            assert ready, (text, seen)
            piece = os.read(descriptor, 4096)
            if b"\x1b[6n" in piece:
                os.write(descriptor, b"\x1b[1;1R")
            seen += piece
        at = found + len(text)
    return seen
