"""Nodes in Consul, through py-consul: services with metadata, and a gRPC health check that Consul makes itself.

Services that somebody registered by hand are found too; Consul's own is not. It keeps no copy of what it read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import aiohttp
import consul
import consul.aio

from retinue.service.errors import Invalid, RegistryUnavailable
from retinue.service.registry import Node
from retinue.service.registry.metadata import pack, tags_of, type_of, unpack
from retinue.service.registry.outage import Outage
from retinue.service.settings import host_and_port, masked

log = logging.getLogger("retinue.registry")

T = TypeVar("T")
OWN_SERVICE = "consul"
CALL_S = 5.0
# Consul adds up to a sixteenth of it (https://developer.hashicorp.com/consul/api-docs/features/blocking). When a
# snapshot is restored, whose index is lower, a watch sees it only after this.
WAIT_S = 30
# A watch asks again only after so long, so that a storm of changes is a few answers.
GAP_S = 0.05
BACKOFF_S = (0.1, 2.0)
# How many calls of a process are under way at once, watches not counted: Consul allows 200 connections per client
# address, which the processes of a machine share.
CALLS = 3


class ConsulRegistry:
    """The Consul at consul://[:TOKEN@]HOST[:PORT][?token=TOKEN].

    Raises Invalid when `url` is not that. Without a token in it, CONSUL_HTTP_TOKEN is used as Consul's own tools do.
    `timeout` (seconds) is for one call; `wait` (whole seconds) is how long a watch lets Consul think before it asks
    anew.
    """

    def __init__(self, url: str, *, timeout: float = CALL_S, wait: int = WAIT_S) -> None:
        self.url = masked(url)
        self._host, self._port, self._token = _parse(url)
        self._timeout = timeout
        self._wait = wait
        self._opened: Any = None
        self._away = False
        self._outage = Outage()
        self._calls = asyncio.Semaphore(CALLS)

    async def __aenter__(self) -> ConsulRegistry:
        with warnings.catch_warnings():
            # py-consul hands aiohttp a parameter that aiohttp 3.14 calls deprecated; verify=False because this is http.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._opened = consul.aio.Consul(self._host, self._port, scheme="http", verify=False)
        # py-consul would let the environment win over what the URL says.
        self._opened.token = self._token or self._opened.token
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    @property
    def rejoining(self) -> bool:
        return self._outage.recent

    async def register(self, node: Node) -> None:
        known = await self._known(node)
        if known is not None and _same(known, node):
            return
        host, port = host_and_port(node.address, field="address")
        # By its id: whoever has the address of a dead node later must not keep that one healthy and listed.
        check = consul.Check.grpc(f"{node.address}/{node.id}", "2s", timeout="1s", deregister="1m")
        # A server registers once it is SERVING; Consul would call it critical until the first check.
        check["status"] = "passing"
        # Consul answers once its catalogue has it too.
        await self._call(
            lambda: self._consul.agent.service.register(
                node.name,
                service_id=node.id,
                address=host,
                port=port,
                tags=tags_of(node),
                meta=pack(node),
                check=check,
                replace_existing_checks=True,
            )
        )

    async def deregister(self, node: Node) -> None:
        if await self._known(node) is not None:
            await self._call(self._consul.agent.service.deregister, node.id)

    async def find(self, name: str) -> tuple[Node, ...]:
        return _nodes((await self._call(self._health, name))[1])

    async def names(self) -> Mapping[str, str]:
        return _types((await self._call(self._consul.catalog.services))[1])

    def watch(self, name: str) -> AsyncIterator[tuple[Node, ...]]:
        return self._follow(lambda index: self._health(name, index), _nodes)

    def watch_names(self) -> AsyncIterator[Mapping[str, str]]:
        return self._follow(lambda index: self._consul.catalog.services(index=index, wait=f"{self._wait}s"), _types)

    @property
    def _consul(self) -> Any:
        if self._opened is None:
            raise RuntimeError("the registry is not entered: use it inside `async with`")
        return self._opened

    async def _known(self, node: Node) -> Mapping[str, Any] | None:
        """What the agent holds under the node's id. (py-consul's look-up of one service would send no token.)"""
        services: dict[str, Any] | None = await self._call(
            lambda: self._consul.agent.services(filter_expr=f'ID == "{node.id}"')
        )
        if services is None:
            raise self._unavailable("it lists no services; is that a Consul?")
        return services.get(node.id)

    def _health(self, name: str, index: int | None = None) -> Awaitable[tuple[str, Any]]:
        answer: Awaitable[tuple[str, Any]] = self._consul.health.service(name, index=index, wait=f"{self._wait}s")
        return answer

    async def _follow(
        self, ask: Callable[[int | None], Awaitable[tuple[str, Any]]], view: Callable[[Any], T]
    ) -> AsyncIterator[T]:
        index, raw = _step(None, await self._call(ask, None))
        shown = view(raw)
        yield shown
        delay = BACKOFF_S[0]
        while True:
            await asyncio.sleep(GAP_S)
            try:
                index, raw = _step(index, await self._call(ask, index, waiting=True))
            except RegistryUnavailable as error:
                if not self._away:
                    self._away = True
                    log.warning("%s; watches go on when it is back", error)
                index = None
                await asyncio.sleep(random.uniform(0.5, 1.0) * delay)
                delay = min(2 * delay, BACKOFF_S[1])
                continue
            if self._away:
                self._away = False
                log.info("registry %s is back", self.url)
            delay = BACKOFF_S[0]
            if (now := view(raw)) != shown:
                shown = now
                yield shown

    async def _call(self, ask: Callable[..., Awaitable[T]], *args: object, waiting: bool = False) -> T:
        within = self._timeout + (self._wait * 17 / 16 if waiting else 0)
        try:
            async with asyncio.timeout(within), contextlib.nullcontext() if waiting else self._calls:
                result = await ask(*args)
        except (aiohttp.ClientError, OSError, TimeoutError, consul.ConsulException) as error:
            self._outage.begin()
            raise self._unavailable(str(error) or f"no answer within {within:g} s") from error
        self._outage.end()
        return result

    def _unavailable(self, cause: str) -> RegistryUnavailable:
        return RegistryUnavailable(
            f"registry {self.url} cannot be reached ({cause[:200]}); see that Consul runs there and has a leader, or "
            "set RETINUE_REGISTRY",
            retry_after=1.0,
        )


def _parse(url: str) -> tuple[str, int, str]:
    usage = Invalid(f"registry {masked(url)!r}: use consul://[:token@]host:port", field="RETINUE_REGISTRY")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise usage from error
    if not host:
        raise usage
    in_query = parse_qs(parts.query).get("token", [""])[0]
    return f"[{host}]" if ":" in host else host, port or 8500, unquote(parts.password or "") or in_query


def _step(index: int | None, answer: tuple[str, T]) -> tuple[int | None, T]:
    """The index to wait on next; none, which asks afresh, when Consul's went backwards."""
    latest, raw = int(answer[0]), answer[1]
    return (None if latest < max(1, index or 0) else latest), raw


def _same(known: Mapping[str, Any], node: Node) -> bool:
    host, port = host_and_port(node.address, field="address")
    there = (known["Service"], known["Address"], known["Port"], known["Tags"], known["Meta"])
    return there == (node.name, host, port, tags_of(node), pack(node))


def _nodes(entries: list[dict[str, Any]]) -> tuple[Node, ...]:
    nodes = (unpack(entry) for entry in entries)
    return tuple(sorted((node for node in nodes if node.name != OWN_SERVICE), key=lambda node: node.id))


def _types(services: dict[str, list[str]]) -> dict[str, str]:
    return {name: type_of(tags) for name, tags in sorted(services.items()) if name != OWN_SERVICE}
