"""Any Chat as the gRPC service retinue.v1.Agent: requests are checked here, and the Chat does the rest.

It keeps no state and turns no error into a status: the gate does that for every service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
import grpc.aio

from retinue.service import wire
from retinue.service.chat import Answer, Call, Chat, Completed, Event, Failed, Remembers, Runs
from retinue.service.envelope import Envelope
from retinue.service.errors import InternalError, Invalid, MeshError, Unsupported
from retinue.service.names import check_request_id, check_run_id, check_session
from retinue.service.part import describe
from retinue.service.text import sane
from retinue.v1 import agent_pb2 as pb
from retinue.v1 import agent_pb2_grpc

_log = logging.getLogger("retinue.server")
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
# Code generated from the three-field proto without a package calls this service.
ALIAS = "Agent"
# No token of ours is longer.
_TOKEN_CHARACTERS = 64


class AgentServicer(agent_pb2_grpc.AgentServicer):
    """Serves `chat`. An agent is refused calls that would close a circle or go too deep."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._is_agent = describe(chat).type == "agent"

    async def Chat(self, request: pb.ChatRequest, context: _Context) -> pb.ChatResponse:
        """One turn; the reply comes whole."""
        message, call = self._admit(request, context)
        reply = await self._chat.ask(message, call)
        context.set_trailing_metadata(wire.usage_trailer(reply.usage))
        return wire.to_response(reply)

    async def StreamChat(self, request: pb.ChatRequest, context: _Context) -> AsyncGenerator[pb.ChatEvent, None]:
        """One turn as it happens. A refusal before the first event is the call's status, a later failure an event."""
        message, call = self._admit(request, context)
        last: Event | None = None
        try:
            async with aclosing(self._chat.stream(message, call)) as events:
                async for last in events:
                    yield wire.to_event(last)
                    if isinstance(last.body, Completed | Failed):
                        return
            failure: MeshError = InternalError("the run ended without a reply")
        except Exception as error:
            if isinstance(error, MeshError):
                failure = error
            else:
                _log.error("a run of %s failed", self._chat.name, exc_info=error)
                failure = InternalError(f"{self._chat.name} failed by a fault of its own; its log has the details")
        if last is None:
            raise failure
        yield wire.to_event(Event(last.seq + 1, last.run_id, Failed(failure)))

    async def GetHistory(self, request: pb.GetHistoryRequest, context: _Context) -> pb.GetHistoryResponse:
        """A page of a session's messages, oldest first, and its plan."""
        session = check_session(request.session, derived=_envelope(context).delegated)
        if request.page_size < 0:
            raise Invalid("page_size: use 0 for the default or a positive number", field="page_size")
        if len(request.page_token) > _TOKEN_CHARACTERS:
            raise Invalid("page_token: it is none of ours; use what the last page gave", field="page_token")
        page = await self._memory().history(session, page_size=request.page_size, page_token=request.page_token)
        return wire.to_history(page)

    async def ClearHistory(self, request: pb.ClearHistoryRequest, context: _Context) -> pb.ClearHistoryResponse:
        """Forgets a session."""
        session = check_session(request.session, derived=_envelope(context).delegated)
        return pb.ClearHistoryResponse(cleared=await self._memory().clear(session))

    async def Describe(self, request: pb.DescribeRequest, context: _Context) -> pb.DescribeResponse:
        """What the Chat says of itself now."""
        return wire.to_description(describe(self._chat))

    async def FollowUp(self, request: pb.FollowUpRequest, context: _Context) -> pb.FollowUpResponse:
        """A message for a session whose turn may be running; it has a run of its own, whose id comes at once."""
        chat = pb.ChatRequest(
            message=request.message, session=request.session, request_id=request.request_id, parts=request.parts
        )
        message, call = self._admit(chat, context)
        return pb.FollowUpResponse(run_id=await self._runs().follow_up(message, call, steer=request.steer))

    async def Resolve(self, request: pb.ResolveRequest, context: _Context) -> pb.ResolveResponse:
        """An answer to something pending."""
        answer = Answer(approved=request.approved, result=sane(request.result), reason=sane(request.reason))
        state = await self._runs().resolve(_run_id(request), request.pending_id, answer)
        return pb.ResolveResponse(state=pb.RunState.ValueType(state.value))

    async def Cancel(self, request: pb.CancelRequest, context: _Context) -> pb.CancelResponse:
        """Ends a run or its tree; answers once nothing of it is left."""
        return pb.CancelResponse(cancelled=await self._runs().cancel(_run_id(request), tree=request.tree))

    async def GetRun(self, request: pb.GetRunRequest, context: _Context) -> pb.ChatResponse:
        """How a run stands."""
        return wire.to_response(await self._runs().run(_run_id(request)))

    async def WatchRun(self, request: pb.WatchRunRequest, context: _Context) -> AsyncGenerator[pb.ChatEvent, None]:
        """A run's events from a number on, until it ends."""
        if request.after_seq < 0:
            raise Invalid(
                "after_seq: use 0 for the beginning, or the number of the last event you have", field="after_seq"
            )
        async with aclosing(self._runs().watch(_run_id(request), after=request.after_seq)) as events:
            async for event in events:
                yield wire.to_event(event)

    def _admit(self, request: pb.ChatRequest, context: _Context) -> tuple[str, Call]:
        envelope = _envelope(context)
        if self._is_agent:
            envelope.check(self._chat.name)
        if request.detach and not isinstance(self._chat, Runs):
            raise Unsupported(f"{self._chat.name} keeps no runs: ask without detach")
        if not request.parts and not request.message.strip():
            raise Invalid("message: it is empty; say something", field="message")
        check_request_id(request.request_id)
        request.session = check_session(request.session, derived=envelope.delegated)
        return wire.from_request(request, envelope)

    def _memory(self) -> Remembers:
        if isinstance(self._chat, Remembers):
            return self._chat
        raise Unsupported(f"{self._chat.name} keeps no history")

    def _runs(self) -> Runs:
        if isinstance(self._chat, Runs):
            return self._chat
        raise Unsupported(f"{self._chat.name} keeps no runs")


def alias(servicer: AgentServicer) -> grpc.GenericRpcHandler:
    """The handler of /Agent/Chat. It is in no descriptor pool: there it would clash with its callers' own protos."""
    chat = grpc.unary_unary_rpc_method_handler(
        servicer.Chat,
        request_deserializer=pb.ChatRequest.FromString,
        response_serializer=pb.ChatResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(ALIAS, {"Chat": chat})


def _envelope(context: _Context) -> Envelope:
    remaining: float | None = context.time_remaining()
    deadline = None if remaining is None else asyncio.get_running_loop().time() + remaining
    return Envelope.from_metadata(context.invocation_metadata() or (), deadline=deadline)


def _run_id(request: pb.ResolveRequest | pb.CancelRequest | pb.GetRunRequest | pb.WatchRunRequest) -> str:
    return check_run_id(request.run_id)
