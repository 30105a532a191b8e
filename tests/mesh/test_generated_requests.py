"""Whatever is sent to an agent and to a router is answered or refused in our own words, and leaves nothing behind.

Generated messages, bytes and metadata go over real gRPC. FAULTS=all takes ten thousand, an ordinary run a few of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc.aio
import pytest
from hypothesis import given
from kit.generated import KNOWN_RUN, METHODS, STREAMS, Pair, examples, metadata, odd_metadata, requests

from retinue.agent import Agent
from retinue.agent.model.scripted import Scripted
from retinue.agent.model.scripted import call as wanted
from retinue.router.router import Router
from retinue.service import errors
from retinue.service.mesh import Mesh
from retinue.service.server.pulse import Timing
from retinue.service.settings import Settings
from retinue.service.testing import LocalMesh
from retinue.service.transport import CHANNEL_OPTIONS
from retinue.v1 import agent_pb2 as pb

# These would be a fault of ours; all the others are what a caller may be told.
FAULTS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED)
CALL_S = 30.0


class Caller:
    """Sends requests to the parts of a mesh over plain channels, and knows the run that came last."""

    def __init__(self, mesh: Mesh, channels: dict[str, Any]) -> None:
        self.mesh = mesh
        self._channels = channels
        self._run = KNOWN_RUN

    async def send(self, to: str, method: str, raw: bytes, pairs: list[Pair]) -> None:
        """One call; a refusal of it is checked."""
        known = raw.replace(KNOWN_RUN.encode(), self._run.encode())
        open_call = self._channels[to].unary_stream if method in STREAMS else self._channels[to].unary_unary
        call = open_call(f"/retinue.v1.Agent/{method}")(known, metadata=pairs, timeout=CALL_S)
        try:
            if method in STREAMS:
                self._check_events([pb.ChatEvent.FromString(event) async for event in call])
            else:
                self._note(method, await call)
        except grpc.aio.AioRpcError as failure:
            self._check(failure)

    async def run_of_its_own(self) -> None:
        """Makes a run that later requests may name."""
        reply = await self.mesh.ask("clerk", "hello")
        self._run = reply.run_id

    def _note(self, method: str, raw: bytes) -> None:
        if method == "Chat" and (run := pb.ChatResponse.FromString(raw).run_id):
            self._run = run

    @staticmethod
    def _check_events(events: list[pb.ChatEvent]) -> None:
        last = events[-1]
        assert last.WhichOneof("event") in ("completed", "error"), last
        assert last.error.status not in {status.name for status in FAULTS}, last

    @staticmethod
    def _check(failure: grpc.aio.AioRpcError) -> None:
        error = errors.from_rpc(failure)
        assert error.answered, f"no ErrorInfo: {failure}"
        assert failure.code() not in FAULTS, failure
        assert "Traceback" not in error.message
        assert error.message
        assert len(error.message.encode()) <= errors.MESSAGE_BYTES


@asynccontextmanager
async def office(mesh: Mesh) -> AsyncIterator[Caller]:
    """An agent that plans and calls its tool, one that only answers, and the router, served in `mesh`."""
    step = {"task": "look", "status": "done"}
    clerk = Agent("clerk", model=Scripted(then=_plan_then_answer(step)), tools=[overdue], history_limit=5)
    mailer = Agent("mailer", "You send mail.", model=Scripted(then="sent"), history_limit=5)
    router = Router(model=Scripted(then="nobody fits"))
    async with mesh, mesh.serve(clerk, mailer, router) as servers:
        channels = {s.node.name: grpc.aio.insecure_channel(s.address, options=CHANNEL_OPTIONS) for s in servers}
        try:
            yield Caller(mesh, channels)
        finally:
            for channel in channels.values():
                await channel.close()


def overdue(owner: str) -> list[str]:
    """List what an owner is late with."""
    return [owner]


def _plan_then_answer(step: dict[str, str]) -> Callable[[Any], Any]:
    """Each turn makes a plan and calls the tool before it answers."""

    def answer(request: Any) -> Any:
        if request.messages and request.messages[-1].message.role == "user":
            return [wanted("plan", steps=[step]), wanted("overdue", owner="ada")]
        return "done"

    return answer


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def nothing_left(runner: asyncio.Runner, caller: Caller) -> Iterator[None]:
    """Whatever runs in the block: afterwards there are no more tasks, channels and descriptors than before."""

    def count() -> tuple[int, int, int]:
        return len(asyncio.all_tasks(runner.get_loop())), caller.mesh.client.channels, descriptors()

    async def settle() -> None:
        # Runs that were detached may still be at work.
        async with asyncio.timeout(60):
            while any(now > then for now, then in zip(count(), before, strict=True)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    before = runner.run(_counted(count))
    yield
    try:
        runner.run(settle())
    except TimeoutError:
        tasks = [str(task) for task in asyncio.all_tasks(runner.get_loop())]
        raise AssertionError(f"tasks, channels, descriptors: {before} before, {count()} after: {tasks}") from None


async def _counted(count: Callable[[], tuple[int, int, int]]) -> tuple[int, int, int]:
    return count()


@contextmanager
def warm(mesh: Mesh) -> Iterator[tuple[Callable[[Awaitable[None]], None], Caller]]:
    """The office on a loop that stays, each method of each part called once, and a look at what is left in the end."""
    with asyncio.Runner() as runner:
        opened = office(mesh)
        caller = runner.run(opened.__aenter__())
        try:
            runner.run(_call_each(caller))
            with nothing_left(runner, caller):
                yield lambda work: runner.run(_as_coroutine(work)), caller
        finally:
            runner.run(opened.__aexit__(None, None, None))


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


async def _call_each(caller: Caller) -> None:
    for to in ("clerk", "mailer", "router"):
        for method, kind in METHODS.items():
            await caller.send(to, method, kind().SerializeToString(), [])
    await caller.run_of_its_own()
    await caller.mesh.ask("router", "@mailer hello")
    await caller.mesh.client.call("clerk", "Agent.Describe")


def assert_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing in the log is an error, and nothing has a traceback."""
    loud = [one for one in caplog.records if one.levelno >= logging.ERROR or one.exc_info]
    assert not loud, caplog.text[-5000:]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("to", ["clerk", "router"])
def test_generated_requests_are_answered_or_refused_and_leave_nothing(
    to: str, caplog: pytest.LogCaptureFixture, redis_url: str
) -> None:
    settings = Settings(registry="memory:", store=redis_url)
    with warm(Mesh(settings, timing=Timing(quiet=0.0))) as (run, caller):

        @examples(250, 2500)
        @given(requests(), metadata)
        def ask(request: tuple[str, bytes], pairs: list[Pair]) -> None:
            run(caller.send(to, *request, pairs))

        ask()
    assert_quiet(caplog)


@pytest.mark.timeout(600)
def test_generated_requests_without_metadata_run_in_the_embedded_store(
    caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    settings = Settings(registry="memory:", store=f"sqlite://{tmp_path / 'store.db'}")
    with warm(Mesh(settings, timing=Timing(quiet=0.0))) as (run, caller):

        @examples(100, 1500)
        @given(requests())
        def ask(request: tuple[str, bytes]) -> None:
            run(caller.send("clerk", *request, []))

        ask()
    assert_quiet(caplog)


@pytest.mark.timeout(600)
def test_metadata_of_any_kind_given_to_our_client_is_sent_or_invalid(caplog: pytest.LogCaptureFixture) -> None:
    with warm(LocalMesh()) as (run, caller):

        async def describe(pairs: list[Pair]) -> None:
            try:
                await caller.mesh.client.unary(
                    "clerk", "/retinue.v1.Agent/Describe", b"", metadata=pairs, timeout=CALL_S
                )
                await caller.mesh.client.unary(
                    "clerk", "/retinue.v1.Agent/ClearHistory", b"", metadata=pairs, timeout=CALL_S
                )
            except errors.Invalid as error:
                assert error.facts["field"] is not None
                assert "Traceback" not in error.message

        @examples(150, 1500)
        @given(odd_metadata)
        def ask(pairs: list[Pair]) -> None:
            run(describe(pairs))

        ask()
    assert_quiet(caplog)
