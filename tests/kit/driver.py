"""A mesh of victims and a client of our own: starts them, kills and freezes them, asks them, and reads what is left.

It waits for what a process says or for its death, never for a time. What it starts it ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from kit.points import Order, Passed
from kit.victim import SERVING, Setting
from kit.watcher import Watching
from kit.zygote import Zygote
from retinue.service.chat import Call, Event, Reply
from retinue.service.envelope import Envelope
from retinue.service.mesh import Mesh
from retinue.service.settings import Settings

LEASE_S = 0.5


class Victim:
    """One process, from its fork to its death. `tell` gets each point that it passes, and its process id."""

    def __init__(self, pid: int, log: Path, tell: Callable[[int, Passed], None]) -> None:
        self.pid = pid
        self._log = log
        self._tell = tell
        self._serving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._dead = asyncio.Event()
        self._descriptor = -1
        self._transport: asyncio.ReadTransport | None = None

    @classmethod
    async def start(cls, zygote: Zygote, setting: Setting | Watching, tell: Callable[[int, Passed], None]) -> Self:
        """Forks it; it is not serving yet."""
        log = Path(setting.folder) / f"{'-'.join(setting.agents)}.log"
        near, far = os.pipe()
        with log.open("ab") as stderr:
            victim = cls(zygote.fork(setting.life, setting.encode(), stdout=far, stderr=stderr.fileno()), log, tell)
        os.close(far)
        await victim._watch(near)
        return victim

    async def _watch(self, stdout: int) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(lambda: _Lines(self._hear), os.fdopen(stdout, "rb"))
        try:
            self._descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._dead.set()  # nobody waits for its state, so that a dead one is gone at once
        else:
            loop.add_reader(self._descriptor, self._bury)

    def _hear(self, line: str | None) -> None:
        if line is not None and line != SERVING:
            self._tell(self.pid, Passed.decode(line))
        elif not self._serving.done():
            if line is None:
                failure = AssertionError(f"it did not come to serve:\n{self._log.read_text()[-3000:]}")
                self._serving.set_exception(failure)
            else:
                self._serving.set_result(None)

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
        await self._serving

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
        await self.still()

    async def still(self) -> None:
        """Returns once it stands still."""
        while _state_of(self.pid) != "T":  # noqa: ASYNC110 -- the kernel tells this only to its parent
            await asyncio.sleep(0.001)

    def thaw(self) -> None:
        """SIGCONT: it goes on where it was."""
        self.signal(signal.SIGCONT)

    async def close(self) -> None:
        """Kills it, also while it is frozen, and lets go of it."""
        await self.kill()
        if self._transport is not None:
            self._transport.close()


class _Lines(asyncio.Protocol):
    """Hands on each line of a pipe, and None at its end."""

    def __init__(self, hear: Callable[[str | None], None]) -> None:
        self._hear = hear
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hear(line.decode())

    def connection_lost(self, exc: Exception | None) -> None:
        self._hear(None)


@dataclass(frozen=True, slots=True)
class Effect:
    """One run of a tool."""

    tool: str
    call_id: str
    session: str
    item: str


class Stage:
    """The victims of one mesh, and `mesh`, in which the test itself is a client.

    `victims` holds the youngest process of each agent, `all` every process, `passed` each point that a process of this
    id was at.
    """

    def __init__(self, zygote: Zygote, mesh: Mesh, folder: Path, *, lease: float = LEASE_S) -> None:
        self.mesh = mesh
        self._lease = lease
        self.folder = folder
        self.victims: dict[str, Victim] = {}
        self.passed: list[tuple[int, Passed]] = []
        self._zygote = zygote
        self.all: list[Victim] = []
        self._waiting: list[tuple[Callable[[int, Passed], bool], asyncio.Future[int]]] = []

    async def start(
        self, *agents: str, model_calls: int = 25, model: str = "", listen: str = "", advertise: str = ""
    ) -> Victim:
        """A new process that serves these agents, once it does; `model_calls` is the budget of their trees.

        `model` is a dialect and the URL of a scripted server, with a blank between; `listen` and `advertise` are
        host:port.
        """
        settings = self.mesh.settings
        victim = await Victim.start(
            self._zygote,
            Setting(
                registry=settings.registry,
                store=settings.store,
                folder=str(self.folder),
                agents=agents,
                lease=self._lease,
                model_calls=model_calls,
                model=model,
                listen=listen,
                advertise=advertise,
            ),
            self._tell,
        )
        self.all.append(victim)
        self.victims |= dict.fromkeys(agents, victim)
        await victim.serving()
        return victim

    def arm(self, point: str, number: signal.Signals = signal.SIGKILL, *, request_id: str = "") -> None:
        """The process that comes to this point, in the turn of that request if one is named, gets the signal, once."""
        Order(point, number, request_id).give(self.folder)

    async def at(self, point: str, *, request_id: str | None, beside: Victim | None = None) -> Victim:
        """The process (another one than `beside`) that passed the point, or does so now.

        In the turn of that request, or with None in any.
        """

        def wanted(pid: int, passed: Passed) -> bool:
            ours = passed.point == point and request_id in (None, passed.request_id)
            return ours and (beside is None or pid != beside.pid)

        pid = next((pid for pid, passed in self.passed if wanted(pid, passed)), None)
        if pid is None:
            found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._waiting.append((wanted, found))
            pid = await found
        return next(victim for victim in self.all if victim.pid == pid)

    def _tell(self, pid: int, passed: Passed) -> None:
        self.passed.append((pid, passed))
        for wanted, found in self._waiting:
            if not found.done() and wanted(pid, passed):
                found.set_result(pid)
        self._waiting = [each for each in self._waiting if not each[1].done()]

    def trace(self, session: str = "") -> list[str]:
        """The points passed in the turns of this session and of those derived from it."""
        return [
            passed.point
            for _, passed in self.passed
            if passed.session == session or passed.session.startswith(f"{session}~")
        ]

    def effects(self) -> list[Effect]:
        """Each run of a tool, in the order in which they happened."""
        file = self.folder / "effects"
        return [Effect(*line.split("\t")) for line in file.read_text().splitlines()] if file.exists() else []

    async def ask(
        self, name: str, message: str, *, session: str = "", request_id: str = "", seconds: float = 20.0
    ) -> Reply:
        """Asks an agent over the mesh, once. Raises MeshError."""
        return await self.mesh.peer(name).ask(message, self.call(session, request_id, seconds))

    def stream(
        self, name: str, message: str, *, session: str = "", request_id: str = "", seconds: float = 20.0
    ) -> AsyncGenerator[Event, None]:
        """As `ask`, event by event."""
        return self.mesh.peer(name).stream(message, self.call(session, request_id, seconds))

    @staticmethod
    def call(session: str, request_id: str, seconds: float) -> Call:
        """What a call of so many seconds sends along."""
        deadline = asyncio.get_running_loop().time() + seconds
        return Call(session=session, request_id=request_id, envelope=Envelope(deadline=deadline))

    async def close(self) -> None:
        """Ends every process."""
        for victim in self.all:
            await victim.close()


def _state_of(pid: int) -> str:
    """The state of a process as the kernel writes it, such as R, S or T."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split(maxsplit=1)[0]


@asynccontextmanager
async def staged(
    zygote: Zygote, folder: Path, store: str, *, registry: str = "", lease: float = LEASE_S
) -> AsyncIterator[Stage]:
    """An empty mesh in `folder`, which is made, with a registry of its own there unless one is given.

    `lease` (seconds) is for tests in which owners die; in others it leaves no time to a machine that is busy.
    """
    await asyncio.to_thread(folder.mkdir, parents=True)
    settings = Settings(registry=registry or f"local://{folder}/registry.db", store=store)
    async with AsyncExitStack() as stack:
        mesh = await stack.enter_async_context(Mesh(settings))
        stage = Stage(zygote, mesh, folder, lease=lease)
        stack.push_async_callback(stage.close)
        yield stage


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The process that forks victims."""
    with Zygote() as running:
        yield running


@dataclass(frozen=True, slots=True)
class Backing:
    """What a mesh stands on: the URLs of its store and its registry ("" for one in the mesh's own folder)."""

    store: str
    registry: str = ""


@pytest.fixture(params=["consul+redis", "local+sqlite"])
def backing(request: pytest.FixtureRequest, tmp_path: Path) -> Backing:
    """The real servers, and the embedded ones, in turn."""
    if request.param == "local+sqlite":
        return Backing(f"sqlite://{tmp_path}/store.db")
    return Backing(request.getfixturevalue("redis_url"), request.getfixturevalue("consul_url"))
