"""An agent: a prompt, tools and a model behind the one shape Chat, usable in a program and served like any service.

Nothing is opened before it is entered: by a mesh that serves it, or by `async with` alone, where it has a memory of
its own and no peers. Per-turn state lives in a Run; an agent only holds what its turns share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Self

from retinue.agent.hooks import Hooks
from retinue.agent.host import Host
from retinue.agent.keys import lease_key
from retinue.agent.leases import Leases
from retinue.agent.ledger import Ledger
from retinue.agent.limits import Limits
from retinue.agent.model import Model
from retinue.agent.model.choice import choose
from retinue.agent.peers import Peers
from retinue.agent.queue import Turns
from retinue.agent.run import Run
from retinue.agent.session import Session, clear_history, read_history
from retinue.agent.tools import Tool
from retinue.agent.tools.endpoint import ServiceTools
from retinue.service.background import Background
from retinue.service.chat import Call, Completed, Description, Event, Failed, History, Reply
from retinue.service.errors import InternalError, Invalid, MeshError
from retinue.service.mesh import Mesh
from retinue.service.names import check_name, check_session
from retinue.service.text import sane

log = logging.getLogger("retinue.agent")

BUILT_IN = ("plan", "delegate")


class Agent:
    """A service with a model inside.

    `services` are the services whose endpoints are its tools, `tools` functions made tools by `@tool`; `can_invoke`
    the agents it may call (None: every registered one). `model` is a Model or "provider/name"; without one the
    environment decides. `history_limit` counts the turns that are sent to the model, not those that are kept.
    Raises Invalid for a name that no agent may bear and for tools whose names clash.
    """

    def __init__(
        self,
        name: str,
        prompt: str = "",
        *,
        services: Sequence[str] = (),
        tools: Sequence[Tool] = (),
        can_invoke: Sequence[str] | None = None,
        model: Model | str | None = None,
        provider: str | None = None,
        api_key: str | None = None,
        history_limit: int = 50,
        description: str = "",
        hooks: Hooks | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.name = check_name(name)
        self._prompt = sane(prompt)
        self._services = tuple(services)
        self._peers = Peers(name, can_invoke)
        self._can_invoke = None if can_invoke is None else tuple(can_invoke)
        self._own_tools = tuple(tools)
        _check_names([*tools, *self._peers.invoke_tools])
        self._model = model
        self._provider = provider
        self._api_key = api_key
        if history_limit < 1:
            raise Invalid("history_limit counts turns and is at least 1", field="history_limit")
        self._history_limit = history_limit
        self._description = description
        self._hooks = hooks or Hooks()
        self._limits = limits or Limits()
        self._endpoints = ServiceTools(self._services, name)
        self._turns = Turns()
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
            await stack.enter_async_context(self._peers.mounted(mesh))
            await stack.enter_async_context(self._endpoints.mounted(mesh))
            _check_names([*self._own_tools, *self._peers.invoke_tools, *self._endpoints.known()])
            tasks = await stack.enter_async_context(Background())
            leases = Leases(mesh.store, ttl=mesh.timing.lease)
            await stack.enter_async_context(leases.renewed())

            async def tools() -> Sequence[Tool]:
                return [*self._own_tools, *await self._endpoints.tools()]

            self._host = Host(
                name=self.name,
                prompt=self._prompt,
                model=model,
                store=mesh.store,
                peers=self._peers,
                services=self._services,
                tools=tools,
                limits=self._limits,
                hooks=self._hooks,
                history_limit=self._history_limit,
                leases=leases,
                tasks=tasks,
            )
            try:
                yield
            finally:
                self._host = None

    async def ask(self, message: str, call: Call = Call()) -> Reply:
        """One turn, to its end. Raises a MeshError when it was refused or failed."""
        run, message, call = self._admit(message, call, self._entered())
        reply = await run.execute(message, self._turns.turn(call.session))
        if self._hooks.on_event:
            self._hooks.on_event(run.events.next(Completed(reply)))
        return reply

    async def stream(self, message: str, call: Call = Call()) -> AsyncGenerator[Event, None]:
        """One turn as it happens; leaving the iterator ends the run."""
        host = self._entered()
        events: asyncio.Queue[Event | MeshError] = asyncio.Queue()
        run, message, call = self._admit(message, call, host, events)
        driver = host.tasks.start(self._drive(run, message, call, events))
        try:
            while True:
                event = await events.get()
                if isinstance(event, MeshError):
                    raise event
                yield event
                if isinstance(event.body, Completed | Failed):
                    return
        finally:
            driver.cancel()
            await asyncio.wait([driver])

    async def history(self, session: str = "", *, page_size: int = 0, page_token: str = "") -> History:
        """A page of the session's messages, oldest first, with one tool message per call."""
        session = check_session(session, derived=True)
        return await read_history(
            self._entered().store,
            self.name,
            session,
            page_size=page_size,
            page_token=page_token,
            running=self._turns.busy(session),
        )

    async def clear(self, session: str = "") -> int:
        """Forgets the session once its running turns are over; returns how many messages it had."""
        session = check_session(session, derived=True)
        async with self._turns.turn(session):
            host = self._entered()
            async with host.leases.held(lease_key(self.name, session)):
                return await clear_history(host.store, self.name, session)

    def describe(self) -> Description:
        """What this agent says of itself; its model and the tools of its services only while it serves."""
        known = [*self._own_tools, *self._peers.invoke_tools, *self._endpoints.known()]
        return Description(
            name=self.name,
            type="agent",
            description=self._description,
            services=self._services,
            model=self._host.model.name if self._host else "",
            tools=tuple(sorted([*BUILT_IN, *(tool.spec.name for tool in known)])),
            can_invoke=self._can_invoke,
        )

    async def _open_model(self, stack: AsyncExitStack) -> Model:
        chosen = await choose(self._model, self._provider, self._api_key)
        log.info("%s: %s", self.name, chosen.why)
        if isinstance(chosen.model, AbstractAsyncContextManager):
            await stack.enter_async_context(chosen.model)
        return chosen.model

    def _entered(self) -> Host:
        if self._host is None:
            raise InternalError(f"agent {self.name} is not entered: use `async with`, or serve it with a mesh")
        return self._host

    def _admit(
        self, message: str, call: Call, host: Host, events: asyncio.Queue[Event | MeshError] | None = None
    ) -> tuple[Run, str, Call]:
        """The run of a message that may be asked here; raises what speaks against it, before anything is begun."""
        call.envelope.check(self.name)
        if not message and not call.parts:
            raise Invalid("the message is empty", field="message")
        call = replace(call, session=check_session(call.session, derived=call.envelope.delegated))
        run = Run(
            host,
            Session(host.store, host.leases, self.name, call.session),
            call,
            ledger=Ledger(host.store, self.name, call, message),
            sink=events.put_nowait if events is not None else None,
        )
        return run, message, call

    async def _drive(self, run: Run, message: str, call: Call, events: asyncio.Queue[Event | MeshError]) -> None:
        try:
            reply = await run.execute(message, self._turns.turn(call.session))
            events.put_nowait(run.events.next(Completed(reply)))
        except MeshError as error:
            events.put_nowait(run.events.next(Failed(error)) if run.begun else error)
        except Exception:
            log.exception("%s: a run failed by a fault of ours", self.name)
            events.put_nowait(run.events.next(Failed(InternalError(f"{self.name} failed inside; its log says more"))))


def _check_names(tools: Sequence[Tool]) -> None:
    seen: set[str] = set(BUILT_IN)
    for tool in tools:
        if tool.spec.name in seen:
            raise Invalid(f"two tools are named {tool.spec.name!r}; rename one", field="tools")
        seen.add(tool.spec.name)
