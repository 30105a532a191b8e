"""A turn as it happens, on a terminal: a spinner, the text as it comes, the tools that are called."""

from __future__ import annotations

from collections.abc import AsyncIterator

from rich.live import Live
from rich.markdown import Markdown
from rich.spinner import Spinner
from rich.text import Text

from retinue.router.cli.printing import console
from retinue.service.chat import (
    Completed,
    Event,
    Failed,
    Reply,
    StatusNote,
    TextDelta,
    ToolDone,
    ToolStarted,
    ToolStatus,
)
from retinue.service.errors import InternalError


async def show(events: AsyncIterator[Event]) -> Reply:
    """Shows the events to the end and returns the reply. Raises the error that they end with."""
    screen = console()
    text = ""
    with Live(Spinner("dots"), console=screen, transient=True, refresh_per_second=12) as live:
        async for event in events:
            match event.body:
                case TextDelta(piece):
                    text += piece
                    live.update(Markdown(text))
                case ToolStarted(_, name):
                    if text:
                        screen.print(Markdown(text))
                    text = ""
                    screen.print(Text(f"· {name}", style="dim"))
                    live.update(Spinner("dots"))
                case ToolDone(call) if call.status is not ToolStatus.OK:
                    screen.print(Text(f"· {call.name}: {call.error}", style="red"))
                case StatusNote(said):
                    screen.print(Text(f"· {said}", style="dim"))
                case Completed(reply):
                    live.stop()
                    screen.print(Text(reply.agent, style="bold cyan"))
                    screen.print(Markdown(text or reply.text))
                    return reply
                case Failed(error):
                    raise error
    raise InternalError("the stream ended without a reply")
