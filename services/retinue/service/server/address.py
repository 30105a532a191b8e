"""Where a server listens and how others reach it: host and port, checked before gRPC sees them.

It opens no server. What is wrong is Invalid with the setting's name, in one line that says what to do.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket

from retinue.service.errors import Invalid
from retinue.service.settings import host_and_port

LISTEN, ADVERTISE = "RETINUE_LISTEN", "RETINUE_ADVERTISE"
_ANY = ("0.0.0.0", "::")


def join(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_advertise(listen: str, advertise: str) -> None:
    """Invalid when others could not reach a server that listens on `listen` and makes `advertise` known."""
    host, _ = host_and_port(listen, field=LISTEN)
    if advertise:
        host, _ = host_and_port(advertise, field=ADVERTISE)
        if host in _ANY:
            raise Invalid(f"{ADVERTISE} {advertise!r}: name a host that others can reach", field=ADVERTISE)
    elif host in _ANY:
        raise Invalid(
            f"{LISTEN} {listen!r} is every address of this host, and none that others could call: "
            f"set {ADVERTISE} (or --advertise) to host:port as they reach it",
            field=ADVERTISE,
        )


def advertised(listen: str, advertise: str, port: int) -> str:
    """The address to register, for a server that listens on `port`; port 0 in either setting stands for that one."""
    host, wanted = host_and_port(advertise or listen, field=ADVERTISE if advertise else LISTEN)
    return join(host, wanted or port)


async def check_free(listen: str) -> None:
    """Invalid when nothing can listen there, with the reason: gRPC tells it only to standard error."""
    host, port = host_and_port(listen, field=LISTEN)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise Invalid(f"cannot listen on {listen}: {error.strerror}; set {LISTEN}", field=LISTEN) from error
    failures = [failure for family, _, _, _, place in found if (failure := _bind(family, place))]
    taken = any(failure.errno == errno.EADDRINUSE for failure in failures)
    if taken or len(failures) == len(found):
        why = os.strerror(errno.EADDRINUSE if taken else failures[0].errno or 0)
        raise refusal(listen, why)


def refusal(listen: str, why: str) -> Invalid:
    """The error of an address that cannot be listened on."""
    hint = f"stop what listens there, or set {LISTEN} (or --listen) to another host:port"
    return Invalid(f"cannot listen on {listen}: {why}; {hint}", field=LISTEN)


def _bind(family: int, place: tuple[object, ...]) -> OSError | None:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            return error
    return None
