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


def delegate_tool(peers: Peers, services: Collection[str], run_errand: RunErrand, tasks: Tasks) -> Tool:
    """The tool of one run, whose agent uses `services`; what it does not wait for is noted in `tasks`."""

    async def run(invocation: Invocation) -> ToolResult:
        to = str(invocation.arguments.get("to", "")).strip()
        wait = bool(invocation.arguments.get("wait", True))
        message = with_context(invocation.arguments["task"], invocation.arguments.get("context", ""))
        if is_name(to) and await peers.is_agent(to):
            return await ask(to, message, invocation, wait=wait)
        errand = Errand(message=message, wait=wait)
        if to in services:
            return await send(replace(errand, service=to), invocation, to)
        registered = await peers.registered() if to else {}
        if to in registered:
            return refused(f"{to} is a {registered[to]}, not an agent, and {invocation.agent} has no part in it")
        if to and (close := nearest(to, registered, cutoff=0.75)):
            return ToolResult(f"no agent is named {to!r}; did you mean {' or '.join(close)}?", ToolStatus.ERROR)
        return await send(replace(errand, role=to), invocation, to)

    async def ask(to: str, message: str, invocation: Invocation, *, wait: bool) -> ToolResult:
        if to == invocation.agent:
            invocation.envelope.check(to)  # a circle of one, refused in the words of any other
        if not peers.allows(to):
            return refused(f"{to} is not among the agents that {invocation.agent} may call")
        if wait:
            return await peers.ask(to, message, invocation)
        return await tasks.note(await peers.detach(to, message, invocation), invocation)

    async def send(errand: Errand, invocation: Invocation, to: str) -> ToolResult:
        if invocation.again:
            # Unlike an agent's, a sub-agent's run is found by nobody: it may have done all or nothing.
            return ToolResult(INTERRUPTED, ToolStatus.UNKNOWN)
        reply = await run_errand(errand, invocation)
        return _answer(reply, to, nobody=bool(errand.role)) if errand.wait else await tasks.note(reply, invocation)

    # A crash may repeat it: an agent knows the request by its id, and gives the answer it gave before.
    return Tool(SPEC, run, idempotent=True)


def _answer(reply: Reply, to: str, *, nobody: bool) -> ToolResult:
    """A sub-agent's reply, which says that one answered and, where a name was given, that nobody bears it."""
    note = f"no agent named {to!r} is registered; a sub-agent answered" if nobody else "a sub-agent answered"
    unfinished = "" if reply.state is RunState.COMPLETED else f"; it did not finish: {reply.reason}"
    return ToolResult(f"[{note}{unfinished}]\n{reply.text}", run_id=reply.run_id)
