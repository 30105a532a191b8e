"""Reads a configuration of Eunice, TOML or JSON, as it is: MCP servers, agents, whom each may invoke, and the root.

Keys that mean nothing here are passed over aloud, since other programs read the same files. What would run otherwise
than it says is an error.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.router.meshfile.mesh import read_prompt, read_server, read_toml
from retinue.router.meshfile.parts import AgentSpec, MeshFile
from retinue.router.meshfile.table import Table, shown
from retinue.service.errors import Invalid
from retinue.service.names import check_name, did_you_mean

if TYPE_CHECKING:
    from retinue.agent.mcp import McpServer

log = logging.getLogger("retinue.meshfile")

ROOT = "root"
_TOP = ("mcpServers", "agents")
_AGENT = ("prompt", "tools", "can_invoke", "model", "description", "root", "allowedTools", "deniedTools")
# Models are named there without their provider.
_FAMILIES = {"claude": "anthropic", "gemini": "gemini", "gpt": "openai", "o1": "openai", "o3": "openai", "o4": "openai"}


def read_eunice(path: Path) -> MeshFile:
    """The mesh that the file describes: its agents, each a registered one, and the root as entry.

    A file without agents is one agent that has all the servers.
    """
    top = _known(Table(str(path), "", _read(path), None), _TOP)
    servers = {
        name: read_server(name, _server(table), path.parent)
        for name, table in top.tables("mcpServers", None)
        if _enabled(name, table)
    }
    written = dict(top.tables("agents", None, checked=False))
    if not written:
        root = AgentSpec(name=ROOT, tools=tuple(servers), can_invoke=())
        return MeshFile(path=path.absolute(), agents=(root,), mcp_servers=servers, entry=ROOT)
    names = {name: _name(name, table) for name, table in written.items()}
    agents = tuple(_agent(names, name, _known(table, _AGENT), path.parent, servers) for name, table in written.items())
    roots = [names[name] for name, table in written.items() if table.flag("root")]
    if len(roots) > 1:
        raise Invalid(f"{path}: {' and '.join(roots)} are both root: choose one")
    entry = roots[0] if roots else ROOT if ROOT in names.values() else ""
    spelt = {name: spelling for spelling, name in names.items() if name != spelling}
    return MeshFile(path=path.absolute(), agents=agents, mcp_servers=servers, entry=entry, spelt=spelt)


def _read(path: Path) -> Any:
    if path.suffix != ".json":
        return read_toml(path)
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{path}: no JSON: {error}") from None


def _known(table: Table, keys: Iterable[str]) -> Table:
    """The table with these keys alone; others are told in the log."""
    for key in table.values:
        if key not in keys:
            log.warning("%s: the key %r means nothing here and is passed over", table.where, key)
    return table.of({key: value for key, value in table.values.items() if key in keys})


def _enabled(name: str, table: Table) -> bool:
    if table.flag("disabled"):
        log.warning("%s: disabled, so that %s is left out", table.where, name)
        return False
    return True


def _server(table: Table) -> Table:
    from retinue.agent.mcp import McpServer

    keys = {*(one.name for one in fields(McpServer)), "allowedTools", "deniedTools"} - {"name", "rpc", "only"}
    return _known(table, keys)


def _name(written: str, table: Table) -> str:
    """The name under which an agent is registered: as it is written, as far as names can be."""
    name = re.sub(r"[^a-z0-9-]", "-", written.lower()).strip("-")
    return check_name(name, field=f"{table.where}: {written!r}")


def _agent(
    names: Mapping[str, str], written: str, table: Table, folder: Path, servers: Mapping[str, McpServer]
) -> AgentSpec:
    tools = table.names("tools") or ()
    for tool in tools:
        if tool not in servers:
            raise table.wrong("tools", f"no MCP server is named {shown(tool)}{did_you_mean(tool, servers)}")
    invoked = table.names("can_invoke") or ()
    for name in invoked:
        if name not in names:
            raise table.wrong("can_invoke", f"no agent is named {shown(name)}{did_you_mean(name, names)}")
    return AgentSpec(
        name=names[written],
        prompt=read_prompt(table, folder),
        tools=table.names("allowedTools") or tools,
        denied=table.names("deniedTools") or (),
        can_invoke=tuple(names[name] for name in invoked),
        model=_model(table.text("model")),
        description=table.text("description"),
    )


def _model(written: str) -> str:
    """The model under the name that it has here; what no provider is known for is Ollama's."""
    from retinue.agent.model.catalogue import ALIASES, PROVIDERS

    if not written or written in ALIASES or written.partition("/")[0] in PROVIDERS:
        return written
    family = re.split(r"[-.:/\d]", written, maxsplit=1)[0] or written
    provider = _FAMILIES.get(family) or _FAMILIES.get(written[:2]) or "ollama"
    return f"{provider}/{written}"
