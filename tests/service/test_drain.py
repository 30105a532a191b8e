"""How a server goes: what runs is finished, what is new is sent elsewhere, and nobody is kept waiting for ever."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from kit.serving import served, status_of, tasks
from kit.watching import closing, until

from office.v1 import task_pb2, task_pb2_grpc
from retinue.service import errors
from retinue.service.chat import Call
from retinue.service.server.pulse import Timing
from retinue.service.testing import LocalMesh, Stub
from retinue.v1 import agent_pb2 as pb
from retinue.v1.agent_pb2_grpc import AgentStub

PROGRAM = """
import asyncio, logging, sys
from retinue.service.mesh import Mesh
from retinue.service.testing import LocalMesh, Stub

async def answer(message, call):
    print("asked", flush=True)
    await asyncio.to_thread(sys.stdin.readline) if message == "wait" else await asyncio.Event().wait()
    return "done"

async def main():
    async with LocalMesh() as mesh:
        run = asyncio.create_task(mesh.run(Stub("clerk", answer)))
        async for nodes in mesh.registry.watch("clerk"):
            if nodes:
                print(nodes[0].address, flush=True)
                break
        await run
    print("left", flush=True)

logging.basicConfig(level=logging.INFO)
asyncio.run(main())
"""


class Slow(Stub):
    """A stub that answers when it is let."""

    def __init__(self) -> None:
        super().__init__("clerk", self._wait)
        self.asked, self.let = asyncio.Event(), asyncio.Event()

    async def _wait(self, message: str, call: Call) -> str:
        self.asked.set()
        await self.let.wait()
        return "done"


def ask(channel: grpc.aio.Channel, message: str = "hi") -> Any:
    return AgentStub(channel).Chat(pb.ChatRequest(message=message))


async def test_what_runs_is_finished_while_new_calls_are_refused() -> None:
    clerk = Slow()
    mesh = LocalMesh()
    async with asyncio.timeout(5), served(clerk, mesh) as (server, channel):
        running = ask(channel)
        await clerk.asked.wait()
        health: Any = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        draining = asyncio.create_task(server.drain())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        assert not await mesh.registry.find("clerk")
        assert type(await status_of(ask(channel))) is errors.Draining
        streamed: Any = AgentStub(channel).StreamChat(pb.ChatRequest(message="hi"))
        assert type(await status_of(streamed.read())) is errors.Draining
        check = await health.Check(health_pb2.HealthCheckRequest())
        assert check.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert not draining.done()
        clerk.let.set()
        assert (await running).reply == "done"
        await draining


async def test_a_running_stream_is_finished_too() -> None:
    clerk = Slow()
    async with asyncio.timeout(5), served(clerk) as (server, channel):
        running: Any = AgentStub(channel).StreamChat(pb.ChatRequest(message="hi"))
        await clerk.asked.wait()
        draining = asyncio.create_task(server.drain())
        await asyncio.sleep(0)
        clerk.let.set()
        assert [event.WhichOneof("event") async for event in running] == ["text", "completed"]
        await draining


async def test_leaving_a_server_that_drains_breaks_nothing_off() -> None:
    clerk = Slow()
    async with asyncio.timeout(5), LocalMesh() as mesh:
        async with mesh.serve(clerk) as (server,):
            running = asyncio.create_task(mesh.ask("clerk", "hi"))
            await clerk.asked.wait()
            draining = asyncio.create_task(server.drain())
            async with closing(mesh.registry.watch("clerk")) as shown:
                await until(shown, lambda nodes: not nodes)
            asyncio.get_running_loop().call_later(0.1, clerk.let.set)
        assert (await running).text == "done"
        await draining


async def test_a_plain_service_that_nobody_calls_is_gone_at_once() -> None:
    async with asyncio.timeout(5), served(tasks(), LocalMesh(timing=Timing(quiet=60.0))) as (server, channel):
        stub = task_pb2_grpc.TaskStub(channel)
        await stub.List(task_pb2.ListTasksRequest())
        await server.drain()
        assert (await status_of(stub.List(task_pb2.ListTasksRequest()))).status is grpc.StatusCode.UNAVAILABLE


async def test_a_turn_that_does_not_end_is_broken_off() -> None:
    clerk = Slow()
    async with asyncio.timeout(5), served(clerk, LocalMesh(timing=Timing(drain=0.05))) as (server, channel):
        running = ask(channel)
        await clerk.asked.wait()
        await server.drain()
        assert isinstance(await status_of(running), errors.MeshError)


async def test_callers_that_have_not_heard_are_refused_until_they_have() -> None:
    clerk = Slow()
    async with asyncio.timeout(10), served(clerk, LocalMesh(timing=Timing(quiet=0.3))) as (server, channel):
        running = ask(channel)
        await clerk.asked.wait()
        draining = asyncio.create_task(server.drain())
        await refused(channel)
        clerk.let.set()
        await running
        # Nothing runs any more, and yet the next caller gets an answer that it can act on.
        for _ in range(20):
            assert isinstance(await outcome(channel), errors.Draining)
        await draining


async def outcome(channel: grpc.aio.Channel) -> errors.MeshError | None:
    """How a call that takes no time ends."""
    try:
        await AgentStub(channel).Describe(pb.DescribeRequest())
    except grpc.aio.AioRpcError as error:
        return errors.from_rpc(error)
    return None


async def refused(channel: grpc.aio.Channel) -> None:
    """Returns once the server drains."""
    while not isinstance(await outcome(channel), errors.Draining):
        pass


async def test_an_error_in_the_block_is_raised_as_it_is() -> None:
    async with asyncio.timeout(5), LocalMesh() as mesh:
        with pytest.raises(errors.Invalid):
            async with mesh.serve(Stub("clerk")):
                raise errors.Invalid("so be it")
        assert not await mesh.registry.names()


@asynccontextmanager
async def program() -> AsyncIterator[tuple[asyncio.subprocess.Process, grpc.aio.Channel, Any]]:
    """A process that runs a stub, a channel to it, and what reads its lines."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stdin=-1, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout

    async def line() -> str:
        assert process.stdout
        return (await process.stdout.readline()).decode().strip()

    try:
        async with grpc.aio.insecure_channel(await line()) as channel:
            yield process, channel, line
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_the_turn_end_and_the_process_exits_0(number: signal.Signals) -> None:
    async with asyncio.timeout(30), program() as (process, channel, line):
        running = ask(channel, "wait")
        assert await line() == "asked"
        process.send_signal(number)
        await refused(channel)
        assert process.returncode is None
        assert process.stdin
        process.stdin.write(b"\n")
        assert (await running).reply == "done"
        assert await line() == "left"
        assert await process.wait() == 0


async def test_a_second_signal_exits_without_draining() -> None:
    async with asyncio.timeout(30), program() as (process, channel, line):
        running = ask(channel, "for ever")
        assert await line() == "asked"
        process.send_signal(signal.SIGTERM)
        await refused(channel)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 128 + signal.SIGTERM
        assert isinstance(await status_of(running), errors.MeshError)
        assert process.stderr
        assert b"ending at once" in await process.stderr.read()
