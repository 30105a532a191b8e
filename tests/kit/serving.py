"""Parts served for a test by a mesh in memory, and plain gRPC channels to them, as any client has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from office.v1 import task_pb2, task_pb2_grpc
from retinue.service import errors
from retinue.service.mesh import Mesh
from retinue.service.part import Part, Service
from retinue.service.server import Server
from retinue.service.testing import LocalMesh
from retinue.service.transport import CHANNEL_OPTIONS


@asynccontextmanager
async def served(part: Part, mesh: Mesh | None = None) -> AsyncIterator[tuple[Server, grpc.aio.Channel]]:
    """The server of `part`, alone in `mesh` (one of its own unless given), and a channel to it."""
    async with (
        mesh or LocalMesh() as entered,
        entered.serve(part) as (server,),
        grpc.aio.insecure_channel(server.address, options=CHANNEL_OPTIONS) as channel,
    ):
        yield server, channel


async def status_of(call: Any) -> errors.MeshError:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return errors.from_rpc(caught.value)


class Tasks(task_pb2_grpc.TaskServicer):
    """A plain service that raises what its test wants."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def Create(self, request: Any, context: Any) -> Any:
        if self._error:
            raise self._error
        return task_pb2.TaskItem()

    async def List(self, request: Any, context: Any) -> Any:
        return task_pb2.ListTasksResponse()

    def Complete(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    async def Delete(self, request: Any, context: Any) -> Any:
        return await context.abort(grpc.StatusCode.DATA_LOSS, "its own words")


def tasks(error: Exception | None = None) -> Service:
    return Service("task", task_pb2_grpc.add_TaskServicer_to_server, Tasks(error))
