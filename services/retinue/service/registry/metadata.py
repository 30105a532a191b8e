"""A node's facts as Consul service metadata, and back. It knows Consul's limits and nothing of its API.

Consul refuses a value over 512 bytes: a long list of services goes on in `services-2`, `services-3`, ...;
a long description is cut, and stands whole in what the node's own Describe says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retinue.service.registry import Node
from retinue.service.text import sane

VALUE_BYTES = 512


def tags_of(node: Node) -> list[str]:
    """The type as a tag too: Consul's list of all services shows tags, and no metadata."""
    return [f"type={node.type}"]


def type_of(tags: Sequence[str]) -> str:
    """The type that the tags name, the first by alphabet when nodes of one name differ; a service when none does."""
    return min((tag.removeprefix("type=") for tag in tags if tag.startswith("type=")), default="service")


def pack(node: Node) -> dict[str, str]:
    """The metadata of `node`; what is empty is left out."""
    chunks = enumerate(_chunks(node.services), start=1)
    facts = {
        "type": node.type,
        **{f"services-{n}" if n > 1 else "services": chunk for n, chunk in chunks},
        "model": node.model,
        "description": _cut(node.description),
        "version": node.version,
    }
    return {key: value for key, value in facts.items() if value}


def unpack(entry: Mapping[str, Any]) -> Node:
    """The node in one entry of Consul's answer about the health of a service, whoever registered it."""
    service = entry["Service"]
    meta = service["Meta"] or {}
    return Node(
        name=service["Service"],
        id=service["ID"],
        address=join_address(service["Address"] or entry["Node"]["Address"], service["Port"]),
        type=meta.get("type") or type_of(service["Tags"] or ()),
        services=tuple(_services(meta)),
        model=meta.get("model", ""),
        description=meta.get("description", ""),
        version=meta.get("version", ""),
        healthy=all(check["Status"] == "passing" for check in entry["Checks"]),
    )


def join_address(host: str, port: int) -> str:
    """host:port, the host in brackets when it is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _chunks(services: Sequence[str]) -> Iterator[str]:
    chunk = ""
    for service in services:
        if chunk and len(f"{chunk},{service}".encode()) > VALUE_BYTES:
            yield chunk
            chunk = ""
        chunk = f"{chunk},{service}" if chunk else service
    yield chunk


def _services(meta: Mapping[str, str]) -> Iterator[str]:
    key, n = "services", 1
    while chunk := meta.get(key, ""):
        yield from chunk.split(",")
        n += 1
        key = f"services-{n}"


def _cut(text: str) -> str:
    """As much of `text` as fits, in whole characters."""
    return sane(text).encode()[:VALUE_BYTES].decode("utf-8", "ignore")
