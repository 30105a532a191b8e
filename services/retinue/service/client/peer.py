"""A named agent of the mesh as a Chat: what is asked here is answered by whichever node bears that name.

It keeps nothing: history and plan are the agent's own, and are read over the same wire.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from google.protobuf.message import Message as Wire

from retinue.service import wire
from retinue.service.chat import Answer, Call, Completed, Description, Event, Failed, History, Reply, RunState
from retinue.service.client import Client
from retinue.service.client.nodes import broke_off
from retinue.service.errors import DeadlinePassed, InternalError, MeshError
from retinue.service.names import check_name, new_id
from retinue.service.text import sane
from retinue.v1 import agent_pb2 as pb

_AGENT = f"/{pb.DESCRIPTOR.services_by_name['Agent'].full_name}"
_CHAT = f"{_AGENT}/Chat"


class Peer:
    """The agent registered as `name`. Raises Invalid when that is no name; UnknownName comes when it is asked."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = check_name(name)

    @property
    def name(self) -> str:
        return self._name

    async def ask(self, message: str, call: Call = Call()) -> Reply:
        """One turn. The deadline is the envelope's, else 120 s; a request id is made where the call has none.

        When its node dies the request goes to another one, which knows it by its id and goes on with the run.
        """
        raw = _request(message, call)
        answer = await self._client.unary(self._name, _CHAT, raw, envelope=call.envelope, repeatable=True)
        return wire.from_response(pb.ChatResponse.FromString(answer))

    async def stream(self, message: str, call: Call = Call()) -> AsyncGenerator[Event, None]:
        """One turn as it happens, ending with Completed or Failed; what refuses it before it begins is raised.

        When a node goes away in the middle another one goes on with the run, and each event still comes once.
        """
        raw = _request(message, call)
        last: Event | None = None
        while True:
            answers = self._client.stream(
                self._name, f"{_AGENT}/StreamChat", raw, envelope=call.envelope, repeatable=True
            )
            begun = False
            async with contextlib.aclosing(answers):
                try:
                    async for answer in answers:
                        event, begun = wire.from_event(pb.ChatEvent.FromString(answer)), True
                        if last is not None and event.seq <= last.seq:
                            continue
                        last = event
                        yield event
                        if isinstance(event.body, Completed | Failed):
                            return
                    error: MeshError = InternalError(f"{self._name} ended its stream without an end to the turn")
                except MeshError as failure:
                    error = failure
            if begun and broke_off(error):
                continue
            if last is None:
                raise error
            yield _failed(last, error)
            return

    async def history(self, session: str = "", *, page_size: int = 0, page_token: str = "") -> History:
        """A page of the session's messages, oldest first, and its plan; `page_size` 0 leaves the size to the agent."""
        request = pb.GetHistoryRequest(session=session, page_size=page_size, page_token=page_token)
        return wire.from_history(pb.GetHistoryResponse.FromString(await self._read("GetHistory", request)))

    async def clear(self, session: str = "") -> int:
        """Makes the agent forget a session; returns how many messages it had."""
        answer = await self._read("ClearHistory", pb.ClearHistoryRequest(session=session))
        return pb.ClearHistoryResponse.FromString(answer).cleared

    async def describe(self) -> Description:
        """What the agent says of itself."""
        return wire.from_description(pb.DescribeResponse.FromString(await self._read("Describe", pb.DescribeRequest())))

    async def run(self, run_id: str) -> Reply:
        """How the run stands, and its reply once it has one."""
        answer = await self._read("GetRun", pb.GetRunRequest(run_id=run_id))
        return wire.from_response(pb.ChatResponse.FromString(answer))

    async def watch(self, run_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
        """The run's events behind number `after`; when a node goes away in the middle, another one goes on."""
        while True:
            request = pb.WatchRunRequest(run_id=run_id, after_seq=after).SerializeToString()
            answers = self._client.stream(self._name, f"{_AGENT}/WatchRun", request, repeatable=True)
            begun = False
            async with contextlib.aclosing(answers):
                try:
                    async for answer in answers:
                        event = wire.from_event(pb.ChatEvent.FromString(answer))
                        after, begun = event.seq, True
                        yield event
                        if isinstance(event.body, Completed | Failed):
                            return
                except DeadlinePassed:
                    continue  # of one call: how long a run is watched is the watcher's own to bound
                except MeshError as error:
                    if not (begun and broke_off(error)):
                        raise

    async def cancel(self, run_id: str, *, tree: bool = False) -> int:
        """Ends the run, or all runs of its tree; returns how many that were."""
        answer = await self._read("Cancel", pb.CancelRequest(run_id=run_id, tree=tree))
        return pb.CancelResponse.FromString(answer).cancelled

    async def follow_up(self, message: str, call: Call = Call(), *, steer: bool = False) -> str:
        """Adds a message to a session behind its running turn, or with `steer` into it; returns the message's run."""
        chat = pb.ChatRequest.FromString(_request(message, call))
        request = pb.FollowUpRequest(
            message=chat.message, session=chat.session, request_id=chat.request_id, parts=chat.parts, steer=steer
        )
        path, raw = f"{_AGENT}/FollowUp", request.SerializeToString()
        answer = await self._client.unary(self._name, path, raw, envelope=call.envelope, repeatable=True)
        return pb.FollowUpResponse.FromString(answer).run_id

    async def resolve(self, run_id: str, pending_id: str, answer: Answer) -> RunState:
        """Answers something that the run waits for; the same answer twice is one answer."""
        request = pb.ResolveRequest(
            run_id=run_id,
            pending_id=pending_id,
            approved=answer.approved,
            result=sane(answer.result),
            reason=sane(answer.reason),
        )
        return RunState(pb.ResolveResponse.FromString(await self._read("Resolve", request)).state)

    async def _read(self, method: str, request: Wire) -> bytes:
        """Calls a method that is declared free of side effects or idempotent."""
        return await self._client.unary(self._name, f"{_AGENT}/{method}", request.SerializeToString(), repeatable=True)


def _request(message: str, call: Call) -> bytes:
    request = wire.to_request(message, call)
    if not request.request_id:
        request.request_id = new_id()
    return request.SerializeToString()


def _failed(last: Event, error: MeshError) -> Event:
    return Event(last.seq + 1, last.run_id, Failed(error))
