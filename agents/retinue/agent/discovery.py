"""Tools that are found before they are offered: with `tools_mode="discover"` a model begins with `list_tools` alone.

What was found is read from the conversation itself, so it stays callable in the turns that follow, and after a crash.
The built-in tools and those that call other agents are not hidden.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from retinue.agent.session.history import Entry
from retinue.agent.tools import Invocation, Tool, ToolResult, ToolSpec
from retinue.service.chat import ToolStatus

LIST_TOOLS = "list_tools"
# How many tools one search makes callable, and how many names a search without a hit shows.
MOST_FOUND, MOST_NAMES = 40, 200
_LINE_LENGTH = 300

_SPEC = ToolSpec(
    LIST_TOOLS,
    "Find tools by words of their names or descriptions. Those that are found can be called from then on. "
    "Without a query it finds all of them, as far as there are not too many.",
    {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "Words for what you want to do."}},
        "additionalProperties": False,
    },
)


def discovered(tools: Sequence[Tool], entries: Iterable[Entry]) -> list[Tool]:
    """`list_tools`, and those of `tools` that the conversation has found or called."""
    names: set[str] = set()
    for entry in entries:
        names |= {call.name for call in entry.message.tool_calls}
        if entry.call and entry.call.name == LIST_TOOLS and entry.call.status is ToolStatus.OK:
            names |= {tool.spec.name for tool in search(tools, _query(json.loads(entry.call.arguments)))}

    async def find(invocation: Invocation) -> ToolResult:
        found = search(tools, _query(dict(invocation.arguments)))
        if found:
            return ToolResult("\n".join(["These can be called now:", *map(_line, found)]))
        known = [tool.spec.name for tool in tools[:MOST_NAMES]]
        more = f" and {len(tools) - MOST_NAMES} more" if len(tools) > MOST_NAMES else ""
        return ToolResult(f"Nothing fits. There are: {', '.join(known)}{more}." if known else "There are no tools.")

    return [Tool(_SPEC, find, idempotent=True), *(tool for tool in tools if tool.spec.name in names)]


def search(tools: Sequence[Tool], query: str) -> list[Tool]:
    """The tools that have most of the query's words, best first; those that have none are not among them."""
    wanted = set(_words(query))
    if not wanted:
        return list(tools[:MOST_FOUND])
    scored = [(len(wanted & set(_words(f"{tool.spec.name} {tool.spec.description}"))), tool) for tool in tools]
    hits = sorted((each for each in scored if each[0]), key=lambda each: -each[0])
    return [tool for _, tool in hits[:MOST_FOUND]]


def _query(arguments: object) -> str:
    return str(arguments.get("query", "")) if isinstance(arguments, dict) else ""


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _line(tool: Tool) -> str:
    said = " ".join(tool.spec.description.split())[:_LINE_LENGTH]
    return f"- {tool.spec.name}: {said}" if said else f"- {tool.spec.name}"
