"""Several agents in one process, all on one model key: `python -m kit.crowd` with JSON, until the input ends."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from retinue.agent import Agent
from retinue.agent.model.openai import OpenAI
from retinue.service.mesh import Mesh
from retinue.service.settings import Settings

SERVING = "SERVING"


async def serve(setting: dict[str, Any]) -> None:
    """Serves the agents named in the setting."""
    async with Mesh(Settings(registry=setting["registry"], store=setting["store"])) as mesh:
        agents = [
            Agent(name, model=OpenAI("any", api_key="one-key", base_url=setting["model"])) for name in setting["names"]
        ]
        async with mesh.serve(*agents):
            print(SERVING, flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
