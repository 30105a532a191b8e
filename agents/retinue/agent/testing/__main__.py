"""`python -m retinue.agent.testing`: the scripted model server as a process."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

from retinue.agent.testing.rules import Rules
from retinue.agent.testing.server import ModelServer, Script, echo
from retinue.service.errors import Invalid


async def _serve(script: Script, port: int) -> None:
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    async with ModelServer(script, port=port) as server:
        print(server.base_url, flush=True)
        await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m retinue.agent.testing", description="A scripted model server.")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--script", type=Path, help="a JSON file with a list of rules")
    chosen.add_argument("--echo", action="store_true", help="answer with the last user message")
    options = parser.parse_args()
    try:
        script = echo if options.echo else Rules.read(options.script)
    except Invalid as error:
        parser.error(error.message)
    asyncio.run(_serve(script, options.port))


if __name__ == "__main__":
    main()
