"""Agents in a process of their own, made to be killed: `python -m kit.victim` with one JSON argument, or forked.

What an agent does is in the message: `pay:7 look:7 helper>post:7 | pay:8` is two steps, the first with three calls
side by side; `pay:7:0.1` takes a tenth of a second, `helper>>post:7` does not wait for the helper and `wait:2` waits
two seconds for all that was given away so. A message without calls is answered at once. The tools `pay` and
`post` must not run twice, `look` may; each run of a tool is a line of the file `effects` in the folder.

`router` is the router, and `task` a plain service that holds what it is asked as many seconds as the title says.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from kit.dialect_models import model_of
from kit.points import Killing, KillingAgent, KillingModel, Turn, kind_of_key, step_of_turn
from office.v1 import task_pb2, task_pb2_grpc
from retinue.agent.limits import Limits
from retinue.agent.model import Model, ModelRequest, WantedCall
from retinue.agent.model.scripted import Scripted, call
from retinue.agent.tools import Invocation, Tool, ToolResult, ToolSpec
from retinue.router.router import Router
from retinue.service.chat import Call
from retinue.service.client import Client
from retinue.service.errors import Invalid
from retinue.service.mesh import Mesh
from retinue.service.part import Part, Service
from retinue.service.server.pulse import Timing
from retinue.service.settings import Settings
from retinue.service.store import Store, open_store

# The line that says so; all others are points.
SERVING = "SERVING"
_ITEM = {
    "type": "object",
    "properties": {"item": {"type": "string"}, "seconds": {"type": "number"}},
    "required": ["item"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a victim is told: where the mesh is, what it serves, where its files are, the lease (s) and the budget.

    `model` is a dialect and the URL of a scripted server, with a blank between; without it the messages are scripts.
    `listen` and `advertise` (host:port) are for one who serves a single name.
    """

    life: ClassVar[str] = "victim"
    registry: str
    store: str
    folder: str
    agents: Sequence[str]
    lease: float = 0.5
    model_calls: int = 25
    model: str = ""
    listen: str = ""
    advertise: str = ""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        return cls(**json.loads(text))


def answer(request: ModelRequest) -> str | Sequence[str | WantedCall]:
    """The next step of the script in the last message; after the last, the results. It depends on nothing else."""
    messages = [each.message for each in request.messages]
    begin = max(at for at, message in enumerate(messages) if message.role == "user")
    steps = messages[begin].text.split("|")
    done = sum(message.role == "assistant" for message in messages[begin:])
    calls = [wanted for word in steps[done].split() if (wanted := _wanted(word))] if done < len(steps) else []
    if calls and request.tools:
        return [f"step {done + 1}", *calls]
    return "done: " + " / ".join(message.text for message in messages[begin:] if message.role == "tool")


def _wanted(word: str) -> WantedCall | None:
    to, arrow, task = word.partition(">")
    if arrow:
        wait = not task.startswith(">")
        return call("delegate", to=to, task=task.lstrip(">"), **({} if wait else {"wait": False}))
    name, *rest = word.split(":")
    if not rest:
        return None
    if name == "wait":
        return call("wait_task", seconds=float(rest[0]))
    return call(name, item=rest[0], **({"seconds": float(rest[1])} if rest[1:] else {}))


def tools_in(folder: Path) -> list[Tool]:
    """The tools, whose effects are lines of `folder`/effects: tool, call id, session, item."""

    def make(name: str, *, idempotent: bool) -> Tool:
        async def run(invocation: Invocation) -> ToolResult:
            item, seconds = invocation.arguments["item"], invocation.arguments.get("seconds", 0.0)
            with step_of_turn(f"tool {name}") as at:
                at("begin")
                await asyncio.sleep(seconds)
                with (folder / "effects").open("a") as effects:
                    effects.write(f"{name}\t{invocation.id}\t{invocation.session}\t{item}\n")
                at("middle")
                await asyncio.sleep(0)
                at("end")
            return ToolResult(f"{name} {item}")

        return Tool(ToolSpec(name, f"Does {name}.", _ITEM), run, idempotent=idempotent)

    return [make("pay", idempotent=False), make("post", idempotent=False), make("look", idempotent=True)]


class HoldingTasks(task_pb2_grpc.TaskServicer):
    """Methods that take as long as the title or the owner says; each that begins is a line of `effects`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def Create(self, request: task_pb2.CreateTaskRequest, context: Any) -> task_pb2.TaskItem:
        with (self._folder / "effects").open("a") as effects:
            effects.write(f"create\t\t\t{request.title}\n")
        Turn(self._folder, "task", Call()).passes("create", request.title)
        await asyncio.sleep(float(request.title))
        return task_pb2.TaskItem(id="1", title=request.title, owner=str(os.getpid()))

    async def List(self, request: task_pb2.ListTasksRequest, context: Any) -> task_pb2.ListTasksResponse:
        await asyncio.sleep(float(request.owner or 0))
        return task_pb2.ListTasksResponse(tasks=[task_pb2.TaskItem(id="1", owner=str(os.getpid()))])

    async def Complete(self, request: task_pb2.CompleteTaskRequest, context: Any) -> task_pb2.TaskItem:
        raise Invalid("that is no task", field="id")

    async def Delete(self, request: task_pb2.DeleteTaskRequest, context: Any) -> task_pb2.DeleteTaskResponse:
        return task_pb2.DeleteTaskResponse()


async def serve(setting: Setting) -> None:
    """Serves until it is told to end, or dies."""
    folder = Path(setting.folder)

    async def part(name: str, stack: AsyncExitStack) -> Part:
        if name == "task":
            return Service(name, task_pb2_grpc.add_TaskServicer_to_server, HoldingTasks(folder))
        model = await _open_model(stack, setting.model)
        if name == "router":
            return Router(name, model=model)
        limits = Limits(model_calls=setting.model_calls)
        made = KillingAgent(
            name, tools=tools_in(folder), model=KillingModel(model), limits=limits, description=f"{name} of the victims"
        )
        made.folder = folder
        return made

    settings = Settings(registry=setting.registry, store=setting.store)
    async with open_store(setting.store) as real:
        store = cast(Store, Killing(real, kind=kind_of_key))
        mesh = Mesh(settings, store=store, timing=Timing(lease=setting.lease, drain=5.0))
        async with mesh:
            mesh.client = cast(
                Client, Killing(mesh.client, kind=lambda name, path, *_: f"{name} {path.rpartition('/')[2]}")
            )
            async with AsyncExitStack() as stack:
                parts = [await part(name, stack) for name in setting.agents]
                async with mesh.serve(*parts, listen=setting.listen or None, advertise=setting.advertise or None):
                    print(SERVING, flush=True)
                    await _end()


async def _open_model(stack: AsyncExitStack, served: str) -> Model:
    if not served:
        return Scripted(then=answer)
    dialect, url = served.split()
    return await stack.enter_async_context(model_of(dialect, url))


async def _end() -> None:
    """Returns when the process is told to end."""
    import signal

    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


def run(text: str) -> None:
    """The whole life of a victim with the setting in `text`."""
    logging.basicConfig(level=logging.INFO, format=f"{os.getpid()} %(asctime)s %(name)s: %(message)s")
    asyncio.run(serve(Setting.decode(text)))


if __name__ == "__main__":
    run(*cast(Any, sys.argv[1:]))
