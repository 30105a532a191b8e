"""What a call of an MCP tool came to: as text for the model, and what is no text as parts, which people can see.

It trusts nothing about the shape of a result: what it does not know is shown as it came.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any

from retinue.agent.tools import ToolResult
from retinue.service.chat import Blob, Part, ToolStatus

# Bytes of images and files that are kept with one result: every later turn loads them with its history.
MOST_KEPT = 1024 * 1024


def to_result(raw: Mapping[str, Any]) -> ToolResult:
    """The result of `tools/call` as the agent's own; an `isError` is a call that failed."""
    content = raw.get("content")
    texts: list[str] = []
    parts: list[Part] = []
    left = MOST_KEPT
    for block in content if isinstance(content, list) else ():
        text, part, size = _read(block, left)
        texts.append(text)
        left -= size
        parts += [part] if part else []
    structured = raw.get("structuredContent")
    if structured is not None and not _said(structured, texts):
        texts.append(_json(structured))
    failed = raw.get("isError") is True
    text = "\n".join(texts) or ("the tool failed and says no more" if failed else "(no output)")
    return ToolResult(text, ToolStatus.ERROR if failed else ToolStatus.OK, parts=tuple(parts))


def _read(block: Any, most: int) -> tuple[str, Part | None, int]:
    """A content block as text, with the part that it is besides, if that has at most `most` bytes, and their number."""
    match block:
        case {"type": "text", "text": str(text)}:
            return text, None, 0
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return _blob(kind, str(block.get("mimeType") or ""), data, most)
        case {"type": "resource", "resource": {"text": str(text)} as resource}:
            return f"[resource {resource.get('uri', '')}]\n{text}", None, 0
        case {"type": "resource", "resource": {"blob": str(data)} as resource}:
            return _blob(f"resource {resource.get('uri', '')}", str(resource.get("mimeType") or ""), data, most)
        case {"type": "resource_link", "uri": str(uri)}:
            about = [str(block[key]) for key in ("title", "name", "description") if block.get(key)]
            return f"[resource link {uri}{': ' if about else ''}{', '.join(about)}]", None, 0
    return _json(block), None, 0


def _blob(kind: str, mime: str, data: str, most: int) -> tuple[str, Part | None, int]:
    mime = mime or "application/octet-stream"
    try:
        raw = base64.b64decode(data, validate=True)
    except binascii.Error:
        return f"[{kind}: {mime}, it cannot be read]", None, 0
    if len(raw) > most:
        return f"[{kind}: {mime}, {len(raw)} bytes, too large to keep]", None, 0
    blob = Blob(mime, data=raw)
    part = Part(image=blob) if mime.startswith("image/") else Part(file=blob)
    return f"[{kind}: {mime}, {len(raw)} bytes]", part, len(raw)


def _said(structured: Any, texts: list[str]) -> bool:
    """Whether the texts say it already, as servers should: as the same JSON, or as what they wrapped in `result`."""
    wrapped = isinstance(structured, dict) and list(structured) == ["result"]
    return bool(texts) and (wrapped or any(value == structured for value in _values(texts)))


def _values(texts: list[str]) -> Iterator[Any]:
    for text in texts:
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            continue  # most text is no JSON


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
