"""The built-in tool `delegate`: a registered agent when there is one of that name, else an ephemeral sub-agent.

Two cases are errors and never a quiet sub-agent: a name that is nearly a registered one, and a registry that cannot
be reached. A sub-agent never gets a tool that its parent does not have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace

from retinue.agent.peers import Peers, refused, with_context
from retinue.agent.session.history import INTERRUPTED
from retinue.agent.tasks import Tasks
from retinue.agent.tools import Invocation, Tool, ToolResult, ToolSpec
from retinue.service.chat import Reply, RunState, ToolStatus
from retinue.service.names import is_name, nearest

SPEC = ToolSpec(
    "delegate",
    "Give a task to another agent, named by `to`, and get its answer. Without `to`, or with a role that no agent "
    "bears (such as researcher), a fresh helper with your own tools does it; it knows nothing but the task.",
    {
        "type": "object",
        "properties": {
            "task": {"type": "string", "minLength": 1, "description": "What is to be done, in full."},
            "to": {"type": "string", "description": "The agent's name; leave it out for a helper."},
            "context": {"type": "string", "description": "What it needs to know for that."},
            "wait": {
                "type": "boolean",
                "description": "false: go on at once and get the answer later, by check_task or wait_task.",
            },
        },
        "required": ["task"],
        "additionalProperties": False,
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What an ephemeral sub-agent is to do: the message, the role it plays, and the one service it may use, if any.

    With `wait` false its run goes on by itself.
    """

    message: str
    role: str = ""
    service: str = ""
    wait: bool = True


# Runs an errand as a sub-run of the one that made the call.
RunErrand = Callable[[Errand, Invocation], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Delegation:
    """Delegating from one run, whose agent uses `services`; what it does not wait for is noted in `tasks`."""

    peers: Peers
    services: Collection[str]
    run_errand: RunErrand
    tasks: Tasks

    def tool(self) -> Tool:
        """The tool `delegate`. A crash may repeat it: an agent knows the request by its id, and answers as before."""
        return Tool(SPEC, self._run, idempotent=True)

    async def _run(self, invocation: Invocation) -> ToolResult:
        to = self.peers.registered_as(str(invocation.arguments.get("to", "")).strip())
        message = with_context(invocation.arguments["task"], invocation.arguments.get("context", ""))
        if is_name(to) and to not in self.services and await self.peers.is_agent(to):
            return await self._ask(to, message, invocation)
        if to in self.services:
            return await self._send(Errand(message=message, service=to), invocation)
        registered = await self.peers.registered() if to else {}
        if to in registered:
            return refused(f"{to} is a {registered[to]}, not an agent, and {invocation.agent} has no part in it")
        if to and (close := nearest(to, registered, cutoff=0.75)):
            return ToolResult(f"no agent is named {to!r}; did you mean {' or '.join(close)}?", ToolStatus.ERROR)
        return await self._send(Errand(message=message, role=to), invocation)

    async def _ask(self, to: str, message: str, invocation: Invocation) -> ToolResult:
        if to == invocation.agent:
            invocation.envelope.check(to)  # a circle of one, refused in the words of any other
        if not self.peers.allows(to):
            return refused(f"{to} is not among the agents that {invocation.agent} may call")
        if _waits(invocation):
            return await self.peers.ask(to, message, invocation)
        return await self.tasks.note(await self.peers.detach(to, message, invocation), invocation)

    async def _send(self, errand: Errand, invocation: Invocation) -> ToolResult:
        if invocation.again:
            # Unlike an agent's, a sub-agent's run is found by nobody: it may have done all or nothing.
            return ToolResult(INTERRUPTED, ToolStatus.UNKNOWN)
        if _waits(invocation):
            return _answer(await self.run_errand(errand, invocation), errand.role)
        return await self.tasks.note(await self.run_errand(replace(errand, wait=False), invocation), invocation)


def _waits(invocation: Invocation) -> bool:
    return bool(invocation.arguments.get("wait", True))


def _answer(reply: Reply, role: str) -> ToolResult:
    """A sub-agent's reply, which says that one answered and, where a name was given, that nobody bears it."""
    note = f"no agent named {role!r} is registered; a sub-agent answered" if role else "a sub-agent answered"
    unfinished = "" if reply.state is RunState.COMPLETED else f"; it did not finish: {reply.reason}"
    return ToolResult(f"[{note}{unfinished}]\n{reply.text}", run_id=reply.run_id)
