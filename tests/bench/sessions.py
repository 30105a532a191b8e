"""Many sessions and long ones: fifty at once beside one, and a turn behind ten thousand beside a first one."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack

import grpc
from bench.stage import child, redis

from retinue.agent.keys import history_key
from retinue.agent.model import ModelEnd, Stop
from retinue.agent.session.history import assistant_entry, encode, user_entry
from retinue.service.chat import Call
from retinue.service.store import open_store
from retinue.v1 import agent_pb2, agent_pb2_grpc

# Words that child.py answers after half a second.
THINK = "think for 0.5 s"
SESSIONS, ROUNDS = 50, 5
OLD_TURNS, TURNS, PAIRS = 10_000, 5, 60


async def chat(stub: agent_pb2_grpc.AgentAsyncStub, message: str, session: str) -> float:
    """One turn; how long it took, seconds."""
    begin = time.perf_counter()
    await stub.Chat(agent_pb2.ChatRequest(message=message, session=session), timeout=60)
    return time.perf_counter() - begin


async def side_by_side(stub: agent_pb2_grpc.AgentAsyncStub) -> float:
    """How much longer fifty sessions take than one, with half a second of model latency."""
    ratios = []
    for number in range(ROUNDS):
        one = await chat(stub, THINK, f"one-{number}")
        begin = time.perf_counter()
        await asyncio.gather(*(chat(stub, THINK, f"{number}-{session}") for session in range(SESSIONS)))
        ratios.append((time.perf_counter() - begin) / one)
    return statistics.median(ratios)


async def preload(store: str, session: str, turns: int) -> None:
    """Writes a long conversation as it stands after that many turns."""
    async with open_store(store) as opened:
        for begin in range(0, turns, 500):
            entries = []
            for number in range(begin, begin + 500):
                entries.append(user_entry("x" * 100, Call(), run_id=f"run-{number}"))
                end = ModelEnd(text="y" * 100, stop=Stop.STOP)
                entries.append(assistant_entry(end, (), run_id=f"run-{number}", model="openai/bench"))
            await opened.append(history_key("clerk", session), [encode(entry) for entry in entries])


async def behind_many(stub: agent_pb2_grpc.AgentAsyncStub, store: str) -> tuple[float, float]:
    """What a turn behind ten thousand costs, as a ratio to one of a new session, and to one behind fifty."""
    await preload(store, "old", OLD_TURNS)
    await preload(store, "fifty", 500)
    old, fifty, new = [], [], []
    for pair in range(PAIRS):
        for _ in range(TURNS):
            old.append(await chat(stub, "hello", "old"))
            fifty.append(await chat(stub, "hello", "fifty"))
            new.append(await chat(stub, "hello", f"new-{pair}"))
    return (
        statistics.median(a / b for a, b in zip(old, new, strict=True)),
        statistics.median(a / b for a, b in zip(old, fifty, strict=True)),
    )


async def measure() -> None:
    """Prints all of it."""
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(child("model"))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stores = {"Redis": await stack.enter_async_context(redis()), "SQLite": f"sqlite://{folder}/store.db"}
        print()
        for name, store in stores.items():
            print(f"sessions on {name}", file=sys.stderr)
            agent = await stack.enter_async_context(child("agent", f"http://{model.address}/v1", store))
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(agent.address))
            stub = agent_pb2_grpc.AgentStub(channel)
            many = await side_by_side(stub)
            new, fifty = await behind_many(stub, store)
            print(
                f"{name}: {SESSIONS} sessions at 500 ms of model latency take {many:.2f} x one;"
                f" a turn behind {OLD_TURNS} costs {new:.2f} x one of a new session (aim < 1.20),"
                f" {fifty:.2f} x one behind 50"
            )
