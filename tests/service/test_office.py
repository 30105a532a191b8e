"""The three plain services of the reference mesh, over real gRPC: what they keep, find and refuse."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from notify.main import Notifications
from office.v1.notify_pb2 import ListNotificationsRequest, SendRequest
from office.v1.notify_pb2_grpc import NotifyStub, add_NotifyServicer_to_server
from office.v1.project_pb2 import CreateProjectRequest, ListProjectsRequest
from office.v1.project_pb2_grpc import ProjectStub, add_ProjectServicer_to_server
from office.v1.task_pb2 import CompleteTaskRequest, CreateTaskRequest, DeleteTaskRequest, ListTasksRequest
from office.v1.task_pb2_grpc import TaskStub, add_TaskServicer_to_server
from project.main import Projects
from retinue.service.errors import AlreadyExists, Invalid, UnknownName
from retinue.service.mesh import Mesh, Service
from retinue.service.testing import LocalMesh
from task import main as task_main
from task.main import Tasks

TODAY = date(2026, 3, 1)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SERVICES = Path(__file__).parents[2] / "services"


@asynccontextmanager
async def office() -> AsyncIterator[LocalMesh]:
    async with asyncio.timeout(20), LocalMesh() as mesh:
        tasks = Service("task", add_TaskServicer_to_server, Tasks(mesh.store, today=lambda: TODAY))
        projects = Service("project", add_ProjectServicer_to_server, Projects(mesh.store))
        notify = Service("notify", add_NotifyServicer_to_server, Notifications(mesh.store, now=lambda: NOW))
        async with mesh.serve(tasks, projects, notify):
            yield mesh


def task(mesh: Mesh) -> Any:
    return TaskStub(mesh.client.channel("task"))


async def titles(stub: Any, **wanted: Any) -> list[str]:
    return [item.title for item in (await stub.List(ListTasksRequest(**wanted), timeout=5)).tasks]


async def test_a_task_is_created_listed_completed_and_deleted() -> None:
    async with office() as mesh:
        stub = task(mesh)
        made = await stub.Create(CreateTaskRequest(title="  buy milk ", owner="ada", due="2026-03-02"), timeout=5)
        assert (made.title, made.owner, made.due, made.done) == ("buy milk", "ada", "2026-03-02", False)
        assert made.id.startswith("t-")
        assert list((await stub.List(ListTasksRequest(), timeout=5)).tasks) == [made]

        done = await stub.Complete(CompleteTaskRequest(id=made.id), timeout=5)
        assert done.done
        assert await stub.Complete(CompleteTaskRequest(id=made.id), timeout=5) == done
        assert await titles(stub) == []
        assert await titles(stub, include_done=True) == ["buy milk"]

        assert (await stub.Delete(DeleteTaskRequest(id=made.id), timeout=5)).deleted
        assert not (await stub.Delete(DeleteTaskRequest(id=made.id), timeout=5)).deleted
        assert await titles(stub, include_done=True) == []


async def test_tasks_are_found_by_owner_project_and_overdue_in_order_of_due_day_and_title() -> None:
    async with office() as mesh:
        stub = task(mesh)
        for title, owner, due, project in (
            ("undated", "ada", "", "Move"),
            ("tomorrow", "ada", "2026-03-02", ""),
            ("today", "bob", "2026-03-01", "move"),
            ("b late", "Ada", "2026-02-28", ""),
            ("A late", "bob", "2026-02-28", ""),
        ):
            request = CreateTaskRequest(title=title, owner=owner, due=due, project=project)
            made = await stub.Create(request, timeout=5)
        assert await titles(stub) == ["A late", "b late", "today", "tomorrow", "undated"]
        assert await titles(stub, owner="ADA ") == ["b late", "tomorrow", "undated"]
        assert await titles(stub, project="MOVE") == ["today", "undated"]
        assert await titles(stub, overdue=True) == ["A late", "b late"]
        assert await titles(stub, overdue=True, owner="ada") == ["b late"]
        # What is done is not late any more, also when the done ones are asked for.
        await stub.Complete(CompleteTaskRequest(id=made.id), timeout=5)
        assert await titles(stub, overdue=True, include_done=True) == ["b late"]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "title"),
        ({"title": " \n "}, "title"),
        ({"title": "x" * 201}, "title"),
        ({"title": "x", "owner": "a" * 101}, "owner"),
        ({"title": "x", "project": "a" * 101}, "project"),
        ({"title": "x", "due": "tomorrow"}, "due"),
        ({"title": "x", "due": "2026-02-30"}, "due"),
        ({"title": "x", "due": "20260301"}, "due"),
        ({"title": "x", "due": "2026-W09-1"}, "due"),
    ],
)
async def test_a_bad_task_is_refused_by_the_name_of_its_field(values: dict[str, str], field: str) -> None:
    async with office() as mesh:
        with pytest.raises(Invalid) as refused:
            await task(mesh).Create(CreateTaskRequest(**values), timeout=5)
        assert refused.value.facts["field"] == field
        assert await titles(task(mesh), include_done=True) == []


async def test_an_unknown_task_is_refused_with_the_nearest_id_and_title() -> None:
    async with office() as mesh:
        stub = task(mesh)
        made = await stub.Create(CreateTaskRequest(title="buy milk"), timeout=5)
        for wrong in (made.id[:-1], "Buy Milk", "by milk"):
            with pytest.raises(UnknownName, match=rf"{wrong}.*did you mean {made.id} \(buy milk\)\?"):
                await stub.Complete(CompleteTaskRequest(id=wrong), timeout=5)
        with pytest.raises(UnknownName, match=r"Task\.List"):
            await stub.Complete(CompleteTaskRequest(id="zzzzzzzzzz"), timeout=5)
        for call in (stub.Complete(CompleteTaskRequest(), timeout=5), stub.Delete(DeleteTaskRequest(), timeout=5)):
            with pytest.raises(Invalid, match="id is empty"):
                await call


async def test_two_tasks_never_share_an_id_even_when_chance_repeats_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chances = itertools.chain(["aaaaaa"] * 6, ["bbbbbb"] * 6, (f"{number:06x}" for number in itertools.count()))
    monkeypatch.setattr(task_main, "secrets", SimpleNamespace(token_hex=lambda _: next(chances)))
    async with office() as mesh:
        stub = task(mesh)
        made = await asyncio.gather(*(stub.Create(CreateTaskRequest(title=f"{n}"), timeout=5) for n in range(8)))
        assert len({item.id for item in made}) == 8
        assert len(await titles(stub)) == 8


async def test_a_project_is_created_once_and_listed_by_name() -> None:
    async with office() as mesh:
        stub: Any = ProjectStub(mesh.client.channel("project"))
        await stub.Create(CreateProjectRequest(name="zoo"), timeout=5)
        made = await stub.Create(CreateProjectRequest(name=" Move ", goal="a new office"), timeout=5)
        assert (made.name, made.goal) == ("Move", "a new office")
        with pytest.raises(AlreadyExists, match="move"):
            await stub.Create(CreateProjectRequest(name="move", goal="another"), timeout=5)
        with pytest.raises(Invalid, match="name is empty"):
            await stub.Create(CreateProjectRequest(goal="x"), timeout=5)
        listed = (await stub.List(ListProjectsRequest(), timeout=5)).projects
        assert [(item.name, item.goal) for item in listed] == [("Move", "a new office"), ("zoo", "")]


async def test_a_message_is_sent_and_listed_in_order_to_everyone_or_one_person() -> None:
    async with office() as mesh:
        stub: Any = NotifyStub(mesh.client.channel("notify"))
        sent = [
            await stub.Send(SendRequest(to=to, message=message), timeout=5)
            for to, message in (("ada", "one"), ("bob", "two"), ("Ada", "three"))
        ]
        assert sent[0].time.ToDatetime(UTC) == NOW
        assert len({item.id for item in sent}) == 3
        assert list((await stub.List(ListNotificationsRequest(), timeout=5)).notifications) == sent
        to_ada = (await stub.List(ListNotificationsRequest(to="ADA"), timeout=5)).notifications
        assert [item.message for item in to_ada] == ["one", "three"]


@pytest.mark.parametrize(
    ("values", "field"),
    [({"message": "x"}, "to"), ({"to": "ada"}, "message"), ({"to": "ada", "message": "x" * 10_001}, "message")],
)
async def test_a_bad_message_is_refused_by_the_name_of_its_field(values: dict[str, str], field: str) -> None:
    async with office() as mesh:
        with pytest.raises(Invalid) as refused:
            await NotifyStub(mesh.client.channel("notify")).Send(SendRequest(**values), timeout=5)
        assert refused.value.facts["field"] == field


@pytest.mark.parametrize(
    ("service", "endpoint", "field"),
    [
        ("task", "Task.List", "tasks"),
        ("project", "Project.List", "projects"),
        ("notify", "Notify.List", "notifications"),
    ],
)
async def test_a_service_runs_as_a_program_from_any_folder_and_ends_when_told(
    service: str, endpoint: str, field: str, tmp_path: Path
) -> None:
    places = {"RETINUE_REGISTRY": f"local://{tmp_path}/registry.db", "RETINUE_STORE": f"sqlite://{tmp_path}/store.db"}
    program = str(SERVICES / service / "main.py")
    async with asyncio.timeout(60):
        process = await asyncio.create_subprocess_exec(
            sys.executable, program, cwd=tmp_path, env={**os.environ, **places, "RETINUE_NAME": service}
        )
        try:
            async with Mesh.connect(places["RETINUE_REGISTRY"], store="memory:") as mesh:
                async for nodes in mesh.registry.watch(service):
                    if nodes:
                        break
                assert await mesh.client.call(service, endpoint, {}) == {field: []}
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_service_whose_store_is_away_ends_with_one_clear_line(tmp_path: Path) -> None:
    environ = {**os.environ, "RETINUE_REGISTRY": "memory:", "RETINUE_STORE": "redis://127.0.0.1:1/0"}
    async with asyncio.timeout(60):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SERVICES / "task" / "main.py"),
            cwd=tmp_path,
            env=environ,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
    assert process.returncode == 1
    (line,) = said.decode().splitlines()
    assert line.startswith("task: ")
    assert "redis://127.0.0.1:1/0" in line
