"""A node is killed with -9 in the middle of a step: what its model is sent afterwards is legal, in each dialect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kit.dialect_models import DIALECTS
from kit.driver import Stage, staged
from kit.histories import check_session
from kit.modelled import ALL, check_received, dialect_of, text_in
from kit.zygote import Zygote

from retinue.agent.testing import Answer, ModelServer, call
from retinue.agent.testing.asked import text_of
from retinue.agent.testing.dialects import SIGNATURE
from retinue.service.chat import RunState, ToolStatus

# After some of the answer was shown; when a tool had its effect, and its result is not stored.
SPEAKING, WORKING = "clerk model 1 event 2", "clerk tool pay 1 middle"


def script(body: Any) -> Any:
    """Works with three calls side by side, then says so."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return "All done."
    if text_of(last["content"]) != "Work.":
        return "As I said."
    calls = [call("look", item="1"), call("pay", item="2", seconds=0.05), call("look", item="3")]
    return Answer(step=["I will work.", *calls], thinking="What is there to do?")


@asynccontextmanager
async def played(zygote: Zygote, folder: Path) -> AsyncIterator[tuple[ModelServer, Stage]]:
    """A model server and a mesh of processes; in the end every request must be legal, and the session sound."""
    store = f"sqlite://{folder}/store.db"
    async with asyncio.timeout(60), ModelServer(script) as server, staged(zygote, folder / "mesh", store) as stage:
        yield server, stage
        check_received(server.requests)
        await check_session(stage.mesh.store, "clerk", "s1")


@ALL
@pytest.mark.parametrize("point", [SPEAKING, WORKING])
async def test_a_turn_goes_on_at_another_node_after_a_crash(
    zygote: Zygote, tmp_path: Path, dialect: str, point: str
) -> None:
    async with played(zygote, tmp_path) as (server, stage):
        clerk = await stage.start("clerk", model=f"{dialect} {server.url}")
        stage.arm(point)
        turn = asyncio.create_task(stage.ask("clerk", "Work.", session="s1", request_id="one"))
        await clerk.dead()
        await stage.start("clerk", model=f"{dialect} {server.url}")
        reply = await turn
        assert (await stage.ask("clerk", "And now?", session="s1")).text == "As I said."
    assert (reply.text, reply.state) == ("All done.", RunState.COMPLETED)
    paid = ToolStatus.UNKNOWN if point == WORKING else ToolStatus.OK
    assert [each.status for each in reply.tool_calls] == [ToolStatus.OK, paid, ToolStatus.OK]
    assert text_in(server.requests[-1]).count("outcome is unknown") == (point == WORKING)


@ALL
async def test_the_turn_after_a_crash_is_told_of_what_was_begun(zygote: Zygote, tmp_path: Path, dialect: str) -> None:
    async with played(zygote, tmp_path) as (server, stage):
        clerk = await stage.start("clerk", model=f"{dialect} {server.url}")
        stage.arm(WORKING)
        turn = asyncio.create_task(stage.ask("clerk", "Work.", session="s1", request_id="one"))
        await clerk.dead()
        turn.cancel()
        await asyncio.wait([turn])
        await stage.start("clerk", model=f"{dialect} {server.url}")
        assert (await stage.ask("clerk", "And now?", session="s1")).text == "As I said."
    sent = text_in(server.requests[-1])
    assert sent.index("Work.") < sent.index("And now?")
    # The two calls beside `pay` may have had their results or not.
    assert "outcome is unknown" in sent


@pytest.mark.parametrize(("first", "second"), list(pairwise([*DIALECTS, DIALECTS[0]])))
async def test_a_turn_goes_on_with_another_provider_after_a_crash(
    zygote: Zygote, tmp_path: Path, first: str, second: str
) -> None:
    async with played(zygote, tmp_path) as (server, stage):
        clerk = await stage.start("clerk", model=f"{first} {server.url}")
        stage.arm(WORKING)
        turn = asyncio.create_task(stage.ask("clerk", "Work.", session="s1", request_id="one"))
        await clerk.dead()
        await stage.start("clerk", model=f"{second} {server.url}")
        assert (await turn).text == "All done."
    assert [dialect_of(each) for each in server.requests] == [first, second]
    sent = text_in(server.requests[1])
    assert "I will work." in sent
    assert "outcome is unknown" in sent
    assert SIGNATURE not in sent
    assert "What is there to do?" not in sent
