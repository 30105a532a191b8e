"""A process that goes on using many names, as a busy agent does, and says what it sees of them.

Each change is a line: the name, the addresses of its nodes, and `seen`. It calls nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

from kit.victim import SERVING
from retinue.service.client.directory import Directory
from retinue.service.registry import open_registry

# How often each name is used, seconds.
EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """What a watcher is told: the registry, where its log goes, what it is called, and the names that it uses."""

    life: ClassVar[str] = "watcher"
    registry: str
    folder: str
    agents: Sequence[str]
    names: Sequence[str]

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        return cls(**json.loads(text))


async def use(watching: Watching) -> None:
    """Uses each name again and again, until it is killed."""
    seen: dict[str, str] = {}
    async with open_registry(watching.registry) as registry, Directory(registry) as directory:
        while True:
            for name in watching.names:
                addresses = ",".join(node.address for node in await directory.nodes(name))
                if addresses != seen.get(name):
                    seen[name] = addresses
                    print(f"{name}\t{addresses}\tseen", flush=True)
            print(SERVING, flush=True)
            await asyncio.sleep(EVERY_S)


def run(text: str) -> None:
    """The whole life of a watcher."""
    logging.basicConfig(level=logging.INFO)
    asyncio.run(use(Watching.decode(text)))
