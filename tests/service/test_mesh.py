"""A mesh as an application holds it: parts that find each other, their order, and where its settings come from."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kit.serving import tasks

from retinue.service import errors
from retinue.service.chat import Call, Chat
from retinue.service.mesh import Mesh, Mountable
from retinue.service.registry.memory import MemoryRegistry
from retinue.service.settings import Settings
from retinue.service.store.memory import MemoryStore
from retinue.service.testing import LocalMesh, Stub


class Mounted(Stub):
    """A stub that notes when it is mounted and left, and whether it is on the list then."""

    def __init__(self, name: str, notes: list[str]) -> None:
        super().__init__(name)
        self._notes = notes

    @asynccontextmanager
    async def mounted(self, mesh: Mesh) -> AsyncIterator[None]:
        self._notes.append(f"{self.name} in, listed: {sorted(await mesh.registry.names())}")
        try:
            yield
        finally:
            self._notes.append(f"{self.name} out, listed: {sorted(await mesh.registry.names())}")


async def test_a_question_is_answered_by_the_part_that_was_named() -> None:
    async with asyncio.timeout(5), LocalMesh() as mesh:
        clerk = Stub("clerk", lambda message, call: f"{message} {call.session} {bool(call.request_id)}")
        async with mesh.serve(clerk, Stub("planner")):
            assert (await mesh.ask("clerk", "hi", session="ada")).text == "hi ada True"
            reply = await mesh.peer("planner").ask("plan")
            assert (reply.text, reply.agent) == ("plan", "planner")


async def test_each_question_has_its_own_request_id_unless_one_is_given() -> None:
    async with asyncio.timeout(5), LocalMesh() as mesh, mesh.serve(Stub("clerk", lambda _, call: call.request_id)):
        first, second = [(await mesh.ask("clerk", "same")).text for _ in range(2)]
        assert first != second
        assert (await mesh.ask("clerk", "same", request_id="q7")).text == "q7"


async def test_an_error_reaches_the_caller_as_its_own_type() -> None:
    def answer(message: str, call: Call) -> str:
        raise errors.ModelQuota("nothing left")

    async with asyncio.timeout(5), LocalMesh() as mesh, mesh.serve(Stub("clerk", answer)):
        with pytest.raises(errors.ModelQuota):
            await mesh.ask("clerk", "hi")


async def test_a_question_ends_at_its_timeout() -> None:
    async def answer(message: str, call: Call) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    async with asyncio.timeout(5), LocalMesh() as mesh, mesh.serve(Stub("clerk", answer)):
        with pytest.raises(errors.DeadlinePassed):
            await mesh.ask("clerk", "hi", timeout=0.2)


async def test_parts_are_mounted_in_order_and_left_in_reverse() -> None:
    notes: list[str] = []
    a, b = Mounted("a", notes), Mounted("b", notes)
    assert isinstance(a, Mountable)
    async with asyncio.timeout(5), LocalMesh() as mesh, mesh.serve(tasks(), a, b):
        notes.append("serving")
    assert notes == [
        "a in, listed: ['task']",
        "b in, listed: ['a', 'task']",
        "serving",
        "b out, listed: ['a', 'task']",
        "a out, listed: ['task']",
    ]


async def test_a_part_that_cannot_be_served_takes_the_others_down_with_it() -> None:
    notes: list[str] = []
    async with asyncio.timeout(5), LocalMesh() as mesh:
        with pytest.raises(errors.Invalid):
            async with mesh.serve(Mounted("a", notes), Stub("Bad Name")):
                pass
        assert not await mesh.registry.names()
    assert notes[-1] == "a out, listed: []"


async def test_a_registry_and_a_store_of_the_caller_are_used_as_they_are() -> None:
    registry = MemoryRegistry()
    async with asyncio.timeout(5), MemoryStore() as store:
        async with Mesh.connect(registry, store=store) as mesh, mesh.serve(Stub("clerk")) as (server,):
            assert (mesh.registry, mesh.store) == (registry, store)
            assert await registry.find("clerk") == (server.node,)
        await store.ping()


async def test_bare_names_are_files_of_a_folder_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RETINUE_REGISTRY", "RETINUE_STORE"):
        monkeypatch.delenv(name, raising=False)
    async with asyncio.timeout(10), Mesh.connect() as mesh, mesh.serve(Stub("clerk")):
        assert (await mesh.ask("clerk", "hi")).text == "hi"
    assert {path.name for path in (tmp_path / ".retinue").iterdir()} >= {"registry.db", "store.db", ".gitignore"}


async def test_what_is_given_goes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETINUE_REGISTRY", "consul://192.0.2.1:1")
    monkeypatch.setenv("RETINUE_STORE", "memory:")
    async with asyncio.timeout(5), Mesh.connect("memory:") as mesh, mesh.serve(Stub("clerk")):
        assert (await mesh.ask("clerk", "hi")).text == "hi"
    assert not (tmp_path / ".retinue").exists()


async def test_an_unknown_kind_of_registry_is_refused_by_setting() -> None:
    with pytest.raises(errors.Invalid) as caught:
        async with Mesh(Settings(registry="etcd://here", store="memory:")):
            pass
    assert caught.value.facts["field"] == "RETINUE_REGISTRY"


def test_a_stub_is_a_chat() -> None:
    assert isinstance(Stub("clerk"), Chat)


def test_the_import_of_the_kit_loads_no_backend() -> None:
    heavy = ("redis", "consul", "mcp", "httpx", "aiohttp", "retinue.agent")
    program = f"import sys, retinue.service; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"
