"""`retinue chat`: one message, or a prompt, to the router or to an agent of the mesh that runs."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from retinue.router.cli.options import Json, LogLevel, Timeout
from retinue.router.cli.reach import entry, execute, reached


def chat(
    message: Annotated[
        str | None, typer.Argument(metavar="MESSAGE", help="What to say; without it a prompt opens.")
    ] = None,
    *,
    agent: Annotated[
        str, typer.Option("--agent", metavar="NAME", help="Whom to ask; default: the router, or the only agent.")
    ] = "",
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="ID", help="The conversation; default: the default one, a prompt's is new."),
    ] = None,
    json_: Json = False,
    timeout: Timeout = 120.0,
    log_level: LogLevel = None,
) -> None:
    """Talk to the mesh: one MESSAGE, or a prompt that reads lines where standard input is no terminal."""
    execute(_chat(message, agent=agent, session=session, as_json=json_, timeout=timeout))


async def _chat(message: str | None, *, agent: str, session: str | None, as_json: bool, timeout: float) -> int:
    from retinue.router.cli.prompt import Talk, converse, new_session
    from retinue.router.cli.signals import on_interrupt

    async with reached() as client:
        name = await entry(client.directory, agent)
        if message is not None:
            talk = Talk(client, name, session=session or "", as_json=as_json, timeout=timeout, prompted=False)
            await talk.say(message)
            return 0
        talk = Talk(client, name, session=new_session(session), as_json=as_json, timeout=timeout)
        main = asyncio.current_task()
        assert main is not None
        with on_interrupt(lambda: talk.interrupt() or main.cancel()):
            return await converse(talk)
