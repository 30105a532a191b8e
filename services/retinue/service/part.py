"""What a mesh can serve: anything that is a Chat, or a plain gRPC service.

It holds the shapes alone; the server serves them and mesh.py gives them a life.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc.aio

from retinue.service.chat import Chat, Describes, Description


@dataclass(frozen=True, slots=True)
class Service:
    """A plain gRPC service under a name: `Service("task", add_TaskServicer_to_server, Tasks(mesh.store))`.

    `add` is the generated function. The servicer's methods are async; what they raise as MeshError reaches the
    caller as such.
    """

    name: str
    add: Callable[[Any, grpc.aio.Server], None]
    servicer: Any
    description: str = ""


Part: TypeAlias = Chat | Service


def describe(part: Part) -> Description:
    """What a part says of itself; a Chat that says nothing is an agent."""
    if isinstance(part, Service):
        return Description(name=part.name, type="service", description=part.description)
    if isinstance(part, Describes):
        return part.describe()
    return Description(name=part.name, type="agent")
