"""An agent on the wire: what is refused before it runs, what reaches it, how a turn is followed and broken off."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status  # type: ignore[import-untyped]
from kit.serving import served, status_of

from retinue.service import chat, errors, wire
from retinue.service.chat import Call, Completed, Event, Failed, History, Message, Reply, TextDelta
from retinue.service.envelope import Envelope
from retinue.service.testing import Stub
from retinue.service.usage import Usage
from retinue.v1 import agent_pb2 as pb
from retinue.v1.agent_pb2_grpc import AgentStub

DELEGATED = [("retinue-path", "planner"), ("retinue-root", "r1"), ("retinue-parent", "r1")]


class Scripted(Stub):
    """A stub whose stream is written by its test."""

    def __init__(self, events: Callable[[], AsyncIterator[Event]]) -> None:
        super().__init__("clerk")
        self._events = events

    async def stream(self, message: str, call: Call = Call()) -> Any:
        async for event in self._events():
            yield event


class Diary(Stub):
    """A stub that remembers."""

    async def history(self, session: str = "", *, page_size: int = 0, page_token: str = "") -> History:
        return History((Message(role="user", text=f"{session}|{page_size}|{page_token}"),), (), "more")

    async def clear(self, session: str = "") -> int:
        return 3


class Hanging:
    """A Chat that never answers and tells when it was asked, and when it was broken off."""

    name = "clerk"

    def __init__(self) -> None:
        self.asked, self.ended = asyncio.Event(), asyncio.Event()

    async def ask(self, message: str, call: Call = Call()) -> Reply:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        raise AssertionError

    def stream(self, message: str, call: Call = Call()) -> AsyncGenerator[Event, None]:
        # Kept, so that it ends only when somebody ends it, not when it is collected.
        self.events = self._events(message)
        return self.events

    async def _events(self, message: str) -> AsyncGenerator[Event, None]:
        try:
            yield Event(1, "r", TextDelta("a"))
            self.asked.set()
            # Far more than fits a connection, so that it stands at its yield when the caller goes.
            for seq in range(2, 1000) if message == "flood" else ():
                yield Event(seq, "r", TextDelta("x" * 1_000_000))
            await asyncio.Event().wait()
        finally:
            self.ended.set()


def ask(channel: Any, message: str = "hi", *, metadata: Any = (), timeout: float | None = None, **fields: Any) -> Any:
    return AgentStub(channel).Chat(pb.ChatRequest(message=message, **fields), metadata=metadata, timeout=timeout)


@pytest.mark.parametrize(
    ("fields", "metadata", "field"),
    [
        ({"message": ""}, [], "message"),
        ({"message": " \n"}, [], "message"),
        ({"session": "no spaces"}, [], "session"),
        ({"session": "ada~planner"}, [], "session"),
        ({"session": "s" * 129}, [], "session"),
        ({"request_id": "not one\nline"}, [], "request_id"),
        ({"parts": [pb.Part()]}, [], "parts"),
        ({}, [("retinue-path", "Not A Name")], "retinue-path"),
        ({}, [("retinue-root", "no id!")], "retinue-root"),
        ({}, [("retinue-budget", "calls=many")], "retinue-budget"),
    ],
)
@pytest.mark.parametrize("method", ["Chat", "StreamChat"])
async def test_a_bad_request_is_refused_by_field_before_it_runs(
    method: str, fields: dict[str, Any], metadata: Any, field: str
) -> None:
    def answer(message: str, call: Call) -> str:
        raise AssertionError("it ran")

    async with asyncio.timeout(5), served(Stub("clerk", answer)) as (_, channel):
        call = getattr(AgentStub(channel), method)(pb.ChatRequest(**{"message": "hi", **fields}), metadata=metadata)
        error = await status_of(call if method == "Chat" else call.read())
    assert type(error) is errors.Invalid
    assert error.facts["field"] == field


async def test_the_chat_gets_the_call_as_it_was_sent() -> None:
    calls = []

    def answer(message: str, call: Call) -> str:
        calls.append((message, call, call.envelope.deadline))
        return "ok"

    metadata = [*DELEGATED, ("retinue-to", "clerk"), ("retinue-budget", "calls=9,depth=4"), ("traceparent", "t-1")]
    async with asyncio.timeout(5), served(Stub("clerk", answer)) as (_, channel):
        now = asyncio.get_running_loop().time()
        part = pb.Part(text="more")
        reply = await ask(channel, session="ada~planner", request_id="q1", parts=[part], metadata=metadata, timeout=3)
        await ask(channel, session="default")
    (message, call, deadline), (_, plain, never) = calls
    assert (message, call.session, call.request_id, call.parts) == (
        "hi",
        "ada~planner",
        "q1",
        (chat.Part(text="more"),),
    )
    assert call.envelope == Envelope.from_metadata(metadata)
    assert call.envelope.delegated
    assert deadline is not None
    assert now + 2 < deadline < now + 4
    assert (plain.session, plain.envelope, never) == ("", Envelope(), None)
    assert (reply.reply, reply.agent, reply.session, reply.state) == ("ok", "clerk", "ada~planner", pb.COMPLETED)


async def test_a_message_may_be_parts_alone() -> None:
    async with asyncio.timeout(5), served(Stub("clerk")) as (_, channel):
        assert (await ask(channel, "", parts=[pb.Part(text="look")])).reply == ""


async def test_a_circle_is_refused_with_its_path_for_an_agent_and_not_for_a_router() -> None:
    metadata = [("retinue-path", "planner,clerk,mailer")]
    async with asyncio.timeout(5), served(Stub("clerk")) as (_, channel):
        error = await status_of(ask(channel, "", metadata=metadata))
        assert type(error) is errors.CycleRefused
        assert "planner → clerk → mailer → clerk" in error.message
        deep = [("retinue-path", "a,b"), ("retinue-budget", "depth=2")]
        assert type(await status_of(ask(channel, metadata=deep))) is errors.DepthRefused
    async with asyncio.timeout(5), served(Stub("clerk", type="router")) as (_, channel):
        assert (await ask(channel, metadata=metadata)).reply == "hi"


async def test_a_chat_that_keeps_nothing_says_so() -> None:
    async with asyncio.timeout(5), served(Stub("clerk")) as (_, channel):
        stub: Any = AgentStub(channel)
        calls = [
            stub.FollowUp(pb.FollowUpRequest(message="and this")),
            stub.Resolve(pb.ResolveRequest()),
            stub.Cancel(pb.CancelRequest()),
            stub.GetRun(pb.GetRunRequest()),
            stub.WatchRun(pb.WatchRunRequest()).read(),
            ask(channel, detach=True),
            stub.GetHistory(pb.GetHistoryRequest()),
            stub.ClearHistory(pb.ClearHistoryRequest()),
        ]
        for call in calls:
            assert type(await status_of(call)) is errors.Unsupported


async def test_history_and_description_are_read_over_the_wire() -> None:
    async with asyncio.timeout(5), served(Diary("clerk", description="Keeps the list.")) as (_, channel):
        stub: Any = AgentStub(channel)
        page = await stub.GetHistory(pb.GetHistoryRequest(session="ada", page_size=2, page_token="t"))
        assert (page.messages[0].text, page.next_page_token) == ("ada|2|t", "more")
        assert (await stub.GetHistory(pb.GetHistoryRequest(session="default"))).messages[0].text == "|0|"
        assert (await stub.ClearHistory(pb.ClearHistoryRequest())).cleared == 3
        assert (await stub.Describe(pb.DescribeRequest())).description == "Keeps the list."
        for bad in (pb.GetHistoryRequest(session="a~b"), pb.GetHistoryRequest(page_size=-1)):
            assert type(await status_of(stub.GetHistory(bad))) is errors.Invalid


async def test_a_stream_passes_events_as_they_come() -> None:
    go_on = asyncio.Event()

    async def events() -> AsyncIterator[Event]:
        yield Event(1, "r", TextDelta("a"))
        await go_on.wait()
        yield Event(2, "r", Completed(Reply(text="a", agent="clerk")))

    async with asyncio.timeout(5), served(Scripted(events)) as (_, channel):
        call: Any = AgentStub(channel).StreamChat(pb.ChatRequest(message="hi"))
        assert (await call.read()).text == "a"
        go_on.set()
        assert (await call.read()).completed.reply == "a"
        assert not await call.read()
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (errors.ModelRate("slow", retry_after=1.0), "MODEL_RATE"),
        (RuntimeError("secret"), "INTERNAL"),
        (None, "INTERNAL"),
    ],
)
async def test_a_run_that_fails_ends_its_stream_with_one_error_event(end: Exception | None, reason: str) -> None:
    async def events() -> AsyncIterator[Event]:
        yield Event(1, "r", TextDelta("a"))
        if end:
            raise end

    async with asyncio.timeout(5), served(Scripted(events)) as (_, channel):
        call: Any = AgentStub(channel).StreamChat(pb.ChatRequest(message="hi"))
        _, last = [event async for event in call]
        assert (last.seq, last.run_id, last.error.reason) == (2, "r", reason)
        assert "secret" not in last.error.message
        assert await call.code() is grpc.StatusCode.OK


async def test_a_failure_that_the_run_told_itself_is_passed_on_once() -> None:
    async def events() -> AsyncIterator[Event]:
        yield Event(1, "r", Failed(errors.ModelAuth("no key")))

    async with asyncio.timeout(5), served(Scripted(events)) as (_, channel):
        call: Any = AgentStub(channel).StreamChat(pb.ChatRequest(message="hi"))
        assert [event.error.reason async for event in call] == ["MODEL_AUTH"]


@pytest.mark.parametrize("method", ["Chat", "StreamChat"])
async def test_a_refusal_before_the_run_is_the_status_with_error_info(method: str) -> None:
    def answer(message: str, call: Call) -> str:
        raise errors.SessionBusy("the queue is full", retry_after=0.25, limit="8")

    async with asyncio.timeout(5), served(Stub("clerk", answer)) as (_, channel):
        call = getattr(AgentStub(channel), method)(pb.ChatRequest(message="hi"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (call if method == "Chat" else call.read())
    details = await rpc_status.aio.from_call(call)
    assert details
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert details.details[0].Unpack(info)
    assert details.details[1].Unpack(retry)
    assert (info.domain, info.reason, dict(info.metadata)) == ("retinue", "SESSION_BUSY", {"limit": "8"})
    assert retry.retry_delay.ToNanoseconds() == 250_000_000
    error = errors.from_rpc(caught.value)
    assert (type(error), error.retry_after, error.facts) == (errors.SessionBusy, 0.25, {"limit": "8"})


@pytest.mark.parametrize("letter", ["x", "ü", "💩", "\0", "\ud83d"])
async def test_a_long_or_odd_message_keeps_its_reason(letter: str) -> None:
    def answer(message: str, call: Call) -> str:
        raise errors.ModelContext(letter * 100_000, field=letter * 1000)

    async with asyncio.timeout(5), served(Stub("clerk", answer)) as (_, channel):
        error = await status_of(ask(channel))
    assert type(error) is errors.ModelContext
    assert len(error.message.encode()) <= 1024


async def test_usage_comes_back_in_trailers_of_a_reply_and_of_a_failure() -> None:
    used = Usage(input=10, output=0, model_calls=2)

    def answer(message: str, call: Call) -> Reply:
        if message == "fail":
            error = errors.ModelRate("slow")
            error.usage = used
            raise error
        return Reply(text="ok", agent="clerk", usage=used)

    async with asyncio.timeout(5), served(Stub("clerk", answer)) as (_, channel):
        call = ask(channel)
        await call
        assert wire.usage_of_trailers(await call.trailing_metadata()) == used
        call = ask(channel, "fail")
        assert type(await status_of(call)) is errors.ModelRate
        assert wire.usage_of_trailers(await call.trailing_metadata()) == used


async def test_a_message_of_5_mib_passes_both_ways() -> None:
    text = "x" * (5 * 1024 * 1024)
    async with asyncio.timeout(10), served(Stub("clerk")) as (_, channel):
        assert (await ask(channel, text)).reply == text


async def test_a_caller_that_leaves_a_unary_call_ends_the_turn() -> None:
    clerk = Hanging()
    async with asyncio.timeout(5), served(clerk) as (_, channel):
        call = ask(channel)
        await clerk.asked.wait()
        call.cancel()
        async with asyncio.timeout(1):
            await clerk.ended.wait()


@pytest.mark.parametrize("message", ["quiet", "flood"])
async def test_a_caller_that_leaves_a_stream_ends_the_turn_at_once(message: str) -> None:
    clerk = Hanging()
    async with asyncio.timeout(5), served(clerk) as (_, channel):
        call: Any = AgentStub(channel).StreamChat(pb.ChatRequest(message=message))
        await call.read()
        await clerk.asked.wait()
        call.cancel()
        async with asyncio.timeout(1):
            await clerk.ended.wait()


async def test_a_connection_that_breaks_ends_the_turn() -> None:
    clerk = Hanging()
    async with asyncio.timeout(5), served(clerk) as (_, channel):
        call = ask(channel)
        await clerk.asked.wait()
        await channel.close()
        async with asyncio.timeout(1):
            await clerk.ended.wait()
        assert call.cancelled()


async def test_a_deadline_ends_the_turn() -> None:
    clerk = Hanging()
    async with asyncio.timeout(5), served(clerk) as (_, channel):
        assert type(await status_of(ask(channel, timeout=0.2))) is errors.DeadlinePassed
        async with asyncio.timeout(1):
            await clerk.ended.wait()
