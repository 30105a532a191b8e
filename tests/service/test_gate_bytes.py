"""Bytes that are no message are the caller's fault and are told so: typed, and without a word in the node's log."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from google.protobuf import empty_pb2
from kit.serving import served, status_of, tasks

from retinue.service import errors
from retinue.service.part import Service
from retinue.service.testing import Stub

# A length that goes far beyond the end; text that is not UTF-8; and a group that never ends.
BROKEN = [b"\x0a\xff\x01", b"\x0a\x02\xc3\x28", b"\x0b"]
AGENT = ("Chat", "FollowUp", "Resolve", "Cancel", "GetRun", "GetHistory", "ClearHistory")


async def refused(channel: Any, path: str, raw: bytes) -> errors.MeshError:
    """The error that a call with one request of these bytes ends with, whatever kind of call it is."""
    call = channel.stream_stream(path)(iter([raw]))
    return await status_of(call.read())


@pytest.mark.parametrize("raw", BROKEN)
async def test_bytes_that_are_no_message_are_refused_by_every_method(
    raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [f"/retinue.v1.Agent/{method}" for method in (*AGENT, "StreamChat", "WatchRun")]
    paths += ["/Agent/Chat", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"]
    paths += [f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")]
    async with asyncio.timeout(20), served(Stub("clerk")) as (_, channel):
        for path in paths:
            error = await refused(channel, path, raw)
            assert (type(error), error.facts) == (errors.Invalid, {"field": "request"}), path
            assert f"{path[1:]}: its {len(raw)} bytes are no such request" in error.message
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_bytes_that_are_no_message_are_refused_by_a_plain_service() -> None:
    async with asyncio.timeout(20), served(tasks()) as (_, channel):
        assert type(await refused(channel, "/office.v1.Task/Create", BROKEN[0])) is errors.Invalid


async def test_a_stream_is_refused_at_the_message_that_is_none() -> None:
    class Echo:
        async def both(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[empty_pb2.Empty]:
            async for _ in requests:
                yield empty_pb2.Empty()

        async def up(self, requests: AsyncIterator[Any], context: Any) -> empty_pb2.Empty:
            async for _ in requests:
                pass
            return empty_pb2.Empty()

    def add(echo: Echo, server: grpc.aio.Server) -> None:
        codec: dict[str, Any] = {
            "request_deserializer": empty_pb2.Empty.FromString,
            "response_serializer": empty_pb2.Empty.SerializeToString,
        }
        methods: dict[str, Any] = {
            "Both": grpc.stream_stream_rpc_method_handler(echo.both, **codec),
            "Up": grpc.stream_unary_rpc_method_handler(echo.up, **codec),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", methods),))

    async with asyncio.timeout(20), served(Service("echo", add, Echo())) as (_, opened):
        channel: Any = opened
        both = channel.stream_stream("/test.Echo/Both")(iter([b"", BROKEN[0], b""]))
        assert await both.read() == b""
        assert type(await status_of(both.read())) is errors.Invalid
        up = channel.stream_unary("/test.Echo/Up")(iter([b"", BROKEN[0]]))
        assert type(await status_of(up)) is errors.Invalid
