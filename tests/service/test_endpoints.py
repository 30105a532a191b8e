"""What a remote service offers, read by reflection, and JSON in and out of it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection, reflection_pb2  # type: ignore[import-untyped]
from kit.nodes import TASK, Add, Context, Tasks, client_of, node, registered, serving, tasks_at
from kit.protos import compile_pool

from office.v1 import task_pb2
from retinue.service.client import Client
from retinue.service.client.descriptors import read_services
from retinue.service.client.endpoints import Endpoints
from retinue.service.errors import CallFailed, Invalid, UnknownName, Unsupported

FOREIGN = """
syntax = "proto3";
package probe;
import "google/protobuf/any.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Colour { RED = 0; BLUE = 1; }
message Inner { int64 size = 1; repeated Inner more = 2; }
message Thing {
  string some_name = 1; Colour colour = 2; Inner inner = 3; repeated Inner list = 4; map<string, Inner> by_key = 5;
  google.protobuf.Timestamp time = 6; google.protobuf.Struct free = 7; google.protobuf.Int32Value maybe = 8;
  bytes raw = 9; bool on = 10; optional string nick = 11; google.protobuf.Any any = 12; repeated string tags = 13;
}
service Clock {
  rpc Echo(Thing) returns (Thing);
  rpc Tick(Thing) returns (stream Thing);
  rpc Pour(stream Thing) returns (Thing);
}
"""


@pytest.fixture
def pool(tmp_path: Path) -> DescriptorPool:
    return compile_pool(tmp_path, FOREIGN)


def clock(pool: DescriptorPool) -> Add:
    """A service of a foreign proto, which knows none of our options."""
    thing: Any = GetMessageClass(pool.FindMessageTypeByName("probe.Thing"))

    async def echo(request: Any, _: Context) -> Any:
        return request

    async def tick(request: Any, _: Context) -> AsyncIterator[Any]:
        for number in range(3):
            yield thing(some_name=f"{request.some_name}{number}")

    coding = {"request_deserializer": thing.FromString, "response_serializer": thing.SerializeToString}
    handler = grpc.method_handlers_generic_handler(
        "probe.Clock",
        {
            "Echo": grpc.unary_unary_rpc_method_handler(echo, **coding),
            "Tick": grpc.unary_stream_rpc_method_handler(tick, **coding),
        },
    )
    return lambda server: server.add_generic_rpc_handlers((handler,))


@asynccontextmanager
async def clock_client(pool: DescriptorPool) -> AsyncIterator[Client]:
    listed = serving(clock(pool), names=("probe.Clock",), pool=pool)
    async with listed as address, client_of(await registered("clock", address)) as client:
        yield client


@asynccontextmanager
async def task_client(tasks: Tasks | None = None) -> AsyncIterator[Client]:
    async with tasks_at(tasks or Tasks()) as address, client_of(await registered("task", address)) as client:
        yield client


async def test_an_endpoint_is_called_by_its_short_name() -> None:
    tasks = Tasks()
    async with task_client(tasks) as client:
        made = await client.call("task", "Task.Create", '{"title": "milk"}', metadata=[("x-a", "1")])
    assert made == {"id": "1", "title": "milk", "owner": "", "due": "", "project": "", "done": False}
    assert (tasks.metadata["retinue-to"], tasks.metadata["x-a"]) == ("task", "1")


@pytest.mark.parametrize(
    "name", ["Task.List", "office.v1.Task.List", "v1.Task.List", "office.v1.Task/List", "/office.v1.Task/List"]
)
async def test_every_spelling_of_an_endpoint_finds_it(name: str) -> None:
    async with task_client() as client:
        assert (await client.endpoints("task")).find(name).path == "/office.v1.Task/List"


async def test_endpoints_carry_descriptions_and_idempotency_and_hide_health() -> None:
    async with task_client() as client:
        endpoints = await client.endpoints("task")
    said = {e.short: (e.description, e.idempotent, e.streaming) for e in endpoints.all}
    assert said == {
        "Task.Create": ("Create a task and return it with its id.", False, False),
        "Task.List": ("List open tasks, of everyone or of one owner or project.", True, False),
        "Task.Complete": ("Mark a task as done.", True, False),
        "Task.Delete": ("Delete a task for good.", True, False),
    }


@pytest.mark.parametrize("name", ["Task.Crate", "task.create", "Tsak.Create", "Create"])
async def test_an_unknown_endpoint_is_refused_with_the_nearest(name: str) -> None:
    async with task_client() as client:
        with pytest.raises(UnknownName, match=r"Task\.Create"):
            await client.call("task", name)


async def test_a_short_name_that_two_services_bear_is_refused_naming_both() -> None:
    pool = DescriptorPool()
    pool.AddSerializedFile(_service_file("a.proto", "one", "Task"))
    pool.AddSerializedFile(_service_file("b.proto", "two", "Task"))
    endpoints = Endpoints.of("both", [pool.FindServiceByName("one.Task"), pool.FindServiceByName("two.Task")])
    with pytest.raises(Invalid, match=r"one\.Task or two\.Task"):
        endpoints.find("Task.Do")
    assert endpoints.find("two.Task.Do").service == "two.Task"


def _service_file(name: str, package: str, service: str) -> bytes:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name=name, package=package, syntax="proto3")
    file.message_type.add(name="Nothing")
    made = file.service.add(name=service)
    made.method.add(name="Do", input_type=f".{package}.Nothing", output_type=f".{package}.Nothing")
    return file.SerializeToString()


@pytest.mark.parametrize(
    ("text", "says", "field"),
    [
        ("{", "not JSON.*line 1, column 2", "request"),
        ("", "not JSON.*line 1, column 1", "request"),
        ("[" * 100_000, "nested too deeply", "request"),
        ("[1]", "is an array: it must be a JSON object", "request"),
        ('"x"', "is a string", "request"),
        ("null", "is null", "request"),
        ("7", "is a number", "request"),
        ("true", "is a boolean", "request"),
        ('{"titel": "x"}', "no field 'titel'; did you mean title", "titel"),
        ('{"title": 7}', "'title' must be a string", "title"),
        ('{"title": {"a": 1}}', "'title' must be a string", "title"),
    ],
)
async def test_a_request_that_does_not_fit_is_invalid_and_says_where(text: str, says: str, field: str) -> None:
    tasks = Tasks()
    async with task_client(tasks) as client:
        with pytest.raises(Invalid, match=says) as caught:
            await client.call("task", "Task.Create", text)
    assert caught.value.facts == {"field": field}
    assert tasks.calls == 0


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"inner": {"sise": 1}}, "inner.sise"),
        ({"inner": {"size": "many"}}, "inner.size"),
        ({"list": [{"size": 1}, {"more": [{"size": True}]}]}, "list[1].more[0].size"),
        ({"by_key": {"a": {"size": 1}, "b": {"x": 1}}}, "by_key.b.x"),
        ({"list": {"size": 1}}, "list"),
        ({"colour": "GREEN"}, "colour"),
        ({"time": "yesterday"}, "time"),
        ({"raw": 7}, "raw"),
        ({"tags": ["a", None]}, "tags"),
    ],
)
async def test_the_innermost_wrong_field_is_named(pool: DescriptorPool, data: Mapping[str, Any], field: str) -> None:
    async with clock_client(pool) as client:
        with pytest.raises(Invalid) as caught:
            await client.call("clock", "Clock.Echo", data)
    assert caught.value.facts == {"field": field}
    assert repr(field) in caught.value.message


async def test_a_foreign_service_is_called_with_all_that_json_can_say(pool: DescriptorPool) -> None:
    sent = {
        "some_name": "a",
        "colour": "BLUE",
        "inner": {"size": "9007199254740993", "more": [{"size": "1", "more": []}]},
        "list": [{"size": "2", "more": []}],
        "by_key": {"k": {"size": "3", "more": []}},
        "time": "2026-01-02T03:04:05Z",
        "free": {"x": [1.5, None, "y"]},
        "maybe": 4,
        "raw": "AAE=",
        "on": True,
        "any": {"@type": "type.googleapis.com/probe.Inner", "size": "5", "more": []},
        "tags": ["t"],
    }
    async with clock_client(pool) as client:
        endpoint = (await client.endpoints("clock")).find("Clock.Echo")
        assert (endpoint.description, endpoint.idempotent) == ("", False)
        assert await client.call("clock", "Clock.Echo", sent) == sent
        assert (await client.call("clock", "Clock.Echo", {"someName": "camel"}))["some_name"] == "camel"


async def test_zero_values_are_shown_and_absent_ones_are_not(pool: DescriptorPool) -> None:
    async with clock_client(pool) as client:
        assert await client.call("clock", "Clock.Echo") == {
            "some_name": "",
            "colour": "RED",
            "list": [],
            "by_key": {},
            "raw": "",
            "on": False,
            "tags": [],
        }


async def test_broken_text_is_mended_before_it_is_sent(pool: DescriptorPool) -> None:
    async with clock_client(pool) as client:
        answer = await client.call("clock", "Clock.Echo", '{"some_name": "a\\ud83db\\ud83d\\ude00"}')
    assert answer["some_name"] == "a\ufffdb\U0001f600"


async def test_a_type_inside_any_that_reflection_does_not_show_is_an_error_of_the_call(pool: DescriptorPool) -> None:
    async with clock_client(pool) as client:
        endpoint = (await client.endpoints("clock")).find("Clock.Echo")
    message: Any = endpoint.request_class()
    message.any.type_url = "type.googleapis.com/no.Such"
    with pytest.raises(CallFailed, match="cannot be shown as JSON"):
        endpoint.data(message.SerializeToString())


async def test_a_stream_yields_each_answer_and_a_unary_endpoint_one(pool: DescriptorPool) -> None:
    async with clock_client(pool) as client:
        ticks = [answer["some_name"] async for answer in client.call_stream("clock", "Clock.Tick", {"some_name": "t"})]
        once = [answer["some_name"] async for answer in client.call_stream("clock", "Clock.Echo", {"some_name": "t"})]
    assert (ticks, once) == (["t0", "t1", "t2"], ["t"])


async def test_an_endpoint_of_the_other_kind_is_refused_in_words(pool: DescriptorPool) -> None:
    async with clock_client(pool) as client:
        with pytest.raises(Unsupported, match="call_stream"):
            await client.call("clock", "Clock.Tick")
        with pytest.raises(Unsupported, match="stream of requests"):
            await client.call("clock", "Clock.Pour")


async def test_a_service_that_cannot_be_read_does_not_hide_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    listed = serving(Tasks().add, names=(TASK, "gone.v1.Missing"))
    async with listed as address, client_of(await registered("task", address)) as client:
        assert len((await client.endpoints("task")).all) == 4
    assert "gone.v1.Missing is left out" in caplog.text


async def test_a_server_with_v1_alone_and_files_one_by_one_is_read() -> None:
    asked: list[str] = []

    def only_v1(server: grpc.aio.Server) -> None:
        method = grpc.stream_stream_rpc_method_handler(
            reflect,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        handler = grpc.method_handlers_generic_handler(
            "grpc.reflection.v1.ServerReflection", {"ServerReflectionInfo": method}
        )
        server.add_generic_rpc_handlers((handler,))

    async def reflect(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        whole = reflection.aio.ReflectionServicer((TASK,))
        async for answer in whole.ServerReflectionInfo(requests, context):
            asked.append(answer.original_request.WhichOneof("message_request"))
            if answer.HasField("file_descriptor_response"):
                del answer.file_descriptor_response.file_descriptor_proto[1:]
            yield answer

    async with serving(Tasks().add, only_v1) as address, client_of(await registered("task", address)) as client:
        assert (await client.call("task", "Task.Create", {"title": "milk"}))["title"] == "milk"
    assert asked == ["list_services", "file_containing_symbol", "file_by_filename", "file_by_filename"]


async def test_a_server_that_has_only_the_older_reflection_is_read_every_time(pool: DescriptorPool) -> None:
    async with (
        serving(clock(pool), names=("probe.Clock",), pool=pool) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        # Many at once: a refusal is then likely to come before the first question is written.
        for found in await asyncio.gather(*(read_services(channel, timeout=30) for _ in range(300))):
            assert [service.full_name for service in found] == ["probe.Clock"]


async def test_a_service_without_reflection_is_refused_in_words() -> None:
    async with serving(Tasks().add) as address, client_of(await registered("task", address)) as client:
        with pytest.raises(Unsupported, match="reflection"):
            await client.endpoints("task")


async def test_a_service_is_read_once_until_all_its_nodes_are_others(pool: DescriptorPool) -> None:
    async with tasks_at(Tasks()) as one, serving(clock(pool), names=("probe.Clock",), pool=pool) as two:
        registry = await registered("task", one)
        async with client_of(registry) as client:
            first, again = await asyncio.gather(client.endpoints("task"), client.endpoints("task"))
            assert first is again
            await registry.register(node("task", two, 2))
            await registry.deregister(node("task", one))
            while (nodes := client.directory.cached("task")) and nodes[0].address != two:
                await client.directory.changed("task", since=nodes)
            assert (await client.endpoints("task")).all[0].short == "Clock.Echo"


async def test_the_pool_of_a_remote_service_is_its_own() -> None:
    async with task_client() as client:
        endpoint = (await client.endpoints("task")).find("Task.Create")
    assert endpoint.input.full_name == "office.v1.CreateTaskRequest"
    assert endpoint.input.file.pool is not task_pb2.DESCRIPTOR.pool
