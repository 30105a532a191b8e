"""Who is there: nodes that register under a name, and look-ups and watches of them, behind one contract.

A registry says what was registered and whether the registry holds it healthy; it does not choose, retry or cache.
Backends are sibling modules named after their product: memory, local, consul.

Every method raises RegistryUnavailable when the registry cannot be reached.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from retinue.service.errors import Invalid
from retinue.service.settings import masked, path_of

# A node registers again this often, so that a registry that forgot it (restarted empty) learns of it.
HEARTBEAT_S = 2.0
# A node that has not been heard of for so long is gone, where the registry lives by heartbeats.
TTL_S = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One instance of a service. `id` is NAME-8 hex digits, new at each start; `type` is agent, service or router.

    `address` is host:port as others reach it; `healthy` is the registry's own view and not for registering.
    """

    name: str
    id: str
    address: str
    type: str = "service"
    services: tuple[str, ...] = ()
    model: str = ""
    description: str = ""
    version: str = ""
    healthy: bool = True


class Registrar(Protocol):
    """Where a node makes itself known."""

    async def register(self, node: Node) -> None:
        """Makes the node known, or sees that it still is: idempotent, and called again every HEARTBEAT_S."""
        ...

    async def deregister(self, node: Node) -> None:
        """Takes the node off the list; a no-op when it is not on it."""
        ...


class Lookup(Protocol):
    """Where a caller finds nodes."""

    @property
    def rejoining(self) -> bool:
        """Whether it was away until a moment ago: a node that is not listed may only not have registered again yet."""
        ...

    async def find(self, name: str) -> tuple[Node, ...]:
        """Every node registered under `name`, healthy or not, ordered by id; empty when there is none."""
        ...

    async def names(self) -> Mapping[str, str]:
        """Every registered name with its type, those registered by hand too; the registry's own are left out."""
        ...

    def watch(self, name: str) -> AsyncIterator[tuple[Node, ...]]:
        """The nodes of `name` now, and again after each change, for ever. Changes in between may be joined."""
        ...

    def watch_names(self) -> AsyncIterator[Mapping[str, str]]:
        """All names now, and again after each change, for ever."""
        ...


class Registry(Registrar, Lookup, Protocol):
    """All of it. `url` is for messages, its password masked."""

    @property
    def url(self) -> str: ...


def open_registry(url: str) -> AbstractAsyncContextManager[Registry]:
    """The registry that `url` names, to be entered: consul://host:port, local:///abs/path or memory:.

    Raises Invalid for any other. Entering reaches nothing yet: the first call does.
    """
    match url.partition(":")[0]:
        case "consul":
            from retinue.service.registry.consul import ConsulRegistry

            return ConsulRegistry(url)
        case "local":
            from retinue.service.registry.local import LocalRegistry

            return LocalRegistry(path_of(url, field="RETINUE_REGISTRY"))
        case "memory":
            from retinue.service.registry.memory import MemoryRegistry

            return MemoryRegistry()
        case _:
            raise Invalid(
                f"registry {masked(url)!r}: use consul://host:port, local:///absolute/path or memory:",
                field="RETINUE_REGISTRY",
            )
