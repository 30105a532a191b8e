"""The task list of the reference mesh: a plain gRPC service that keeps its rows in the mesh's store.

It knows nothing of agents, models or people: an owner and a project are just words.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterable
from datetime import date

from office.v1.task_pb2 import (
    CompleteTaskRequest,
    CreateTaskRequest,
    DeleteTaskRequest,
    DeleteTaskResponse,
    ListTasksRequest,
    ListTasksResponse,
    TaskItem,
)
from office.v1.task_pb2_grpc import TaskServicer, add_TaskServicer_to_server
from retinue.service import Mesh, Service
from retinue.service.errors import Invalid, MeshError, UnknownName
from retinue.service.names import check_text, nearest
from retinue.service.store import Conflict, Tables

TABLE = "service/task/tasks"
TITLE, WORD = 200, 100


class Tasks(TaskServicer):
    """The RPCs of office.v1.Task. `today` says which day it is."""

    def __init__(self, store: Tables, *, today: Callable[[], date] = date.today) -> None:
        self._store = store
        self._today = today

    async def Create(self, request: CreateTaskRequest, context: object) -> TaskItem:
        item = TaskItem(
            title=check_text(request.title, field="title", most=TITLE, required=True),
            owner=check_text(request.owner, field="owner", most=WORD),
            due=_check_day(request.due.strip()),
            project=check_text(request.project, field="project", most=WORD),
        )
        while True:
            item.id = f"t-{secrets.token_hex(3)}"
            try:
                await self._store.put_row(TABLE, item.id, item.SerializeToString(), expect=None)
            except Conflict:
                continue  # the id is taken; another is not
            return item

    async def List(self, request: ListTasksRequest, context: object) -> ListTasksResponse:
        owner, project, today = _folded(request.owner), _folded(request.project), self._today().isoformat()
        tasks = [
            item
            for item in map(TaskItem.FromString, (await self._store.rows(TABLE)).values())
            if owner in ("", _folded(item.owner))
            and project in ("", _folded(item.project))
            and (request.include_done or not item.done)
            and (not request.overdue or (not item.done and "" < item.due < today))
        ]
        tasks.sort(key=lambda item: (item.due or "9999-99-99", item.title.casefold(), item.id))
        return ListTasksResponse(tasks=tasks)

    async def Complete(self, request: CompleteTaskRequest, context: object) -> TaskItem:
        wanted = check_text(request.id, field="id", most=WORD, required=True)
        while True:
            rows = await self._store.rows(TABLE)
            if wanted not in rows:
                raise UnknownName(f"no task {wanted!r}{_hint(wanted, rows.values())}", field="id")
            item = TaskItem.FromString(rows[wanted])
            if item.done:
                return item
            item.done = True
            try:
                await self._store.put_row(TABLE, wanted, item.SerializeToString(), expect=rows[wanted])
            except Conflict:
                continue  # somebody changed or deleted it meanwhile: look again
            return item

    async def Delete(self, request: DeleteTaskRequest, context: object) -> DeleteTaskResponse:
        wanted = check_text(request.id, field="id", most=WORD, required=True)
        return DeleteTaskResponse(deleted=await self._store.drop_row(TABLE, wanted))


def _folded(text: str) -> str:
    return text.strip().casefold()


def _check_day(text: str) -> str:
    if not text:
        return ""
    try:
        day = date.fromisoformat(text).isoformat()
    except ValueError:
        day = ""
    # fromisoformat knows more spellings than one; here only that one sorts and reads alike everywhere.
    if day != text:
        raise Invalid(f"due {text!r} is no day: use YYYY-MM-DD, such as 2026-01-31", field="due")
    return day


def _hint(wanted: str, rows: Iterable[bytes]) -> str:
    """The end of an error line: the tasks whose id or title is nearest to `wanted`."""
    labels: dict[str, str] = {}
    for item in map(TaskItem.FromString, rows):
        labels |= dict.fromkeys((item.id, item.title), f"{item.id} ({item.title})")
    close = dict.fromkeys(labels[known] for known in nearest(wanted, labels))
    return f"; did you mean {' or '.join(close)}?" if close else "; Task.List shows the ids"


async def main() -> None:
    async with Mesh.connect() as mesh:
        name = mesh.settings.name or "task"
        await mesh.run(Service(name, add_TaskServicer_to_server, Tasks(mesh.store), description="Keeps the task list."))


if __name__ == "__main__":
    logging.basicConfig(level=(os.environ.get("RETINUE_LOG") or "warning").upper())
    try:
        asyncio.run(main())
    except MeshError as error:
        sys.exit(f"task: {error}")
