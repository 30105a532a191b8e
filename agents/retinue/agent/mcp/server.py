"""The settings of one MCP server: how it is reached, how long a call of it may take, and which of its tools count.

They are data: nothing is started here, and no tool is known before the server has listed it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

from retinue.agent.tools import tool_name
from retinue.service.errors import Invalid
from retinue.service.names import did_you_mean

# Takes a JSON-RPC 2.0 request (`tools/list` or `tools/call`) as an object, and returns the response.
Rpc: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]

TIMEOUT_S = 60.0
# How the keys of other programs' files are spelt here.
_OTHERS = {"allowedTools": "allowed_tools", "deniedTools": "denied_tools"}


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server that an agent uses, by exactly one of `command`, `url` (streamable HTTP) and `rpc`.

    A command gets `args`, the working folder `cwd`, and as its environment a few harmless variables (PATH, HOME and
    the like) and `env`; the commands `python` and `retinue` are
    this interpreter and its own. A URL is sent `headers`. `rpc` is any other way:
    an async function that answers the JSON-RPC requests `tools/list` and `tools/call`.

    `timeout` (seconds) is for each call, and for a start. `allowed_tools` (None: all) and `denied_tools` are exact
    names as the server lists them; `only` are exact names as a model calls them, `{server}_{tool}`. All three are
    enforced when a tool runs, too. Raises Invalid for settings that cannot work.
    """

    name: str
    _: KW_ONLY
    command: str = ""
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | Path = ""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    rpc: Rpc | None = None
    timeout: float = TIMEOUT_S
    allowed_tools: Sequence[str] | None = None
    denied_tools: Sequence[str] = ()
    only: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not tool_name(self.name).strip("_-"):
            raise self._wrong("name", "give it a name with a letter or a digit in it")
        ways = [way for way in ("command", "url", "rpc") if getattr(self, way)]
        if len(ways) != 1:
            raise self._wrong(ways[1] if ways else "command", "use one of command, url and rpc")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise self._wrong("url", f"use http://... or https://..., not {self.url!r}")
        timeout = self.timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
            raise self._wrong("timeout", f"use a number of seconds above 0, not {timeout!r}")
        self._check_types()

    def _check_types(self) -> None:
        for key in ("command", "url", "cwd"):
            if "\0" in str(getattr(self, key)):
                raise self._wrong(key, "a NUL is no part of it")
        for key in ("args", "allowed_tools", "denied_tools", "only"):
            value = getattr(self, key)
            if value is not None and (isinstance(value, str) or not all(isinstance(one, str) for one in value)):
                raise self._wrong(key, f"use a list of texts, not {value!r}")
        for key in ("env", "headers"):
            value = getattr(self, key)
            if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in (*value, *value.values())):
                raise self._wrong(key, "use a table of texts")

    def full_name(self, tool: str) -> str:
        """The name under which a model calls a tool of this server."""
        return tool_name(self.name, tool)

    def allows(self, tool: str) -> bool:
        """Whether the agent may use the tool of that name, as the server lists it."""
        if tool in self.denied_tools or (self.allowed_tools is not None and tool not in self.allowed_tools):
            return False
        return self.only is None or self.full_name(tool) in self.only

    def _wrong(self, key: str, what: str) -> Invalid:
        return Invalid(f"MCP server {self.name!r}: {key}: {what}", field=key)


def from_table(name: str, table: Mapping[str, Any], *, folder: Path) -> McpServer:
    """The server that a table of a file describes, such as `[mcpServers.NAME]`; its `cwd` is as seen from `folder`.

    Takes the keys of McpServer, also as Eunice spells them. Raises Invalid, naming the key and the nearest one.
    """
    known = {each.name for each in fields(McpServer)} - {"name", "rpc", "only"}
    given = {_OTHERS.get(key, key): value for key, value in table.items()}
    for key in given:
        if key not in known:
            raise Invalid(f"MCP server {name!r}: unknown key {key!r}{did_you_mean(key, known)}", field=key)
    for key in ("command", "url", "cwd"):
        if not isinstance(given.get(key, ""), str):
            raise Invalid(f"MCP server {name!r}: {key}: use a text, not {given[key]!r}", field=key)
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return McpServer(name, **{**given, "cwd": folder / given.get("cwd", "")})
