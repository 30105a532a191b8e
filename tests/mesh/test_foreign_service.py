"""A service of stock generated code, put into Consul by hand, is tools for an agent; a large mesh costs no look-ups."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.consul import ConsulServer
from kit.dialects import CHECKS, requests_of
from kit.foreign import foreign_shop

from retinue.agent import Agent
from retinue.agent.model.scripted import Scripted, call
from retinue.service import Mesh
from retinue.service import client as client_module
from retinue.service.chat import Call, Reply, ToolStatus
from retinue.service.registry.consul import ConsulRegistry

HUGE = 2**63 + 5


@pytest.fixture
async def shop(session_consul: ConsulServer, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a Consul that lists the foreign service as `shop`, as `curl` would have put it there."""
    session_consul.clear()
    async with foreign_shop(tmp_path) as port:
        session_consul.put("agent/service/register", {"Name": "shop", "Address": "127.0.0.1", "Port": port})
        yield session_consul.url


async def bought(url: str, model: Scripted) -> Reply:
    clerk = Agent("clerk", model=model, services=["shop"])
    async with asyncio.timeout(60), Mesh.connect(url, store="memory:") as mesh, mesh.serve(clerk):
        return await mesh.ask("clerk", "buy")


async def test_a_foreign_service_is_tools_with_all_that_its_messages_have(shop: str) -> None:
    nested = {"label": "a", "inside": [{"label": "b", "inside": [{"label": "c"}]}]}
    order: dict[str, Any] = {"box": nested, "counts": {"x": 2, "y": 3}, "cash": "9007199254740993", "size": "LARGE"}
    model = Scripted(
        call("shop_Shop_Buy", **order, number=str(HUGE), ids=["-9223372036854775808", "1"]),
        [call("shop_Shop_Buy", box=nested), call("shop_Shop_Tick", to=3)],
        call("shop_Shop_Buy", **order | {"size": "HUGE"}),
        "done",
    )
    reply = await bought(shop, model)
    statuses = [each.status for each in reply.tool_calls]
    assert statuses == [ToolStatus.OK, ToolStatus.ERROR, ToolStatus.OK, ToolStatus.ERROR], reply.tool_calls
    receipt = json.loads(reply.tool_calls[0].result)
    assert (receipt["text"], receipt["number"]) == ("2 deep, c, 5, cash", str(HUGE))
    assert receipt["order"]["cash"] == "9007199254740993"
    assert receipt["order"]["ids"] == ["-9223372036854775808", "1"]
    assert receipt["order"]["size"] == "LARGE"
    assert "FAILED_PRECONDITION: nobody pays" in reply.tool_calls[1].error
    assert [tick["text"] for tick in json.loads(reply.tool_calls[2].result)] == ["tick 0", "tick 1", "tick 2"]
    assert "LARGE" in reply.tool_calls[3].error
    offered = {tool.name for tool in model.requests[0].tools}
    assert {"shop_Shop_Buy", "shop_Shop_Tick"} <= offered
    assert "shop_Shop_Upload" not in offered


async def test_each_dialect_takes_the_schemas_of_the_foreign_tools(shop: str) -> None:
    model = Scripted("hello")
    await bought(shop, model)
    (request,) = model.requests
    for dialect, body in requests_of(request.messages, request.tools).items():
        CHECKS[dialect](body)
        assert "shop_Shop_Buy" in json.dumps(body["tools"])


async def test_a_turn_among_fifty_agents_looks_nothing_up(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    for owner, names in ((ConsulRegistry, ("find", "names")), (client_module, ("read_services",))):
        for name in names:
            _count(monkeypatch, owner, name, looked)
    steps: Iterator[Any] = iter([call("shop_Shop_Tick", to=2), call("delegate", task="hi", to="agent-07"), "done"])
    model = Scripted(then=lambda request: next(steps) if "go" in str(request.messages) else "warm")
    crowd = [Agent(f"agent-{number:02}", model=Scripted(then="hello")) for number in range(49)]
    async with asyncio.timeout(120), Mesh.connect(shop, store="memory:") as mesh:
        clerk = Agent("clerk", model=model, services=["shop"])
        async with mesh.serve(clerk, *crowd):
            await mesh.ask("agent-07", "warm")
            while not model.requests or _listed(model) < 49:
                await clerk.ask("warm", Call(session="warm"))
            assert {"find", "read_services"} <= set(looked)
            looked.clear()
            reply = await clerk.ask("go")
    assert [each.status for each in reply.tool_calls] == [ToolStatus.OK, ToolStatus.OK]
    assert looked == []
    assert _listed(model) == 49


def _listed(model: Scripted) -> int:
    """How many agents the last prompt told of."""
    return sum("agent-" in line for line in model.requests[-1].system.splitlines())


def _count(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, counted: list[str]) -> None:
    """Notes each call of `owner`'s `name`."""
    real = getattr(owner, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        counted.append(name)
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, counting)
