"""What a mesh file says, whatever its format: services, agents, MCP servers, and where a message enters.

It is data. Nothing here reads a file, and nothing is started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.service.errors import Invalid
from retinue.service.names import did_you_mean

if TYPE_CHECKING:
    from retinue.agent.mcp import McpServer

ROUTER = "router"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """A service and the argument vector that runs it; its working folder is the mesh file's."""

    name: str
    run: tuple[str, ...]
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An agent as the file describes it. `can_invoke` None: every registered agent; `approvals`: names of tools.

    `tools` are names of MCP servers, or exact names of their tools as a model calls them; `denied` are exact names of
    tools that it may not use.
    """

    name: str
    prompt: str = ""
    services: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
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
    that names none, where the environment names none either; `entry` is the agent that all messages go to, if there
    is one. `spelt` has the file's spelling of agents' names that cannot be registered so.
    """

    path: Path
    name: str = ""
    registry: str = ""
    store: str = ""
    model: str = ""
    entry: str = ""
    spelt: Mapping[str, str] = field(default_factory=dict)
    services: tuple[ServiceSpec, ...] = ()
    agents: tuple[AgentSpec, ...] = ()
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that can be run, in the order in which it is started: services, agents, the router."""
        return (*(one.name for one in self.services), *(one.name for one in self.agents), ROUTER)

    def without_mcp(self) -> MeshFile:
        """The same mesh without its MCP servers."""
        agents = tuple(replace(agent, tools=()) for agent in self.agents)
        return replace(self, agents=agents, mcp_servers={})

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
    for name, server in servers_named(spec.tools, file.mcp_servers):
        if name == server.name:
            found[server.name] = server
        elif (known := found.get(server.name, replace(server, only=()))).only is not None:
            found[server.name] = replace(known, only=(*known.only, name))
    return [_denying(server, spec.denied) for server in found.values()]


def _denying(server: McpServer, names: Iterable[str]) -> McpServer:
    """The server without the tools of these names, which may begin with its own."""
    begin = server.full_name("")
    plain = [name.removeprefix(begin) for name in names]
    return replace(server, denied_tools=(*server.denied_tools, *plain)) if plain else server


def servers_named(tools: Iterable[str], servers: Mapping[str, McpServer]) -> list[tuple[str, McpServer]]:
    """Each name with the servers that may be meant: the one of that very name, else all that could have such a tool."""
    pairs: list[tuple[str, McpServer]] = []
    for name in tools:
        meant = [servers[name]] if name in servers else servers.values()
        pairs += [(name, one) for one in meant if name == one.name or name.startswith(one.full_name(""))]
    return pairs
