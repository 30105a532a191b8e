"""The measured side of the bench: one server per process, which says its address and, when asked, its CPU time.

Usage: child.py echo | model | agent MODEL_URL STORE [REGISTRY]. Each line on standard input is answered with the
seconds of CPU used so far; the end of the input ends the process. It measures nothing by itself.
"""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

import grpc

from retinue.v1 import agent_pb2

REPLY = "The quick brown fox jumps over the lazy dog. " * 24
PIECES = 4
# What the model answers to a message with these words: a delegate to the agent "helper", a tool call, a late answer.
DELEGATE, TOOL = "let the helper do it", "look it up"
THINK = re.compile(rb"think for ([\d.]+) s")


async def serve_until_the_input_ends(address: str) -> None:
    print(address, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(time.process_time(), flush=True)


async def same(request: agent_pb2.ChatRequest, context: Any) -> agent_pb2.ChatResponse:
    return agent_pb2.ChatResponse(reply=request.message, agent="echo")


async def echo() -> None:
    """The yardstick: the same message out and in, and nothing between."""
    chat = grpc.unary_unary_rpc_method_handler(
        same, agent_pb2.ChatRequest.FromString, agent_pb2.ChatResponse.SerializeToString
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("retinue.v1.Agent", {"Chat": chat}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await serve_until_the_input_ends(f"127.0.0.1:{port}")
    await server.stop(None)


def completion(deltas: Sequence[str], finish: str) -> bytes:
    """One whole streamed chat completion, HTTP head and chunked body."""
    chunk = '{{"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":{}}}'
    events = [chunk.format(f'[{{"index":0,"delta":{delta},"finish_reason":null}}]') for delta in deltas]
    events.append(chunk.format(f'[{{"index":0,"delta":{{}},"finish_reason":"{finish}"}}]'))
    events.append(chunk.format('[],"usage":{"prompt_tokens":256,"completion_tokens":256,"total_tokens":512}'))
    body = "".join(f"data: {event}\n\n" for event in (*events, "[DONE]")).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def answer() -> bytes:
    size = len(REPLY) // PIECES
    pieces = [f'{{"content":"{REPLY[at : at + size]}"}}' for at in range(0, len(REPLY), size)]
    return completion(['{"role":"assistant","content":""}', *pieces], "stop")


def calling(name: str, **arguments: str) -> bytes:
    text = json.dumps(json.dumps(arguments))
    call = f'{{"index":0,"id":"call_1","type":"function","function":{{"name":"{name}","arguments":{text}}}}}'
    return completion([f'{{"role":"assistant","content":null,"tool_calls":[{call}]}}'], "tool_calls")


class ScriptedModel(asyncio.Protocol):
    """A model server at zero latency: reads one request after another, and answers with what was made before."""

    answer = answer()
    calls: ClassVar[dict[str, bytes]] = {
        DELEGATE: calling("delegate", to="helper", task=REPLY),
        TOOL: calling("look", what=REPLY),
    }

    def __init__(self) -> None:
        self.received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.received[:end]).lower()
            stop = end + 4 + int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if len(self.received) < stop:
                return
            body = bytes(self.received[end + 4 : stop])
            del self.received[:stop]
            self.reply(body)

    def reply(self, body: bytes) -> None:
        for words in self.calls:
            if words.encode() in body:
                last = json.loads(body)["messages"][-1]
                if last["role"] == "user" and words in last["content"]:
                    self.transport.write(self.calls[words])
                    return
        if thinks := THINK.search(body):
            asyncio.get_running_loop().call_later(float(thinks[1]), self.transport.write, self.answer)
            return
        self.transport.write(self.answer)


async def model() -> None:
    server = await asyncio.get_running_loop().create_server(ScriptedModel, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await serve_until_the_input_ends(f"127.0.0.1:{port}")
    server.close()


async def agent(model_url: str, store: str, registry: str = "memory:") -> None:
    from retinue.agent import Agent, tool
    from retinue.service import Mesh

    @tool
    async def look(what: str) -> str:
        """Looks something up."""
        return what

    os.environ["OPENAI_BASE_URL"] = model_url
    async with Mesh.connect(registry, store=store) as mesh:
        clerk, helper = (
            Agent(name, "You answer.", model="openai/bench", api_key="none", tools=[look])
            for name in ("clerk", "helper")
        )
        async with mesh.serve(clerk, helper) as (server, _):
            await serve_until_the_input_ends(server.address)


PARTS: dict[str, Callable[..., Awaitable[None]]] = {"echo": echo, "model": model, "agent": agent}

if __name__ == "__main__":

    async def main(part: str, *arguments: str) -> None:
        await PARTS[part](*arguments)

    asyncio.run(main(*sys.argv[1:]))
