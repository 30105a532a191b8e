"""Cancel, deadline and a caller that leaves reach the bottom, three agents deep, whatever the last one hangs in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.chain import SERVING
from pytest import FixtureRequest

from retinue.agent.keys import history_key, tree_key
from retinue.agent.model.scripted import call
from retinue.agent.runs.book import RunBook
from retinue.agent.session.history import decode
from retinue.agent.testing import Answer, ModelServer, Received
from retinue.service.chat import Call, RunState
from retinue.service.envelope import Envelope
from retinue.service.errors import DeadlinePassed
from retinue.service.mesh import Mesh
from retinue.service.settings import Settings

CHAIN = ["boss", "middle", "leaf"]
LEAVES = ["model", "grpc", "process", "thread"]
# Promised is one second; the rest is for a machine that is busy with other tests.
SOON_S = 3.0


def script(body: Any) -> Any:
    """The model of the whole chain: hands the task down, and hangs at the bottom as it says."""
    name = body["messages"][0]["content"].split()[2].rstrip(".")
    last = body["messages"][-1]
    if last["role"] == "tool":
        return "done"
    if name != "leaf":
        return call("delegate", to=CHAIN[CHAIN.index(name) + 1], task=last["content"])
    match last["content"]:
        case "model":
            return Answer(latency=None)
        case "grpc":
            return call("task_Task_Create", title="hang")
        case tool:
            return call(tool)


class Stage:
    """The running chain, seen by a client of its own."""

    def __init__(self, mesh: Mesh, folder: Path, server: ModelServer) -> None:
        self.mesh, self.folder, self.server = mesh, folder, server
        self.book = RunBook(mesh.store)

    async def until(self, file: str) -> str:
        """What is in the file, once it is there."""
        path = self.folder / file
        while not path.exists():  # noqa: ASYNC110 -- another process makes it
            await asyncio.sleep(0.005)
        return path.read_text()

    async def at_the_bottom(self, kind: str) -> None:
        """Returns once the leaf hangs."""
        if kind == "model":
            while len(self._asked()) == self._before:  # noqa: ASYNC110 -- the server tells nobody
                await asyncio.sleep(0.005)
        else:
            await self.until(f"{kind}.begun")

    def begin(self, session: str) -> None:
        """Forgets what was seen before; `session` is what the next turn is in."""
        self.session = session
        self._before = len(self._asked())
        self.server.hung_up.clear()
        for file in (*self.folder.glob("*.begun"), *self.folder.glob("*.left"), *self.folder.glob("*.go")):
            file.unlink()

    def _asked(self) -> list[Received]:
        return [one for one in self.server.requests if "You are leaf." in str(one.body)]

    async def left(self, kind: str) -> None:
        """Returns once what the leaf hung in has been left."""
        async with asyncio.timeout(SOON_S):
            match kind:
                case "model":
                    await self.server.hung_up.wait()
                case "process":
                    pid = int(await self.until("process.begun"))
                    await self.until("process.left")
                    with pytest.raises(ProcessLookupError):
                        os.kill(pid, 0)
                case "grpc":
                    await self.until("grpc.left")

    async def ends(self) -> dict[str, RunState]:
        """The state in which the run of each level ended."""
        entries = (await self.mesh.store.read(history_key("boss", self.session))).entries
        root = decode(entries[0]).message.run_id
        members = await self.mesh.store.rows(tree_key(root))
        runs = {"boss": root} | {agent.decode(): run for run, agent in members.items()}
        async with asyncio.timeout(SOON_S):
            return {name: (await self.book.ended(run)).state for name, run in runs.items()}

    async def bottom(self) -> str:
        """The last thing stored in the leaf's history."""
        entries = (await self.mesh.store.read(history_key("leaf", f"{self.session}~boss~middle"))).entries
        return decode(entries[-1]).message.text


@asynccontextmanager
async def staged(folder: Path, store: str) -> AsyncIterator[Stage]:
    registry = f"local://{folder}/registry.db"
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ModelServer(script))
        mesh = await stack.enter_async_context(Mesh(Settings(registry=registry, store=store)))
        for name in ("task", *CHAIN):
            setting = {"name": name, "folder": str(folder), "registry": registry, "store": store}
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kit.chain", json.dumps(setting | {"model": server.base_url})),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            )
            stack.push_async_callback(process.wait)
            assert process.stdin and process.stdout
            stack.callback(process.stdin.close)
            assert (await process.stdout.readline()).decode().strip() == SERVING
        yield Stage(mesh, folder, server)


@pytest.fixture(params=["redis", "sqlite"] if os.environ.get("FAULTS") == "all" else ["redis"])
def store_url(request: FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("redis_url") if request.param == "redis" else f"sqlite://{tmp_path}/store.db"


def told(session: str, seconds: float = 60.0) -> Call:
    deadline = asyncio.get_running_loop().time() + seconds
    return Call(session=session, request_id=session, envelope=Envelope(deadline=deadline))


async def by_cancel(stage: Stage, kind: str) -> None:
    turn = asyncio.create_task(stage.mesh.peer("boss").ask(kind, told(stage.session)))
    await stage.at_the_bottom(kind)
    entries = (await stage.mesh.store.read(history_key("boss", stage.session))).entries
    root = decode(entries[0]).message.run_id
    async with asyncio.timeout(SOON_S):
        assert await stage.mesh.peer("boss").cancel(root, tree=True) == 3
    assert (await turn).state is RunState.CANCELLED
    assert await stage.ends() == dict.fromkeys(CHAIN, RunState.CANCELLED)


async def by_deadline(stage: Stage, kind: str) -> None:
    asking = stage.mesh.peer("boss").ask(kind, told(stage.session, 3.0))
    # Each level's deadline is a little before its caller's: whoever is above what ran out may have answered in time.
    with contextlib.suppress(DeadlinePassed):
        await asking
    ends = await stage.ends()
    assert len(ends) == 3
    assert set(ends.values()) <= {RunState.INCOMPLETE, RunState.COMPLETED}


async def by_leaving(stage: Stage, kind: str) -> None:
    turn = asyncio.create_task(stage.mesh.peer("boss").ask(kind, told(stage.session)))
    await stage.at_the_bottom(kind)
    turn.cancel()
    await asyncio.wait([turn])
    assert await stage.ends() == dict.fromkeys(CHAIN, RunState.CANCELLED)


async def by_closing_a_stream(stage: Stage, kind: str) -> None:
    async with aclosing(stage.mesh.peer("boss").stream(kind, told(stage.session))) as events:
        await anext(events)
        await stage.at_the_bottom(kind)
    assert await stage.ends() == dict.fromkeys(CHAIN, RunState.CANCELLED)


@pytest.mark.parametrize("kind", LEAVES)
async def test_what_ends_the_top_ends_the_bottom(tmp_path: Path, store_url: str, kind: str) -> None:
    async with asyncio.timeout(60), staged(tmp_path, store_url) as stage:
        for cut in (by_cancel, by_deadline, by_leaving, by_closing_a_stream):
            stage.begin(cut.__name__)
            await cut(stage, kind)
            await stage.left(kind)
            if kind == "thread":
                assert "may still be running" in await stage.bottom()
                (tmp_path / "thread.go").touch()
            elif kind != "model" and cut is not by_deadline:
                assert "outcome is unknown" in await stage.bottom()
