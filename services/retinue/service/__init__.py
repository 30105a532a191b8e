"""The RPC kit: serve anything that is a Chat, or a plain gRPC service, and call both by name.

Errors are in `errors`, backends in `registry` and `store`, a mesh for tests in `testing`. No backend is imported
before it is used, and no model layer ever.
"""

from retinue.service.chat import Call, Chat, Event, Reply
from retinue.service.client import Client
from retinue.service.client.peer import Peer
from retinue.service.errors import MeshError
from retinue.service.mesh import Mesh
from retinue.service.part import Service
from retinue.service.server import Server
from retinue.service.settings import Settings

__all__ = ["Call", "Chat", "Client", "Event", "Mesh", "MeshError", "Peer", "Reply", "Server", "Service", "Settings"]
