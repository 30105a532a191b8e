"""Reads mesh.toml. What does not hold is an error that names the file, the table, the key and the nearest known one."""

from __future__ import annotations

import math
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.router.meshfile.parts import AgentSpec, MeshFile, ServiceSpec, servers_named
from retinue.router.meshfile.table import Table, shown
from retinue.service.errors import Invalid, cut
from retinue.service.names import check_name, did_you_mean
from retinue.service.settings import host_and_port

if TYPE_CHECKING:
    from retinue.agent.mcp import McpServer

_TOP = ("mesh", "services", "agents", "mcpServers")
_MESH = ("name", "registry", "store", "model")
_SERVICE = ("run", "description")
_AGENT = (
    "prompt",
    "services",
    "tools",
    "tools_mode",
    "can_invoke",
    "model",
    "description",
    "history_limit",
    "listen",
    "limits",
    "approvals",
    "sequential",
)
# tomllib tells the place only in its text, until Python 3.14; it is read for display alone.
_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


def read_mesh(path: Path) -> MeshFile:
    """The mesh that the file describes."""
    top = Table(str(path), "", read_toml(path), _TOP)
    mesh = top.table("mesh", _MESH)
    services = tuple(_service(name, table) for name, table in top.tables("services", _SERVICE))
    servers = {name: read_server(name, table, path.parent) for name, table in top.tables("mcpServers", None)}
    agents = tuple(_agent(name, table, path.parent, servers) for name, table in top.tables("agents", _AGENT))
    return MeshFile(
        path=path.absolute(),
        name=mesh.text("name"),
        registry=mesh.text("registry"),
        store=mesh.text("store"),
        model=mesh.text("model"),
        services=services,
        agents=agents,
        mcp_servers=servers,
    )


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file; Invalid with the line that is none."""
    try:
        source = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"{path}: not UTF-8 at byte {error.start}") from None
    try:
        return tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        lines = source.split("\n")
        place = _PLACE.search(str(error))
        number = int(place[1]) if place and place[1] else len(source.rstrip("\n").split("\n"))
        what = _PLACE.sub("", str(error))
        raise Invalid(f"{path}:{number}: {what}: {cut(' '.join(lines[number - 1].split()), 200)}") from None
    except RecursionError:
        raise Invalid(f"{path}: it is nested too deeply to be read") from None
    except ValueError as error:
        # Not TOML's own: Python reads no number of so many digits.
        raise Invalid(f"{path}: {error}") from None


def _service(name: str, table: Table) -> ServiceSpec:
    text = table.text("run")
    try:
        run = tuple(shlex.split(text))
    except ValueError as error:
        raise table.wrong("run", f"{error} in {shown(text)}") from None
    if not run:
        raise table.wrong("run", 'say what runs it, such as run = "python main.py"')
    return ServiceSpec(name=name, run=run, description=table.text("description"))


def read_server(name: str, table: Table, folder: Path) -> McpServer:
    from retinue.agent.mcp.server import from_table

    try:
        return from_table(name, table.values, folder=folder.absolute())
    except Invalid as error:
        raise Invalid(f"{table.where}: {error.message}", **error.facts) from None


def _agent(name: str, table: Table, folder: Path, servers: Mapping[str, McpServer]) -> AgentSpec:
    tools = table.names("tools") or ()
    for tool in tools:
        if not servers_named((tool,), servers):
            raise table.wrong(
                "tools", f"no MCP server is named {shown(tool)} or has such a tool{did_you_mean(tool, servers)}"
            )
    mode = table.text("tools_mode") or "all"
    if mode not in ("all", "discover"):
        raise table.wrong("tools_mode", f'use "all" or "discover", not {shown(mode)}')
    listen = table.text("listen")
    if listen:
        host_and_port(listen, field=f"{table.where}: listen")
    return AgentSpec(
        name=name,
        prompt=read_prompt(table, folder),
        services=tuple(check_name(one, field=f"{table.where}: services") for one in table.names("services") or ()),
        tools=tools,
        tools_mode=mode,
        can_invoke=table.names("can_invoke"),
        model=table.text("model"),
        description=table.text("description"),
        history_limit=table.count("history_limit", 50),
        listen=listen,
        limits=_limits(table),
        approvals=table.names("approvals") or (),
        sequential=table.flag("sequential"),
    )


def read_prompt(table: Table, folder: Path) -> str:
    """The prompt itself; one line without spaces that ends in .md or .txt is a file beside the mesh file."""
    text = table.text("prompt")
    if not text.endswith((".md", ".txt")) or text.split() != [text]:
        return text
    try:
        return (folder / text).read_text(encoding="utf-8")
    except OSError as error:
        raise table.wrong("prompt", f"{cut(str(folder / text), 300)}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise table.wrong("prompt", f"{folder / text} is not UTF-8") from None
    except ValueError as error:
        raise table.wrong("prompt", f"{shown(text)} is no name of a file: {error}") from None


def _limits(table: Table) -> dict[str, Any]:
    if "limits" not in table.values:
        return {}
    from dataclasses import fields

    from retinue.agent import Limits

    limits = table.table("limits", [one.name for one in fields(Limits)])
    for key, value in limits.values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise limits.wrong(key, f"use a number above 0, not {shown(value)}")
    return dict(limits.values)
