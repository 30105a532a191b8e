"""What a caller may send beside a call, checked before it is used: gRPC itself fails on some of it without a status.

It judges keys and values only; what the mesh's own keys mean is envelope.py's.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable

from retinue.service.envelope import TO
from retinue.service.errors import Invalid, cut

_KEY = re.compile(r"[a-z0-9_.-]+")
_VALUE = re.compile(r"[ -~]*")
# gRPC refuses more than 8 KiB by chance, and more than 16 KiB always, both before any code of the callee; the rest is
# for its own headers and the mesh's. Each pair counts 32 bytes more, by HTTP/2's reckoning (RFC 9113, 6.5.2).
_ALL_BYTES = 6144
_PAIR_BYTES = 32
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
    """`pairs` as they may be sent with a call; Invalid, naming the key, when one may not, or all are too long.

    The value of a key that ends in -bin is bytes, or their base64 as a text.
    """
    checked = [(key, _checked(key, value)) for key, value in pairs]
    size = sum(len(key) + len(value) + _PAIR_BYTES for key, value in checked)
    if size > _ALL_BYTES:
        longest = max(checked, key=lambda pair: len(pair[1]))[0]
        text = f"the metadata has {size} bytes, most of them in {cut(longest, 64)!r}: send at most {_ALL_BYTES}"
        raise Invalid(f"{text}, and the rest in the request", field=longest)
    return checked


def _checked(key: str, value: str | bytes) -> str | bytes:
    shown = repr(cut(key, 64))
    if not _KEY.fullmatch(key):
        raise Invalid(f"metadata key {shown}: use a-z, 0-9, '_', '.' and '-'", field=key or "metadata")
    if key.startswith("grpc-") or key in _TRANSPORT:
        raise Invalid(f"metadata key {shown} belongs to the transport and cannot be set", field=key)
    if key == TO:
        raise Invalid(f"metadata key {shown} is the name that is called and cannot be set", field=key)
    if key.endswith("-bin"):
        return value if isinstance(value, bytes) else _from_base64(key, value)
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        raise Invalid(f"metadata {shown}: use printable ASCII, or a key that ends in -bin for bytes", field=key)
    return value


def _from_base64(key: str, text: str) -> bytes:
    """The bytes that gRPC itself would write as this text; it writes no padding."""
    plain = text.rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except ValueError:
        text = f"metadata {cut(key, 64)!r}: a key that ends in -bin takes bytes, written in base64, such as aGk="
        raise Invalid(text, field=key) from None
