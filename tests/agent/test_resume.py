"""A run that a crash cut short is gone on with: what is harmless is done again, anything else is told as unknown."""

from __future__ import annotations

import asyncio

import pytest
from kit.replicas import replica

from retinue.agent import Agent, tool
from retinue.agent.keys import lease_key
from retinue.agent.model.scripted import Scripted, call
from retinue.service.chat import Call, ToolStatus
from retinue.service.errors import SessionBusy
from retinue.service.store import Store
from retinue.service.testing import LocalMesh

ONE = Call(request_id="one")


class Work:
    """A tool that may be repeated and one that may not; both hang the first time."""

    def __init__(self) -> None:
        self.looked, self.paid = 0, 0
        self.begun = asyncio.Event()
        self.tools = [tool(idempotent=True)(self.look), tool(self.pay)]

    async def look(self) -> str:
        """Looks something up."""
        self.looked += 1
        if self.looked == 1:
            await asyncio.Event().wait()
        return f"seen {self.looked}"

    async def pay(self) -> str:
        """Pays the bill."""
        self.paid += 1
        self.begun.set()
        await asyncio.Event().wait()
        return "paid"


async def test_only_what_is_idempotent_is_done_again_after_a_crash(shared_store: Store) -> None:
    work = Work()
    second = Scripted("what came of it")
    async with (
        replica(shared_store, Agent("clerk", model=Scripted([call("look"), call("pay")]), tools=work.tools)) as one,
        replica(shared_store, Agent("clerk", model=second, tools=work.tools)) as two,
    ):
        dies = asyncio.create_task(one.ask("both", ONE))
        await work.begun.wait()
        await shared_store.delete(lease_key("clerk", ""))
        with pytest.raises(SessionBusy):
            await dies
        reply = await two.ask("both", ONE)
        assert one.dropped == 1
    assert [(each.name, each.status, each.result) for each in reply.tool_calls] == [
        ("look", ToolStatus.OK, "seen 2"),
        ("pay", ToolStatus.UNKNOWN, ""),
    ]
    assert (work.looked, work.paid) == (2, 1)
    told = [each.message.text for each in second.requests[0].messages if each.message.role == "tool"]
    assert told[0] == "seen 2"
    assert "outcome is unknown" in told[1]


async def test_a_delegates_answer_is_reused_when_its_parent_crashed_before_it_stored_it() -> None:
    done = 0

    @tool
    async def pay() -> str:
        """Pays."""
        nonlocal done
        done += 1
        return "paid"

    cut_off = asyncio.Event()
    async with asyncio.timeout(20), LocalMesh() as mesh:
        payer = Agent("payer", model=Scripted(call("pay"), "it is paid", "it is paid again"), tools=[pay])
        boss = Agent("boss", model=Scripted(call("delegate", to="payer", task="pay"), "told: it is paid"))
        async with mesh.serve(payer, boss):
            store, append = mesh.store, mesh.store.append

            async def cut(key: str, entries: list[bytes], **how: object) -> int:
                if key == "agent/{boss}/history" and b"it is paid" in entries[0]:
                    cut_off.set()
                    await asyncio.Event().wait()
                return await append(key, entries, **how)  # type: ignore[arg-type]

            store.append = cut  # type: ignore[method-assign, assignment]
            dies = asyncio.create_task(boss.ask("pay", ONE))
            await cut_off.wait()
            store.append = append  # type: ignore[method-assign]
            await store.delete(lease_key("boss", ""))
            # Nothing more of the run can be stored: for the store its owner is dead.
            reply = await boss.ask("pay", ONE)
            dies.cancel()
            await asyncio.gather(dies, return_exceptions=True)
    assert reply.text == "told: it is paid"
    assert [(each.status, each.result) for each in reply.tool_calls] == [(ToolStatus.OK, "it is paid")]
    assert done == 1
