"""One connection to Redis that all callers of a process share: what is asked while a batch is in flight is the next.

A connection per call costs most of a busy turn; this has one, and one task that reads and writes it. It knows bytes
and replies, no keys; it never sends a command a second time, since nobody knows what became of the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import hiredis
from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, NoScriptError, RedisError, ResponseError

from retinue.service.errors import Invalid, StoreUnavailable
from retinue.service.settings import masked

Word = str | bytes | int
# hiredis' own type admits only a tuple of one word.
_pack: Final[Callable[..., bytes]] = hiredis.pack_command
# How many replies share a stretch of patience: a timer for each would cost as much as the reply.
_STRETCH: Final = 100
_FAULTS: Final = (RedisError, OSError, TimeoutError)


class _Connection(Protocol):
    """What is used of redis-py's connection, which is typed in part."""

    is_connected: bool

    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def can_read(self) -> bool: ...
    async def send_packed_command(self, command: Sequence[bytes], check_health: bool = True) -> None: ...
    async def read_response(self, *, timeout: float) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Command:
    packed: bytes
    reply: asyncio.Future[Any]


class Pipeline:
    """A shared connection, made when it is needed and again after a fault; `greeting` are the commands sent first.

    `connect_timeout` and `reply_timeout` (seconds) bound how long a Redis that is silent is waited for.
    """

    def __init__(
        self, url: str, *, connect_timeout: float, reply_timeout: float, greeting: Sequence[tuple[Word, ...]] = ()
    ) -> None:
        self.url = masked(url)
        self._greeting = [_pack(words) for words in greeting]
        self._connection = _connection(url)
        self._connect_timeout = connect_timeout
        self._reply_timeout = reply_timeout
        self._group = asyncio.TaskGroup()
        self._pump: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()
        self._waiting: list[_Command] = []
        self._flying: list[_Command] = []

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._pump = self._group.create_task(self._exchange_batches(), name=f"redis {self.url}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._pump is not None:
            self._pump.cancel()
        # What the body raised is the body's: a group that is told of it would wrap it.
        await self._group.__aexit__(None, None, None)

    def send(self, *words: Word) -> Coroutine[Any, Any, Any]:
        """Puts the command in line; what is returned is to be awaited for Redis' reply.

        Raises StoreUnavailable when there is none, or when Redis refuses the command; NoScriptError passes.
        """
        if self._pump is None or self._pump.done():
            raise StoreUnavailable(f"redis at {self.url}: this store is not open")
        command = _Command(_pack(words), asyncio.get_running_loop().create_future())
        self._waiting.append(command)
        self._asked.set()
        return self._reply(command)

    async def _reply(self, command: _Command) -> Any:
        try:
            return await command.reply
        except NoScriptError:
            raise
        except ResponseError as refusal:
            raise StoreUnavailable(f"redis at {self.url} refuses a command: {refusal}") from refusal

    async def _exchange_batches(self) -> None:
        try:
            while True:
                await self._asked.wait()
                self._asked.clear()
                # A caller that left before its command was sent wants nothing sent.
                self._flying = [command for command in self._waiting if not command.reply.done()]
                self._waiting.clear()
                if self._flying and await self._connected():
                    await self._exchange()
        finally:
            await self._connection.disconnect(nowait=True)
            self._flying += self._waiting
            self._fail("was left before it had replied: this store is closed")

    async def _connected(self) -> bool:
        """Whether there is a connection; without one the batch has failed."""
        try:
            if self._connection.is_connected:
                if await self._silent():
                    return True
                await self._connection.disconnect(nowait=True)
            async with asyncio.timeout(self._connect_timeout):
                await self._connection.connect()
                await self._connection.send_packed_command(self._greeting)
                for _ in self._greeting:
                    await self._connection.read_response(timeout=float("inf"))
                return True
        except _FAULTS as fault:
            await self._connection.disconnect(nowait=True)
            why = str(fault) or f"silent for {self._connect_timeout:g} s"
            self._fail(f"does not answer: {why}; start it, or correct RETINUE_STORE", fault)
        return False

    async def _silent(self) -> bool:
        """Whether there is nothing to read while nothing was asked: else the other end has closed, or is out of step.

        redis-py tells an end as something to read, and since 8.2 as a fault.
        """
        try:
            return not await self._connection.can_read()
        except _FAULTS:
            return False

    async def _exchange(self) -> None:
        """Sends the batch and settles each command; a fault of the connection fails those without a reply."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._reply_timeout) as patience:
                await self._connection.send_packed_command([command.packed for command in self._flying])
                for number, command in enumerate(self._flying, 1):
                    await self._settle(command)
                    if number % _STRETCH == 0:
                        patience.reschedule(loop.time() + self._reply_timeout)
        except _FAULTS as fault:
            await self._connection.disconnect(nowait=True)
            why = str(fault) or f"silent for {self._reply_timeout:g} s"
            self._fail(f"went away: {why}; it is unknown whether the command was done", fault)

    async def _settle(self, command: _Command) -> None:
        try:
            # The batch has the one timeout; redis-py's own would be a timer per reply.
            reply = await self._connection.read_response(timeout=float("inf"))
        except ResponseError as refusal:
            if not command.reply.done():
                command.reply.set_exception(refusal)
        else:
            if not command.reply.done():
                command.reply.set_result(reply)

    def _fail(self, what: str, cause: Exception | None = None) -> None:
        if isinstance(cause, AuthenticationError):
            what = f"refuses the login: {cause}; correct user and password in RETINUE_STORE"
        elif isinstance(cause, BusyLoadingError):
            what = f"is not ready: {cause}; ask again when it has started"
        for command in self._flying:
            if not command.reply.done():
                error = StoreUnavailable(f"redis at {self.url} {what}")
                error.__cause__ = cause
                command.reply.set_exception(error)
        self._flying = []


def _connection(url: str) -> _Connection:
    """A connection as `url` describes it, not opened; Invalid when Redis' own URL rules refuse it."""
    try:
        pool: Any = ConnectionPool.from_url(url)
    except ValueError as error:
        raise Invalid(f"store {masked(url)!r}: {error}", field="RETINUE_STORE") from error
    # These are not the URL's to choose: raw replies of RESP2, no timers and no repeats below ours.
    pool.connection_kwargs.update(
        protocol=2, decode_responses=False, socket_timeout=None, retry=Retry(NoBackoff(), 0), retry_on_timeout=False
    )
    connection: _Connection = pool.make_connection()
    return connection
