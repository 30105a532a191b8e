"""What a message may hold beside its text, on the wire: parts, blobs and the context.

It maps and never fetches: a blob's address or handle is not followed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format, struct_pb2

from retinue.service import errors
from retinue.service.chat import Blob, Part
from retinue.service.text import sane
from retinue.v1 import agent_pb2 as pb


def to_part(part: Part) -> pb.Part:
    """The wire's form of a part."""
    if part.image is not None:
        return pb.Part(image=_to_blob(part.image))
    if part.file is not None:
        return pb.Part(file=_to_blob(part.file))
    return pb.Part(text=sane(part.text or ""))


def from_part(part: pb.Part) -> Part:
    """The part in a message; Invalid when it holds nothing."""
    match part.WhichOneof("kind"):
        case "text":
            return Part(text=sane(part.text))
        case "image":
            return Part(image=_from_blob(part.image))
        case "file":
            return Part(file=_from_blob(part.file))
        case _:
            raise errors.Invalid("a part is empty: set its text, image or file", field="parts")


def _to_blob(blob: Blob) -> pb.Blob:
    sent = pb.Blob(mime=blob.mime)
    if blob.data is not None:
        sent.data = blob.data
    elif blob.uri is not None:
        sent.uri = blob.uri
    elif blob.handle is not None:
        sent.handle = blob.handle
    return sent


def _from_blob(blob: pb.Blob) -> Blob:
    match blob.WhichOneof("source"):
        case "data":
            return Blob(blob.mime, data=blob.data)
        case "uri":
            return Blob(blob.mime, uri=blob.uri)
        case "handle":
            return Blob(blob.mime, handle=blob.handle)
        case _:
            raise errors.Invalid("a blob is empty: set its data, uri or handle", field="parts")


def to_context(context: Mapping[str, Any]) -> struct_pb2.Struct:
    """The wire's form of a context; Invalid when it is not JSON."""
    try:
        return json_format.ParseDict(_sane_json(context), struct_pb2.Struct())
    except json_format.ParseError:
        raise errors.Invalid("context: only JSON values can travel in it", field="context") from None


def from_context(struct: struct_pb2.Struct) -> dict[str, Any]:
    """The context in a message; whole numbers come as int. Invalid for a number that JSON does not have."""
    try:
        context: dict[str, Any] = _sane_json(json_format.MessageToDict(struct))
    except (json_format.SerializeToJsonError, ValueError):
        raise _not_finite() from None
    return context


def _sane_json(value: Any) -> Any:
    match value:
        case str():
            return sane(value)
        case Mapping():
            return {sane(str(key)): _sane_json(item) for key, item in value.items()}
        case list() | tuple():
            return [_sane_json(item) for item in value]
        case float() if not math.isfinite(value):
            raise _not_finite()
        case _:
            return value


def _not_finite() -> errors.Invalid:
    return errors.Invalid("context: a number in it is not finite, and JSON has no such", field="context")
