"""The nodes that a client talks to: a channel each, what is known of its health, and the choice among them.

It decides where a call goes, never whether it is repeated. Only faults of transport, and refusals by a node that is
leaving or is another, keep a node from being chosen; an answer of the business kind never does.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection

import grpc

from retinue.service.background import Background
from retinue.service.client.directory import Nodes
from retinue.service.errors import CallFailed, Cancelled, DeadlinePassed, Draining, MeshError, WrongNode
from retinue.service.registry import Node
from retinue.service.transport import CHANNEL_OPTIONS

log = logging.getLogger("retinue.client")

# How long a call waits for one node's connection before it goes to the next, seconds.
CONNECT_S = 2.0
# How long a node is passed over after its first fault in a row, and after its last, seconds.
EJECT_S = (0.25, 5.0)
# While one call tries a node that was passed over, the others wait so long for its outcome, seconds.
PROBE_S = 1.0

_READY = grpc.ChannelConnectivity.READY
# How long a connection that just failed a call may still look ready, seconds.
_SETTLE_S = 0.01
_DOWN = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


def broke_off(error: MeshError) -> bool:
    """Whether a call that ended so was lost on its way, as far as can be told: an UNAVAILABLE with no reason given."""
    return isinstance(error, CallFailed) and error.status is grpc.StatusCode.UNAVAILABLE and not error.answered


class Line:
    """One node and the channel to it, opened at first use. `with line:` counts a call that runs on it."""

    def __init__(self, node: Node, background: Background) -> None:
        self.node = node
        self.outstanding = 0
        self.retired = False
        self._background = background
        self._time = asyncio.get_running_loop().time
        self._channel: grpc.aio.Channel | None = None
        self._unary: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        self._dialling: asyncio.Task[None] | None = None
        self._faults = 0
        self._again_at = self._probed_until = 0.0

    def __enter__(self) -> None:
        self.outstanding += 1

    def __exit__(self, *_: object) -> None:
        self.outstanding -= 1
        if self.retired:
            self.retire()

    @property
    def channel(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.node.address, options=CHANNEL_OPTIONS)
        return self._channel

    @property
    def ready(self) -> bool:
        return self._channel is not None and self._channel.get_state() is _READY

    @property
    def sound(self) -> bool:
        """Whether a call can be sent without a look at the connection first."""
        return not self._faults and self.ready

    @property
    def opened(self) -> bool:
        return self._channel is not None

    def unary(self, path: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
        """What calls the unary method at `path`, bytes in and out."""
        if (method := self._unary.get(path)) is None:
            method = self._unary[path] = self.channel.unary_unary(path)
        return method

    def stream(self, path: str) -> grpc.aio.UnaryStreamMultiCallable[bytes, bytes]:
        """What calls the server-streaming method at `path`, bytes in and out."""
        return self.channel.unary_stream(path)

    async def connect(self, until: float) -> bool:
        """Whether a call can be sent: waits up to `until` (loop time) and at most CONNECT_S. Callers share the wait."""
        if self.retired:
            return False
        if self._dialling is None:
            self._dialling = self._background.start(self._dial(self.channel))
        await asyncio.wait({self._dialling}, timeout=max(0.0, until - self._time()))
        return self.ready

    async def _dial(self, channel: grpc.aio.Channel) -> None:
        try:
            if self._faults:
                await asyncio.sleep(_SETTLE_S)
            async with asyncio.timeout(CONNECT_S):
                while (state := channel.get_state(try_to_connect=True)) is not _READY and state not in _DOWN:
                    await channel.wait_for_state_change(state)
        except TimeoutError:
            self._eject(f"did not accept a connection in {CONNECT_S:g} s")
        else:
            if state in _DOWN:
                self._eject("cannot be reached")
        finally:
            self._dialling = None

    def free(self, now: float) -> bool:
        """Whether the registry and our own calls hold this node for sound."""
        return self.node.healthy and now >= self._again_at and now >= self._probed_until

    def chosen(self, now: float) -> None:
        """A call goes here. After a fault it is the probe, and others stay away until it has ended."""
        if self._faults:
            self._probed_until = now + PROBE_S

    def answered(self) -> None:
        """A call was answered, with a reply or an error of its own."""
        if self._faults:
            self._faults = 0
            self._again_at = self._probed_until = 0.0

    def failed(self, error: MeshError) -> None:
        """A call ended with `error`: passes the node over for a while, or clears it, or leaves it as it was."""
        if isinstance(error, Draining | WrongNode):
            self._eject(error.reason)
        elif broke_off(error):
            self._eject("broke off")
        elif not isinstance(error, DeadlinePassed | Cancelled):
            self.answered()

    def _eject(self, why: str) -> None:
        if self._time() < self._again_at:
            return  # one outage fails many calls at once, and counts once
        self._faults += 1
        pause = min(EJECT_S[0] * 2 ** (self._faults - 1), EJECT_S[1]) * random.uniform(0.8, 1.2)
        self._again_at = self._time() + pause
        log.info("%s at %s %s: passed over for %.2f s", self.node.id, self.node.address, why, pause)

    def retire(self) -> None:
        """The node has left: closes the channel once nothing runs on it."""
        self.retired = True
        if self.outstanding == 0 and self._channel is not None:
            channel, self._channel = self._channel, None
            self._background.start(channel.close())

    async def close(self) -> None:
        """Closes the channel now; calls that run on it are cancelled."""
        self.retired = True
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()


class Pool:
    """The lines of a client, by name and node. `background` is the client's, entered before the pool is used."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._lines: dict[str, dict[str, Line]] = {}
        self._seen: dict[str, Nodes] = {}
        self._leaving: set[Line] = set()

    @property
    def channels(self) -> int:
        """How many channels are open."""
        return sum(line.opened for line in self._all())

    def choose(self, name: str, nodes: Nodes, *, skip: Collection[str] = ()) -> Line | None:
        """The less busy of two sound nodes taken at random, or of the others where none is sound.

        None when all nodes are in `skip`.
        """
        if self._seen.get(name) is not nodes:
            self._renew(name, nodes)
        lines = [line for line in self._lines.get(name, {}).values() if line.node.id not in skip]
        if not lines:
            return None
        now = asyncio.get_running_loop().time()
        lines = [line for line in lines if line.free(now)] or lines
        if len(lines) > 1:
            lines = random.sample(lines, 2)
        line = min(lines, key=lambda line: line.outstanding)
        line.chosen(now)
        return line

    def update(self, name: str, nodes: Nodes) -> None:
        """Lets go of nodes of `name` that have left; a name that was never called is passed over."""
        if name in self._lines:
            self._renew(name, nodes)

    def _renew(self, name: str, nodes: Nodes) -> None:
        old = self._lines.pop(name, {})
        lines: dict[str, Line] = {}
        for node in nodes:
            line = lines[node.id] = old[node.id] if node.id in old else Line(node, self._background)
            line.node = node
        gone = [line for node_id, line in old.items() if node_id not in lines]
        for line in gone:
            line.retire()
        self._leaving = {line for line in (*self._leaving, *gone) if line.opened}
        self._seen.pop(name, None)
        if lines:
            self._lines[name], self._seen[name] = lines, nodes

    def _all(self) -> list[Line]:
        return [*(line for lines in self._lines.values() for line in lines.values()), *self._leaving]

    async def close(self) -> None:
        """Closes every channel; calls that still run are cancelled."""
        for line in self._all():
            await line.close()
        self._lines.clear()
        self._seen.clear()
        self._leaving.clear()
