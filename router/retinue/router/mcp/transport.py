"""How clients reach an MCP server: over this process's standard streams, or over HTTP on an address.

It does not know what is served. Over HTTP there are no credentials: who reaches the address can call everything.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator

from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings

from retinue.router.cli.signals import on_signals
from retinue.service.errors import Invalid
from retinue.service.settings import host_and_port

log = logging.getLogger("retinue.mcp")

PATH = "/mcp"
# How long requests that run may take to end when the server is stopped, seconds.
_GRACE_S = 3


async def serve_stdio(server: Server[None]) -> None:
    """Serves the one client at the other end of standard input and output, until it hangs up.

    A signal ends the process at once: the read that waits for the client cannot be called off.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def serve_http(server: Server[None], address: str, say: Callable[[str], None]) -> None:
    """Serves streamable HTTP at `address` (host:port) until SIGTERM or SIGINT; `say` is told the URL.

    Requests whose Host or Origin header names another place are refused. Raises Invalid for an address that is not
    one host's, or that is taken.
    """
    import uvicorn

    class Uvicorn(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # signals are ours: a stopped server is a success

    host, port = host_and_port(address, field="--http")
    with _listening(host, port) as listening:
        shown = f"[{host}]" if ":" in host else host
        bound = listening.getsockname()[1]
        app = server.streamable_http_app(streamable_http_path=PATH, transport_security=_security(host, shown, bound))
        config = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE_S, ws="none", lifespan="on"
        )
        running = Uvicorn(config)

        def stop(_: signal.Signals) -> None:
            running.force_exit = running.should_exit
            running.should_exit = True

        say(f"serving MCP at http://{shown}:{bound}{PATH}")
        with on_signals((signal.SIGINT, signal.SIGTERM), stop):
            await running.serve(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    if host != "localhost":
        try:
            given = ipaddress.ip_address(host)
        except ValueError:
            pass  # a name: what it means is the system's matter
        else:
            if given.is_unspecified:
                raise Invalid(f"--http {host}: name the address that clients use, not all of them", field="--http")
            if not given.is_loopback:
                log.warning("everyone who reaches %s can call the whole mesh: there are no credentials", host)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise Invalid(f"cannot listen on {host}:{port}: {error.strerror}", field="--http") from None


def _security(host: str, shown: str, port: int) -> TransportSecuritySettings:
    """What a browser that was lured elsewhere cannot fake: the names under which this server is called."""
    names = {shown}
    if host == "localhost" or shown.startswith(("127.", "[::1]")):
        names |= {"127.0.0.1", "localhost", "[::1]"}
    places = sorted(f"{name}:{port}" for name in names)
    return TransportSecuritySettings(allowed_hosts=places, allowed_origins=[f"http://{place}" for place in places])
