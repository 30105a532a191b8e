"""How a call finds its node, and what bounds it: over real gRPC, with ports that refuse and ports that say nothing."""

import asyncio
from typing import Any

import grpc
import pytest
from kit.nodes import (
    MILK,
    Context,
    Held,
    Tasks,
    black_hole,
    client_of,
    closed_port,
    node,
    registered,
    stub,
    tasks_at,
)
from kit.watching import listening

from retinue.service.client import Client
from retinue.service.client import nodes as nodes_module
from retinue.service.client.directory import Directory
from retinue.service.envelope import Envelope
from retinue.service.errors import (
    CallFailed,
    DeadlinePassed,
    Invalid,
    NoNode,
    UnknownName,
    Unsupported,
)
from retinue.service.registry.memory import MemoryRegistry


async def test_a_typed_stub_calls_a_name() -> None:
    tasks = Tasks()
    async with tasks_at(tasks) as address, client_of(await registered("task", address)) as client:
        made = await stub(client).Create(MILK, timeout=5, metadata=(("x-trace", "7"),))
    assert made.title == "milk"
    assert tasks.metadata["retinue-to"] == "task"
    assert tasks.metadata["x-trace"] == "7"


async def test_a_refused_connection_is_not_seen_by_the_caller() -> None:
    tasks = Tasks()
    async with tasks_at(tasks) as address, client_of(await registered("task", closed_port(), address)) as client:
        for _ in range(20):
            await stub(client).Create(MILK, timeout=5)
    assert tasks.calls == 20


async def test_a_dead_node_is_dialled_once_for_many_calls(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "retinue.client")
    dead = closed_port()
    async with tasks_at(Tasks()) as address, client_of(await registered("task", dead, address)) as client:
        await asyncio.gather(*(stub(client).Create(MILK, timeout=5) for _ in range(200)))
    assert len([record for record in caplog.records if dead in record.getMessage()]) == 1


async def test_an_unknown_name_is_refused_at_once_with_the_nearest() -> None:
    async with client_of(await registered("task", "127.0.0.1:1")) as client:
        async with asyncio.timeout(1):
            with pytest.raises(UnknownName, match="did you mean task"):
                await client.unary("tasks", "/office.v1.Task/Create", b"")


async def test_a_name_without_a_live_node_ends_as_no_node_at_the_deadline() -> None:
    time = asyncio.get_running_loop().time
    async with client_of(await registered("task", closed_port())) as client:
        begun = time()
        with pytest.raises(NoNode, match="task is known"):
            await stub(client).Create(MILK, timeout=0.4)
        assert 0.35 < time() - begun < 1.5


async def test_a_node_that_comes_while_a_call_waits_takes_it() -> None:
    dead = closed_port()
    registry = await registered("task", dead)
    async with tasks_at(Tasks()) as address, client_of(registry) as client, asyncio.timeout(5):
        with listening("retinue.client") as lines:
            call = asyncio.ensure_future(stub(client).Create(MILK, timeout=10))
            assert "cannot be reached" in await lines.get()
        await registry.deregister(node("task", dead))
        await registry.register(node("task", address, 2))
        assert (await call).title == "milk"


async def test_a_node_that_restarts_at_its_address_takes_the_waiting_call() -> None:
    dead = closed_port()
    async with client_of(await registered("task", dead)) as client, asyncio.timeout(8):
        with listening("retinue.client") as lines:
            call = asyncio.ensure_future(stub(client).Create(MILK, timeout=10))
            assert "cannot be reached" in await lines.get()
        async with tasks_at(Tasks(), port=int(dead.rpartition(":")[2])):
            assert (await call).title == "milk"


async def test_black_holes_end_at_the_deadline_with_nothing_left() -> None:
    time = asyncio.get_running_loop().time
    before = asyncio.all_tasks()
    with black_hole() as one, black_hole() as two:
        async with client_of(await registered("task", one, two)) as client:
            begun = time()
            with pytest.raises(NoNode):
                await stub(client).Create(MILK, timeout=0.5)
            assert 0.45 < time() - begun < 1.0
    assert asyncio.all_tasks() == before


async def test_a_black_hole_costs_a_call_no_more_than_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "CONNECT_S", 0.1)
    with black_hole() as hole:
        async with tasks_at(Tasks()) as address, client_of(await registered("task", hole, address)) as client:
            async with asyncio.timeout(2):
                for _ in range(10):
                    await stub(client).Create(MILK, timeout=5)


async def test_a_handler_slower_than_any_wait_runs_exactly_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "CONNECT_S", 0.05)
    held = Held()
    tasks = Tasks(held)
    async with tasks_at(tasks) as one, tasks_at(tasks) as two, client_of(await registered("task", one, two)) as client:
        asyncio.get_running_loop().call_later(0.4, held.go.set)
        await stub(client).Create(MILK, timeout=5)
    assert tasks.calls == 1


async def test_an_unhealthy_node_is_used_where_there_is_no_other() -> None:
    registry = MemoryRegistry()
    async with tasks_at(Tasks()) as address, client_of(registry) as client:
        sick = node("task", address)
        await registry.register(type(sick)(name=sick.name, id=sick.id, address=address, healthy=False))
        assert (await stub(client).Create(MILK, timeout=5)).title == "milk"


async def test_calls_are_spread_over_the_nodes() -> None:
    one, two, three = Tasks(), Tasks(), Tasks()
    async with (
        tasks_at(one) as a,
        tasks_at(two) as b,
        tasks_at(three) as c,
        client_of(await registered("task", a, b, c)) as client,
    ):
        await asyncio.gather(*(stub(client).Create(MILK, timeout=5) for _ in range(300)))
    assert min(one.calls, two.calls, three.calls) > 50


async def test_a_busy_node_is_spared() -> None:
    held, quick = Held(), Tasks()
    async with (
        tasks_at(Tasks(held)) as one,
        tasks_at(quick) as two,
        client_of(await registered("task", one, two)) as client,
    ):
        calls: list[asyncio.Future[Any]] = []
        while not held.begun.is_set():
            calls.append(asyncio.ensure_future(stub(client).Create(MILK, timeout=5)))
            await asyncio.wait({asyncio.ensure_future(held.begun.wait()), calls[-1]}, return_when="FIRST_COMPLETED")
        before = quick.calls
        for _ in range(20):
            await stub(client).Create(MILK, timeout=5)
        held.go.set()
        await asyncio.gather(*calls)
    assert quick.calls - before == 20


async def test_the_callers_deadline_ends_the_call_and_the_handler() -> None:
    held = Held()
    async with tasks_at(Tasks(held)) as address, client_of(await registered("task", address)) as client:
        with pytest.raises(DeadlinePassed, match="task did not answer in time"):
            await stub(client).Create(MILK, timeout=0.2)
        async with asyncio.timeout(1):
            await held.ended.wait()


async def test_the_envelopes_deadline_caps_the_call_by_a_margin() -> None:
    left: list[float] = []

    async def look(_: Any, context: Context) -> None:
        left.append(context.time_remaining())

    async with tasks_at(Tasks(look)) as address, client_of(await registered("task", address)) as client:
        now = asyncio.get_running_loop().time()
        await stub(client, Envelope(deadline=now + 5)).Create(MILK, timeout=60)
        await stub(client).Create(MILK)
        with pytest.raises(DeadlinePassed):
            await stub(client, Envelope(deadline=now + 0.01)).Create(MILK)
    assert left[0] < 4.95
    assert 110 < left[1] <= 121.5  # gRPC rounds a long one up to a second


async def test_a_cancelled_caller_cancels_the_handler() -> None:
    held = Held()
    async with tasks_at(Tasks(held)) as address, client_of(await registered("task", address)) as client:
        call = asyncio.ensure_future(stub(client).Create(MILK, timeout=30))
        await held.begun.wait()
        call.cancel()
        async with asyncio.timeout(1):
            await held.ended.wait()
            with pytest.raises(asyncio.CancelledError):
                await call


async def test_the_channel_of_a_node_that_left_is_closed_once_nothing_runs_on_it() -> None:
    held = Held()
    async with tasks_at(Tasks(held)) as address:
        registry = await registered("task", address)
        async with client_of(registry) as client:
            call = asyncio.ensure_future(stub(client).Create(MILK, timeout=5))
            await held.begun.wait()
            await registry.deregister(node("task", address))
            while nodes := client.directory.cached("task"):
                await client.directory.changed("task", since=nodes)
            assert client.channels == 1
            held.go.set()
            assert (await call).title == "milk"
            assert client.channels == 0


async def test_clients_that_come_and_go_leave_nothing() -> None:
    before = asyncio.all_tasks()
    async with tasks_at(Tasks()) as address:
        registry = await registered("task", address)
        async with Directory(registry) as directory:
            clients = [Client(directory) for _ in range(20)]
            for client in clients:
                async with client:
                    await stub(client).Create(MILK, timeout=5)
                    assert client.channels == 1
            assert [client.channels for client in clients] == [0] * 20
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize(
    "pair",
    [
        ("Upper", "x"),
        ("", "x"),
        ("sp ace", "x"),
        ("x-a", "line\nbreak"),
        ("x-a", "é"),
        ("x-a", b"bytes"),
        ("grpc-timeout", "1S"),
        ("connection", "close"),
        ("te", "trailers"),
        ("retinue-to", "other"),
    ],
)
async def test_metadata_that_cannot_be_sent_is_invalid(pair: tuple[str, Any]) -> None:
    tasks = Tasks()
    async with tasks_at(tasks) as address, client_of(await registered("task", address)) as client:
        with pytest.raises(Invalid):
            await stub(client).Create(MILK, timeout=5, metadata=(pair,))
        await stub(client).Create(MILK, timeout=5, metadata=(("x-a-bin", b"\x00\xff"),))
    assert tasks.calls == 1
    assert tasks.metadata["x-a-bin"] == b"\x00\xff"


async def test_a_message_over_the_limit_is_refused_with_size_limit_and_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("retinue.service.client.MESSAGE_BYTES", 10)
    async with client_of(await registered("task", "127.0.0.1:1")) as client:
        with pytest.raises(CallFailed, match=r"11 bytes.*max_send_message_length.*10") as caught:
            await client.unary("task", "/office.v1.Task/Create", b"x" * 11)
    assert caught.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_streamed_requests_are_refused_when_called_and_not_before() -> None:
    async with client_of(MemoryRegistry()) as client:
        method: Any = client.channel("task").stream_unary("/x.Y/Z")
        with pytest.raises(Unsupported):
            method(iter(()))
