"""A remote agent as a Chat: the same replies, events and errors as at home."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from kit.nodes import Cable, client_of, node, registered

from retinue.service.chat import (
    Call,
    Chat,
    Completed,
    Description,
    Event,
    Failed,
    History,
    Message,
    Part,
    PlanStep,
    Remembers,
    Reply,
    TextDelta,
)
from retinue.service.client.peer import Peer
from retinue.service.envelope import Budget, Envelope
from retinue.service.errors import (
    CycleRefused,
    DeadlinePassed,
    Draining,
    Invalid,
    MeshError,
    ModelRate,
    NoNode,
    SessionBusy,
    UnknownName,
)
from retinue.service.testing import LocalMesh, Stub
from retinue.service.usage import Usage


class Clerk(Stub):
    """A stub with a memory, whose stream is what a test says."""

    def __init__(self, *, events: Any = None, **kwargs: Any) -> None:
        super().__init__("clerk", **kwargs)
        self._events = events
        self.asked: list[tuple[str, int, str]] = []

    async def stream(self, message: str, call: Call = Call()) -> AsyncGenerator[Event, None]:
        async with aclosing(self._events(message, call) if self._events else super().stream(message, call)) as events:
            async for event in events:
                yield event

    async def history(self, session: str = "", *, page_size: int = 0, page_token: str = "") -> History:
        self.asked.append((session, page_size, page_token))
        return History((Message(role="user", text="hello"),), (PlanStep("rest", "done"),), "next")

    async def clear(self, session: str = "") -> int:
        return len(session)


@asynccontextmanager
async def peer_of(chat: Chat) -> AsyncGenerator[Peer, None]:
    async with LocalMesh() as mesh, mesh.serve(chat):
        yield mesh.peer(chat.name)


async def test_a_peer_is_a_chat_that_remembers() -> None:
    async with LocalMesh() as mesh:
        assert isinstance(mesh.peer("clerk"), Chat)
        assert isinstance(mesh.peer("clerk"), Remembers)
        with pytest.raises(Invalid):
            mesh.peer("No Name")
        with pytest.raises(UnknownName):
            await mesh.peer("clerk").ask("hello")


async def test_what_is_asked_arrives_whole_and_the_reply_comes_back() -> None:
    seen: list[tuple[str, Call]] = []

    def answer(message: str, call: Call) -> Reply:
        seen.append((message, call))
        return Reply(text="done", agent="clerk", session=call.session, run_id="r1", plan=(PlanStep("x"),))

    sent = Call(session="s", request_id="q", parts=(Part(text="more"),), context={"a": [1, None]})
    async with peer_of(Clerk(answer=answer)) as peer:
        reply = await peer.ask("hello", sent)
    assert (reply.text, reply.agent, reply.session, reply.run_id) == ("done", "clerk", "s", "r1")
    assert reply.plan == (PlanStep("x"),)
    message, call = seen[0]
    assert (message, call.session, call.request_id, call.parts) == ("hello", "s", "q", sent.parts)
    assert call.context == {"a": [1, None]}
    assert call.envelope.to == "clerk"
    assert not call.envelope.delegated


async def test_the_envelope_goes_along_and_its_deadline_holds() -> None:
    seen: list[Envelope] = []
    never = asyncio.Event()

    async def answer(_: str, call: Call) -> str:
        seen.append(call.envelope)
        await never.wait()
        return ""

    now = asyncio.get_running_loop().time()
    envelope = Envelope(root="r0", parent="r1", path=("planner",), budget=Budget(depth=3), deadline=now + 0.4)
    async with peer_of(Clerk(answer=answer)) as peer:
        with pytest.raises(DeadlinePassed):
            await peer.ask("hello", Call(envelope=envelope))
        with pytest.raises(CycleRefused, match="clerk → clerk"):
            await peer.ask("hello", Call(envelope=Envelope(path=("clerk",))))
    assert (seen[0].root, seen[0].parent, seen[0].path) == ("r0", "r1", ("planner",))
    assert seen[0].budget == Budget(depth=3)
    assert seen[0].deadline is not None
    assert seen[0].deadline < now + 0.35


async def test_an_error_is_of_the_same_type_as_at_home() -> None:
    error = ModelRate("too many", retry_after=2.0)
    error.usage = Usage(input=7, model_calls=1)

    async def answer(_: str, call: Call) -> str:
        raise error if call.session == "" else SessionBusy("full")

    async with peer_of(Clerk(answer=answer)) as peer:
        with pytest.raises(ModelRate, match="too many") as caught:
            await peer.ask("hello")
        assert caught.value.retry_after == 2.0
        assert caught.value.usage == Usage(input=7, model_calls=1)
        with pytest.raises(SessionBusy):
            _ = [event async for event in peer.stream("hello", Call(session="s"))]


async def test_a_stream_yields_each_event_as_it_happens() -> None:
    go = asyncio.Event()

    async def events(_: str, call: Call) -> AsyncGenerator[Event, None]:
        yield Event(1, "r1", TextDelta("he"))
        await go.wait()
        yield Event(2, "r1", TextDelta("llo"))
        yield Event(3, "r1", Completed(Reply(text="hello", agent="clerk", run_id="r1")))

    async with peer_of(Clerk(events=events)) as peer, asyncio.timeout(5):
        stream = peer.stream("hello")
        assert await anext(stream) == Event(1, "r1", TextDelta("he"))
        go.set()
        rest = [event async for event in stream]
    assert [event.seq for event in rest] == [2, 3]
    assert isinstance(rest[-1].body, Completed)
    assert rest[-1].body.reply.text == "hello"


async def test_a_run_that_fails_after_it_began_ends_with_failed() -> None:
    async def events(_: str, call: Call) -> AsyncGenerator[Event, None]:
        yield Event(1, "r1", TextDelta("he"))
        yield Event(2, "r1", Failed(ModelRate("too many", retry_after=1.0)))

    async with peer_of(Clerk(events=events)) as peer:
        last = [event async for event in peer.stream("hello")][-1]
    assert isinstance(last.body, Failed)
    assert isinstance(last.body.error, ModelRate)
    assert last.body.error.retry_after == 1.0


async def test_a_stream_closed_early_ends_the_run() -> None:
    ended = asyncio.Event()

    async def events(_: str, call: Call) -> AsyncGenerator[Event, None]:
        try:
            yield Event(1, "r1", TextDelta("he"))
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with peer_of(Clerk(events=events)) as peer, asyncio.timeout(2):
        async with aclosing(peer.stream("hello")) as stream:
            await anext(stream)
        await ended.wait()


async def test_history_clear_and_describe_read_the_agent() -> None:
    clerk = Clerk(description="keeps the list")
    async with peer_of(clerk) as peer:
        page = await peer.history("s", page_size=5, page_token="t")
        assert await peer.clear("four") == 4
        said = await peer.describe()
    assert page == History((Message(role="user", text="hello"),), (PlanStep("rest", "done"),), "next")
    assert clerk.asked == [("s", 5, "t")]
    assert said == Description(name="clerk", type="agent", description="keeps the list")


class Ids(Clerk):
    """A clerk that keeps the request ids it is sent, and refuses with `error` when it is given one."""

    def __init__(self, error: MeshError | None = None, **kwargs: Any) -> None:
        super().__init__(answer=self._note, **kwargs)
        self.ids: list[str] = []
        self._error = error

    def _note(self, _: str, call: Call) -> str:
        self.ids.append(call.request_id)
        if self._error:
            raise self._error
        return "ok"


async def test_each_ask_has_a_request_id_of_its_own() -> None:
    clerk = Ids()
    async with peer_of(clerk) as peer:
        await peer.ask("same")
        await peer.ask("same")
        _ = [event async for event in peer.stream("same")]
    assert len(set(clerk.ids)) == 3
    assert all(clerk.ids)


async def test_a_request_id_is_kept_when_another_node_is_asked() -> None:
    leaving, staying = Ids(Draining("going away")), Ids()
    async with LocalMesh() as mesh, mesh.serve(leaving, staying):
        while not leaving.ids:
            await mesh.ask("clerk", "hello")
    assert leaving.ids == staying.ids[-1:]


async def test_a_stream_refused_by_one_node_begins_on_another() -> None:
    leaving, staying = Ids(Draining("going away")), Ids()
    async with LocalMesh() as mesh, mesh.serve(leaving, staying):
        while not leaving.ids:
            seen = [event.body async for event in mesh.peer("clerk").stream("hello")]
    assert seen[0] == TextDelta("ok")
    assert leaving.ids == staying.ids[-1:]


async def test_a_stream_that_is_cut_goes_on_at_another_node_and_each_event_comes_once() -> None:
    ids: list[str] = []

    async def events(_: str, call: Call) -> AsyncGenerator[Event, None]:
        ids.append(call.request_id)
        yield Event(1, "r1", TextDelta("he"))
        if len(ids) == 1:
            await asyncio.Event().wait()
        yield Event(2, "r1", TextDelta("llo"))
        yield Event(3, "r1", Completed(Reply(text="hello", agent="clerk")))

    clerk = Clerk(events=events)
    async with LocalMesh() as mesh, mesh.serve(clerk, clerk) as (one, two), Cable(one.address) as cable:
        registry = await registered("clerk", cable.address)
        async with client_of(registry) as client, asyncio.timeout(5):
            stream = Peer(client, "clerk").stream("hello")
            seen = [await anext(stream)]
            await registry.register(node("clerk", two.address, 2))
            cable.cut()
            seen += [event async for event in stream]
    assert [event.seq for event in seen] == [1, 2, 3]
    assert len(ids) == 2
    assert ids[0] == ids[1]


async def test_a_stream_that_is_cut_ends_with_a_failed_when_no_node_goes_on_with_it() -> None:
    async def events(_: str, call: Call) -> AsyncGenerator[Event, None]:
        yield Event(1, "r1", TextDelta("he"))
        await asyncio.Event().wait()

    clerk = Clerk(events=events)
    async with LocalMesh() as mesh, mesh.serve(clerk) as (one,), Cable(one.address) as cable:
        registry = await registered("clerk", cable.address)
        async with client_of(registry) as client, asyncio.timeout(5):
            deadline = asyncio.get_running_loop().time() + 1.0
            stream = Peer(client, "clerk").stream("hello", Call(envelope=Envelope(deadline=deadline)))
            await anext(stream)
            cable.cut()
            (last,) = [event async for event in stream]
    assert isinstance(last.body, Failed)
    assert isinstance(last.body.error, NoNode | DeadlinePassed)
    assert (last.seq, last.run_id) == (2, "r1")
