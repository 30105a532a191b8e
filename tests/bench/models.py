"""Model calls by themselves: their CPU beside a bare socket's, many in flight, and how fast a long stream is read."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing

import httpx
from bench.stage import child

from retinue.agent.model import ModelEnd, ModelMessage, ModelRequest
from retinue.agent.model.anthropic import Anthropic
from retinue.agent.model.decoder import Decoder, Dialect
from retinue.agent.model.failures import Failures
from retinue.agent.model.gemini import Gemini
from retinue.agent.model.ollama import Ollama
from retinue.agent.model.openai import OpenAI
from retinue.agent.model.transport import ModelClient
from retinue.service.chat import Message

ROUNDS, CALLS = 7, 400
IN_FLIGHT, LATENCIES_S, TIMES = 128, (0.05, 1.0), {0.05: 40, 1.0: 4}
DELTAS, PIECE = 10_000, 16 * 1024


def request(words: str) -> ModelRequest:
    said = Message(role="user", text=words)
    return ModelRequest(system="You answer.", messages=(ModelMessage(message=said),))


async def ask(model: OpenAI, words: str) -> None:
    async with aclosing(model.stream(request(words))) as events:
        last = [event async for event in events][-1]
    assert isinstance(last, ModelEnd)


class Bare:
    """Connections without a client: the same bytes out, and all of the answer's in."""

    def __init__(self, address: str, body: bytes) -> None:
        self._host, _, self._port = address.rpartition(":")
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._bytes = head.encode() + body
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def exchange(self) -> None:
        if not self._free:
            self._free.append(await asyncio.open_connection(self._host, int(self._port)))
        reader, writer = self._free.pop()
        writer.write(self._bytes)
        await reader.readuntil(b"0\r\n\r\n")
        self._free.append((reader, writer))

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


async def cpu_of(call: Callable[[], Awaitable[None]], callers: int) -> float:
    """Seconds of this process's CPU for one call, with so many callers at once."""

    async def caller() -> None:
        for _ in range(CALLS // callers):
            await call()

    begin = time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return (time.process_time() - begin) / CALLS


async def beside_a_socket(model: OpenAI, bare: Bare, callers: int) -> tuple[float, float]:
    """CPU of a model call in milliseconds, and as a ratio to that of the bare exchange: medians of the rounds."""
    calls, ratios = [], []
    for _ in range(ROUNDS):
        socket = await cpu_of(bare.exchange, callers)
        calls.append(await cpu_of(lambda: ask(model, "hello"), callers))
        ratios.append(calls[-1] / socket)
    return statistics.median(calls) * 1e3, statistics.median(ratios)


async def in_flight(model: OpenAI, latency: float) -> float:
    """The median time of a call while many are in flight, as a ratio to the server's latency."""
    times: list[float] = []

    async def caller() -> None:
        for _ in range(TIMES[latency]):
            begin = time.perf_counter()
            await ask(model, f"think for {latency} s")
            times.append(time.perf_counter() - begin)

    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return statistics.median(times) / latency


def _openai() -> Iterator[str]:
    chunk = '{{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,{}}}]}}'
    for number in range(DELTAS):
        yield "data: " + chunk.format(f'"delta":{{"content":"word {number} "}},"finish_reason":null') + "\n\n"
    yield "data: " + chunk.format('"delta":{},"finish_reason":"stop"') + "\n\ndata: [DONE]\n\n"


def _anthropic() -> Iterator[str]:
    def event(kind: str, **fields: object) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"

    usage = {"input_tokens": 9, "output_tokens": 1}
    yield event("message_start", message={"id": "m", "role": "assistant", "content": [], "usage": usage})
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for number in range(DELTAS):
        yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": f"word {number} "})
    yield event("content_block_stop", index=0)
    yield event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": DELTAS})
    yield event("message_stop")


def _gemini() -> Iterator[str]:
    for number in range(DELTAS):
        end = {"finishReason": "STOP"} if number == DELTAS - 1 else {}
        said = {"content": {"role": "model", "parts": [{"text": f"word {number} "}]}, "index": 0, **end}
        yield f"data: {json.dumps({'candidates': [said], 'modelVersion': 'm'})}\r\n\r\n"


def _ollama() -> Iterator[str]:
    for number in range(DELTAS):
        message = {"role": "assistant", "content": f"word {number} "}
        yield json.dumps({"model": "m", "created_at": "t", "message": message, "done": False}) + "\n"
    last = {"role": "assistant", "content": ""}
    yield json.dumps({"model": "m", "created_at": "t", "message": last, "done": True, "done_reason": "stop"}) + "\n"


STREAMS: dict[str, tuple[Dialect, Callable[[], Iterator[str]]]] = {
    "openai": (OpenAI.dialect, _openai),
    "anthropic": (Anthropic.dialect, _anthropic),
    "gemini": (Gemini.dialect, _gemini),
    "ollama": (Ollama.dialect, _ollama),
}


def decoded(dialect: Dialect, stream: bytes) -> float:
    """Megabytes a second at which a stream is decoded."""
    begin = time.perf_counter()
    decoder = Decoder(dialect, Failures("bench/m"), status=200, headers={})
    for at in range(0, len(stream), PIECE):
        for _ in decoder.feed(stream[at : at + PIECE]):
            pass
    (*_, end) = decoder.close()
    assert isinstance(end, ModelEnd)
    assert end.text.endswith(f"word {DELTAS - 1} ")
    return len(stream) / 1e6 / (time.perf_counter() - begin)


async def measure() -> None:
    """Prints all of it."""
    print("model calls", file=sys.stderr)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(child("model"))
        model = await stack.enter_async_context(OpenAI("bench", base_url=f"http://{server.address}/v1"))
        bare = Bare(server.address, json.dumps(model.body(request("hello"))).encode())
        stack.callback(bare.close)
        print()
        for callers in (1, 16):
            cpu, ratio = await beside_a_socket(model, bare, callers)
            print(f"CPU of a model call, {callers} at once: {cpu:.2f} ms, {ratio:.1f} x a bare socket exchange")
        pool = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=IN_FLIGHT))
        plain = OpenAI("bench", base_url=f"http://{server.address}/v1", client=ModelClient(pool))
        await stack.enter_async_context(plain)
        for latency in LATENCIES_S:
            late, pooled = await in_flight(model, latency), await in_flight(plain, latency)
            print(
                f"{IN_FLIGHT} model calls in flight at {latency * 1e3:.0f} ms: p50 {late:.2f} x that (aim <= 1.50);"
                f" over httpx's own pool {pooled:.2f} x"
            )
    for name, (dialect, written) in STREAMS.items():
        stream = "".join(written()).encode()
        speed = statistics.median(decoded(dialect, stream) for _ in range(ROUNDS))
        print(f"{name}: a stream of {DELTAS} deltas is decoded at {speed:.1f} MB/s")
