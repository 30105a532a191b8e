"""A conversation at the command line: turns of one session, at a prompt or line by line.

It shows a turn as it happens on a terminal, and the reply alone elsewhere. It keeps nothing but what was typed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from retinue.router.cli.agent import print_plan, read_parts
from retinue.router.cli.lines import read_lines
from retinue.router.cli.printing import as_json, note, on_terminal, one_line, out, out_json, out_table
from retinue.service.chat import Answer, Call, Completed, Event, Pending, Reply, RunState, reply_of
from retinue.service.client import Client
from retinue.service.client.peer import Peer
from retinue.service.envelope import Envelope
from retinue.service.errors import MeshError
from retinue.service.names import new_id
from retinue.service.wire import to_response

if TYPE_CHECKING:
    from prompt_toolkit.history import History

COMMANDS = ("/yes", "/no", "/clear", "/plan", "/agents", "/quit")


def new_session(session: str | None) -> str:
    """`session`, or a new one, which is told to the person."""
    if session is None:
        session = new_id("chat-")[:17]
        note(f"session: {session}")
    return session


class Talk:
    """One session with one agent, or with the router. `timeout` (seconds) is for each turn; `prompted`: more follow."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        session: str = "",
        as_json: bool = False,
        timeout: float = 120.0,
        prompted: bool = True,
    ) -> None:
        self.name = name
        self._client = client
        self._peer = Peer(client, name)
        self._session = session
        self._as_json = as_json
        self._timeout = timeout
        self._prompted = prompted
        self._answered: tuple[str, ...] = ()
        self._waiting: Reply | None = None
        self._seen = 0
        self._turn: asyncio.Task[Reply] | None = None

    def interrupt(self) -> bool:
        """Cancels the turn that runs; False when none does."""
        return self._turn is not None and self._turn.cancel()

    async def say(self, message: str) -> None:
        """One turn, printed. Raises its MeshError; Cancelled turns are told on standard error."""
        await self._follow(self._run(message))

    async def _follow(self, running: Coroutine[Any, Any, Reply]) -> None:
        self._turn = turn = asyncio.create_task(running)
        try:
            await asyncio.wait([turn])
        finally:
            self._turn = None
            turn.cancel()
        if turn.cancelled():
            note("cancelled")
            return
        reply = turn.result()
        self._answered = tuple(reply.agent.split(", "))
        self._waiting = reply if reply.state is RunState.WAITING else None
        if reply.parts and not self._as_json:
            made = ", ".join(part.image.mime if part.image else "a file" for part in reply.parts)
            note(f"{reply.agent} sends {made} besides: --json has it")
        for pending in reply.pending:
            call = f"{pending.kind} of {pending.name} {pending.arguments}"
            note(f"{reply.agent} waits for {call}: {self._hint(reply, pending)}")

    def _hint(self, reply: Reply, pending: Pending) -> str:
        if self._prompted:
            return "/yes or /no REASON"
        fields = {"run_id": reply.run_id, "pending_id": pending.id, "approved": True}
        return f"retinue call {reply.agent} Agent.Resolve '{json.dumps(fields)}'"

    async def obey(self, command: str) -> bool:
        """Runs a command of the prompt; True when it ends the conversation."""
        command, _, rest = command.partition(" ")
        if rest and command != "/no":
            note(f"{command} takes nothing behind it")
            return False
        match command:
            case "/quit":
                return True
            case "/yes" | "/no":
                await self._answer(Answer(approved=command == "/yes", reason=rest.strip()))
            case "/clear":
                note(f"{await self._peer.clear(self._session)} messages forgotten")
            case "/plan":
                await self._show_plans()
            case "/agents":
                parts = await read_parts(self._client.directory, ("agent",))
                out_table(["NAME", "DESCRIPTION"], [[part["name"], part["description"]] for part in parts])
            case _:
                note(f"{command}: no such command; there are {' '.join(COMMANDS)}")
        return False

    async def _run(self, message: str) -> Reply:
        loop = asyncio.get_running_loop()
        call = Call(
            session=self._session,
            request_id=new_id(),
            envelope=Envelope(to=self.name, deadline=loop.time() + self._timeout),
        )
        if on_terminal() and not self._as_json:
            from retinue.router.cli.turn import show

            async with aclosing(self._counted(self._peer.stream(message, call))) as events:
                return await show(events)
        return self._printed(await self._peer.ask(message, call))

    async def _answer(self, answer: Answer) -> None:
        """Answers all that the last turn waits for, and shows how it goes on."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            note("nothing waits for an answer")
            return
        for pending in waiting.pending:
            await self._peer.resolve(waiting.run_id, pending.id, answer)
        await self._follow(self._go_on(waiting.run_id))

    async def _go_on(self, run_id: str) -> Reply:
        if on_terminal() and not self._as_json:
            from retinue.router.cli.turn import show

            async with aclosing(self._counted(self._peer.watch(run_id, after=self._seen))) as events:
                return await show(events)
        async with aclosing(self._peer.watch(run_id)) as events:
            return self._printed(await reply_of(events))

    async def _counted(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        async with aclosing(events):
            async for event in events:
                # The end of a turn that waits has the number of what comes next.
                self._seen = event.seq - isinstance(event.body, Completed)
                yield event

    def _printed(self, reply: Reply) -> Reply:
        if self._as_json:
            out_json(as_json(to_response(reply)), lines=True)
        else:
            out(reply.text)
        return reply

    async def _show_plans(self) -> None:
        """The plan of this session at whoever answered last."""
        for name in self._answered or (self.name,):
            plan = (await Peer(self._client, name).history(self._session, page_size=1)).plan
            if plan:
                print_plan(plan)
            else:
                note(f"{name} has no plan in this session")


async def converse(talk: Talk) -> int:
    """Turns until the input ends, or /quit. Elsewhere than at a terminal the code is 1 when a turn failed."""
    at_terminal = sys.stdin.isatty() and on_terminal()
    failed = False
    async with aclosing(_typed() if at_terminal else read_lines(0)) as lines:
        async for line in lines:
            text = line.strip()
            if not text:
                continue
            try:
                if text.split(maxsplit=1)[0] in COMMANDS or (text.startswith("/") and " " not in text):
                    if await talk.obey(text):
                        break
                else:
                    await talk.say(text)
            except MeshError as error:
                failed = True
                note(f"{error.status.name}: {one_line(error.message)}")
    return int(failed and not at_terminal)


async def _typed() -> AsyncGenerator[str, None]:
    """What is typed at the prompt, line by line; Ctrl-C drops the line, Ctrl-D ends."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.patch_stdout import patch_stdout

    session: PromptSession[str] = PromptSession(history=_history())
    note("Ctrl-D or /quit ends; /clear, /plan and /agents are there too")
    while True:
        try:
            with patch_stdout(raw=True):
                line = await session.prompt_async("> ", handle_sigint=False)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        yield line


def _history() -> History:
    """Where typed lines are kept: beside the mesh's data, where there is such a folder."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    from retinue.service.settings import find_home

    home = find_home()
    return FileHistory(str(home / "typed")) if home else InMemoryHistory()
