"""A pause that a model server wants holds for everybody on its key, and nobody comes back in step."""

from __future__ import annotations

import asyncio

import pytest
from kit.replicas import replica

from retinue.agent import Agent
from retinue.agent.model.gate import StoreGate, account_of
from retinue.agent.model.openai import OpenAI
from retinue.agent.testing import Answer, ModelServer
from retinue.service.errors import ModelRate
from retinue.service.store import Store

PAUSE_S = 0.4


async def test_who_waits_comes_back_after_the_pause_and_each_at_another_moment(shared_store: Store) -> None:
    gates = [StoreGate(shared_store, "openai-1") for _ in range(4)]
    time = asyncio.get_running_loop().time
    await gates[0].passed()
    begin = time()
    await gates[0].close(PAUSE_S)

    async def pass_through(gate: StoreGate) -> float:
        await gate.passed()
        return time() - begin

    others = StoreGate(shared_store, "openai-2")
    assert await pass_through(others) < PAUSE_S
    back = sorted(await asyncio.gather(*(pass_through(gate) for gate in gates)))
    assert back[0] >= PAUSE_S
    assert len({round(moment, 3) for moment in back}) > 1
    await others.passed()
    assert await shared_store.get("model/{openai-1}/pause") is None


async def test_a_pause_that_is_too_long_for_a_retry_is_said_at_once(shared_store: Store) -> None:
    one, other = StoreGate(shared_store, "openai-1"), StoreGate(shared_store, "openai-1")
    await one.close(3600)
    with pytest.raises(ModelRate) as caught:
        await other.passed()
    assert caught.value.retry_after is not None
    assert 3500 < caught.value.retry_after <= 3600


async def test_a_longer_pause_is_not_cut_short_by_a_later_shorter_one(shared_store: Store) -> None:
    gate = StoreGate(shared_store, "openai-1")
    await gate.close(3600)
    await gate.look()
    await gate.close(0.1)
    with pytest.raises(ModelRate):
        await StoreGate(shared_store, "openai-1").passed()


def test_an_account_tells_keys_apart_and_gives_none_away() -> None:
    names = {account_of("a.example", "secret"), account_of("a.example", "other"), account_of("b.example", "secret")}
    assert len(names) == 3
    assert not any("secret" in name for name in names)


async def test_one_refusal_holds_up_the_agents_of_other_nodes(shared_store: Store) -> None:
    time = asyncio.get_running_loop().time
    came: list[float] = []
    refused = asyncio.Event()

    def script(body: object) -> str | Answer:
        came.append(time())
        if len(came) == 1:
            refused.set()
            return Answer(step="slow down", status=429, headers={"retry-after": "1"})
        return "fine"

    async with (
        ModelServer(script) as server,
        replica(shared_store, Agent("ann", model=OpenAI("m", api_key="k", base_url=server.base_url))) as ann,
        replica(shared_store, Agent("bob", model=OpenAI("m", api_key="k", base_url=server.base_url))) as bob,
        replica(shared_store, Agent("cat", model=OpenAI("m", api_key="k2", base_url=server.base_url))) as cat,
    ):
        first = asyncio.create_task(ann.ask("hi"))
        await refused.wait()
        while True:
            if await shared_store.get(f"model/{{{account_of('127.0.0.1', 'k')}}}/pause"):
                break
            await asyncio.sleep(0)
        held = asyncio.create_task(bob.ask("hi"))
        assert (await cat.ask("hi")).text == "fine"
        assert not held.done()
        assert [(await first).text, (await held).text] == ["fine", "fine"]
    assert len(came) == 4
    assert min(came[2:]) - came[0] >= 1.0
