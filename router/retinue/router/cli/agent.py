"""`retinue agent`: who is there, what they are, and what they remember. All of it is asked of the mesh that runs."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retinue.router.cli.options import Json, LogLevel, SessionId
from retinue.router.cli.printing import as_json, out, out_json, out_table
from retinue.router.cli.reach import execute, reached

if TYPE_CHECKING:
    from retinue.service.chat import Message, Plan
    from retinue.service.client.directory import Directory
    from retinue.service.client.peer import Peer
    from retinue.service.registry import Node

app = typer.Typer(help="The agents of the mesh.", no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME", help="An agent's name, or the router's.")]
MARKS = {"pending": "[ ]", "in_progress": "[~]", "done": "[x]"}


@app.command("list")
def list_agents(json_: Json = False, log_level: LogLevel = None) -> None:
    """List the agents, and the router, with their nodes."""
    execute(print_parts(("agent", "router"), json_))


@app.command()
def describe(name: Name, json_: Json = False, log_level: LogLevel = None) -> None:
    """Show what an agent says of itself, and its nodes."""
    execute(_describe(name, json_))


@app.command()
def history(name: Name, session: SessionId = "", json_: Json = False, log_level: LogLevel = None) -> None:
    """Show a session's messages, oldest first."""
    execute(_history(name, session, json_))


@app.command()
def plan(name: Name, session: SessionId = "", json_: Json = False, log_level: LogLevel = None) -> None:
    """Show a session's plan."""
    execute(_plan(name, session, json_))


async def print_parts(kinds: Collection[str], json_: bool) -> None:
    """Prints what is registered of these types."""
    from retinue.service.settings import find_home

    nothing_here = os.environ.get("RETINUE_REGISTRY", "") in ("", "local:") and find_home() is None
    if nothing_here:
        parts = []
    else:
        async with reached(empty=True) as client:
            parts = await read_parts(client.directory, kinds)
    if json_:
        out_json(parts)
        return
    head = ["NAME", "TYPE", "SERVICES", "MODEL", "NODES", "DESCRIPTION"]
    out_table(head, [_row(part) for part in parts])


async def read_parts(directory: Directory, kinds: Collection[str]) -> list[dict[str, Any]]:
    """Everything registered of these types, with its nodes."""
    from retinue.service.errors import UnknownName

    parts: list[dict[str, Any]] = []
    for name, kind in sorted((await directory.names()).items()):
        if kind not in kinds:
            continue
        try:
            nodes = await directory.nodes(name)
        except UnknownName:
            continue  # it left between the two questions
        first = next((node for node in nodes if node.healthy), nodes[0])
        parts.append(
            {
                "name": name,
                "type": kind,
                "services": list(first.services),
                "model": first.model,
                "description": first.description,
                "nodes": [_node(node) for node in nodes],
            }
        )
    return parts


async def _describe(name: str, json_: bool) -> None:
    from retinue.service.wire import to_description

    async with reached() as client:
        nodes = [_node(node) for node in await client.directory.nodes(name)]
        said = await _peer(client, name).describe()
    if json_:
        out_json({**as_json(to_description(said)), "nodes": nodes})
        return
    invokes = "every agent" if said.can_invoke is None else ", ".join(said.can_invoke) or "nobody"
    rows = [
        ("name", said.name),
        ("type", said.type),
        ("description", said.description),
        ("services", ", ".join(said.services)),
        ("model", said.model),
        ("version", said.version),
        ("tools", ", ".join(said.tools)),
        ("may call", invokes),
        *(("node", f"{node['id']} {node['address']} {_health(node)}") for node in nodes),
    ]
    for key, value in rows:
        if value:
            out(f"{key + ':':<13} {value}")


async def _history(name: str, session: str, json_: bool) -> None:
    from retinue.service.wire import to_message

    async with reached() as client:
        messages = await _all_messages(_peer(client, name), session)
    if json_:
        out_json([as_json(to_message(message)) for message in messages])
        return
    for message in messages:
        if message.text:
            out(f"{message.role}: {message.text}")
        for call in message.tool_calls:
            out(f"{message.role}: -> {call.name} {call.arguments}")


async def _plan(name: str, session: str, json_: bool) -> None:
    from retinue.service.wire import to_plan

    async with reached() as client:
        steps = (await _peer(client, name).history(session, page_size=1)).plan
    if json_:
        out_json(as_json(to_plan(steps)))
        return
    print_plan(steps)


def print_plan(steps: Plan) -> None:
    """Prints the steps of a plan, one a line."""
    for step in steps:
        out(f"{MARKS.get(step.status, '[ ]')} {step.task}")


async def _all_messages(peer: Peer, session: str) -> list[Message]:
    messages: list[Message] = []
    token = ""
    while True:
        page = await peer.history(session, page_token=token)
        messages += page.messages
        token = page.next_page_token
        if not token:
            return messages


def _peer(client: Any, name: str) -> Peer:
    from retinue.service.client.peer import Peer

    return Peer(client, name)


def _node(node: Node) -> dict[str, Any]:
    return {"id": node.id, "address": node.address, "healthy": node.healthy}


def _row(part: dict[str, Any]) -> list[str]:
    nodes = ", ".join(f"{node['address']} {_health(node)}" for node in part["nodes"])
    return [part["name"], part["type"], ", ".join(part["services"]), part["model"], nodes, part["description"]]


def _health(node: dict[str, Any]) -> str:
    return "healthy" if node["healthy"] else "unhealthy"
