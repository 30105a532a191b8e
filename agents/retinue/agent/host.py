"""What the runs of one serving agent share, so that a run needs nothing of the agent itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from retinue.agent.guards import Guard
from retinue.agent.hooks import Hooks
from retinue.agent.limits import Limits
from retinue.agent.model import Model
from retinue.agent.model.gate import StoreGate
from retinue.agent.peers import Peers
from retinue.agent.runs.cancels import Cancels
from retinue.agent.session.places import Places
from retinue.agent.session.tails import Tails
from retinue.agent.tools import Tool
from retinue.service.background import Background
from retinue.service.store import Store


@dataclass(slots=True)
class Dropped:
    """Counts what came too late, after the end of its call or its run was stored, and was dropped."""

    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the runs of one serving agent share.

    `window` is how many tokens fit the model, where that is known. `troubles` has a line for each tool server that is
    away; with `discover` tools are found before they are offered. `tasks` owns what must be finished though its run was
    cancelled, `detached` the runs that go on without a caller.
    """

    name: str
    prompt: str
    model: Model
    gate: StoreGate | None
    window: int | None
    store: Store
    peers: Peers
    services: Sequence[str]
    tools: Callable[[], Awaitable[Sequence[Tool]]]
    troubles: Callable[[], Sequence[str]]
    discover: bool
    limits: Limits
    hooks: Hooks
    guards: Sequence[Guard]
    sequential: bool
    history_limit: int
    places: Places
    tails: Tails
    cancels: Cancels
    tasks: Background
    detached: Background
    dropped: Dropped
