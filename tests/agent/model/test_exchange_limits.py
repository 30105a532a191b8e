"""What a server does to an exchange before and beside its events: each fault is typed, and comes in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from kit.dialect_models import DIALECTS, model_of

from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.model.exchange import HttpModel
from retinue.agent.model.gate import StoreGate
from retinue.service.chat import Message
from retinue.service.errors import ModelError, ModelRate
from retinue.service.store import open_store

REQUEST = ModelRequest(messages=(ModelMessage(message=Message(role="user", text="hi")),))
GARBAGE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\nhello"
)


@asynccontextmanager
async def server(answer: bytes, *, slowly: bool = False) -> AsyncIterator[str]:
    """The root of a server that answers every request with these bytes, at once or without end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for at in range(len(answer)) if slowly else ():
                writer.write(answer[at : at + 1])
                await writer.drain()
                await asyncio.sleep(0.05)
            if not slowly:
                writer.write(answer)
                await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with asyncio.timeout(20), listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def ask(model: HttpModel) -> None:
    async with aclosing(model.stream(REQUEST)) as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_body_that_is_not_packed_as_it_says_is_a_fault_of_the_server(dialect: str) -> None:
    async with server(GARBAGE) as url, model_of(dialect, url) as model:
        with pytest.raises(ModelError) as told:
            await ask(model)
        assert told.value.facts["kind"] == "server_error"
        with pytest.raises(ModelError):
            await model.names()


async def test_headers_that_trickle_end_with_the_time_of_the_whole() -> None:
    head = b"HTTP/1.1 200 OK\r\nx-slow: " + b"a" * 4000
    async with server(head, slowly=True) as url, model_of("openai", url, total_timeout=0.4) as model:
        with pytest.raises(ModelError) as told:
            await ask(model)
        assert told.value.facts["kind"] == "timeout"
        with pytest.raises(ModelError, match=r"within 0\.3 s"):
            await model.names(within=0.3)


async def test_a_list_of_models_without_end_is_cut() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 900000000\r\n\r\n" + b" " * (9 * 1024 * 1024)
    async with server(answer) as url, model_of("openai", url) as model:
        with pytest.raises(ModelError, match="more than 8388608 bytes"):
            await model.names()


async def test_who_is_refused_by_the_gate_does_not_close_it_again() -> None:
    async with open_store("memory:") as store, model_of("openai", "http://127.0.0.1:1") as model:
        gate = model.gate = StoreGate(store, "host-key")
        await gate.close(1e9)
        key = "model/{host-key}/pause"
        stands = await store.get(key)
        for _ in range(2):
            with pytest.raises(ModelRate, match="wants no request with this key for 3600 s"):
                await ask(model)
        assert await store.get(key) == stands
