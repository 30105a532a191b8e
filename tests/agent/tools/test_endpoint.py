"""The endpoints of services as an agent's tools: which there are, what a call does, and what comes and goes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, wrappers_pb2
from google.protobuf.message_factory import GetMessageClass
from jsonschema import Draft202012Validator
from kit.protos import compile_files
from kit.watching import listening

from notify.main import Notifications
from office.v1.notify_pb2_grpc import add_NotifyServicer_to_server
from office.v1.task_pb2_grpc import add_TaskServicer_to_server
from retinue.agent.tools import Invocation, Tool, ToolResult, endpoint
from retinue.agent.tools.endpoint import ServiceTools
from retinue.service.chat import ToolStatus
from retinue.service.envelope import Budget, Envelope
from retinue.service.errors import InternalError, Invalid
from retinue.service.mesh import Service
from retinue.service.testing import LocalMesh, Stub
from task.main import Tasks

PROBE = """
syntax = "proto3";
package probe_VERSION;
import "google/protobuf/wrappers.proto";
message Ask { int32 count = 1; int32 size = 2; }
message Told { string text = 1; }
service Probe {
  rpc Once(Ask) returns (Told);
  rpc Many(Ask) returns (stream Told);
  rpc Upload(stream Ask) returns (Told);
  rpc Bare(google.protobuf.StringValue) returns (Told);
}
"""


@pytest.fixture(scope="module", autouse=True)
def probes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two packages with a service of one name, where reflection finds them."""
    folder: Path = tmp_path_factory.mktemp("protos")
    for version in ("v1", "v2"):
        name = f"probe_{version}.proto"
        files = compile_files(folder, PROBE.replace("VERSION", version), name=name).file
        descriptor_pool.Default().AddSerializedFile(
            next(file for file in files if file.name == name).SerializeToString()
        )


def message(name: str) -> Any:
    return GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(name))


class Probe:
    """A service with every kind of method, that remembers with what it was called."""

    def __init__(self, version: str = "v1") -> None:
        self.package = f"probe_{version}"
        self.metadata: dict[str, Any] = {}
        self.time_left: float | None = 0.0
        self.left = asyncio.Event()

    async def once(self, request: Any, context: Any) -> Any:
        self.metadata, self.time_left = dict(context.invocation_metadata()), context.time_remaining()
        return message(f"{self.package}.Told")(text=f"{request.count} ✓")

    async def many(self, request: Any, context: Any) -> AsyncIterator[Any]:
        told = message(f"{self.package}.Told")
        try:
            for number in range(request.count):
                yield told(text=f"{number}".ljust(request.size, "x"))
        finally:
            self.left.set()

    def add(self, server: grpc.aio.Server) -> None:
        ask, told = message(f"{self.package}.Ask"), message(f"{self.package}.Told")
        codec: dict[str, Any] = {"request_deserializer": ask.FromString, "response_serializer": told.SerializeToString}
        bare = codec | {"request_deserializer": wrappers_pb2.StringValue.FromString}
        methods = {
            "Once": grpc.unary_unary_rpc_method_handler(self.once, **codec),
            "Many": grpc.unary_stream_rpc_method_handler(self.many, **codec),
            "Upload": grpc.stream_unary_rpc_method_handler(self.once, **codec),
            "Bare": grpc.unary_unary_rpc_method_handler(self.once, **bare),
        }
        handler = grpc.method_handlers_generic_handler(f"{self.package}.Probe", methods)
        server.add_generic_rpc_handlers((handler,))


def probe_service(*probes: Probe, name: str = "probe") -> Service:
    def add(servicer: Any, server: grpc.aio.Server) -> None:
        for probe in servicer:
            probe.add(server)

    return Service(name, add, probes)


@asynccontextmanager
async def mesh_of(*parts: Any) -> AsyncIterator[LocalMesh]:
    async with asyncio.timeout(30), LocalMesh() as mesh, mesh.serve(*parts):
        yield mesh


@asynccontextmanager
async def office() -> AsyncIterator[LocalMesh]:
    async with mesh_of() as mesh:
        tasks = Service("task", add_TaskServicer_to_server, Tasks(mesh.store))
        notify = Service("notify", add_NotifyServicer_to_server, Notifications(mesh.store))
        async with mesh.serve(tasks, notify):
            yield mesh


async def refuse(*_: Any) -> Any:
    raise AssertionError("a look-up on the hot path")


async def named(tools: ServiceTools) -> dict[str, Tool]:
    return {tool.spec.name: tool for tool in await tools.tools()}


async def call(tool: Tool, envelope: Envelope = Envelope(), **arguments: Any) -> ToolResult:
    return await tool.handler(
        Invocation(id="1", name=tool.spec.name, arguments=arguments, agent="clerk", envelope=envelope)
    )


async def test_the_endpoints_of_the_assigned_services_become_tools() -> None:
    tools = ServiceTools(["task"], "clerk")
    async with office() as mesh, tools.mounted(mesh):
        found = await named(tools)
    assert list(found) == ["task_Task_Create", "task_Task_List", "task_Task_Complete", "task_Task_Delete"]
    assert [tool.idempotent for tool in found.values()] == [False, True, True, True]
    create = found["task_Task_Create"].spec
    assert create.description == "Create a task and return it with its id."
    assert create.parameters["required"] == ["title"]
    for tool in found.values():
        Draft202012Validator.check_schema(tool.spec.parameters)


async def test_a_call_reaches_the_service_and_its_answer_comes_back_as_compact_json() -> None:
    tools = ServiceTools(["task", "notify"], "clerk")
    async with office() as mesh, tools.mounted(mesh):
        found = await named(tools)
        made = await call(found["task_Task_Create"], title="buy milk ✓", owner="ada")
        listed = await call(found["task_Task_List"], owner="ada")
        sent = await call(found["notify_Notify_Send"], to="ada", message="hello")
    assert made.status is ToolStatus.OK
    assert '"title":"buy milk ✓","owner":"ada"' in made.text
    assert json.loads(listed.text) == {"tasks": [json.loads(made.text)]}
    assert json.loads(sent.text)["to"] == "ada"


async def test_what_a_service_refuses_is_an_error_result_with_its_status() -> None:
    tools = ServiceTools(["task"], "clerk")
    async with office() as mesh, tools.mounted(mesh):
        found = await named(tools)
        refused = await call(found["task_Task_Create"], title="x", due="soon")
        unknown = await call(found["task_Task_Complete"], id="t-0")
        wrong = await call(found["task_Task_Create"], title=1)
    assert refused.status is unknown.status is wrong.status is ToolStatus.ERROR
    assert refused.text == "INVALID_ARGUMENT: due 'soon' is no day: use YYYY-MM-DD, such as 2026-01-31"
    assert unknown.text.startswith("NOT_FOUND: no task 't-0'")
    assert wrong.text.startswith("INVALID_ARGUMENT: ")


async def test_a_call_carries_the_envelope_and_the_deadline_of_its_run() -> None:
    probe, tools = Probe(), ServiceTools(["probe"], "clerk")
    async with mesh_of(probe_service(probe)) as mesh, tools.mounted(mesh):
        envelope = Envelope(
            root="r1",
            parent="r2",
            path=("planner", "clerk"),
            budget=Budget(),
            deadline=asyncio.get_running_loop().time() + 7,
        )
        told = await call((await named(tools))["probe_Probe_Once"], envelope, count=1)
        late = await call((await named(tools))["probe_Probe_Once"], Envelope(deadline=1.0))
    assert told.text == '{"text":"1 ✓"}'
    sent = {key: value for key, value in probe.metadata.items() if key.startswith("retinue-")}
    assert sent["retinue-to"] == "probe"
    assert (sent["retinue-root"], sent["retinue-parent"], sent["retinue-path"]) == ("r1", "r2", "planner,clerk")
    assert probe.time_left is not None
    assert 0 < probe.time_left < 7
    assert late.status is ToolStatus.ERROR
    assert late.text.startswith("DEADLINE_EXCEEDED: ")


async def test_neither_its_own_endpoints_nor_those_of_agents_are_tools() -> None:
    tools = ServiceTools(["task", "clerk", "helper"], "clerk")
    async with office() as mesh, mesh.serve(probe_service(Probe(), name="clerk"), Stub("helper")), tools.mounted(mesh):
        assert {name.partition("_")[0] for name in await named(tools)} == {"task"}


async def test_methods_that_take_no_single_object_are_left_out_with_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "retinue.tools")
    tools = ServiceTools(["probe"], "clerk")
    async with mesh_of(probe_service(Probe())) as mesh, tools.mounted(mesh):
        found = await named(tools)
    assert list(found) == ["probe_Probe_Once", "probe_Probe_Many"]
    assert found["probe_Probe_Once"].spec.description == "Probe.Once of the service probe."
    assert "probe/probe_v1.Probe/Upload is no tool: it takes a stream of requests" in caplog.text
    assert "probe/probe_v1.Probe/Bare is no tool: it takes a google.protobuf.StringValue" in caplog.text


async def test_a_stream_is_collected_into_an_array() -> None:
    tools = ServiceTools(["probe"], "clerk")
    async with mesh_of(probe_service(Probe())) as mesh, tools.mounted(mesh):
        many = (await named(tools))["probe_Probe_Many"]
        assert (await call(many, count=0)).text == "[]"
        assert (await call(many, count=2)).text == '[{"text":"0"},{"text":"1"}]'
        assert len(json.loads((await call(many, count=64)).text)) == 64


@pytest.mark.parametrize(("count", "size", "kept"), [(1_000_000, 0, 64), (1_000_000, 10_000, 6), (2, 100_000, 1)])
async def test_a_long_stream_is_cut_with_a_note_and_ended(count: int, size: int, kept: int) -> None:
    probe, tools = Probe(), ServiceTools(["probe"], "clerk")
    async with mesh_of(probe_service(probe)) as mesh, tools.mounted(mesh):
        result = await call((await named(tools))["probe_Probe_Many"], count=count, size=size)
        await probe.left.wait()
    array, _, note = result.text.rpartition("\n")
    assert len(json.loads(array)) == kept
    assert note == f"(cut after {kept} items; there are more)"


async def test_two_endpoints_that_would_be_one_tool_are_an_error_at_start_that_names_both() -> None:
    tools = ServiceTools(["probe"], "clerk")
    async with mesh_of(probe_service(Probe("v1"), Probe("v2"))) as mesh:
        with pytest.raises(Invalid, match=r"probe/probe_v1\.Probe/Once and probe/probe_v2\.Probe/Once"):
            async with tools.mounted(mesh):
                pass


async def test_names_that_are_cut_alike_are_an_error_too() -> None:
    long = "p" * 62
    tools = ServiceTools([f"{long}a", f"{long}b"], "clerk")
    parts = [probe_service(Probe(), name=f"{long}{end}") for end in "ab"]
    async with mesh_of(*parts) as mesh:
        with pytest.raises(Invalid, match=f"{long}a.* and {long}[ab].* would both be the tool {long}"):
            async with tools.mounted(mesh):
                pass


async def test_a_service_that_is_not_there_yet_is_named_once_and_found_when_it_comes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = ServiceTools(["task", "probe"], "clerk")
    async with office() as mesh, tools.mounted(mesh):
        monkeypatch.setattr(endpoint, "LOOK_S", 3600.0)
        assert {name.partition("_")[0] for name in await named(tools)} == {"task"}
        async with mesh.serve(probe_service(Probe())):
            # Not looked for again so soon.
            assert "probe_Probe_Once" not in await named(tools)
            tools._next_look = 0.0
            assert "probe_Probe_Once" in await named(tools)
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "retinue.tools"]
    assert warning.startswith("clerk: service probe cannot be read (no agent or service is called 'probe'")


async def test_a_clash_that_comes_later_costs_the_newcomer_its_tools(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = ServiceTools(["task", "probe"], "clerk")
    async with office() as mesh, tools.mounted(mesh), mesh.serve(probe_service(Probe("v1"), Probe("v2"))):
        assert {name.partition("_")[0] for name in await named(tools)} == {"task"}
        # It is settled: nobody looks again.
        monkeypatch.setattr(mesh.client, "endpoints", refuse)
        tools._next_look = 0.0
        assert {name.partition("_")[0] for name in await named(tools)} == {"task"}
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "clerk goes on without the tools of probe" in errors[0]


async def test_known_tools_cost_no_look_up_and_outlive_their_service(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = ServiceTools(["probe"], "clerk")
    async with mesh_of() as mesh:
        async with mesh.serve(probe_service(Probe())), tools.mounted(mesh):
            known = await tools.tools()
            monkeypatch.setattr(mesh.client, "endpoints", refuse)
            monkeypatch.setattr(mesh.registry, "find", refuse)
            assert await tools.tools() is known
        with pytest.raises(InternalError, match="need a mesh"):
            await tools.tools()


async def test_a_service_that_changes_is_read_again_in_the_background() -> None:
    tools = ServiceTools(["office"], "clerk")
    async with mesh_of() as mesh, AsyncExitStack() as first:
        await first.enter_async_context(mesh.serve(probe_service(Probe(), name="office")))
        async with tools.mounted(mesh):
            assert "office_Probe_Once" in await named(tools)
            await first.aclose()
            # Nobody is there: what was known stays.
            assert "office_Probe_Once" in await named(tools)
            with listening("retinue.tools") as lines:
                async with mesh.serve(Service("office", add_TaskServicer_to_server, Tasks(mesh.store))):
                    while await lines.get() != "INFO clerk: service office gives 4 tools":
                        pass
                    found = await named(tools)
                    assert {name.split("_")[1] for name in found} == {"Task"}
                    assert (await call(found["office_Task_Create"], title="x")).status is ToolStatus.OK
