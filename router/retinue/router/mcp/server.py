"""An Offer as an MCP server: lists it, checks and makes calls, and tells clients when the list has changed.

Whatever goes wrong with a call is its result, marked as an error and with the reason; a call that the client cancels
is cancelled here. It opens no connection: transport.py does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import anyio
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from mcp.server import NotificationOptions, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    TextContent,
)
from mcp_types import Tool as Listed

from retinue.agent.tools import Invocation
from retinue.router.mcp.offer import Offer, Offered, Progress, said
from retinue.service.envelope import Envelope
from retinue.service.errors import MeshError, cut
from retinue.service.names import did_you_mean

log = logging.getLogger("retinue.mcp")

# What of one result a client is sent, bytes: larger ones have made sessions unusable for ever.
RESULT_BYTES = 1024 * 1024
NAME = "mcp"


class ToolServer(Server[Any]):
    """Serves `offer` under `name`. `timeout` (seconds) is the deadline of what a call asks of the mesh.

    `empty` is what is said to a call while nothing is offered.
    """

    def __init__(
        self, name: str, offer: Offer, *, instructions: str = "", timeout: float = 120.0, empty: str = "there are none"
    ) -> None:
        self._offer = offer
        self._timeout = timeout
        self._empty = empty
        self._changes = InMemorySubscriptionBus()
        super().__init__(
            name,
            version=version("retinue"),
            instructions=instructions or None,
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_subscriptions_listen=ListenHandler(self._changes),
        )
        self.add_notification_handler("notifications/initialized", NotificationParams, self._tell_changes)

    async def changed(self) -> None:
        """Tells every client that the list of tools is another one now."""
        await self._changes.publish(ToolsListChanged())

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """The options of every transport, with the promise that changes of the list are told."""
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)

    async def _list(self, ctx: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        try:
            return ListToolsResult(tools=[_listed(each) for each in await self._offer.tools()])
        except MeshError as error:
            raise MCPError(INTERNAL_ERROR, _reason(error)) from error

    async def _call(self, ctx: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        told = 0

        async def progress(text: str) -> None:
            nonlocal told
            told += 1
            await ctx.session.report_progress(told, message=text)

        arguments = params.arguments or {}
        try:
            known = {each.spec.name: each for each in await self._offer.tools()}
            found = known.get(params.name)
            if found is None:
                near = did_you_mean(params.name, known) if known else f"; {self._empty}"
                return said(f"there is no tool {params.name!r}{near}", failed=True)
            if wrong := _mismatch(found, arguments):
                return said(wrong, failed=True)
            deadline = asyncio.get_running_loop().time() + self._timeout
            call = Invocation(
                id=str(ctx.request_id),
                name=params.name,
                arguments=arguments,
                agent=NAME,
                envelope=Envelope(deadline=deadline),
            )
            return _fitted(await _carried_out(found, call, progress))
        except MeshError as error:
            return said(_reason(error), failed=True)
        except Exception as error:
            log.exception("tool %s failed", params.name)
            return said(f"a fault of {self.name}: {type(error).__name__}: {error}", failed=True)

    async def _tell_changes(self, ctx: ServerRequestContext[Any], params: NotificationParams) -> None:
        """Lives as long as the connection of a client that shook hands: newer ones ask to be told."""
        change = asyncio.Event()
        stop = self._changes.subscribe(lambda _: change.set())
        try:
            while True:
                await change.wait()
                change.clear()
                await ctx.session.send_tool_list_changed()
        finally:
            stop()


async def _carried_out(found: Offered, call: Invocation, progress: Progress) -> CallToolResult:
    """What the tool answers, in a task of its own: a cancellation of gRPC's making is not one of the client's.

    One that escaped into the scopes of the `mcp` package would end the whole connection. Cancelled from outside, it
    returns once the tool has ended.
    """
    work = asyncio.ensure_future(found.handle(call, progress))
    try:
        await asyncio.wait([work])
    finally:
        work.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([work])
    if work.cancelled():
        return said(f"{found.spec.name} was called off", failed=True)
    return work.result()


def _listed(each: Offered) -> Listed:
    spec = each.spec
    return Listed(
        name=spec.name, description=spec.description, input_schema=dict(spec.parameters), annotations=each.hints
    )


def _mismatch(each: Offered, arguments: Mapping[str, object]) -> str:
    """What the schema says against the arguments; empty when they fit."""
    worst = best_match(Draft202012Validator(each.spec.parameters).iter_errors(arguments))
    if worst is None:
        return ""
    place = ".".join(str(step) for step in worst.absolute_path)
    return f"the arguments do not fit{f' at {place}' if place else ''}: {cut(worst.message)}"


def _fitted(result: CallToolResult) -> CallToolResult:
    """The result with texts that are too long for one cut, and a word on how long they were."""
    content = []
    for block in result.content:
        if isinstance(block, TextContent) and (size := len(block.text.encode())) > RESULT_BYTES:
            note = f"\n(cut: the whole has {size} bytes, the most is {RESULT_BYTES})"
            block = TextContent(type="text", text=cut(block.text, RESULT_BYTES) + note)  # noqa: PLW2901
        content.append(block)
    return result.model_copy(update={"content": content})


def _reason(error: MeshError) -> str:
    return f"{error.status.name}: {error.message}"
