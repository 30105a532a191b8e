"""`make bench`: what a turn of an agent costs beside a bare gRPC echo, measured side by side in one run.

Every subject is called with the same stub, the same 1 KB message and the same loops, in interleaved rounds, so that
the ratios hold where the absolute figures do not. It is no gate: it prints, and always exits 0.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count

import grpc
from bench import models, names, sessions
from bench.stage import Child, child, redis

from retinue.v1 import agent_pb2, agent_pb2_grpc

MESSAGE = "x" * 1024
# The words that child.py answers with a tool call, and with a delegate.
TOOL, DELEGATED = "look it up".ljust(1024), "let the helper do it".ljust(1024)
ROUNDS = 7
ALONE_S, TOGETHER_S = 1.0, 2.5
CALLERS = 128
# Turns of one conversation: a caller then begins another, so that a round costs what the one before did.
TURNS = 10

# What the design aims at, as ratios to the bare echo: p50 with 1 caller, p50 and calls/s with many.
AIMS: dict[str, tuple[float, float | None, float]] = {
    "Agent.Chat, Redis": (2.2, 2.6, 0.40),
    "  with one delegate": (4.5, None, 0.15),
}


@dataclass(slots=True)
class Load:
    """What one loop of calls took: seconds of each call, and of all of them."""

    latencies: list[float]
    elapsed: float

    @property
    def p50(self) -> float:
        return statistics.median(self.latencies)

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.elapsed


@dataclass(slots=True)
class Subject:
    """Something that answers Chat, and what was measured of it, a figure a round."""

    name: str
    child: Child
    stub: agent_pb2_grpc.AgentAsyncStub
    message: str
    sessions: Iterator[int] = field(default_factory=count)
    alone: list[Load] = field(default_factory=list)
    together: list[Load] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    async def caller(self, until: float, latencies: list[float]) -> None:
        while True:
            session = f"s{next(self.sessions)}"
            for _ in range(TURNS):
                begin = time.perf_counter()
                if begin >= until:
                    return
                await self.stub.Chat(agent_pb2.ChatRequest(message=self.message, session=session), timeout=60)
                latencies.append(time.perf_counter() - begin)

    async def load(self, callers: int, seconds: float) -> Load:
        latencies: list[float] = []
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(self.caller(begin + seconds, latencies))
        return Load(latencies, time.perf_counter() - begin)

    async def round(self) -> None:
        self.alone.append(await self.load(1, ALONE_S))
        before = await self.child.cpu()
        self.together.append(await self.load(CALLERS, TOGETHER_S))
        self.cpu.append((await self.child.cpu() - before) / len(self.together[-1].latencies))


async def measure() -> list[Subject]:
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(child("model"))
        url = f"http://{model.address}/v1"
        store = await stack.enter_async_context(redis())
        parts = {
            "bare echo": await stack.enter_async_context(child("echo")),
            "Agent.Chat, memory": await stack.enter_async_context(child("agent", url, "memory:")),
            "Agent.Chat, Redis": await stack.enter_async_context(child("agent", url, store)),
        }
        messages = {"  with one tool": TOOL, "  with one delegate": DELEGATED}
        parts |= dict.fromkeys(messages, parts["Agent.Chat, Redis"])
        subjects = []
        for name, started in parts.items():
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(started.address))
            stub = agent_pb2_grpc.AgentStub(channel)
            subjects.append(Subject(name, started, stub, messages.get(name, MESSAGE)))
        for subject in subjects:
            await subject.load(CALLERS, 1.0)  # warm: connections, code paths
        for number in range(1, ROUNDS + 1):
            print(f"round {number} of {ROUNDS}", file=sys.stderr)
            for subject in subjects:
                await subject.round()
        return subjects


def ratio(mine: list[float], yardstick: list[float]) -> float:
    """The median of the rounds' ratios: what changes between rounds changes both."""
    return statistics.median(a / b for a, b in zip(mine, yardstick, strict=True))


def versions() -> str:
    packages = ("grpcio", "protobuf", "redis", "httpx", "aiohttp")
    named = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    server = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    return ", ".join([f"Python {platform.python_version()}", *named, " ".join(server.split()[:3]).replace("v=", "")])


def report(subjects: list[Subject]) -> None:
    echo = subjects[0]
    print(f"Agent.Chat, model calls at zero latency, 1 KB messages, conversations of {TURNS} turns.")
    print(f"{ROUNDS} interleaved rounds, medians; x = ratio to the bare echo of the same round.")
    print(f"{versions()}, {os.cpu_count()} cores")
    print()
    row = "{:<24}{:>8}{:>7}{:>12}{:>7}{:>12}{:>7}{:>12}{:>7}"
    print(row.format("", "1 caller", "", f"{CALLERS} callers", "", "", "", "CPU", ""))
    print(row.format("", "p50 ms", "x", "p50 ms", "x", "calls/s", "x", "ms/call", "x"))
    for subject in subjects:
        columns = (
            ([load.p50 * 1e3 for load in subject.alone], [load.p50 * 1e3 for load in echo.alone], "{:.2f}"),
            ([load.p50 * 1e3 for load in subject.together], [load.p50 * 1e3 for load in echo.together], "{:.1f}"),
            ([load.rate for load in subject.together], [load.rate for load in echo.together], "{:.0f}"),
            ([cpu * 1e3 for cpu in subject.cpu], [cpu * 1e3 for cpu in echo.cpu], "{:.2f}"),
        )
        cells = [
            cell
            for mine, yardstick, form in columns
            for cell in (form.format(statistics.median(mine)), f"{ratio(mine, yardstick):.2f}")
        ]
        print(row.format(subject.name, *cells))
    print()
    for name, (alone, together, rate) in AIMS.items():
        limits = ("", f"<={alone:.2f}", "", f"<={together:.2f}" if together else "", "", f">={rate:.2f}", "", "")
        print(row.format(f"aim: {name.strip()}", *limits))


if __name__ == "__main__":
    report(asyncio.run(measure()))
    asyncio.run(sessions.measure())
    asyncio.run(names.measure())
    asyncio.run(models.measure())
