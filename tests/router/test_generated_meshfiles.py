"""Whatever stands in a mesh file, it is read, or refused in one line that names the file.

Files are generated: tables of right and wrong keys and values, and real files with something broken in them. FAULTS=all
takes two thousand, an ordinary run a few of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit.generated import broken, examples, texts

from retinue.agent import Agent, Hooks, Limits
from retinue.agent.model.scripted import Scripted
from retinue.router.meshfile import load, servers_of
from retinue.service.errors import Invalid

AGENTS = Path(__file__).parents[2] / "agents"
OFFICE = (AGENTS / "office" / "mesh.toml").read_bytes()
DINER = (AGENTS / "diner" / "eunice.toml").read_bytes()

_names = st.sampled_from(["a", "b", "task", "router", "Big", "x" * 64, "", "a.b", "é", 'q"'])
_words = st.sampled_from(
    [
        "a",
        "task",
        "files",
        "p.md",
        "gone.md",
        "nul\0.md",
        ".md",
        "..md",
        "/.txt",
        "x" * 300 + ".md",
        "python main.py",
        "python 'x",
        "nul\0 x",
        "127.0.0.1:9000",
        "[::1]:0",
        "host:99999",
        "discover",
        "http://h",
        "redis://[",
        "openai/gpt",
    ]
)
_scalars: st.SearchStrategy[Any] = st.one_of(
    _words,
    texts,
    st.booleans(),
    st.integers(-3, 100),
    st.sampled_from([2**63, -(2**63), 10**400, 0.5, 1e300, float("inf"), float("nan")]),
)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=2), max_leaves=5
)
_keys_of = {
    "mesh": ["name", "registry", "store", "model", "nam"],
    "services": ["run", "description", "rum"],
    "agents": [
        *("prompt", "services", "tools", "tools_mode", "can_invoke", "model", "description", "history_limit"),
        *("listen", "limits", "approvals", "sequential", "root", "allowedTools", "deniedTools", "promt"),
    ],
    "mcpServers": ["command", "args", "env", "url", "headers", "cwd", "timeout", "disabled", "allowedTools", "type"],
    "limits": ["model_calls", "depth", "tokens", "time_s", "window", "call_s", "repeats", "dept"],
}


def _table(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    limits = st.dictionaries(st.sampled_from(_keys_of["limits"]), _scalars, max_size=3)
    named = st.lists(_names, max_size=3)

    def value_of(key: str) -> st.SearchStrategy[Any]:
        if key == "limits":
            return limits | _values
        # As often right as anything at all.
        return st.one_of(named if key in _LISTS else _words, _values)

    pairs = st.sampled_from(_keys_of[kind]).flatmap(lambda key: st.tuples(st.just(key), value_of(key)))
    return st.lists(pairs, max_size=4).map(dict)


_LISTS = frozenset(("services", "tools", "can_invoke", "approvals", "args", "allowedTools", "deniedTools"))
_meshes = st.fixed_dictionaries(
    {},
    optional={
        "mesh": _table("mesh") | _values,
        **{
            kind: st.dictionaries(_names, _table(kind) | _values, max_size=3) | _values
            for kind in ("services", "agents", "mcpServers")
        },
        "agent": _values,
    },
)


def toml(value: Any) -> str:
    """`value` as TOML, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Mapping():
            return "{" + ", ".join(f"{toml(str(key))} = {toml(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case _:
            return str(value)


def _lines(mesh: Mapping[str, Any]) -> bytes:
    return "\n".join(f"{toml(key)} = {toml(value)}" for key, value in mesh.items()).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("mesh")
    (made / "p.md").write_text("A prompt.")
    yield made


def read_or_refuse(path: Path, raw: bytes) -> None:
    """Reads a file of these bytes, and makes the agents that it describes."""
    path.write_bytes(raw)
    try:
        mesh = load(path)
        assert mesh.names[-1] == "router"
        for spec in mesh.agents:
            Agent(
                spec.name,
                spec.prompt,
                services=spec.services,
                tools=servers_of(mesh, spec),
                model=Scripted(),
                description=spec.description,
                history_limit=spec.history_limit,
                hooks=Hooks(approvals=spec.approvals),
                limits=Limits(**spec.limits),
            )
    except Invalid as error:
        assert len(error.message.splitlines()) == 1, error.message
        assert len(error.message) < 1000, error.message


@pytest.mark.timeout(600)
def test_generated_mesh_files_are_read_or_refused_in_one_line(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))

    @examples(150, 800)
    @given(_meshes.map(_lines) | broken(OFFICE))
    @example(b"a = " + b"[" * 5000 + b"]" * 5000)
    @example(b"a = " + b"9" * 5000)
    @example(b"[agents.a]\nhistory_limit = 0x" + b"f" * 5000)
    @example(b"[agents.a]\nprompt = " + b"[" * 300 + b"0x" + b"f" * 5000 + b"]" * 300)
    @example(b"[agents.a]\nlimits = { time_s = nan }")
    @example(b"[agents.a]\nlimits = { model_calls = 1.5 }")
    def read(raw: bytes) -> None:
        read_or_refuse(folder / "mesh.toml", raw)

    read()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.timeout(600)
def test_generated_configurations_of_eunice_are_read_or_refused_in_one_line(folder: Path) -> None:
    @examples(100, 800)
    @given(_meshes.map(_lines) | broken(DINER))
    @example(b"a = " + b"[" * 5000 + b"]" * 5000)
    def read_toml(raw: bytes) -> None:
        read_or_refuse(folder / "eunice.toml", raw)

    @examples(100, 400)
    @given(_meshes.map(lambda mesh: json.dumps(mesh).encode()) | _values.map(lambda value: json.dumps(value).encode()))
    @example(b"[" * 100_000)
    @example(b'{"agents": {"a": {"root": ' + b"9" * 5000 + b"}}}")
    @example(b"\xff")
    def read_json(raw: bytes) -> None:
        read_or_refuse(folder / "eunice.json", raw)

    read_toml()
    read_json()
