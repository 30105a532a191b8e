"""The endpoints of the services that an agent is assigned, as its tools.

What a service has is learnt by reflection, once for each set of its nodes. An agent's own endpoints are never among
its tools, and neither is any agent's: agents are reached by delegate.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retinue.agent.tools import Handler, Invocation, Tool, ToolResult, ToolSpec, tool_name
from retinue.agent.tools.schema import schema_of
from retinue.service.background import Background
from retinue.service.chat import ToolStatus
from retinue.service.errors import InternalError, Invalid, MeshError
from retinue.service.names import check_name
from retinue.v1 import agent_pb2

if TYPE_CHECKING:
    from retinue.service.client import Client
    from retinue.service.client.directory import Nodes
    from retinue.service.client.endpoints import Endpoint, Endpoints
    from retinue.service.mesh import Mesh

log = logging.getLogger("retinue.tools")

AGENT = agent_pb2.DESCRIPTOR.services_by_name["Agent"].full_name
# How often a service that is not there is looked for, and how long a turn waits for the answer, seconds.
LOOK_S = 1.0
# How much of a stream becomes a tool's result.
MOST_ITEMS, MOST_BYTES = 64, 64 * 1024


class ServiceTools:
    """A Toolset of the endpoints of `services` for `agent`, named as in `task_Task_Create`.

    A service that is not there when the agent starts is looked for again when the tools are asked for; a warning
    says so once. When the nodes of a service change it is reflected again in the background.

    Entering raises Invalid, naming both endpoints, when two of them would be tools of one name.
    """

    def __init__(self, services: Sequence[str], agent: str) -> None:
        self._agent = agent
        self._services = tuple(dict.fromkeys(check_name(name, field="services") for name in services if name != agent))
        self._client: Client | None = None
        self._read: dict[str, Endpoints] = {}
        self._known: dict[str, tuple[EndpointTool, ...]] = {}
        self._tools: tuple[Tool, ...] = ()
        self._warned: set[str] = set()
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._next_look = 0.0

    def mounted(self, mesh: Mesh) -> AbstractAsyncContextManager[None]:
        """Learns what is there and keeps it fresh for as long as the block runs. Entered once."""
        return self._mounted(mesh.client)

    @asynccontextmanager
    async def _mounted(self, client: Client) -> AsyncIterator[None]:
        stop_listening = client.directory.listen(self._hear)
        try:
            for service, endpoints in await self._look(client):
                self._adopt(client, service, endpoints)
            async with Background() as background:
                background.start(self._refresh(client))
                self._client = client
                yield
        finally:
            stop_listening()
            self._client = None

    async def tools(self) -> Sequence[Tool]:
        """The tools as they are now. Only a service that was never there is asked for, at most once a second."""
        client = self._client
        if client is None:
            raise InternalError(f"{self._agent}: the tools of its services need a mesh; serve it with mesh.serve")
        now = asyncio.get_running_loop().time()
        if len(self._known) < len(self._services) and now >= self._next_look:
            self._next_look = now + LOOK_S
            for service, endpoints in await self._look(client):
                self._adopt_late(client, service, endpoints)
        return self._tools

    def known(self) -> Sequence[Tool]:
        """The tools that are known now, without a look for more; none while not entered."""
        return self._tools

    async def _look(self, client: Client) -> list[tuple[str, Endpoints]]:
        """The services that were missing and are there now."""
        missing = [service for service in self._services if service not in self._known]
        found = await asyncio.gather(*(self._reflect(client, service) for service in missing))
        return [(service, endpoints) for service, endpoints in zip(missing, found, strict=True) if endpoints]

    async def _reflect(self, client: Client, service: str) -> Endpoints | None:
        try:
            async with asyncio.timeout(LOOK_S):
                endpoints = await client.endpoints(service)
        except (MeshError, TimeoutError) as error:
            if service not in self._warned:
                self._warned.add(service)
                reason = error if isinstance(error, MeshError) else f"no answer within {LOOK_S:g} s"
                log.warning("%s: service %s cannot be read (%s); it is tried again", self._agent, service, reason)
            return None
        self._warned.discard(service)
        return endpoints

    def _adopt(self, client: Client, service: str, endpoints: Endpoints) -> None:
        if self._read.get(service) is not endpoints:
            self._merge(service, _tools_of(client, service, endpoints))
            self._read[service] = endpoints
            log.info("%s: service %s gives %d tools", self._agent, service, len(self._known[service]))

    def _adopt_late(self, client: Client, service: str, endpoints: Endpoints) -> None:
        """Once the agent serves, a clash costs the newcomer its tools, not the agent its life."""
        try:
            self._adopt(client, service, endpoints)
        except Invalid as error:
            log.error("%s; %s goes on without the tools of %s", error, self._agent, service)
            self._merge(service, ())
            self._read[service] = endpoints

    def _merge(self, service: str, tools: tuple[EndpointTool, ...]) -> None:
        known = self._known | {service: tools}
        merged: dict[str, EndpointTool] = {}
        for tool in (tool for name in self._services for tool in known.get(name, ())):
            # One service: two packages with a handler of the same name. Two: names that are cut at 64 characters.
            if clash := merged.get(tool.spec.name):
                both = f"{clash.place} and {tool.place}"
                raise Invalid(f"{self._agent}: {both} would both be the tool {tool.spec.name}", field="services")
            merged[tool.spec.name] = tool
        self._known, self._tools = known, tuple(merged.values())

    def _hear(self, name: str, nodes: Nodes) -> None:
        if nodes and name in self._services:
            self._changed.add(name)
            self._wake.set()

    async def _refresh(self, client: Client) -> None:
        """Reflects what has changed, and again later what could not be read; the old tools stay until then."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            for service in tuple(self._changed):
                if endpoints := await self._reflect(client, service):
                    self._changed.discard(service)
                    self._adopt_late(client, service, endpoints)
            if self._changed:
                await asyncio.sleep(LOOK_S)
                self._wake.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTool(Tool):
    """A tool that is an endpoint of `service`; `place` is where, such as task/office.v1.Task/Create."""

    service: str
    place: str


def _tools_of(client: Client, service: str, endpoints: Endpoints) -> tuple[EndpointTool, ...]:
    """A tool for each endpoint that takes one JSON object; the others are left out with a line in the log."""
    tools = []
    for endpoint in endpoints.all:
        if endpoint.service == AGENT:
            continue
        parameters = schema_of(endpoint.input)
        if endpoint.client_streaming or parameters.get("type") != "object":
            what = "a stream of requests" if endpoint.client_streaming else f"a {endpoint.input.full_name}"
            log.info("%s%s is no tool: it takes %s", service, endpoint.path, what)
            continue
        name = tool_name(service, endpoint.handler, endpoint.method)
        description = endpoint.description or f"{endpoint.handler}.{endpoint.method} of the service {service}."
        tools.append(
            EndpointTool(
                spec=ToolSpec(name, description, parameters),
                handler=_handler(client, service, endpoint),
                idempotent=endpoint.idempotent,
                service=service,
                place=f"{service}{endpoint.path}",
            )
        )
    return tuple(tools)


def _handler(client: Client, service: str, endpoint: Endpoint) -> Handler:
    async def handle(invocation: Invocation) -> ToolResult:
        arguments, envelope = invocation.arguments, invocation.envelope
        try:
            if endpoint.streaming:
                return ToolResult(
                    await _collect(client.call_stream(service, endpoint.path, arguments, envelope=envelope))
                )
            return ToolResult(_json(await client.call(service, endpoint.path, arguments, envelope=envelope)))
        except MeshError as error:
            return ToolResult(f"{error.status.name}: {error.message}", ToolStatus.ERROR)

    return handle


async def _collect(items: AsyncGenerator[Mapping[str, Any]]) -> str:
    """The beginning of a stream as a JSON array, with a note below it when there was more."""
    texts: list[str] = []
    size = 0
    async with aclosing(items):
        async for item in items:
            text = _json(item)
            size += len(text.encode())
            if texts and (len(texts) == MOST_ITEMS or size > MOST_BYTES):
                return f"[{','.join(texts)}]\n(cut after {len(texts)} items; there are more)"
            texts.append(text)
    return f"[{','.join(texts)}]"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
