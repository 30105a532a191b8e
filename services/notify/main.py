"""The messages of the reference mesh to people: a plain gRPC service that writes them down in the mesh's store.

It delivers nothing: a mail or chat gateway would stand here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Callable
from datetime import UTC, datetime

from office.v1.notify_pb2 import ListNotificationsRequest, ListNotificationsResponse, Notification, SendRequest
from office.v1.notify_pb2_grpc import NotifyServicer, add_NotifyServicer_to_server
from retinue.service import Mesh, Service
from retinue.service.errors import MeshError
from retinue.service.names import check_text
from retinue.service.store import Logs

LOG = "service/notify/notifications"
PERSON, TEXT = 100, 10_000


def _now() -> datetime:
    return datetime.now(UTC)


class Notifications(NotifyServicer):
    """The RPCs of office.v1.Notify. `now` says what time it is."""

    def __init__(self, store: Logs, *, now: Callable[[], datetime] = _now) -> None:
        self._store = store
        self._now = now

    async def Send(self, request: SendRequest, context: object) -> Notification:
        sent = Notification(
            id=f"n-{secrets.token_hex(6)}",
            to=check_text(request.to, field="to", most=PERSON, required=True),
            message=check_text(request.message, field="message", most=TEXT, required=True),
        )
        sent.time.FromDatetime(self._now())
        await self._store.append(LOG, [sent.SerializeToString()])
        return sent

    async def List(self, request: ListNotificationsRequest, context: object) -> ListNotificationsResponse:
        to = request.to.strip().casefold()
        log = await self._store.read(LOG)
        sent = map(Notification.FromString, log.entries)
        return ListNotificationsResponse(notifications=[one for one in sent if to in ("", one.to.casefold())])


async def main() -> None:
    async with Mesh.connect() as mesh:
        name = mesh.settings.name or "notify"
        servicer = Notifications(mesh.store)
        await mesh.run(Service(name, add_NotifyServicer_to_server, servicer, description="Sends messages to people."))


if __name__ == "__main__":
    logging.basicConfig(level=(os.environ.get("RETINUE_LOG") or "warning").upper())
    try:
        asyncio.run(main())
    except MeshError as error:
        sys.exit(f"notify: {error}")
