"""How a server is connected to: by an async function, or by the `mcp` package, which is imported only then."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any

from retinue.agent.mcp.link import Link, Request, RpcRefused, checked
from retinue.agent.mcp.server import McpServer
from retinue.service.text import sane


def open_link(server: McpServer, link: Link) -> AbstractAsyncContextManager[Request]:
    """Connects to the server; what is heard on the way is noted in `link`. Raises whatever the connecting raises."""
    if server.rpc is not None:
        return _function(server)
    from retinue.agent.mcp.session import open_session

    return open_session(server, link)


@asynccontextmanager
async def _function(server: McpServer) -> AsyncIterator[Request]:
    """The requests of a server that is an async function."""
    rpc, numbers = server.rpc, count(1)
    assert rpc is not None

    async def request(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = await rpc({"jsonrpc": "2.0", "id": next(numbers), "method": method, "params": dict(params)})
        match answer:
            case {"error": {"message": str(message)}}:
                raise RpcRefused(sane(message))
            case {"result": dict() as result}:
                return checked(result)
        raise RpcRefused(f"it answered {method} with no JSON-RPC response")

    yield request
