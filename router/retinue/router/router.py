"""The router: sends a person's message to the agent that it is for, and gives back what that agent answers.

It is a Chat like any other, served as `router`. It does no work itself, except that without any agent in the mesh
the services' endpoints are its own tools. What agents delegate to each other does not pass through it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retinue.agent.model import Model
from retinue.agent.model.choice import choose
from retinue.agent.model.custom import CustomModel
from retinue.agent.model.gate import guarded
from retinue.agent.runs.book import RunBook
from retinue.agent.session.conversation import clear_history, read_history
from retinue.router.classify import classify
from retinue.router.combine import combined, side_by_side
from retinue.router.direct import Direct
from retinue.router.log import ROUTE, Errand, Log, Outcome
from retinue.router.match import clearest, continues, mentions, scores
from retinue.router.roster import Roster, read_roster
from retinue.service.chat import (
    Answer,
    Call,
    Completed,
    Description,
    Event,
    Failed,
    History,
    Reply,
    RunState,
    StatusNote,
    TextDelta,
)
from retinue.service.errors import InternalError, Invalid, MeshError, NoNode, UnknownName
from retinue.service.names import check_name
from retinue.service.usage import Usage

if TYPE_CHECKING:
    from retinue.service.mesh import Mesh

DESCRIPTION = "Sends each message to the agent that it is for."
log = logging.getLogger("retinue.router")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """Where a message goes: to agents, to the router itself with these services, or nowhere with an answer.

    `usage` is what deciding took.
    """

    errands: tuple[Errand, ...] = ()
    direct: bool = False
    services: tuple[str, ...] = ()
    answer: str = ""
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class _Desk:
    """What the router works with while it is mounted. `direct` is the router itself as an agent."""

    mesh: Mesh
    log: Log
    model: Model
    direct: Direct


class Router:
    """A Chat that sends messages on. `model` is a Model or "provider/name"; the environment's when None. `entry` is the
    agent that all messages go to, but those that name another with `@name`.

    A reply is the chosen agent's, with its tool calls, and with the usage of choosing added; several agents' replies
    come as one, under their names. A message that no agent fits is answered by the router with who is there.
    """

    def __init__(
        self,
        name: str = "router",
        *,
        model: Model | CustomModel | str | None = None,
        provider: str | None = None,
        api_key: str | None = None,
        description: str = DESCRIPTION,
        entry: str = "",
    ) -> None:
        self._name = check_name(name)
        self._wanted = model, provider, api_key
        self._description = description
        self._entry = entry
        self._desk: _Desk | None = None

    @property
    def name(self) -> str:
        """The name that it is registered under."""
        return self._name

    def describe(self) -> Description:
        """What it is; the model is known while it serves."""
        model = self._desk.model.name if self._desk else ""
        return Description(name=self._name, type="router", description=self._description, model=model, tools=(ROUTE,))

    @asynccontextmanager
    async def mounted(self, mesh: Mesh) -> AsyncIterator[None]:
        """Serves from the agents and services of `mesh` for the length of the block."""
        wanted, provider, api_key = self._wanted
        chosen = await choose(wanted, provider, api_key)
        log.info("%s: %s", self._name, chosen.why)
        model, direct = chosen.model, Direct(self._name, chosen.model)
        async with AsyncExitStack() as stack:
            if isinstance(model, AbstractAsyncContextManager):
                await stack.enter_async_context(model)
            guarded(model, mesh.store)
            await stack.enter_async_context(direct.mounted(mesh))
            self._desk = _Desk(mesh, Log(mesh.store, self._name), model, direct)
            try:
                yield
            finally:
                self._desk = None

    async def ask(self, message: str, call: Call = Call()) -> Reply:
        """The reply of whoever the message is for. Raises what that agent raised; NoNode when no agent answers."""
        desk = self._mounted()
        route = await self._route(desk, message, call)
        if route.direct:
            async with desk.direct.agent(route.services) as agent:
                return await agent.ask(message, call)
        if call.detach:
            _only(route)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._ask(desk, errand, call)) for errand in route.errands]
        return await self._close(desk, route, message, call, [one.result() for one in asked])

    async def stream(self, message: str, call: Call = Call()) -> AsyncGenerator[Event, None]:
        """The turn as it happens: the chosen agent's own events; of several agents all but the text, which is last."""
        desk = self._mounted()
        route = await self._route(desk, message, call)
        if route.direct:
            events = self._stream_direct(desk, route, message, call)
        elif len(route.errands) == 1:
            events = self._stream_one(desk, route, message, call)
        else:
            events = self._stream_several(desk, route, message, call)
        async with aclosing(events):
            async for event in events:
                yield event

    async def history(self, session: str = "", *, page_size: int = 0, page_token: str = "") -> History:
        """The router's log of the session: each message, the agent it went to, and the reply."""
        store = self._mounted().mesh.store
        return await read_history(store, self._name, session, page_size=page_size, page_token=page_token)

    async def clear(self, session: str = "") -> int:
        """Forgets the session here and at every agent that answered in it; returns how many messages there were."""
        desk = self._mounted()
        cleared = 0
        for agent in await desk.log.agents(session):
            try:
                cleared += await desk.mesh.peer(agent).clear(session)
            except UnknownName as error:
                log.warning("what was said to %s in this session stays: %s", agent, error)
        return cleared + await clear_history(desk.mesh.store, self._name, session)

    async def run(self, run_id: str) -> Reply:
        """How a run of whichever agent stands."""
        return await RunBook(self._mounted().mesh.store).reply(run_id)

    async def watch(self, run_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
        """The events of a run of whichever agent, behind number `after`."""
        async with aclosing(RunBook(self._mounted().mesh.store).watch(run_id, after=after)) as events:
            async for event in events:
                yield event

    async def cancel(self, run_id: str, *, tree: bool = False) -> int:
        """Ends a run of whichever agent, or its tree."""
        return await RunBook(self._mounted().mesh.store).cancel(run_id, tree=tree)

    async def follow_up(self, message: str, call: Call = Call(), *, steer: bool = False) -> str:
        """Hands the message on to the one agent that it is for; Invalid when it is for several, or for none."""
        desk = self._mounted()
        errand = _only(await self._route(desk, message, call))
        return await desk.mesh.peer(errand.agent).follow_up(errand.message, _for(call, errand), steer=steer)

    async def resolve(self, run_id: str, pending_id: str, answer: Answer) -> RunState:
        """Hands the answer on to the agent whose run waits for it."""
        desk = self._mounted()
        record = await RunBook(desk.mesh.store).record(run_id)
        if record.agent == self._name:
            raise Invalid(f"{run_id} waits for nothing: it is {record.state.name}", field="run_id")
        return await desk.mesh.peer(record.agent).resolve(run_id, pending_id, answer)

    async def _route(self, desk: _Desk, message: str, call: Call) -> _Route:
        """The choice that was made for this request before, or a new one, stored before anything is sent."""
        if call.request_id and (made := await desk.log.choice(call.session, call.request_id, message)):
            return await self._again(desk, made)
        route = await self._decide(desk, message, call.session)
        errands = (Errand(self._name, message),) if route.direct else route.errands
        if not call.request_id or not errands:
            return route
        stored = await desk.log.choose(call.session, call.request_id, message, errands)
        return route if stored == errands else await self._again(desk, stored)

    async def _again(self, desk: _Desk, errands: tuple[Errand, ...]) -> _Route:
        if [errand.agent for errand in errands] != [self._name]:
            return _Route(errands=errands)
        return _Route(direct=True, services=(await read_roster(desk.mesh.client.directory)).services)

    async def _decide(self, desk: _Desk, message: str, session: str) -> _Route:
        roster = await read_roster(desk.mesh.client.directory)
        agents = {one.name: one for one in roster.agents}
        if not agents and roster.silent:
            raise NoNode(f"no agent answers now: {', '.join(roster.silent)} registered, but not healthy")
        if not agents and not roster.services:
            return _Route(answer="Nobody is here: no agent and no service is registered.")
        if not agents:
            return _Route(direct=True, services=roster.services)
        if self._entry and self._entry not in agents:
            raise NoNode(f"{self._entry}, to which all messages go here, does not answer now")
        if len(agents) == 1 and not roster.silent:
            return _to(roster.agents[0].name, message)
        named = mentions(message, [*agents, *roster.silent])
        if self._entry and not named.agents:
            return _to(self._entry, message)
        if named.unknown:
            return _Route(answer=roster.nobody_named(named.unknown))
        if named.agents:
            return _Route(errands=tuple(Errand(name, message) for name in named.agents))
        return await self._fitting(desk, roster, message, session)

    async def _fitting(self, desk: _Desk, roster: Roster, message: str, session: str) -> _Route:
        """The agents that a message fits which names none."""
        found = scores(message, roster.agents)
        last = await desk.log.last_agent(session)
        if last is not None and continues(message, last, found):
            return _to(last, message)
        if clear := clearest(found):
            return _to(clear, message)
        recent = await desk.log.recent(session)
        verdict = await classify(desk.model, message, candidates=roster.agents, recent=recent)
        answer = "" if verdict.errands else roster.nobody_fits()
        return _Route(errands=verdict.errands, answer=answer, usage=verdict.usage)

    async def _ask(self, desk: _Desk, errand: Errand, call: Call) -> Outcome:
        try:
            return Outcome(errand, await desk.mesh.peer(errand.agent).ask(errand.message, _for(call, errand)))
        except MeshError as error:
            return Outcome(errand, error)

    async def _stream_direct(self, desk: _Desk, route: _Route, message: str, call: Call) -> AsyncGenerator[Event, None]:
        async with desk.direct.agent(route.services) as agent, aclosing(agent.stream(message, call)) as own:
            async for event in own:
                yield event

    async def _stream_one(self, desk: _Desk, route: _Route, message: str, call: Call) -> AsyncGenerator[Event, None]:
        (errand,) = route.errands
        async with aclosing(self._open(desk, errand, call)) as events:
            async for event in events:
                match event.body:
                    case Completed(reply):
                        reply = await self._close(desk, route, message, call, [Outcome(errand, reply)])
                        yield replace(event, body=Completed(reply))
                    case Failed(error):
                        yield replace(event, body=Failed(_charged(error, route.usage)))
                    case _:
                        yield event

    async def _stream_several(
        self, desk: _Desk, route: _Route, message: str, call: Call
    ) -> AsyncGenerator[Event, None]:
        """Text is held back to the end, where the replies are put together: before, it would come in pieces of all."""
        errands, seq = route.errands, 0
        results: dict[int, Reply | MeshError] = {}
        for errand in errands:
            seq += 1
            yield Event(seq, "", StatusNote(f"{errand.agent} is asked"))
        streams = [self._open(desk, errand, call) for errand in errands]
        async with aclosing(side_by_side(streams)) as events:
            async for place, event in events:
                body = event.body
                match body:
                    case TextDelta():
                        continue
                    case Completed(reply):
                        results[place] = reply
                        body = StatusNote(f"{errands[place].agent} has answered")
                    case Failed(error):
                        results[place] = error
                        body = StatusNote(f"{errands[place].agent} failed: {error.message}")
                seq += 1
                yield replace(event, seq=seq, body=body)
        outcomes = [Outcome(errand, results[place]) for place, errand in enumerate(errands)]
        reply = await self._close(desk, route, message, call, outcomes)
        yield Event(seq + 1, "", TextDelta(reply.text))
        yield Event(seq + 2, "", Completed(reply))

    def _open(self, desk: _Desk, errand: Errand, call: Call) -> AsyncGenerator[Event, None]:
        return desk.mesh.peer(errand.agent).stream(errand.message, _for(call, errand))

    async def _close(self, desk: _Desk, route: _Route, message: str, call: Call, outcomes: Sequence[Outcome]) -> Reply:
        """The reply of the turn, once it stands in the log."""
        if not outcomes:
            reply = Reply(text=route.answer, agent=self._name, session=call.session)
        else:
            try:
                reply = combined(outcomes)
            except MeshError as error:
                raise _charged(error, route.usage) from None
        await desk.log.add(call.session, message, outcomes, answer=route.answer)
        return replace(reply, usage=reply.usage + route.usage)

    def _mounted(self) -> _Desk:
        if self._desk is None:
            raise InternalError(f"{self._name} needs a mesh: serve it with mesh.serve")
        return self._desk


def _to(agent: str, message: str) -> _Route:
    return _Route(errands=(Errand(agent, message),))


def _only(route: _Route) -> Errand:
    """The one agent of a route, for what has one run; Invalid for any other route."""
    if len(route.errands) != 1:
        names = ", ".join(errand.agent for errand in route.errands) or "no agent"
        raise Invalid(f"this goes to {names}: name one agent, as in @name, or ask without detach", field="message")
    return route.errands[0]


def _for(call: Call, errand: Errand) -> Call:
    """The call as the agent gets it: all as it came, but for whom it is. The router is not on the path."""
    return replace(call, envelope=replace(call.envelope, to=errand.agent))


def _charged(error: MeshError, usage: Usage) -> MeshError:
    """The error with what the router had used added to what the run had."""
    error.usage = (error.usage or Usage()) + usage
    return error
