"""What a server lists: all pages of it, and of each entry what makes it a tool, or why it is none.

An entry that cannot be a tool is left out with a line in the log; it never costs the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft202012Validator, validator_for

from retinue.agent.mcp.link import Request, RpcRefused
from retinue.agent.mcp.server import McpServer
from retinue.agent.model.schemas import Unreducible, rooted
from retinue.agent.tools import ToolSpec
from retinue.service.errors import cut

log = logging.getLogger("retinue.mcp")

MOST_PAGES, MOST_TOOLS = 100, 1000
# Bytes of a description that a model is shown: servers may write whole manuals there.
DESCRIPTION_BYTES = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """A tool of a server under the server's own name of it, as a model is told of it. `idempotent`: as it says."""

    name: str
    spec: ToolSpec
    idempotent: bool


async def read_tools(server: McpServer, request: Request) -> dict[str, Listed]:
    """All tools of the server that its settings allow, by the server's names. RpcRefused when it lists none at all."""
    found: dict[str, Listed] = {}
    for raw in await _pages(server, request):
        # Checking a schema takes long enough for hundreds of them to be felt by others.
        await asyncio.sleep(0)
        name = raw.get("name") if isinstance(raw, Mapping) else None
        if not isinstance(name, str) or not name:
            log.warning("MCP server %s lists a tool without a name; it is left out", server.name)
        elif name in found:
            log.warning("MCP server %s lists %r twice; the later one is left out", server.name, name)
        elif server.allows(name) and (listed := _listed(server, name, raw)):
            found[name] = listed
    return found


async def _pages(server: McpServer, request: Request) -> list[Any]:
    """The entries of all pages, as they come. A cursor that comes again ends the list, and so do too many."""
    entries: list[Any] = []
    cursors: set[str] = set()
    cursor = None
    for _ in range(MOST_PAGES):
        page = await request("tools/list", {} if cursor is None else {"cursor": cursor})
        tools = page.get("tools")
        if not isinstance(tools, list):
            raise RpcRefused("it answered tools/list with no list of tools")
        entries += tools
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return entries
        if cursor in cursors:
            log.warning("MCP server %s gives the cursor %r again; its list ends there", server.name, cut(cursor, 80))
            return entries
        if len(entries) >= MOST_TOOLS:
            break
        cursors.add(cursor)
    log.warning("MCP server %s lists too much: what follows its first %d tools is left out", server.name, len(entries))
    return entries


def _listed(server: McpServer, name: str, raw: Mapping[str, Any]) -> Listed | None:
    schema = raw.get("inputSchema", {"type": "object"})
    description = raw.get("description") or raw.get("title") or ""
    hints = raw.get("annotations")
    if wrong := _fault(schema):
        log.warning("MCP server %s: its tool %r is left out for its schema: %s", server.name, name, cut(wrong, 300))
        return None
    spec = ToolSpec(
        server.full_name(name),
        cut(description, DESCRIPTION_BYTES) if isinstance(description, str) else "",
        schema,
    )
    told = [hints.get(hint) is True for hint in ("readOnlyHint", "idempotentHint")] if isinstance(hints, dict) else []
    return Listed(name, spec, idempotent=any(told))


def _fault(schema: Any) -> str:
    """Why no server of models would take the schema; empty when some may."""
    if not isinstance(schema, dict):
        return "it is no object"
    try:
        rooted(schema)
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
        for ref in _references(schema):
            _resolve(ref, schema)
    except (Unreducible, LookupError) as error:
        return str(error)
    except SchemaError as error:
        return f"it is no JSON Schema: {error.message}"
    except (RecursionError, TypeError, AttributeError) as error:
        return f"it cannot be read: {error!r}"
    return ""


def _references(schema: Any) -> Iterator[str]:
    for key, value in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if key == "$ref" and isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            yield from _references(value)


def _resolve(ref: str, schema: Any) -> None:
    """LookupError when a reference points at nothing inside the schema: what lies elsewhere is never fetched."""
    target: Any = schema
    steps = ref.removeprefix("#").split("/")[1:]
    for step in (each.replace("~1", "/").replace("~0", "~") for each in steps):
        if isinstance(target, list) and step.isdecimal() and int(step) < len(target):
            target = target[int(step)]
        elif isinstance(target, dict) and step in target:
            target = target[step]
        else:
            raise LookupError(f"it refers to {ref}, which is not there")
    if ref != "#" and not ref.startswith("#/"):
        raise LookupError(f"it refers to {ref}, which is no place inside it")
