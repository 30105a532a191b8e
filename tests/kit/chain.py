"""A chain of agents, one process each, whose last one hangs in what it is told: `python -m kit.chain` with JSON.

The model is an HTTP server's; the tools of the last agent hang each in another way, and leave a file when they are
left. It is told nothing of who cuts the chain, or where.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from office.v1 import task_pb2, task_pb2_grpc
from retinue.agent import Agent, tool
from retinue.agent.model.openai import OpenAI
from retinue.agent.tools import Tool
from retinue.service.mesh import Mesh
from retinue.service.part import Part, Service
from retinue.service.server.pulse import Timing
from retinue.service.settings import Settings

SERVING = "SERVING"
# Longer than any test lasts.
LONG_S = 600


class Hanging(task_pb2_grpc.TaskServicer):
    """A service whose Create never answers, and notes when its caller is gone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def Create(self, request: task_pb2.CreateTaskRequest, context: Any) -> task_pb2.TaskItem:
        (self._folder / "grpc.begun").touch()
        try:
            await asyncio.sleep(LONG_S)
        finally:
            (self._folder / "grpc.left").touch()
        return task_pb2.TaskItem()

    async def List(self, request: task_pb2.ListTasksRequest, context: Any) -> task_pb2.ListTasksResponse:
        return task_pb2.ListTasksResponse()

    async def Complete(self, request: task_pb2.CompleteTaskRequest, context: Any) -> task_pb2.TaskItem:
        return task_pb2.TaskItem()

    async def Delete(self, request: task_pb2.DeleteTaskRequest, context: Any) -> task_pb2.DeleteTaskResponse:
        return task_pb2.DeleteTaskResponse()


def hanging_tools(folder: Path) -> list[Tool]:
    @tool
    async def process() -> str:
        """Runs a program that does not end, and kills it when it is left."""
        child = await asyncio.create_subprocess_exec("sleep", str(LONG_S))
        (folder / "process.begun").write_text(str(child.pid))
        try:
            await child.wait()
        finally:
            child.kill()
            await child.wait()
            (folder / "process.left").touch()
        return "ended"

    @tool
    def thread() -> str:
        """Blocks its thread."""
        (folder / "thread.begun").touch()
        while not (folder / "thread.go").exists():
            time.sleep(0.01)
        return "ended"

    return [process, thread]


async def serve(setting: dict[str, str]) -> None:
    """Serves one part until the input ends."""
    name, folder = setting["name"], Path(setting["folder"])
    settings = Settings(registry=setting["registry"], store=setting["store"])
    async with Mesh(settings, timing=Timing(drain=1.0)) as mesh:
        part: Part
        if name == "task":
            part = Service("task", task_pb2_grpc.add_TaskServicer_to_server, Hanging(folder))
        else:
            last = name == "leaf"
            part = Agent(
                name,
                f"You are {name}.",
                model=OpenAI("any", base_url=setting["model"]),
                services=("task",) if last else (),
                tools=hanging_tools(folder) if last else (),
            )
        async with mesh.serve(part):
            print(SERVING, flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
