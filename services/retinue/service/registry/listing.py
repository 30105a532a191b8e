"""What a list of nodes looks like from outside: by name, and as names with types. It holds and fetches nothing."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.service.registry import Node


def nodes_of(name: str, nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes under `name`, ordered by id."""
    return tuple(sorted((node for node in nodes if node.name == name), key=lambda node: node.id))


def types_of(nodes: Iterable[Node]) -> dict[str, str]:
    """Each name with its type, the first by alphabet when its nodes differ."""
    types: dict[str, str] = {}
    for node in sorted(nodes, key=lambda node: (node.name, node.type)):
        types.setdefault(node.name, node.type)
    return types
