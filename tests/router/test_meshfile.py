"""The mesh file: what it may say, and the one clear line for each thing that it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.agent.mcp import McpServer
from retinue.router.meshfile import AgentSpec, MeshFile, ServiceSpec, load
from retinue.service.errors import Invalid, MeshError

OFFICE = Path(__file__).parents[2] / "agents" / "office"


def write(folder: Path, text: str, name: str = "mesh.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_reference_mesh_is_read_whole() -> None:
    office = load(OFFICE)
    assert office.names == ("task", "project", "notify", "task-mgr", "project-mgr", "comms-mgr", "router")
    assert office.services[0].run == ("python", "../../services/task/main.py")
    task_mgr = office.find("task-mgr")
    assert isinstance(task_mgr, AgentSpec)
    assert (task_mgr.services, task_mgr.can_invoke, task_mgr.model) == (("task",), None, "")
    assert len(task_mgr.prompt.splitlines()) > 1


def test_every_key_of_an_agent_is_kept(tmp_path: Path) -> None:
    mesh = load(
        write(
            tmp_path,
            """
            [mesh]
            name = "m"
            registry = "consul://c:8500"
            store = "redis://r:6379/0"
            model = "haiku"
            [services.db]
            run = "python 'my service.py' --fast"
            description = "Rows."
            [mcpServers.Files]
            command = "npx"
            [agents.a]
            prompt = "Say hi."
            services = ["db"]
            can_invoke = []
            model = "openai/gpt"
            description = "Greets."
            history_limit = 7
            listen = "127.0.0.1:9000"
            limits = { model_calls = 5, time_s = 1.5 }
            """,
        )
    )
    assert mesh == MeshFile(
        path=tmp_path / "mesh.toml",
        name="m",
        registry="consul://c:8500",
        store="redis://r:6379/0",
        model="haiku",
        services=(ServiceSpec(name="db", run=("python", "my service.py", "--fast"), description="Rows."),),
        mcp_servers={"Files": McpServer("Files", command="npx", cwd=tmp_path)},
        agents=(
            AgentSpec(
                name="a",
                prompt="Say hi.",
                services=("db",),
                can_invoke=(),
                model="openai/gpt",
                description="Greets.",
                history_limit=7,
                listen="127.0.0.1:9000",
                limits={"model_calls": 5, "time_s": 1.5},
            ),
        ),
    )


def test_a_prompt_of_one_word_that_ends_like_a_text_file_is_a_file_beside_the_mesh_file(tmp_path: Path) -> None:
    (tmp_path / "p.md").write_text("From the file.")
    mesh = load(write(tmp_path, '[agents.a]\nprompt = "p.md"\n[agents.b]\nprompt = "Read the file p.md"'))
    assert [agent.prompt for agent in mesh.agents] == ["From the file.", "Read the file p.md"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[agents.a]\nprompt = "x"\nmodel gpt', "mesh.toml:3: Expected '=' after a key in a key/value pair: model gpt"),
        ('[agents.a]\nprompt = "x', r'mesh.toml:2: .*: prompt = "x'),
        ("[agent.a]", r"mesh.toml: unknown key 'agent'; did you mean agents\?"),
        ('[agents.a]\npromt = "x"', r"\[agents.a\]: unknown key 'promt'; did you mean prompt\?"),
        ('[services.a]\nrum = "x"', r"\[services.a\]: unknown key 'rum'; did you mean run\?"),
        (
            "[agents.a.limits]\nmodel_cals = 3",
            r"\[agents.a.limits\]: unknown key 'model_cals'; did you mean model_calls",
        ),
        ("[agents.a.limits]\ndepth = 0", r"\[agents.a.limits\]: depth: use a number above 0, not 0"),
        ("[agents]\na = 3", r"\[agents.a\]: use a table, not 3"),
        ('[agents.a]\nservices = "task"', r"\[agents.a\]: services: use a list of names, not 'task'"),
        ("[agents.a]\nhistory_limit = 0", "history_limit: use a whole number above 0"),
        ("[agents.a]\nprompt = 1", "prompt: use a text, not 1"),
        ('[agents.a]\nprompt = "gone.md"', r"\[agents.a\]: prompt: .*gone.md: No such file or directory"),
        ('[agents.a]\nlisten = "9000"', r"\[agents.a\]: listen '9000': use host:port"),
        ("[agents.Big]", "agents 'Big': use 1 to 63 of a-z"),
        ("[services.a]", r"\[services.a\]: run: say what runs it"),
        ('[services.a]\nrun = "python \'x"', r"\[services.a\]: run: No closing quotation"),
        ('[services.a]\nrun = "x"\n[agents.a]', "'a' is the name of two parts"),
        ("[agents.router]", "'router' is the name of two parts"),
        ('[agents.a]\ntools = ["fs"]\n[mcpServers.files]\nurl = "http://f"', r"tools: no MCP server is named 'fs'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(MeshError, match=says) as caught:
        load(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_without_a_mesh_file_it_is_said_where_was_looked(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=f"no mesh.toml, eunice.toml or eunice.json in {tmp_path}"):
        load(tmp_path)
    with pytest.raises(Invalid, match="does not exist"):
        load(tmp_path / "other.toml")


def test_a_mesh_file_goes_before_a_eunice_file(tmp_path: Path) -> None:
    write(tmp_path, "{}", "eunice.json")
    assert load(tmp_path).path.name == "eunice.json"
    write(tmp_path, "[agents.a]")
    assert load(tmp_path).path.name == "mesh.toml"


def test_a_part_that_is_not_there_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"nothing is named 'task-mgrr'; did you mean task-mgr"):
        load(OFFICE).find("task-mgrr")


def test_approvals_are_the_names_of_tools(tmp_path: Path) -> None:
    (tmp_path / "mesh.toml").write_text('[agents.a]\nprompt = "x"\napprovals = ["db_Db_Drop"]\n')
    (agent,) = load(tmp_path).agents
    assert agent.approvals == ("db_Db_Drop",)
