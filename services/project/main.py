"""The projects of the reference mesh: a plain gRPC service that keeps its rows in the mesh's store.

It knows nothing of tasks: those name their project themselves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from office.v1.project_pb2 import CreateProjectRequest, ListProjectsRequest, ListProjectsResponse, ProjectItem
from office.v1.project_pb2_grpc import ProjectServicer, add_ProjectServicer_to_server
from retinue.service import Mesh, Service
from retinue.service.errors import AlreadyExists, MeshError
from retinue.service.names import check_text
from retinue.service.store import Conflict, Tables

TABLE = "service/project/projects"
NAME, GOAL = 100, 1000


class Projects(ProjectServicer):
    """The RPCs of office.v1.Project. Letters' case does not tell two names apart."""

    def __init__(self, store: Tables) -> None:
        self._store = store

    async def Create(self, request: CreateProjectRequest, context: object) -> ProjectItem:
        item = ProjectItem(
            name=check_text(request.name, field="name", most=NAME, required=True),
            goal=check_text(request.goal, field="goal", most=GOAL),
        )
        try:
            await self._store.put_row(TABLE, item.name.casefold(), item.SerializeToString(), expect=None)
        except Conflict:
            raise AlreadyExists(f"there is a project {item.name!r} already: use it or choose another name") from None
        return item

    async def List(self, request: ListProjectsRequest, context: object) -> ListProjectsResponse:
        rows = await self._store.rows(TABLE)
        return ListProjectsResponse(projects=[ProjectItem.FromString(rows[key]) for key in sorted(rows)])


async def main() -> None:
    async with Mesh.connect() as mesh:
        name = mesh.settings.name or "project"
        projects = Projects(mesh.store)
        await mesh.run(Service(name, add_ProjectServicer_to_server, projects, description="Keeps the projects."))


if __name__ == "__main__":
    logging.basicConfig(level=(os.environ.get("RETINUE_LOG") or "warning").upper())
    try:
        asyncio.run(main())
    except MeshError as error:
        sys.exit(f"project: {error}")
