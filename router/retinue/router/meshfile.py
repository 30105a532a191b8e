"""The file that describes a mesh: which services run how, and which agents there are.

It reads and checks; it starts nothing and knows no model. What it does not know it refuses, with the nearest name.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.service.errors import Invalid, Unsupported
from retinue.service.names import check_name, did_you_mean
from retinue.service.settings import host_and_port

if TYPE_CHECKING:
    from retinue.agent.mcp import McpServer

FILES = ("mesh.toml", "eunice.toml", "eunice.json")
ROUTER = "router"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """A service and the argument vector that runs it; its working folder is the mesh file's."""

    name: str
    run: tuple[str, ...]
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An agent as the file describes it. `can_invoke` None: every registered agent; `approvals`: names of tools.

    `tools` are names of MCP servers, or exact names of their tools as a model calls them.
    """

    name: str
    prompt: str = ""
    services: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    tools_mode: str = "all"
    can_invoke: tuple[str, ...] | None = None
    approvals: tuple[str, ...] = ()
    sequential: bool = False
    model: str = ""
    description: str = ""
    history_limit: int = 50
    listen: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshFile:
    """A whole mesh. Empty `registry` and `store`: the environment's. `model` is that of the router and of each agent
    that names none; "": the environment decides."""

    path: Path
    name: str = ""
    registry: str = ""
    store: str = ""
    model: str = ""
    services: tuple[ServiceSpec, ...] = ()
    agents: tuple[AgentSpec, ...] = ()
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that can be run, in the order in which it is started: services, agents, the router."""
        return (*(one.name for one in self.services), *(one.name for one in self.agents), ROUTER)

    def find(self, name: str) -> ServiceSpec | AgentSpec | None:
        """The part of that name; None for the router. Invalid, with the nearest, when there is none."""
        parts: list[ServiceSpec | AgentSpec] = [*self.services, *self.agents]
        for part in parts:
            if part.name == name:
                return part
        if name == ROUTER:
            return None
        raise Invalid(f"{self.path.name}: nothing is named {name!r}{did_you_mean(name, self.names)}", field="--only")


def servers_of(file: MeshFile, spec: AgentSpec) -> list[McpServer]:
    """The MCP servers of an agent, in the order of its `tools`; one that is named by its tools offers only those."""
    found: dict[str, McpServer] = {}
    for name, server in _named(spec.tools, file.mcp_servers):
        if name == server.name:
            found[server.name] = server
        elif (known := found.get(server.name, replace(server, only=()))).only is not None:
            found[server.name] = replace(known, only=(*known.only, name))
    return list(found.values())


def _named(tools: Iterable[str], servers: Mapping[str, McpServer]) -> list[tuple[str, McpServer]]:
    """Each name with the servers that may be meant: the one of that very name, else all that could have such a tool."""
    pairs: list[tuple[str, McpServer]] = []
    for name in tools:
        meant = [servers[name]] if name in servers else servers.values()
        pairs += [(name, one) for one in meant if name == one.name or name.startswith(one.full_name(""))]
    return pairs


def load(where: Path) -> MeshFile:
    """The mesh that `where` (a file, or a folder with one) describes. Invalid names file, table and key."""
    path = locate(where)
    if path.name != FILES[0] and path.name in FILES:
        raise Unsupported(f"{path}: eunice files are not supported yet; write a {FILES[0]} beside it")
    top = _Table(str(path), "", _parse(path), _TOP)
    mesh = top.table("mesh", _MESH)
    services = tuple(_service(name, table) for name, table in top.tables("services", _SERVICE))
    servers = {name: _server(name, table, path.parent) for name, table in top.tables("mcpServers", None)}
    agents = tuple(_agent(name, table, path.parent, servers) for name, table in top.tables("agents", _AGENT))
    names = [ROUTER, *(one.name for one in services), *(one.name for one in agents)]
    for name in names:
        if names.count(name) > 1:
            raise Invalid(f"{path}: {name!r} is the name of two parts; services, agents and the router share names")
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


def locate(where: Path) -> Path:
    """The mesh file at `where`; Invalid that says where was looked when there is none."""
    if where.is_file():
        return where
    for name in FILES:
        if (where / name).is_file():
            return where / name
    folder = where.absolute()
    looked = f"no {', '.join(FILES[:-1])} or {FILES[-1]} in {folder}" if where.is_dir() else f"{folder} does not exist"
    raise Invalid(f"no mesh file: {looked}; give its file or folder: retinue run MESH", field="MESH")


def _parse(path: Path) -> dict[str, Any]:
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
        raise Invalid(f"{path}:{number}: {what}: {lines[number - 1].strip()}") from None


def _service(name: str, table: _Table) -> ServiceSpec:
    text = table.text("run")
    try:
        run = tuple(shlex.split(text))
    except ValueError as error:
        raise table.wrong("run", f"{error} in {text!r}") from None
    if not run:
        raise table.wrong("run", 'say what runs it, such as run = "python main.py"')
    return ServiceSpec(name=name, run=run, description=table.text("description"))


def _server(name: str, table: _Table, folder: Path) -> McpServer:
    from retinue.agent.mcp.server import from_table

    try:
        return from_table(name, table.values, folder=folder.absolute())
    except Invalid as error:
        raise Invalid(f"{table.where}: {error.message}", **error.facts) from None


def _agent(name: str, table: _Table, folder: Path, servers: Mapping[str, McpServer]) -> AgentSpec:
    tools = table.names("tools") or ()
    for tool in tools:
        if not _named((tool,), servers):
            raise table.wrong(
                "tools", f"no MCP server is named {tool!r} or has such a tool{did_you_mean(tool, servers)}"
            )
    mode = table.text("tools_mode") or "all"
    if mode not in ("all", "discover"):
        raise table.wrong("tools_mode", f'use "all" or "discover", not {mode!r}')
    listen = table.text("listen")
    if listen:
        host_and_port(listen, field=f"{table.where}: listen")
    return AgentSpec(
        name=name,
        prompt=_prompt(table, folder),
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


def _prompt(table: _Table, folder: Path) -> str:
    """The prompt itself; one line without spaces that ends in .md or .txt is a file beside the mesh file."""
    text = table.text("prompt")
    if not text.endswith((".md", ".txt")) or text.split() != [text]:
        return text
    try:
        return (folder / text).read_text(encoding="utf-8")
    except OSError as error:
        raise table.wrong("prompt", f"{folder / text}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise table.wrong("prompt", f"{folder / text} is not UTF-8") from None


def _limits(table: _Table) -> dict[str, Any]:
    if "limits" not in table.values:
        return {}
    from dataclasses import fields

    from retinue.agent import Limits

    limits = table.table("limits", [one.name for one in fields(Limits)])
    for key, value in limits.values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise limits.wrong(key, f"use a number above 0, not {value!r}")
    return dict(limits.values)


class _Table:
    """One table of the file, with the place that errors name. `known` None: any key."""

    def __init__(self, file: str, name: str, values: Any, known: Iterable[str] | None) -> None:
        self.where = f"{file}: [{name}]" if name else file
        self._file = file
        self._name = name
        if not isinstance(values, dict):
            raise Invalid(f"{self.where}: use a table, not {values!r}")
        self.values: Mapping[str, Any] = values
        known = values if known is None else tuple(known)
        for key in values:
            if key not in known:
                raise Invalid(f"{self.where}: unknown key {key!r}{did_you_mean(key, known)}", field=key)

    def wrong(self, key: str, what: str) -> Invalid:
        """The error for a key's value."""
        return Invalid(f"{self.where}: {key}: {what}")

    def text(self, key: str) -> str:
        value = self.values.get(key, "")
        if not isinstance(value, str):
            raise self.wrong(key, f"use a text, not {value!r}")
        return value

    def count(self, key: str, default: int) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, f"use a whole number above 0, not {value!r}")
        return value

    def flag(self, key: str) -> bool:
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key, f"use true or false, not {value!r}")
        return value

    def names(self, key: str) -> tuple[str, ...] | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(key, f"use a list of names, not {value!r}")
        return tuple(value)

    def table(self, key: str, known: Iterable[str] | None) -> _Table:
        name = f"{self._name}.{key}" if self._name else key
        return _Table(self._file, name, self.values.get(key, {}), known)

    def tables(self, key: str, known: Iterable[str] | None) -> list[tuple[str, _Table]]:
        """The tables below `key`, each under a checked name."""
        outer = self.table(key, None)
        # MCP servers are named by their users, and only in tool names.
        check = key != "mcpServers"
        return [
            (check_name(name, field=f"{self._file}: {key}") if check else name, outer.table(name, known))
            for name in outer.values
        ]
