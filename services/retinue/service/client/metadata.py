"""What a caller may send beside a call, checked before it is used: gRPC itself fails on some of it without a status.

It judges keys and values only; what the mesh's own keys mean is envelope.py's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from retinue.service.envelope import TO
from retinue.service.errors import Invalid

_KEY = re.compile(r"[a-z0-9_.-]+")
_VALUE = re.compile(r"[ -~]*")
# These belong to one connection or to the transport, not to the call.
_TRANSPORT = frozenset(
    (
        "connection",
        "content-length",
        "content-type",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)


def check_metadata(pairs: Iterable[tuple[str, str | bytes]]) -> list[tuple[str, str | bytes]]:
    """`pairs` as a list when each may be sent with a call; Invalid, naming the key, otherwise."""
    checked = list(pairs)
    for key, value in checked:
        _check(key, value)
    return checked


def _check(key: str, value: str | bytes) -> None:
    if not _KEY.fullmatch(key):
        raise Invalid(f"metadata key {key!r}: use a-z, 0-9, '_', '.' and '-'", field=key)
    if key.startswith("grpc-") or key in _TRANSPORT:
        raise Invalid(f"metadata key {key!r} belongs to the transport and cannot be set", field=key)
    if key == TO:
        raise Invalid(f"metadata key {key!r} is the name that is called and cannot be set", field=key)
    if key.endswith("-bin"):
        return
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise Invalid(f"metadata {key}: use printable ASCII, or a key that ends in -bin for bytes", field=key)
