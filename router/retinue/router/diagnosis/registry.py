"""Whether the registry answers, who is registered there, and whether they can be reached. It registers nothing."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from email.utils import parsedate_to_datetime
from urllib.parse import parse_qs, unquote, urlsplit

from retinue.router.diagnosis.finding import ERROR, OK, WARNING, Finding, clock, to_be_made
from retinue.service.errors import Invalid
from retinue.service.registry import Node, Registry, open_registry
from retinue.service.settings import host_and_port, masked, path_of

CONNECT_S = 2.0


async def check_registry(setting: str) -> AsyncIterator[Finding]:
    """Whether the registry answers, who is there, and whether they can be reached."""
    url = masked(setting)
    if setting == "memory:":
        yield Finding("registry", WARNING, "memory: is one process's own: set RETINUE_REGISTRY for a mesh of several")
        return
    if setting.startswith("local:"):
        path = path_of(setting, field="RETINUE_REGISTRY")
        if not path.exists():
            yield to_be_made("registry", url, path)
            return
    async with open_registry(setting) as opened:
        names = await opened.names()
        yield Finding("registry", OK, f"{url} answers; registered: {', '.join(sorted(names)) or 'nothing'}")
        async for each in _nodes(opened, sorted(names)):
            yield each
    if setting.startswith("consul:"):
        async for each in _consul(setting):
            yield each


async def _nodes(opened: Registry, names: Sequence[str]) -> AsyncIterator[Finding]:
    for name in names:
        nodes = await opened.find(name)
        sound = [node for node in nodes if node.healthy]
        if not sound:
            yield Finding("nodes", WARNING, f"{name} has no healthy node: see that it runs, or start it")
        for node, why in zip(sound, await asyncio.gather(*map(_reached, sound)), strict=True):
            if why:
                text = f"{node.id} is listed at {node.address}, and that cannot be reached ({why})"
                yield Finding("nodes", ERROR, f"{text}: correct RETINUE_ADVERTISE, or see what lies between")


async def _reached(node: Node) -> str:
    """Why nobody listens where the node says that it does, or nothing."""
    try:
        host, port = host_and_port(node.address, field="address")
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except Invalid as error:
        return error.message
    except TimeoutError:
        return f"no answer within {CONNECT_S:g} s"
    except OSError as error:
        return error.strerror or type(error).__name__
    writer.close()
    await writer.wait_closed()
    return ""


async def _consul(url: str) -> AsyncIterator[Finding]:
    """The version and the time of the Consul that just answered."""
    import httpx

    parts = urlsplit(url)
    token = unquote(parts.password or "") or parse_qs(parts.query).get("token", [""])[0]
    token = token or os.environ.get("CONSUL_HTTP_TOKEN", "")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    at = f"http://{host}:{parts.port or 8500}/v1/agent/self"
    try:
        async with httpx.AsyncClient(timeout=CONNECT_S, trust_env=False) as client:
            before = time.time()
            answer = await client.get(at, headers={"X-Consul-Token": token} if token else {})
            mine = (before + time.time()) / 2
        version = answer.json()["Config"]["Version"] if answer.status_code == httpx.codes.OK else ""
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        yield Finding("consul server", WARNING, f"its version cannot be told: {type(error).__name__} at {at}")
        return
    if version:
        yield Finding("consul server", OK, f"{version}")
    else:
        text = f"its version cannot be told: status {answer.status_code}; give the token the right agent:read"
        yield Finding("consul server", WARNING, text)
    if date := answer.headers.get("date"):
        # It tells whole seconds, so that half a second more is the likeliest.
        yield clock("the registry", parsedate_to_datetime(date).timestamp() + 0.5 - mine)
