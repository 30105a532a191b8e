"""Which registered agents an agent may call, what its prompt says of them, and the call itself.

The list that the prompt shows is kept fresh beside the turns, so that a turn costs the same with one agent in the
mesh as with a thousand. Whether a call is allowed is decided when it is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from retinue.agent.prompt import MOST_PEERS, PeerLine
from retinue.agent.tools import Invocation, Tool, ToolResult, ToolSpec, tool_name
from retinue.service.background import Background
from retinue.service.chat import Call, Reply, RunState, ToolStatus
from retinue.service.client.directory import Directory
from retinue.service.errors import MeshError, RegistryUnavailable, UnknownName
from retinue.service.mesh import Mesh
from retinue.service.names import DEFAULT_SESSION

log = logging.getLogger("retinue.agent")

FIRST_LOOK_S = 2.0
# How old may be what the prompt says of an agent that is registered under the same name all the time, seconds.
FRESH_S = 30.0


class Peers:
    """The other agents of the mesh as one agent sees them. `can_invoke` None: all of them; empty: none.

    A mapping has the names that they are called by here, each with the one that they are registered under.
    """

    def __init__(self, agent: str, can_invoke: Collection[str] | Mapping[str, str] | None) -> None:
        self._agent = agent
        self._called = (
            dict(can_invoke) if isinstance(can_invoke, Mapping) else {name: name for name in can_invoke or ()}
        )
        self._can_invoke = None if can_invoke is None else frozenset(self._called.values())
        self._lines: tuple[PeerLine, ...] = ()
        self._mesh: Mesh | None = None
        # A tool `invoke_<agent>` for each agent that can_invoke names.
        self.invoke_tools = [
            self._invoke_tool(called, name) for called, name in sorted(self._called.items()) if name != agent
        ]

    @asynccontextmanager
    async def mounted(self, mesh: Mesh) -> AsyncIterator[None]:
        """Follows the list of agents for as long as the agent serves."""
        self._mesh = mesh
        if self._can_invoke is not None and not self._can_invoke:
            yield
            return
        async with Background() as background:
            looked = asyncio.Event()
            background.start(self._follow(mesh, looked))
            try:
                async with asyncio.timeout(FIRST_LOOK_S):
                    await looked.wait()
            except TimeoutError:
                log.warning("%s: the list of agents is not there yet; going on without it", self._agent)
            yield

    def lines(self) -> Sequence[PeerLine]:
        """What the prompt says of the agents that may be called."""
        return self._lines

    def registered_as(self, called: str) -> str:
        """The name under which an agent is registered that is called so here."""
        return self._called.get(called, called)

    def allows(self, name: str) -> bool:
        """Whether this agent may call an agent of that name."""
        return name != self._agent and (self._can_invoke is None or name in self._can_invoke)

    async def registered(self) -> Mapping[str, str]:
        """Every registered name with its type; RegistryUnavailable when nobody can say."""
        return await self._entered().client.directory.names()

    async def is_agent(self, name: str) -> bool:
        """Whether an agent of that name is registered now, also one that has only just come, or is being restarted."""
        directory = self._entered().client.directory
        try:
            nodes = await directory.nodes(name)
        except UnknownName:
            # The call waits for its next node: no sub-agent stands in for it meanwhile.
            return directory.restarting(name)
        return any(node.type == "agent" for node in nodes)

    async def ask(self, to: str, message: str, invocation: Invocation) -> ToolResult:
        """Asks agent `to` by RPC as the run behind `invocation`; what it answers is the result."""
        reply = await self._entered().peer(to).ask(message, _call(invocation))
        text = reply.text
        if reply.state is not RunState.COMPLETED:
            text = f"{text}\n[{to} did not finish: {reply.state.name} {reply.reason}]".strip()
        return ToolResult(text, run_id=reply.run_id, usage=reply.usage)

    async def detach(self, to: str, message: str, invocation: Invocation) -> Reply:
        """As `ask`, without waiting: the reply says how the run of `to` stands now."""
        return await self._entered().peer(to).ask(message, replace(_call(invocation), detach=True))

    def _invoke_tool(self, called: str, name: str) -> Tool:
        async def run(invocation: Invocation) -> ToolResult:
            message = with_context(invocation.arguments["task"], invocation.arguments.get("context", ""))
            return await self.ask(name, message, invocation)

        spec = ToolSpec(
            tool_name("invoke", called),
            f"Give a task to the agent {name} and get its answer.",
            {
                "type": "object",
                "properties": {
                    "task": {"type": "string", "minLength": 1, "description": "What it is to do, in full."},
                    "context": {"type": "string", "description": "What it needs to know for that."},
                },
                "required": ["task"],
                "additionalProperties": False,
            },
        )
        return Tool(spec, run, idempotent=True)

    async def _follow(self, mesh: Mesh, looked: asyncio.Event) -> None:
        directory = mesh.client.directory
        while True:
            try:
                names = await directory.names()
                self._lines = await self._describe(directory, names)
                looked.set()
                await directory.names_changed(since=names, within_s=FRESH_S)
            except RegistryUnavailable as error:
                log.warning("%s: the list of agents stays as it is: %s", self._agent, error)
                looked.set()
                await asyncio.sleep(1.0)

    async def _describe(self, directory: Directory, names: Mapping[str, str]) -> tuple[PeerLine, ...]:
        allowed = sorted(name for name, kind in names.items() if kind == "agent" and self.allows(name))
        lines: list[PeerLine] = []
        for name in allowed[:MOST_PEERS]:
            nodes = await directory.look(name, age_s=FRESH_S)
            if nodes:
                lines.append(PeerLine(name, nodes[0].description, nodes[0].services))
        return (*lines, *(PeerLine(name) for name in allowed[MOST_PEERS:]))

    def _entered(self) -> Mesh:
        if self._mesh is None:
            raise MeshError(f"{self._agent} is not serving: enter it with `async with`")
        return self._mesh


def _call(invocation: Invocation) -> Call:
    """The call of a delegate, which a repeat of the same invocation makes again under the same id."""
    return Call(
        session=child_session(invocation),
        request_id=f"{invocation.run_id}.{invocation.id}",
        envelope=invocation.envelope,
    )


def child_session(invocation: Invocation) -> str:
    """The delegate's session: parallel calls to one peer never share one, nor do two users."""
    own = f"{invocation.session or DEFAULT_SESSION}~{invocation.agent}"
    return own if invocation.ordinal == 1 else f"{own}.{invocation.ordinal}"


def with_context(task: str, context: str) -> str:
    """The message of a delegate: the task verbatim, and the context below it under a heading."""
    return f"{task}\n\n## Context\n{context}" if context else task


def refused(text: str) -> ToolResult:
    """The result of a call that is not allowed."""
    return ToolResult(text, ToolStatus.REFUSED)
