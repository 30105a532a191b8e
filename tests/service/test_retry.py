"""When a call that failed goes to another node, and which nodes are passed over; with wires that break."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from kit.nodes import (
    MILK,
    Cable,
    Context,
    Held,
    Tasks,
    client_of,
    node,
    refusing,
    registered,
    serving,
    stub,
    tasks_at,
)
from kit.watching import listening

from office.v1 import task_pb2
from retinue.service.errors import (
    CallFailed,
    Draining,
    Invalid,
    NoNode,
    StoreUnavailable,
    WrongNode,
)


async def test_a_hundred_refused_requests_keep_nobody_from_being_chosen() -> None:
    one, two = (Tasks(refusing(Invalid("no title", field="title"))) for _ in range(2))
    async with tasks_at(one) as a, tasks_at(two) as b, client_of(await registered("task", a, b)) as client:
        with listening("retinue.client") as lines:
            for _ in range(100):
                with pytest.raises(Invalid) as caught:
                    await stub(client).Create(MILK, timeout=5)
    assert caught.value.facts == {"field": "title"}
    assert one.calls + two.calls == 100
    assert lines.empty()


@pytest.mark.parametrize("refusal", [Draining("going away"), WrongNode("this is comms-mgr")])
async def test_a_node_that_takes_nothing_sends_its_calls_to_the_other(refusal: Draining | WrongNode) -> None:
    leaving, staying = Tasks(refusing(refusal)), Tasks()
    async with (
        tasks_at(leaving) as one,
        tasks_at(staying) as two,
        client_of(await registered("task", one, two)) as client,
    ):
        for _ in range(30):
            await stub(client).Create(MILK, timeout=5)
    assert staying.calls == 30
    assert 0 < leaving.calls < 10


async def test_only_draining_nodes_end_as_no_node() -> None:
    async with (
        tasks_at(Tasks(refusing(Draining("going away")))) as address,
        client_of(await registered("task", address)) as client,
    ):
        with pytest.raises(NoNode):
            await stub(client).Create(MILK, timeout=0.3)


async def test_a_call_that_broke_off_is_an_error_at_once_and_not_repeated() -> None:
    held, other = Held(), Tasks()
    tasks = Tasks(held)
    async with tasks_at(tasks) as one, Cable(one) as cable, tasks_at(other) as two:
        registry = await registered("task", cable.address)
        async with client_of(registry) as client:
            call = asyncio.ensure_future(stub(client).Create(MILK, timeout=30))
            await held.begun.wait()
            await registry.register(node("task", two, 2))
            cable.cut()
            async with asyncio.timeout(2):
                with pytest.raises(CallFailed) as caught:
                    await call
            assert caught.value.status is grpc.StatusCode.UNAVAILABLE
            await stub(client).Create(MILK, timeout=5)
    assert (tasks.calls, other.calls) == (1, 1)


async def test_a_method_declared_free_of_side_effects_is_repeated_on_another_node() -> None:
    held, other = Held(), Tasks()
    tasks = Tasks(listing=held)
    async with tasks_at(tasks) as one, Cable(one) as cable, tasks_at(other) as two:
        registry = await registered("task", cable.address)
        async with client_of(registry) as client:
            call = asyncio.ensure_future(stub(client).List(task_pb2.ListTasksRequest(), timeout=30))
            await held.begun.wait()
            await registry.register(node("task", two, 2))
            cable.cut()
            async with asyncio.timeout(5):
                assert len((await call).tasks) == 1
    assert (tasks.calls, other.calls) == (1, 1)


async def test_an_unavailable_without_a_reason_is_asked_of_each_node_once() -> None:
    async def away(_: Any, context: Context) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "in maintenance")

    one, two = Tasks(listing=away), Tasks(listing=away)
    async with tasks_at(one) as a, tasks_at(two) as b, client_of(await registered("task", a, b)) as client:
        async with asyncio.timeout(2):
            with pytest.raises(CallFailed, match="in maintenance"):
                await stub(client).List(task_pb2.ListTasksRequest())
    assert (one.calls, two.calls) == (1, 1)


async def test_a_node_that_dies_under_many_calls_is_passed_over_once() -> None:
    together = asyncio.Barrier(21)

    async def hold(*_: Any) -> None:
        await together.wait()
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(tasks_at(Tasks(hold)))
        cable = await stack.enter_async_context(Cable(address))
        client = await stack.enter_async_context(client_of(await registered("task", cable.address)))
        calls = [asyncio.ensure_future(stub(client).Create(MILK, timeout=5)) for _ in range(20)]
        await together.wait()
        with listening("retinue.client") as lines:
            cable.cut()
            await asyncio.wait(calls)
        assert lines.qsize() == 1
        assert all(isinstance(call.exception(), CallFailed) for call in calls)


async def test_a_stream_is_not_begun_again_once_something_came() -> None:
    begun = asyncio.Queue[bytes]()

    async def tell(request: bytes, _: Context) -> AsyncIterator[bytes]:
        begun.put_nowait(request)
        yield b"first"
        await asyncio.Event().wait()

    handler = grpc.method_handlers_generic_handler("x.Y", {"Tell": grpc.unary_stream_rpc_method_handler(tell)})

    def add(server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((handler,))

    async with serving(add) as one, Cable(one) as cable, serving(add) as two:
        registry = await registered("teller", cable.address)
        async with client_of(registry) as client, asyncio.timeout(5):
            answers = client.stream("teller", "/x.Y/Tell", b"", repeatable=True)
            assert await anext(answers) == b"first"
            await registry.register(node("teller", two, 2))
            cable.cut()
            with pytest.raises(CallFailed):
                await anext(answers)
    assert begun.qsize() == 1


async def test_an_unavailable_of_the_service_itself_is_its_answer() -> None:
    tasks = Tasks(listing=refusing(StoreUnavailable("the store is away")))
    async with tasks_at(tasks) as address, client_of(await registered("task", address)) as client:
        async with asyncio.timeout(2):
            with pytest.raises(StoreUnavailable):
                await stub(client).List(task_pb2.ListTasksRequest())
    assert tasks.calls == 1


async def test_a_bare_unavailable_that_a_server_of_the_mesh_passes_on_is_its_answer() -> None:
    away = CallFailed("the warehouse is away", status=grpc.StatusCode.UNAVAILABLE)
    one, two = (Tasks(listing=refusing(away)) for _ in range(2))
    async with tasks_at(one) as a, tasks_at(two) as b, client_of(await registered("task", a, b)) as client:
        with listening("retinue.client") as lines:
            for _ in range(4):
                with pytest.raises(CallFailed):
                    await stub(client).List(task_pb2.ListTasksRequest(), timeout=5)
    assert one.calls + two.calls == 4
    assert lines.empty()
