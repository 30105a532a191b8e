"""The RPC kit: serve anything that is a Chat, or a plain gRPC service, and call both by name.

Errors are in `errors`, backends in `registry` and `store`, a mesh for tests in `testing`. No backend is imported
before it is used, and no model layer ever.
"""

from retinue.service.chat import Blob, Call, Chat, Completed, Event, Part, Reply, TextDelta
from retinue.service.client import Client
from retinue.service.client.peer import Peer
from retinue.service.errors import MeshError
from retinue.service.mesh import Mesh
from retinue.service.part import Service
from retinue.service.server import Server
from retinue.service.settings import Settings

__all__ = [
    "Blob",
    "Call",
    "Chat",
    "Client",
    "Completed",
    "Event",
    "Mesh",
    "MeshError",
    "Part",
    "Peer",
    "Reply",
    "Server",
    "Service",
    "Settings",
    "TextDelta",
]
