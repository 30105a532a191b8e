"""`retinue run`: a whole mesh from its file, or one node of it in this very process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retinue.router.cli.options import LogLevel
from retinue.router.cli.printing import note
from retinue.router.cli.reach import Stop, execute, in_own_words

if TYPE_CHECKING:
    from retinue.router.child import Child
    from retinue.router.cli.prompt import Talk
    from retinue.router.meshfile import MeshFile
    from retinue.router.supervisor import Supervisor
    from retinue.service.mesh import Mesh
    from retinue.service.settings import Settings


def run(
    mesh: Annotated[
        Path,
        typer.Argument(metavar="MESH", help="A mesh file, or a folder with one: mesh.toml, eunice.toml, eunice.json."),
    ] = Path("."),
    *,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The mesh file, in place of MESH.")
    ] = None,
    no_mcp: Annotated[bool, typer.Option("--no-mcp", help="Start no MCP server.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Open the prompt when all is up; end with it.")] = False,
    ask: Annotated[
        str | None, typer.Option("--ask", metavar="TEXT", help="Print one reply when all is up, and end.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Only this part, in this very process; several: only these."),
    ] = None,
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Needs exactly one --only.")] = "",
    advertise: Annotated[str, typer.Option("--advertise", metavar="HOST:PORT", help="Needs exactly one --only.")] = "",
    parent: Annotated[int, typer.Option("--parent", hidden=True)] = 0,
    log_level: LogLevel = None,
) -> None:
    """Start the services, agents and router of a mesh; stop them with Ctrl-C."""
    only = list(dict.fromkeys(only or ()))
    _check_usage(only, chat=chat, ask=ask, placed=bool(listen or advertise))
    with in_own_words():
        if parent:
            from retinue.router.child import end_with_parent

            end_with_parent(parent)
            # Whoever started this has told what the file has besides.
            logging.getLogger("retinue.meshfile").setLevel(logging.ERROR)
        from retinue.router.meshfile import load
        from retinue.router.node import settings_of

        file = load(mesh if config is None else config)
        file = file.without_mcp() if no_mcp else file
        for name in only:
            file.find(name)
        settings = settings_of(file, os.environ, listen=listen, advertise=advertise)
        if len(only) == 1:
            _run_node(file, only[0], settings)
        else:
            more = ["--no-mcp"] if no_mcp else []
            execute(_run_mesh(file, only or list(file.names), settings, chat=chat, ask=ask, more=more))


def _check_usage(only: Sequence[str], *, chat: bool, ask: str | None, placed: bool) -> None:
    if placed and len(only) != 1:
        raise typer.BadParameter("--listen and --advertise need exactly one --only")
    if chat and ask is not None:
        raise typer.BadParameter("--chat and --ask exclude each other")
    if len(only) == 1 and (chat or ask is not None):
        raise typer.BadParameter("one --only is one node: talk to it with `retinue chat --agent NAME`")


def _run_node(file: MeshFile, name: str, settings: Settings) -> None:
    from retinue.router.meshfile import ServiceSpec
    from retinue.router.node import become_service, serve

    spec = file.find(name)
    if isinstance(spec, ServiceSpec):
        become_service(spec, file, settings)
    asyncio.run(serve(spec, file, settings))


async def _run_mesh(
    file: MeshFile, names: list[str], settings: Settings, *, chat: bool, ask: str | None, more: Sequence[str]
) -> int:
    from retinue.router.cli.signals import on_signals
    from retinue.router.supervisor import Supervisor
    from retinue.service.errors import Invalid
    from retinue.service.mesh import Mesh

    if "memory:" in (settings.registry, settings.store):
        raise Invalid("memory: is one process's own, and a mesh is several: use local: and sqlite:")
    async with Mesh.connect(settings=settings) as mesh:
        await mesh.registry.names()
        if file.name:
            note(f"mesh: {file.name}")
        await _tell_models(file, names)
        supervisor = Supervisor(mesh.registry, _groups(file, names, settings, more=more))
        life = _Life(mesh, supervisor)
        work = asyncio.create_task(life.live(names, chat=chat, ask=ask))
        with on_signals((signal.SIGINT, signal.SIGTERM), lambda number: life.stop(number, work)):
            try:
                return await work
            except asyncio.CancelledError:
                if life.stopped_by is None:
                    raise
                return 128 + life.stopped_by if chat or ask is not None else 0


class _Life:
    """A mesh from its start to its end, and what signals do to it."""

    def __init__(self, mesh: Mesh, supervisor: Supervisor) -> None:
        self.stopped_by: signal.Signals | None = None
        self._mesh = mesh
        self._supervisor = supervisor
        self._talk: Talk | None = None

    async def live(self, names: Sequence[str], *, chat: bool, ask: str | None) -> int:
        """Starts all, does what was asked for, or nothing until a signal comes, and stops all."""
        async with self._supervisor:
            note(f"ready: {', '.join(names)}")
            if ask is not None:
                await (await self._open_talk("")).say(ask)
                return 0
            if chat:
                from retinue.router.cli.prompt import converse, new_session

                return await converse(await self._open_talk(new_session(None)))
            await asyncio.Event().wait()
        return 0

    def stop(self, number: signal.Signals, work: asyncio.Task[int]) -> None:
        """The first signal ends the mesh in order (Ctrl-C in a turn ends the turn), a second one at once."""
        if self.stopped_by is not None:
            self._supervisor.kill()
            logging.shutdown()
            os._exit(128 + number)
        if number == signal.SIGINT and sys.stdin.isatty() and self._talk is not None and self._talk.interrupt():
            return
        self.stopped_by = number
        note(f"{number.name}: stopping; once more to end at once")
        work.cancel()

    async def _open_talk(self, session: str) -> Talk:
        from retinue.router.cli.prompt import Talk
        from retinue.router.cli.reach import entry

        client = self._mesh.client
        self._talk = Talk(client, await entry(client.directory), session=session, prompted=bool(session))
        return self._talk


async def _tell_models(file: MeshFile, names: Sequence[str]) -> None:
    """Says which model answers and why, also for agents that name their own. Raises what speaks against a model."""
    from retinue.agent.model.choice import choose
    from retinue.router.meshfile import ROUTER
    from retinue.router.node import model_of
    from retinue.service.errors import MeshError

    agents = [agent for agent in file.agents if agent.name in names]
    if ROUTER in names or any(not agent.model for agent in agents):
        shared = model_of(file, None, os.environ)
        try:
            note(f"model: {(await choose(shared)).why}")
        except MeshError as error:
            if not shared:
                raise
            raise Stop(f"{file.path.name}: [mesh]: {error.message}") from error
    for agent in agents:
        if not agent.model:
            continue
        try:
            note(f"model of {agent.name}: {(await choose(agent.model)).why}")
        except MeshError as error:
            raise Stop(f"{file.path.name}: [agents.{agent.name}]: {error.message}") from error


def _groups(file: MeshFile, names: Sequence[str], settings: Settings, *, more: Sequence[str]) -> list[list[Child]]:
    """The processes in the order in which they start: services, agents, the router; `more` is for each of them."""
    from retinue.router.child import Child
    from retinue.router.meshfile import ROUTER
    from retinue.router.node import environment_of

    environ = environment_of(settings, os.environ)
    # The children of one machine cannot share an address.
    environ.pop("RETINUE_LISTEN", None)
    environ.pop("RETINUE_ADVERTISE", None)
    environ["RETINUE_LOG"] = logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()
    width = max(map(len, names))

    def say(name: str, line: str) -> None:
        note(f"{name:<{width}} | {line}")

    def child(name: str) -> Child:
        node = ["run", str(file.path), "--only", name, "--parent", str(os.getpid()), *more]
        return Child(name, [sys.executable, "-P", "-m", "retinue.router.cli", *node], environ=environ, say=say)

    groups = ([one.name for one in file.services], [one.name for one in file.agents], [ROUTER])
    kept = [[child(name) for name in group if name in names] for group in groups]
    return [group for group in kept if group]
