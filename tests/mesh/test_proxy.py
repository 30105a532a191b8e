"""The proxy of the fault kit does to a network what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from kit.proxy import Proxy


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A proxy to a server that says each line back."""

    left = asyncio.Semaphore(0)
    taken = 0

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken += 1
        with suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(line)
        await close(writer)
        left.release()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with asyncio.timeout(10), server:
        async with Proxy(f"{host}:{port}") as proxy:
            yield proxy
        for _ in range(taken):
            await left.acquire()


async def close(writer: asyncio.StreamWriter) -> None:
    """Closes it, also one that is broken."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


class Wire:
    """A connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, proxy: Proxy) -> Wire:
        host, _, port = proxy.address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def say(self, line: bytes) -> None:
        self._writer.write(line)

    async def hear(self) -> bytes:
        return await self._reader.readline()

    async def close(self) -> None:
        await close(self._writer)


async def test_a_cut_breaks_what_is_open_and_refuses_what_is_new_until_it_is_healed(proxy: Proxy) -> None:
    wire = await Wire.to(proxy)
    wire.say(b"one\n")
    assert await wire.hear() == b"one\n"
    proxy.cut()
    assert await wire.hear() == b""
    with pytest.raises(ConnectionRefusedError):
        await Wire.to(proxy)
    await proxy.heal()
    again = await Wire.to(proxy)
    again.say(b"two\n")
    assert await again.hear() == b"two\n"
    for each in (wire, again):
        await each.close()


async def test_a_black_hole_takes_everything_and_passes_nothing_until_it_is_healed(proxy: Proxy) -> None:
    old = await Wire.to(proxy)
    old.say(b"before\n")
    assert await old.hear() == b"before\n"
    proxy.blackhole()
    new = await Wire.to(proxy)
    heard = [asyncio.create_task(wire.hear()) for wire in (old, new)]
    for wire in (old, new):
        wire.say(b"lost?\n")
    done, _ = await asyncio.wait(heard, timeout=0.1)
    assert not done
    await proxy.heal()
    assert [await each for each in heard] == [b"lost?\n", b"lost?\n"]
    for wire in (old, new):
        await wire.close()
