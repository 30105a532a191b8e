"""Twenty agents in four processes on one model key: one refusal stops them all, and they come back spread out."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from kit.crowd import SERVING

from retinue.agent.model.gate import account_of
from retinue.agent.testing import Answer, ModelServer
from retinue.service.mesh import Mesh
from retinue.service.settings import Settings

PAUSE_S = 2.0


async def test_one_refusal_stops_twenty_agents_and_they_return_spread_out(tmp_path: Path, redis_url: str) -> None:
    time = asyncio.get_running_loop().time
    came: list[float] = []

    def script(body: object) -> str | Answer:
        came.append(time())
        if len(came) == 1:
            return Answer(step="slow down", status=429, headers={"retry-after": f"{PAUSE_S:g}"})
        return "fine"

    names = [f"agent-{number}" for number in range(20)]
    registry = f"local://{tmp_path}/registry.db"
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        server = await stack.enter_async_context(ModelServer(script))
        mesh = await stack.enter_async_context(Mesh(Settings(registry=registry, store=redis_url)))
        for begin in range(0, 20, 5):
            setting = {"registry": registry, "store": redis_url, "model": server.base_url}
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kit.crowd", json.dumps(setting | {"names": names[begin : begin + 5]})),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            )
            stack.push_async_callback(process.wait)
            assert process.stdin and process.stdout
            stack.callback(process.stdin.close)
            assert (await process.stdout.readline()).decode().strip() == SERVING
        first = asyncio.create_task(mesh.ask(names[0], "hi"))
        pause = f"model/{{{account_of('127.0.0.1', 'one-key')}}}/pause"
        while await mesh.store.get(pause) is None:
            assert not first.done(), first.result()
        replies = await asyncio.gather(first, *(mesh.ask(name, "hi") for name in names[1:]))
    assert [reply.text for reply in replies] == ["fine"] * 20
    back = sorted(moment - came[0] for moment in came[1:])
    print(f"back after {back[0]:.2f} to {back[-1]:.2f} s")
    assert len(back) == 20
    assert back[0] >= PAUSE_S
    # Spread over a quarter of the pause, and not all in one moment.
    assert back[-1] - back[0] > 0.05
