"""An agent: a prompt, tools and a model behind the one shape Chat, usable in a program and served like any service.

Nothing is opened before it is entered: by a mesh that serves it, or by `async with` alone, where it has a memory of
its own and no peers. Per-turn state lives in a Run; an agent only holds what its turns share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Self

from retinue.agent.discovery import LIST_TOOLS
from retinue.agent.guards import guards_of
from retinue.agent.hooks import Hooks
from retinue.agent.host import Dropped, Host
from retinue.agent.keys import lease_key
from retinue.agent.limits import Limits
from retinue.agent.mcp import McpServer
from retinue.agent.mcp.toolset import McpTools
from retinue.agent.model import Model
from retinue.agent.model.choice import choose
from retinue.agent.model.custom import CustomModel, is_model
from retinue.agent.model.exchange import HttpModel
from retinue.agent.model.gate import guarded
from retinue.agent.peers import Peers
from retinue.agent.runs.book import RunBook
from retinue.agent.runs.cancels import Cancels
from retinue.agent.session.conversation import clear_history, read_history
from retinue.agent.session.places import Places
from retinue.agent.session.tails import Tails
from retinue.agent.tools import Tool
from retinue.agent.tools.endpoint import ServiceTools
from retinue.agent.tools.function import tool
from retinue.agent.turn.pending import answers_to, give_answer, was_given
from retinue.agent.turn.run import Run
from retinue.service.background import Background
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
)
from retinue.service.errors import Cancelled, InternalError, Invalid, MeshError, UnknownName
from retinue.service.mesh import Mesh
from retinue.service.names import check_name, check_request_id, check_session, did_you_mean
from retinue.service.text import sane

log = logging.getLogger("retinue.agent")

BUILT_IN = ("plan", "delegate", "check_task", "wait_task")


class Agent:
    """A service with a model inside.

    `services` are the services whose endpoints are its tools, `tools` functions (what `@tool` makes of them) and MCP
    servers; with `tools_mode="discover"` a model finds them by `list_tools` before it is offered any. `can_invoke` are
    the agents it may call (None: every registered one; a mapping has other names for them). `model` is a Model,
    "provider/name" or an async function; without one the environment decides. `history_limit` counts the turns that are
    sent to the model, not those that are kept. `sequential` makes the calls of a step one after another. Raises Invalid
    for a name that no agent may bear and for tools whose names clash.
    """

    def __init__(
        self,
        name: str,
        prompt: str = "",
        *,
        services: Sequence[str] = (),
        tools: Sequence[Tool | McpServer | Callable[..., object]] = (),
        tools_mode: str = "all",
        can_invoke: Sequence[str] | Mapping[str, str] | None = None,
        model: Model | CustomModel | str | None = None,
        provider: str | None = None,
        api_key: str | None = None,
        history_limit: int = 50,
        description: str = "",
        hooks: Hooks | None = None,
        limits: Limits | None = None,
        sequential: bool = False,
    ) -> None:
        self.name = check_name(name)
        self._prompt = sane(prompt)
        self._services = tuple(services)
        self._peers = Peers(name, can_invoke)
        self._endpoints = ServiceTools(self._services, name)
        called = can_invoke.values() if isinstance(can_invoke, Mapping) else can_invoke
        self._can_invoke = None if called is None else tuple(called)
        self._own_tools = tuple(_made_tool(each) for each in tools if not isinstance(each, McpServer))
        self._mcp = McpTools([each for each in tools if isinstance(each, McpServer)])
        if tools_mode not in ("all", "discover"):
            raise Invalid(f"tools_mode is all or discover, not {tools_mode!r}", field="tools_mode")
        self._discover = tools_mode == "discover"
        self._check_names()
        if not (model is None or isinstance(model, str) or is_model(model)):
            raise Invalid(f"model is 'provider/name', a Model or an async function, not {model!r}", field="model")
        self._model = model
        self._provider = provider
        self._api_key = api_key
        if history_limit < 1:
            raise Invalid("history_limit counts turns and is at least 1", field="history_limit")
        self._history_limit = history_limit
        self._description = description
        self._hooks = hooks or Hooks()
        self._limits = limits or Limits()
        self._sequential = sequential
        self._dropped = Dropped()
        self._host: Host | None = None
        self._alone = AsyncExitStack()

    async def __aenter__(self) -> Self:
        mesh = await self._alone.enter_async_context(Mesh.connect("memory:", store="memory:"))
        await self._alone.enter_async_context(self.mounted(mesh))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._alone.aclose()

    @asynccontextmanager
    async def mounted(self, mesh: Mesh) -> AsyncIterator[None]:
        """Opens the model and the tools for as long as a mesh serves this agent."""
        if self._host is not None:
            raise InternalError(f"agent {self.name} is served already: make a second Agent for a second server")
        async with AsyncExitStack() as stack:
            model = await self._open_model(stack)
            gate = guarded(model, mesh.store)
            await stack.enter_async_context(self._peers.mounted(mesh))
            await stack.enter_async_context(self._endpoints.mounted(mesh))
            self._check_names()
            await stack.enter_async_context(self._mcp.mounted())
            known = self.describe().tools
            for name in self._hooks.approvals:
                if name not in known and not self._mcp.is_one(name):
                    log.warning("%s: approvals names no tool %r%s", self.name, name, did_you_mean(name, known))
            tasks = await stack.enter_async_context(Background())
            places = Places(mesh.store, ttl=mesh.timing.lease)
            await stack.enter_async_context(places.renewed())
            cancels = Cancels(mesh.store, self.name)
            await stack.enter_async_context(cancels.followed())
            detached = await stack.enter_async_context(Background())

            async def tools() -> Sequence[Tool]:
                own = [*self._own_tools, *await self._endpoints.tools()]
                return [*own, *await self._mcp.tools(self._taken())]

            self._host = Host(
                name=self.name,
                prompt=self._prompt,
                model=model,
                gate=gate,
                window=self._limits.window or (model.window if isinstance(model, HttpModel) else None),
                store=mesh.store,
                peers=self._peers,
                services=self._services,
                tools=tools,
                troubles=self._mcp.troubles,
                discover=self._discover,
                limits=self._limits,
                hooks=self._hooks,
                guards=(*self._hooks.guards, *guards_of(self._limits)),
                sequential=self._sequential,
                history_limit=self._history_limit,
                places=places,
                tails=Tails(),
                cancels=cancels,
                tasks=tasks,
                detached=detached,
                dropped=self._dropped,
            )
            try:
                yield
                if not await detached.settle(within=mesh.timing.drain):
                    log.warning("%s breaks off runs that nobody waits for after %g s", self.name, mesh.timing.drain)
            finally:
                self._host = None

    @property
    def dropped(self) -> int:
        """How many results came after the end of their call or their run was stored, and were dropped."""
        return self._dropped.count

    async def ask(self, message: str, call: Call = Call()) -> Reply:
        """One turn, to its end, or with `call.detach` how it stands. Raises MeshError when it was refused or failed."""
        run = self._admit(message, call, self._entered())
        if call.detach:
            return await run.execution.detach()
        return await run.execution.execute()

    async def stream(self, message: str, call: Call = Call()) -> AsyncGenerator[Event, None]:
        """One turn as it happens; leaving the iterator ends the run, unless the call says `detach`."""
        host = self._entered()
        events: asyncio.Queue[Event | MeshError] = asyncio.Queue()
        run = self._admit(message, call, host, sink=events.put_nowait)
        driver = (host.detached if call.detach else host.tasks).start(_drive(run, events))
        try:
            while True:
                event = await events.get()
                if isinstance(event, MeshError):
                    raise event
                yield event
                if isinstance(event.body, Completed | Failed):
                    return
        finally:
            if not call.detach:
                driver.cancel()
                await asyncio.wait([driver])

    async def run(self, run_id: str) -> Reply:
        """How a run stands, with its reply once it has one; its tools' results are whole."""
        return await RunBook(self._entered().store).reply(run_id)

    async def watch(self, run_id: str, *, after: int = 0) -> AsyncGenerator[Event, None]:
        """The run's events behind number `after`, whichever node runs it, up to one Completed or Failed."""
        async with aclosing(RunBook(self._entered().store).watch(run_id, after=after)) as events:
            async for event in events:
                yield event

    async def cancel(self, run_id: str, *, tree: bool = False) -> int:
        """Ends the run, or all of its tree, wherever it runs; returns how many ran, once none does any more."""
        return await RunBook(self._entered().store).cancel(run_id, tree=tree)

    async def follow_up(self, message: str, call: Call = Call(), *, steer: bool = False) -> str:
        """A message behind the session's running turn, or with `steer` into it, after its present tool calls.

        Returns the id of the message's own run. One that went into another turn has that turn's answer.
        """
        run = self._admit(message, replace(call, detach=True), self._entered(), steer=steer)
        return (await run.execution.detach()).run_id

    async def resolve(self, run_id: str, pending_id: str, answer: Answer) -> RunState:
        """Answers something that the run waits for; with the last answer it goes on by itself.

        Raises UnknownName for another agent's run, Invalid for what it does not wait for, AlreadyExists for a second
        answer.
        """
        host = self._entered()
        record = await RunBook(host.store).record(run_id)
        if record.agent != self.name:
            raise UnknownName(f"{run_id} is a run of {record.agent}: answer it there")
        pending = record.as_reply(run_id).pending
        if record.state is RunState.WAITING and pending_id not in {each.id for each in pending}:
            waits = ", ".join(each.id for each in pending)
            raise Invalid(f"{run_id} does not wait for {pending_id!r}; it waits for {waits}", field="pending_id")
        if record.state is not RunState.WAITING and await was_given(host.store, run_id, pending_id, answer):
            return record.state
        if record.state is not RunState.WAITING:
            raise Invalid(f"{run_id} waits for nothing: it is {record.state.name}", field="run_id")
        await give_answer(host.store, run_id, pending_id, answer)
        if await answers_to(host.store, run_id, pending) is None:
            return RunState.WAITING
        call = Call(session=record.session, request_id=record.request_id, envelope=record.envelope, detach=True)
        return (await Run.of_session(host, call, "", known=run_id).execution.detach()).state

    async def history(self, session: str = "", *, page_size: int = 0, page_token: str = "") -> History:
        """A page of the session's messages, oldest first, with one tool message per call."""
        session = check_session(session, derived=True)
        return await read_history(
            self._entered().store,
            self.name,
            session,
            page_size=page_size,
            page_token=page_token,
        )

    async def clear(self, session: str = "") -> int:
        """Forgets the session once its running turns are over; returns how many messages it had."""
        session = check_session(session, derived=True)
        host = self._entered()
        async with host.places.held(lease_key(self.name, session)) as lease:
            return await clear_history(host.store, self.name, session, lease=lease)

    def describe(self) -> Description:
        """What this agent says of itself; its model and the tools of its services only while it serves."""
        built_in = [*BUILT_IN, *([LIST_TOOLS] if self._discover else [])]
        return Description(
            name=self.name,
            type="agent",
            description=self._description,
            services=self._services,
            model=self._host.model.name if self._host else "",
            tools=tuple(sorted([*built_in, *(tool.spec.name for tool in self._known())])),
            can_invoke=self._can_invoke,
            notes=tuple(f"[MCP server {line}]" for line in self._mcp.troubles()),
        )

    def _known(self) -> list[Tool]:
        """The tools as far as they are known without asking anybody."""
        own = [*self._own_tools, *self._peers.invoke_tools, *self._endpoints.known()]
        return [*own, *self._mcp.known(self._taken())]

    def _taken(self) -> set[str]:
        """The names that no MCP tool may have."""
        own = [*self._own_tools, *self._peers.invoke_tools, *self._endpoints.known()]
        return {*BUILT_IN, LIST_TOOLS, *(tool.spec.name for tool in own)}

    def _check_names(self) -> None:
        seen = {*BUILT_IN, *([LIST_TOOLS] if self._discover else [])}
        for each in (*self._own_tools, *self._peers.invoke_tools, *self._endpoints.known()):
            if each.spec.name in seen:
                raise Invalid(f"two tools are named {each.spec.name!r}; rename one", field="tools")
            seen.add(each.spec.name)

    async def _open_model(self, stack: AsyncExitStack) -> Model:
        chosen = await choose(self._model, self._provider, self._api_key, window=self._limits.window)
        log.info("%s: %s", self.name, chosen.why)
        if isinstance(chosen.model, AbstractAsyncContextManager):
            await stack.enter_async_context(chosen.model)
        return chosen.model

    def _entered(self) -> Host:
        if self._host is None:
            raise InternalError(f"agent {self.name} is not entered: use `async with`, or serve it with a mesh")
        return self._host

    def _admit(
        self,
        message: str,
        call: Call,
        host: Host,
        *,
        sink: Callable[[Event], None] | None = None,
        steer: bool = False,
    ) -> Run:
        """The run of a message that may be asked here; raises what speaks against it, before anything is begun."""
        call.envelope.check(self.name)
        if not message.strip() and not call.parts:
            raise Invalid("the message is empty", field="message")
        check_request_id(call.request_id)
        call = replace(call, session=check_session(call.session, derived=call.envelope.delegated))
        if call.detach:
            # Its caller's deadline is for the answer that comes at once.
            call = replace(call, envelope=replace(call.envelope, deadline=None))
        return Run.of_session(host, call, message, sink=sink, steer=steer)


def _made_tool(given: Tool | Callable[..., object]) -> Tool:
    if isinstance(given, Tool):
        return given
    if not callable(given):
        raise Invalid(f"{given!r} is no tool: use a function, what @tool makes of one, or an McpServer", field="tools")
    try:
        return tool(given)
    except TypeError as error:
        raise Invalid(f"tools: {error}", field="tools") from None


async def _drive(run: Run, events: asyncio.Queue[Event | MeshError]) -> None:
    try:
        outcome = await run.execution.outcome()
    except asyncio.CancelledError:
        events.put_nowait(Cancelled("the agent was left before the turn had ended"))
        raise
    if isinstance(outcome, Reply):
        events.put_nowait(run.events.last(Completed(outcome)))
    else:
        events.put_nowait(run.events.last(Failed(outcome)) if run.course.begun else outcome)
