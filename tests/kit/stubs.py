"""A mesh in memory with the router and agents that only repeat what they hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from retinue.agent.model.scripted import Scripted
from retinue.router.router import Router
from retinue.service.chat import Call, Reply, ToolCall
from retinue.service.testing import LocalMesh, Stub
from retinue.service.usage import Usage

TASKS = "Keeps the task list: who has to do what."
PROJECTS = "Plans projects and starts them."
COMMS = "Sends messages to people."
EVERYONE = {"task-mgr": TASKS, "project-mgr": PROJECTS, "comms-mgr": COMMS}


@dataclass
class Heard:
    """What the stub agents were asked, as (agent, message)."""

    asked: list[tuple[str, str]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def stub(self, name: str, description: str = "") -> Stub:
        def answer(message: str, call: Call) -> Reply:
            self.asked.append((name, message))
            self.calls.append(call)
            return Reply(
                text=f"{name} heard: {message}",
                agent=name,
                session=call.session,
                run_id=f"run-{name}",
                tool_calls=(ToolCall(id="c1", name=f"{name}_tool"),),
                usage=Usage(input=10, model_calls=1),
            )

        return Stub(name, answer, description=description)


@asynccontextmanager
async def office(
    heard: Heard, model: Scripted | None = None, agents: dict[str, str] = EVERYONE
) -> AsyncIterator[LocalMesh]:
    """A mesh with the router and a stub for each agent."""
    async with asyncio.timeout(20), LocalMesh() as mesh:
        stubs = [heard.stub(name, description) for name, description in agents.items()]
        async with mesh.serve(*stubs), mesh.serve(Router(model=model or Scripted())):
            yield mesh


@asynccontextmanager
async def served(*stubs: Stub) -> AsyncIterator[LocalMesh]:
    """A mesh with the router and these stubs."""
    async with asyncio.timeout(20), LocalMesh() as mesh, mesh.serve(*stubs), mesh.serve(Router(model=Scripted())):
        yield mesh
