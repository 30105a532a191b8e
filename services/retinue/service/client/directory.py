"""What a process knows of the mesh: nodes and names, asked for once and then kept fresh by watches.

It answers from what it has while the registry is away, and says RegistryUnavailable when it has nothing. It does
not choose among nodes and never calls one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Generic, Self, TypeAlias, TypeVar

from retinue.service.background import Background
from retinue.service.errors import RegistryUnavailable, UnknownName
from retinue.service.names import check_name, did_you_mean, is_name
from retinue.service.registry import Lookup, Node

log = logging.getLogger("retinue.directory")

# Consul allows 200 connections per client address, and a watch holds one: with those of the names and of calls under
# way, that is room for 15 processes on a host.
WATCHES = 8
# How old an answer may be where there is no watch, seconds. One that is older is asked for anew; until STALE_S it is
# used meanwhile, so that a caller waits for the registry only after a pause.
POLL_S, STALE_S = 1.0, 4.0
_PAUSE_S = (0.1, 2.0)
# A name whose last node left no longer ago than this is being restarted, as far as can be told, seconds.
RESTART_S = 10.0
# How often a registry that was away is looked at for whether it is whole again, seconds.
_DOUBT_S = 0.5

T = TypeVar("T")
Nodes: TypeAlias = tuple[Node, ...]
Listener: TypeAlias = Callable[[str, Nodes], None]


class _View(Generic[T]):
    """One question to the registry: its last answer, and what keeps that fresh."""

    def __init__(
        self,
        background: Background,
        what: str,
        *,
        find: Callable[[], Awaitable[T]],
        watch: Callable[[], AsyncIterator[T]],
        changed: Callable[[T], None],
        rejoining: Callable[[], bool],
        join: Callable[[T, T], T],
    ) -> None:
        self.value: T | None = None
        self.change = asyncio.Event()
        self._background, self._what = background, what
        self._find, self._watch, self._changed = find, watch, changed
        self._rejoining, self._join = rejoining, join
        self._time = asyncio.get_running_loop().time
        self._at = 0.0
        self._version = 0
        self._flight: asyncio.Task[T | RegistryUnavailable] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._doubt: asyncio.Task[None] | None = None

    @property
    def watched(self) -> bool:
        return self._watcher is not None

    async def get(self, *, age_s: float | None = None) -> T:
        """The last answer while it is fresh; else a new one, asked for once however many wait for it.

        `age_s` is for callers who are to see no older answer than that.
        """
        age = 0.0 if self._watcher is not None else self._time() - self._at
        # An empty answer is never trusted: what started a moment ago is to be found.
        if self.value and age < (STALE_S if age_s is None else age_s):
            if age_s is None and age >= POLL_S and self._flight is None:
                self._flight = self._background.start(self._query())
            return self.value
        answer = await self._ask()
        if not isinstance(answer, RegistryUnavailable):
            return answer
        if not self.value:
            raise RegistryUnavailable(answer.message, retry_after=answer.retry_after)
        log.warning("%s: %s; the last answer stays in use", self._what, answer)
        self._at = self._time()
        return self.value

    async def _ask(self) -> T | RegistryUnavailable:
        if self._flight is None:
            self._flight = self._background.start(self._query())
        return await asyncio.shield(self._flight)

    async def _query(self) -> T | RegistryUnavailable:
        version = self._version
        try:
            value = await self._find()
        except RegistryUnavailable as error:
            return error
        finally:
            self._flight = None
        # A watch that spoke meanwhile knows better than an answer that was under way.
        if version == self._version:
            return self._keep(value)
        return value

    def watch(self) -> None:
        """Keeps the answer fresh from now on; a no-op when it is."""
        if self._watcher is None:
            self._watcher = self._background.start(self._follow())

    def unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    async def _follow(self) -> None:
        pause = _PAUSE_S[0]
        while True:
            try:
                async for value in self._watch():
                    pause = _PAUSE_S[0]
                    self._keep(value)
            except RegistryUnavailable as error:
                # One line for each time that it is lost, not for each attempt to have it back.
                level = logging.WARNING if pause == _PAUSE_S[0] else logging.DEBUG
                log.log(level, "%s: watch lost (%s); the last answer stays in use", self._what, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_S[1])

    def _keep(self, value: T) -> T:
        self._at = self._time()
        self._version += 1
        if self.value and self._rejoining() and value != (joined := self._join(self.value, value)):
            value = joined
            if self._doubt is None:
                self._doubt = self._background.start(self._settle())
        if value != self.value:
            self.value = value
            self.change.set()
            self.change = asyncio.Event()
            self._changed(value)
        return value

    async def _settle(self) -> None:
        """Asks again once the registry is whole: what is missing then is gone."""
        while True:
            await asyncio.sleep(_DOUBT_S)
            if not self._rejoining() and not isinstance(await self._ask(), RegistryUnavailable):
                break
        self._doubt = None


class Directory:
    """A cached view of a registry, to be entered. A name is watched once it is used, at most WATCHES of them."""

    def __init__(self, registry: Lookup) -> None:
        self._registry = registry
        self._background = Background()
        self._views: dict[str, _View[Nodes]] = {}
        self._names: _View[Mapping[str, str]] | None = None
        self._listeners: list[Listener] = []
        self._left: dict[str, float] = {}

    async def __aenter__(self) -> Self:
        await self._background.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._background.__aexit__()

    async def nodes(self, name: str) -> Nodes:
        """Every node under `name`, healthy or not.

        Raises UnknownName, with the nearest names, when none is registered; RegistryUnavailable when the registry
        cannot be reached and nothing is cached; Invalid when it is no name.
        """
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = self._look_at(name)
        nodes = await view.get()
        if not nodes:
            if not view.watched:
                self._views.pop(name, None)
            known = await self.names()
            raise UnknownName(f"no agent or service is called {name!r}{did_you_mean(name, known)}", name=name)
        if not view.watched and self._views.get(name) is view and self._room():
            view.watch()
        return nodes

    async def look(self, name: str, *, age_s: float) -> Nodes:
        """The nodes under `name` as they were so many seconds ago at most, for display: none when there are none.

        Looking at a name is not using it: it is not watched for that. Raises RegistryUnavailable as `nodes` does.
        """
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = self._look_at(name)
        nodes = await view.get(age_s=age_s)
        if not nodes and not view.watched:
            self._views.pop(name, None)
        return nodes

    def restarting(self, name: str) -> bool:
        """Whether `name` had nodes until a moment ago, so that another is likely to come."""
        return asyncio.get_running_loop().time() - self._left.get(name, float("-inf")) < RESTART_S

    def cached(self, name: str) -> Nodes | None:
        """The nodes under `name` where they are watched; None or empty where `nodes` must be asked."""
        view = self._views.get(name)
        return view.value if view is not None and view.watched else None

    async def names(self) -> Mapping[str, str]:
        """Every registered name of the mesh with its type. Raises RegistryUnavailable when it was never reached."""
        if self._names is None:
            self._names = _View(
                self._background,
                "names",
                find=self._registry.names,
                watch=self._registry.watch_names,
                changed=lambda _: None,
                rejoining=lambda: self._registry.rejoining,
                join=lambda old, new: {**old, **new},
            )
        names = await self._names.get()
        self._names.watch()
        return _usable(names)

    async def names_changed(self, *, since: Mapping[str, str], within_s: float) -> None:
        """Returns once the names may be others than `since`, or after so many seconds."""
        view = self._names
        if view is None or not view.watched:
            await asyncio.sleep(POLL_S)
        elif _usable(view.value or {}) == since:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await view.change.wait()

    async def changed(self, name: str, *, since: Nodes) -> None:
        """Returns once the nodes of `name` may be others than `since`."""
        view = self._views.get(name)
        if view is None or not view.watched:
            await asyncio.sleep(POLL_S)
        elif (view.value or ()) == since:
            await view.change.wait()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with a name and its nodes after each change; the function returned ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _look_at(self, name: str) -> _View[Nodes]:
        check_name(name)

        def tell(nodes: Nodes) -> None:
            if nodes:
                self._left[name] = float("inf")
            elif self._left.get(name) == float("inf"):
                self._left[name] = asyncio.get_running_loop().time()
            for listener in self._listeners:
                listener(name, nodes)

        return _View(
            self._background,
            name,
            find=lambda: self._registry.find(name),
            watch=lambda: self._registry.watch(name),
            changed=tell,
            rejoining=lambda: self._registry.rejoining,
            join=_joined,
        )

    def _room(self) -> bool:
        """Whether one more name can be watched, for which a name that has vanished gives way."""
        watched = [name for name, view in self._views.items() if view.watched]
        if len(watched) < WATCHES:
            return True
        gone = next((name for name in watched if not self._views[name].value), None)
        if gone is None:
            return False
        self._views.pop(gone).unwatch()
        return True


def _joined(old: Nodes, new: Nodes) -> Nodes:
    nodes = {node.id: node for node in (*old, *new)}
    return tuple(nodes[node_id] for node_id in sorted(nodes))


def _usable(names: Mapping[str, str]) -> Mapping[str, str]:
    """The names that something here could be called by: a registry that is shared lists others too."""
    return {name: kind for name, kind in names.items() if is_name(name)}
