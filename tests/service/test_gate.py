"""What every call of a server passes: the name it is for, and how errors leave."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc.aio
import pytest
from google.protobuf import empty_pb2
from kit.serving import served, status_of, tasks

from office.v1 import task_pb2, task_pb2_grpc
from retinue.service import errors
from retinue.service.part import Service
from retinue.service.server import gate
from retinue.service.testing import Stub
from retinue.v1 import agent_pb2 as pb
from retinue.v1.agent_pb2_grpc import AgentStub

Unary: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"
Stream: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, bytes]"


@pytest.mark.parametrize("path", ["/retinue.v1.Agent/Chat", "/Agent/Chat", "/office.v1.Task/Create", "/no.Such/Thing"])
@pytest.mark.parametrize("part", [Stub("clerk"), tasks()], ids=["agent", "plain"])
async def test_a_call_for_another_name_is_refused_whatever_it_asks(part: Any, path: str) -> None:
    async with asyncio.timeout(5), served(part) as (_, channel):
        call: Unary = channel.unary_unary(path)
        error = await status_of(call(b"", metadata=[("retinue-to", "somebody-else")]))
    assert type(error) is errors.WrongNode


async def test_reflection_for_another_name_is_refused() -> None:
    async with asyncio.timeout(5), served(Stub("clerk")) as (_, channel):
        path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        call: Stream = channel.stream_stream(path)
        answers = call(metadata=[("retinue-to", "somebody-else")])
        assert type(await status_of(answers.read())) is errors.WrongNode


async def test_a_call_for_this_name_or_for_none_is_answered() -> None:
    async with asyncio.timeout(5), served(Stub("clerk")) as (_, channel):
        stub = AgentStub(channel)
        for metadata in ([("retinue-to", "clerk")], []):
            assert (await stub.Chat(pb.ChatRequest(message="hi"), metadata=metadata)).reply == "hi"


async def test_an_unknown_method_is_unimplemented() -> None:
    async with asyncio.timeout(5), served(tasks()) as (_, channel):
        call: Unary = channel.unary_unary("/no.Such/Thing")
        error = await status_of(call(b""))
        assert error.status is grpc.StatusCode.UNIMPLEMENTED
        error = await status_of(task_pb2_grpc.TaskStub(channel).Complete(task_pb2.CompleteTaskRequest()))
        assert type(error) is errors.Unsupported


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownName("no task 7; did you mean 8?"),
        errors.Invalid("title: it is empty", field="title"),
        errors.StoreUnavailable("the store is away", retry_after=2.0),
        errors.CallFailed("odd", status=grpc.StatusCode.DATA_LOSS),
    ],
    ids=lambda error: error.reason,
)
async def test_what_a_plain_service_raises_arrives_as_the_same_type(error: errors.MeshError) -> None:
    async with asyncio.timeout(5), served(tasks(error)) as (_, channel):
        arrived = await status_of(task_pb2_grpc.TaskStub(channel).Create(task_pb2.CreateTaskRequest()))
    if not isinstance(error, errors.CallFailed):
        assert type(arrived) is type(error)
    assert (arrived.status, arrived.message, arrived.retry_after) == (error.status, error.message, error.retry_after)
    assert arrived.facts == error.facts


async def test_a_service_may_abort_in_its_own_words(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(5), served(tasks()) as (_, channel):
        error = await status_of(task_pb2_grpc.TaskStub(channel).Delete(task_pb2.DeleteTaskRequest()))
    assert (error.status, error.message) == (grpc.StatusCode.DATA_LOSS, "its own words")
    assert not caplog.records


async def test_a_fault_is_logged_and_its_words_stay_inside(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(5), served(tasks(RuntimeError("the secret is 42"))) as (_, channel):
        error = await status_of(task_pb2_grpc.TaskStub(channel).Create(task_pb2.CreateTaskRequest()))
    assert type(error) is errors.InternalError
    assert "42" not in error.message
    assert "the secret is 42" in caplog.text
    assert "Traceback" in caplog.text


async def test_messages_of_every_kind_of_stream_pass() -> None:
    class Echo:
        async def both(self, requests: AsyncIterator[empty_pb2.Empty], context: Any) -> AsyncIterator[empty_pb2.Empty]:
            async for request in requests:
                yield request

        async def up(self, requests: AsyncIterator[empty_pb2.Empty], context: Any) -> empty_pb2.Empty:
            async for _ in requests:
                pass
            return empty_pb2.Empty()

    def add(echo: Echo, server: grpc.aio.Server) -> None:
        codec = {
            "request_deserializer": empty_pb2.Empty.FromString,
            "response_serializer": empty_pb2.Empty.SerializeToString,
        }
        methods: dict[str, Any] = {
            "Both": grpc.stream_stream_rpc_method_handler(echo.both, **codec),  # type: ignore[arg-type]
            "Up": grpc.stream_unary_rpc_method_handler(echo.up, **codec),  # type: ignore[arg-type]
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", methods),))

    async with asyncio.timeout(5), served(Service("echo", add, Echo())) as (_, channel):
        both: Stream = channel.stream_stream("/test.Echo/Both")
        assert len([answer async for answer in both(iter([b"", b"", b""]))]) == 3
        up: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary("/test.Echo/Up")
        assert await up(iter([b"", b""])) == b""


async def test_an_answer_beyond_the_limit_is_an_error_that_names_size_limit_and_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A lower limit tells the same, and 64 MiB take seconds.
    monkeypatch.setattr(gate, "MESSAGE_BYTES", 100_000)
    clerk = Stub("clerk", lambda _, call: "x" * 100_000)
    async with asyncio.timeout(10), served(clerk) as (_, channel):
        stub: Any = AgentStub(channel)
        for answer in (stub.Chat(pb.ChatRequest(message="hi")), stub.StreamChat(pb.ChatRequest(message="hi")).read()):
            error = await status_of(answer)
            assert error.status is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "100000" in error.message
            assert "grpc.max_send_message_length" in error.message
        assert (await stub.Describe(pb.DescribeRequest())).name == "clerk"
