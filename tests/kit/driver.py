"""A mesh of victims and a client of our own: starts them, kills and freezes them, asks them, and reads what is left.

It waits for what a process says or for its death, never for a time. What it starts it ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from kit.victim import SERVING, Setting
from kit.zygote import Zygote
from retinue.service.chat import Call, Event, Reply
from retinue.service.envelope import Envelope
from retinue.service.mesh import Mesh
from retinue.service.settings import Settings

LEASE_S = 0.5


class Victim:
    """One process, from its fork to its death."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self._log = log
        self._lines = asyncio.StreamReader()
        self._dead = asyncio.Event()
        self._descriptor = -1
        self._transport: asyncio.ReadTransport | None = None

    @classmethod
    async def start(cls, zygote: Zygote, setting: Setting) -> Self:
        """Forks it; it is not serving yet."""
        log = Path(setting.folder) / f"{'-'.join(setting.agents)}.log"
        near, far = os.pipe()
        with log.open("ab") as stderr:
            victim = cls(zygote.fork(setting.encode(), stdout=far, stderr=stderr.fileno()), log)
        os.close(far)
        await victim._watch(near)
        return victim

    async def _watch(self, stdout: int) -> None:
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(self._lines)
        self._transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(stdout, "rb"))
        try:
            self._descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._dead.set()  # nobody waits for its state, so that a dead one is gone at once
        else:
            loop.add_reader(self._descriptor, self._bury)

    def _bury(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        self._dead.set()

    @property
    def alive(self) -> bool:
        return not self._dead.is_set()

    async def serving(self) -> None:
        """Returns once it serves."""
        line = await self._lines.readline()
        assert line.decode().strip() == SERVING, f"it did not come to serve:\n{self._log.read_text()[-3000:]}"

    async def dead(self) -> None:
        """Returns once it is dead."""
        await self._dead.wait()

    def signal(self, number: signal.Signals) -> None:
        """Sends the signal, unless it is dead."""
        if self._descriptor >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    async def kill(self) -> None:
        """kill -9, and its death."""
        self.signal(signal.SIGKILL)
        await self.dead()

    async def end(self) -> None:
        """SIGTERM, and its end in order."""
        self.signal(signal.SIGTERM)
        await self.dead()

    async def freeze(self) -> None:
        """SIGSTOP; returns once it stands still."""
        self.signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            await asyncio.sleep(0.001)  # the kernel tells this only to its parent

    def thaw(self) -> None:
        """SIGCONT: it goes on where it was."""
        self.signal(signal.SIGCONT)

    async def close(self) -> None:
        """Kills it, also while it is frozen, and lets go of it."""
        await self.kill()
        if self._transport is not None:
            self._transport.close()


@dataclass(frozen=True, slots=True)
class Effect:
    """One run of a tool."""

    tool: str
    call_id: str
    session: str
    item: str


class Stage:
    """The victims of one mesh, and `mesh`, in which the test itself is a client."""

    def __init__(self, zygote: Zygote, mesh: Mesh, folder: Path) -> None:
        self.mesh = mesh
        self.folder = folder
        self.victims: dict[str, Victim] = {}
        self._zygote = zygote
        self._all: list[Victim] = []

    async def start(self, *agents: str) -> Victim:
        """A new process that serves these agents, once it does; from now on it is their victim in `victims`."""
        settings = self.mesh.settings
        victim = await Victim.start(
            self._zygote,
            Setting(
                registry=settings.registry,
                store=settings.store,
                folder=str(self.folder),
                agents=agents,
                lease=LEASE_S,
            ),
        )
        self._all.append(victim)
        self.victims |= dict.fromkeys(agents, victim)
        await victim.serving()
        return victim

    def arm(self, point: str) -> None:
        """The agent named first in `point` dies at it, once."""
        (self.folder / f"{point.split()[0]}.kill").write_text(point)

    def trace(self, session: str = "") -> list[str]:
        """The points that all agents passed in the turns of this session and of those derived from it, agent by agent."""
        lines = [
            line.partition("\t") for file in sorted(self.folder.glob("*.trace")) for line in file.read_text().split("\n")
        ]
        return [point for of, _, point in lines if point and (of == session or of.startswith(f"{session}~"))]

    def effects(self) -> list[Effect]:
        """Each run of a tool, in the order in which they happened."""
        file = self.folder / "effects"
        return [Effect(*line.split("\t")) for line in file.read_text().splitlines()] if file.exists() else []

    async def ask(
        self, name: str, message: str, *, session: str = "", request_id: str = "", seconds: float = 20.0
    ) -> Reply:
        """Asks an agent over the mesh, once. Raises MeshError."""
        return await self.mesh.peer(name).ask(message, self._call(session, request_id, seconds))

    def stream(
        self, name: str, message: str, *, session: str = "", request_id: str = "", seconds: float = 20.0
    ) -> AsyncGenerator[Event, None]:
        """As `ask`, event by event."""
        return self.mesh.peer(name).stream(message, self._call(session, request_id, seconds))

    @staticmethod
    def _call(session: str, request_id: str, seconds: float) -> Call:
        deadline = asyncio.get_running_loop().time() + seconds
        return Call(session=session, request_id=request_id, envelope=Envelope(deadline=deadline))

    async def close(self) -> None:
        """Ends every process."""
        for victim in self._all:
            await victim.close()


@asynccontextmanager
async def staged(zygote: Zygote, folder: Path, store: str, *, registry: str = "") -> AsyncIterator[Stage]:
    """An empty mesh in `folder`, with a registry of its own there unless one is given."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = Settings(registry=registry or f"local://{folder}/registry.db", store=store)
    async with AsyncExitStack() as stack:
        mesh = await stack.enter_async_context(Mesh(settings))
        stage = Stage(zygote, mesh, folder)
        stack.push_async_callback(stage.close)
        yield stage


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The process that forks victims."""
    with Zygote() as running:
        yield running
