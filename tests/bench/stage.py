"""The processes of the bench: servers under measurement, and a real Redis."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

_CHILD = Path(__file__).with_name("child.py")


@dataclass(slots=True)
class Child:
    """A process under measurement."""

    process: asyncio.subprocess.Process
    address: str

    async def cpu(self) -> float:
        """Seconds of CPU that it has used so far."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(b"\n")
        return float(await self.process.stdout.readline())


@asynccontextmanager
async def child(*arguments: str) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(_CHILD), *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin and process.stdout
    try:
        async with asyncio.timeout(30):
            address = (await process.stdout.readline()).decode().strip()
        if not address:
            raise SystemExit(f"bench: {' '.join(arguments)} did not start")
        yield Child(process, address)
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def redis() -> AsyncIterator[str]:
    """A real Redis with the settings of deploy/redis.conf on a free port."""
    server = shutil.which("redis-server")
    if server is None:
        raise SystemExit("bench: no redis-server on PATH; `make tools` finds or fetches one")
    settings = Path(__file__).parents[2] / "deploy" / "redis.conf"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(server, str(settings), "--port", port, "--bind", "127.0.0.1", "--dir", folder),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout
        try:
            async with asyncio.timeout(10):
                while b"Ready to accept connections" not in await process.stdout.readline():
                    pass
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            await process.communicate()
