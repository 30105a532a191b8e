"""Addresses that are not what somebody thinks: reused by another, advertised wrongly, on several loopback hosts."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from kit.driver import Stage, staged
from kit.nodes import closed_port
from kit.watching import closing, until
from kit.zygote import Zygote

from retinue.service.chat import RunState
from retinue.service.errors import NoNode

# Two checks of Consul, two seconds apart and one second long, and what a busy machine adds.
NOTICED_S = 8.0


async def healthy(stage: Stage, name: str) -> list[str]:
    """The addresses of the nodes that the registry holds healthy."""
    return [node.address for node in await stage.mesh.registry.find(name) if node.healthy]


async def unhealthy(stage: Stage, address: str, name: str = "clerk") -> None:
    """Returns once the registry holds the node at this address for unhealthy, or lists it no more."""
    async with closing(stage.mesh.registry.watch(name)) as watch:
        await until(
            watch, lambda nodes: all(node.address != address or not node.healthy for node in nodes), within=NOTICED_S
        )


async def test_whoever_takes_the_port_of_a_dead_node_never_answers_for_it(
    zygote: Zygote, tmp_path: Path, consul_url: str, redis_url: str
) -> None:
    async with asyncio.timeout(60), staged(zygote, tmp_path / "stage", redis_url, registry=consul_url) as stage:
        port = closed_port()
        dead = await stage.start("clerk", listen=port)
        await stage.ask("clerk", "hello")
        await dead.kill()
        await stage.start("helper", listen=port)
        with pytest.raises(NoNode):
            await stage.ask("clerk", "hello", seconds=2.0)
        await stage.start("clerk")
        replies = await asyncio.gather(*(stage.ask("clerk", "hello", session=f"s{n}") for n in range(20)))
        assert {reply.agent for reply in replies} == {"clerk"}
        assert (await stage.ask("helper", "hello")).agent == "helper"
        # And it does not keep the dead one on the list as healthy for ever.
        await unhealthy(stage, port)


async def test_a_node_that_advertises_an_address_where_it_is_not_takes_no_call_from_the_others(
    zygote: Zygote, tmp_path: Path, consul_url: str, redis_url: str
) -> None:
    async with asyncio.timeout(60), staged(zygote, tmp_path / "stage", redis_url, registry=consul_url) as stage:
        wrong = closed_port()
        await stage.start("clerk", advertise=wrong)
        with pytest.raises(NoNode, match=wrong):
            await stage.ask("clerk", "hello", seconds=2.0)
        await stage.start("clerk")
        replies = await asyncio.gather(*(stage.ask("clerk", "hello", session=f"s{n}") for n in range(20)))
        assert {reply.state for reply in replies} == {RunState.COMPLETED}
        await unhealthy(stage, wrong)


async def test_nodes_on_several_addresses_of_one_port_are_one_name(
    zygote: Zygote, tmp_path: Path, consul_url: str, redis_url: str
) -> None:
    async with asyncio.timeout(60), staged(zygote, tmp_path / "stage", redis_url, registry=consul_url) as stage:
        port = closed_port().rpartition(":")[2]
        first, second = f"127.0.0.2:{port}", f"127.0.0.3:{port}"
        gone = await stage.start("clerk", listen=first)
        await stage.start("clerk", listen=second)
        await stage.start("router", listen=f"127.0.0.4:{port}")
        assert sorted(await healthy(stage, "clerk")) == [first, second]
        await asyncio.gather(*(stage.ask("router", "hello", session=f"s{n}") for n in range(20)))
        answered = Counter(pid for pid, passed in stage.passed if passed.point == "clerk turn 1 asked")
        assert len(answered) == 2, answered
        await gone.kill()
        await asyncio.gather(*(stage.ask("router", "hello", session=f"t{n}") for n in range(20)))
        await unhealthy(stage, first)
        assert await healthy(stage, "clerk") == [second]
