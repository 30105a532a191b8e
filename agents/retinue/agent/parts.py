"""The parts of a message (texts, images, files) as JSON values, for what is stored."""

from __future__ import annotations

import base64
from typing import Any

from retinue.service.chat import Blob, Part


def encode_part(part: Part) -> dict[str, Any]:
    """The part as an object with one key."""
    if part.text is not None:
        return {"text": part.text}
    kind, blob = ("image", part.image) if part.image else ("file", part.file)
    if blob is None:
        return {"text": ""}
    source: dict[str, str] = {"mime": blob.mime}
    if blob.data is not None:
        source["data"] = base64.b64encode(blob.data).decode()
    if blob.uri is not None:
        source["uri"] = blob.uri
    if blob.handle is not None:
        source["handle"] = blob.handle
    return {kind: source}


def decode_part(fields: dict[str, Any]) -> Part:
    """The part that `encode_part` wrote."""
    if "text" in fields:
        return Part(text=fields["text"])
    ((kind, source),) = fields.items()
    data = base64.b64decode(source["data"]) if "data" in source else None
    blob = Blob(source["mime"], data, source.get("uri"), source.get("handle"))
    return Part(image=blob) if kind == "image" else Part(file=blob)
