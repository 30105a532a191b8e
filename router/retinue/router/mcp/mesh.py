"""The mesh as an MCP server: each agent is a tool `ask_<agent>`, each endpoint of a service a tool of its name.

The list follows the registry, and clients are told of each change. It registers nothing and keeps no conversation:
agents do. A call that its client cancels is cancelled on the wire.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from google.protobuf.descriptor_pb2 import MethodOptions
from mcp_types import CallToolResult, ToolAnnotations

from retinue.agent.tools import Invocation, Tool, ToolSpec, tool_name
from retinue.agent.tools.annotation import object_schema
from retinue.agent.tools.endpoint import EndpointTool, ServiceTools
from retinue.router.mcp.offer import ANYTHING, Offered, Progress, offered, said
from retinue.router.mcp.server import ToolServer
from retinue.router.mcp.transport import serve_http, serve_stdio
from retinue.service.background import Background
from retinue.service.chat import Body, Call, Completed, Failed, Reply, RunState, StatusNote, ToolDone, ToolStarted
from retinue.service.client.endpoints import read_options
from retinue.service.client.peer import Peer
from retinue.service.errors import InternalError, Invalid, RegistryUnavailable, UnknownName, cut
from retinue.service.mesh import Mesh
from retinue.service.names import check_session, new_id
from retinue.service.settings import Settings, masked

log = logging.getLogger("retinue.mcp")

ABOUT = "A mesh of agents and services. ask_NAME asks an agent; the other tools call a service directly."
# How often the names are looked at (they are watched, so that a look costs nothing), and how often all that is known
# of the agents is read again, seconds.
_LOOK_S, _READ_S = 0.5, 15.0
_SERVICE_S = 1.0
# Who has the tools of services, for the log: no service can bear that name.
_WHO = "mcp serve"
_FIRST_LOOK_S = 20.0
_DESCRIPTION_BYTES = 700
_MESSAGE = {"type": "string", "minLength": 1, "description": "What to say to the agent. It knows nothing else of you."}
_SESSION = {"type": "string", "description": "The conversation to go on with; `default` is the agent's default one."}


async def serve_mesh(settings: Settings, address: str | None, *, timeout: float, say: Callable[[str], None]) -> None:
    """Serves the mesh of `settings` over HTTP at `address`, or to one client over standard streams, until it is over.

    `timeout` (seconds) is for each call; `say` is told the address. Over standard streams calls that name no session
    are one conversation; over HTTP, where clients cannot be told apart, each begins one and is told its name.
    """
    async with Mesh(settings) as mesh, Background() as background:
        tools = MeshTools(mesh, session=None if address else _new_session())
        empty = f"nothing is registered at {masked(settings.registry)}: is the mesh running?"
        server = ToolServer("retinue", tools, instructions=ABOUT, timeout=timeout, empty=empty)
        background.start(tools.follow(server.changed))
        if address is None:
            await serve_stdio(server)
        else:
            await serve_http(server, address, say)


@dataclass(slots=True)
class _Kept:
    """The endpoints of one service, kept by a task; `settled` once they were looked for."""

    tools: ServiceTools
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    known: Sequence[Tool] = ()
    offered: tuple[Offered, ...] = ()


class MeshTools:
    """An Offer of what is registered. `session` is the conversation of who names none; None: a new one each time."""

    def __init__(self, mesh: Mesh, *, session: str | None) -> None:
        self._client = mesh.client
        self._mesh = mesh
        self._session = session
        self._services: dict[str, _Kept] = {}
        self._agents: tuple[Offered, ...] = ()
        self._offered: dict[str, Offered] | None = None
        self._away: RegistryUnavailable | None = None
        self._looked = asyncio.Event()
        self._told: set[str] = set()

    async def tools(self) -> Sequence[Offered]:
        """What there is now. Raises RegistryUnavailable while the registry was never reached."""
        async with asyncio.timeout(_FIRST_LOOK_S):
            await self._looked.wait()
        if self._offered is None:
            raise self._away or InternalError("the mesh has not been looked at")
        return tuple(self._offered.values())

    async def follow(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Keeps the list as the registry has it and awaits `changed` after each change, until it is cancelled."""
        stale = asyncio.Event()
        stop_listening = self._client.directory.listen(lambda *_: stale.set())
        clock = asyncio.get_running_loop().time
        names: Mapping[str, str] = {}
        read_at = -_READ_S
        try:
            async with Background() as background:
                while True:
                    try:
                        now = await self._client.directory.names()
                        if now != names or stale.is_set() or clock() - read_at >= _READ_S:
                            stale.clear()
                            self._agents = await self._read_agents(now)
                            await self._keep_services(now, background)
                            names, read_at = now, clock()
                        self._away = None
                        if await self._merge() and self._looked.is_set():
                            await changed()
                    except RegistryUnavailable as error:
                        if self._away is None:
                            log.warning("%s; what was known is still offered", error)
                        self._away = error
                    self._looked.set()
                    await asyncio.sleep(_LOOK_S)
        finally:
            stop_listening()

    async def _read_agents(self, names: Mapping[str, str]) -> tuple[Offered, ...]:
        agents = []
        for name, kind in sorted(names.items()):
            if kind in ("agent", "router"):
                try:
                    nodes = await self._client.directory.nodes(name)
                except UnknownName:
                    continue  # it left between the two questions
                first = next((node for node in nodes if node.healthy), nodes[0])
                agents.append(self._ask(name, kind, first.description))
        return tuple(agents)

    async def _keep_services(self, names: Mapping[str, str], background: Background) -> None:
        """Opens the services that are new and closes those that are gone."""
        there = {name for name, kind in names.items() if kind == "service"}
        for name in self._services.keys() - there:
            if task := self._services.pop(name).task:
                task.cancel()
        for name in sorted(there - self._services.keys()):
            kept = self._services[name] = _Kept(ServiceTools([name], _WHO))
            kept.task = background.start(self._hold(name, kept))
        for kept in self._services.values():
            await kept.settled.wait()

    async def _hold(self, name: str, kept: _Kept) -> None:
        """Has the endpoints of a service open until it is cancelled; one that cannot be read is tried again."""
        try:
            async with kept.tools.mounted(self._mesh):
                kept.settled.set()
                while True:
                    await kept.tools.tools()
                    await asyncio.sleep(_SERVICE_S)
        except Invalid as error:
            log.error("%s; the tools of %s are left out", error, name)
        finally:
            kept.settled.set()

    async def _merge(self) -> bool:
        """Makes one list of all; whether it is another one than before."""
        merged: dict[str, Offered] = {}
        for name, kept in sorted(self._services.items()):
            known = kept.tools.known()
            if known is not kept.known:
                kept.known, kept.offered = known, await self._endpoints(name, known)
        for each in (*self._agents, *(one for _, kept in sorted(self._services.items()) for one in kept.offered)):
            # Names are cut at 64 characters, and two may become one.
            if each.spec.name not in merged:
                merged[each.spec.name] = each
            elif each.spec.name not in self._told:
                self._told.add(each.spec.name)
                log.error("two tools would be named %s: the second is left out", each.spec.name)
        before, self._offered = self._offered, merged
        return before is None or _shown(before) != _shown(merged)

    async def _endpoints(self, service: str, tools: Sequence[Tool]) -> tuple[Offered, ...]:
        """The endpoints of a service with what they declare of their effects; nothing is asked that is not known."""
        try:
            endpoints = await self._client.endpoints(service)
        except UnknownName:
            return ()  # it left just now
        made = []
        for each in tools:
            hints = ANYTHING
            if isinstance(each, EndpointTool):
                endpoint = endpoints.find(each.place.removeprefix(each.service))
                method = endpoint.input.file.pool.FindServiceByName(endpoint.service).methods_by_name[endpoint.method]
                hints = _hints(read_options(method))
            made.append(offered(each, hints))
        return tuple(made)

    def _ask(self, name: str, kind: str, description: str) -> Offered:
        who = f"the agent {name}" if kind == "agent" else f"the router {name}, which passes it on to the right agent"
        quoted = json.dumps(cut(" ".join(description.split()), _DESCRIPTION_BYTES), ensure_ascii=False)
        about = f"Ask {who}, in words; it answers in words." + (f" It says of itself: {quoted}" if description else "")
        schema = object_schema({"message": _MESSAGE, "session": _SESSION}, ["message"])

        async def ask(invocation: Invocation, progress: Progress) -> CallToolResult:
            given = dict(invocation.arguments)
            named = given.get("session", "")
            session = check_session(named) if named else self._session or _new_session()
            call = Call(session=session, request_id=new_id(), envelope=replace(invocation.envelope, to=name))
            async with aclosing(Peer(self._client, name).stream(given["message"], call)) as events:
                async for event in events:
                    if isinstance(event.body, Completed):
                        new = "" if named or self._session else f"(session: {session})"
                        return _answer(event.body.reply, new)
                    if isinstance(event.body, Failed):
                        raise event.body.error
                    if word := _word(name, event.body):
                        await progress(word)
            raise InternalError(f"{name} ended its stream without an end to the turn")

        return Offered(ToolSpec(tool_name("ask", name), about, schema), ANYTHING, ask)


def _answer(reply: Reply, note: str) -> CallToolResult:
    """A reply as a result: its text alone, and below it what else the client must know."""
    notes = [note] if note else []
    failed = False
    match reply.state:
        case RunState.COMPLETED:
            pass
        case RunState.INCOMPLETE:
            notes.append(f"(incomplete: the limit of {reply.reason} was met)")
        case RunState.WAITING:
            for pending in reply.pending:
                fields = json.dumps({"run_id": reply.run_id, "pending_id": pending.id, "approved": True})
                how = f"retinue call {reply.agent} Agent.Resolve '{fields}'"
                notes.append(f"(waits for {pending.kind} of {pending.name} {pending.arguments}: {how})")
        case state:
            failed = True
            notes.append(f"({state.name.lower()}{f': {reply.reason}' if reply.reason else ''})")
    return said(reply.text, *notes, failed=failed)


def _word(agent: str, body: Body) -> str:
    """A word on how a turn comes along; empty for what is not worth one."""
    match body:
        case ToolStarted(name=name):
            return f"{agent} calls {name}"
        case ToolDone(call=call):
            return f"{call.name}: {call.status.name}"
        case StatusNote(text=text):
            return text
    return ""


def _hints(options: MethodOptions) -> ToolAnnotations:
    """What a method's declaration promises; nothing where it declares nothing."""
    reads = options.idempotency_level == MethodOptions.NO_SIDE_EFFECTS
    again = reads or options.idempotency_level == MethodOptions.IDEMPOTENT
    return ToolAnnotations(
        read_only_hint=reads, idempotent_hint=again, destructive_hint=not reads, open_world_hint=True
    )


def _shown(offered: Mapping[str, Offered]) -> dict[str, tuple[ToolSpec, ToolAnnotations]]:
    return {name: (each.spec, each.hints) for name, each in offered.items()}


def _new_session() -> str:
    return new_id("mcp-")[:20]
