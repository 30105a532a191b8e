"""The office on the real Consul and Redis with a compatible model server: real processes, killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from kit.commands import processes_of, retinue, started, wait_until_gone

from retinue.agent.model import WantedCall
from retinue.agent.model.scripted import call
from retinue.agent.testing import ModelServer

OFFICE = str(Path(__file__).parents[2] / "agents" / "office")


def answer(body: Any) -> str | WantedCall:
    """A model that plans when told to, delegates as told, and otherwise says what it was last asked or told."""
    said = [message for message in body["messages"] if message["role"] == "user"]
    last = body["messages"][-1]
    if last["role"] == "tool":
        return f"done: {last['content']}"
    match said[-1]["content"].split():
        case ["plan", *_]:
            return call("plan", steps=[{"task": "buy milk", "status": "pending"}])
        case ["delegate-to", to]:
            return call("delegate", task="list the tasks", to=to)
        case ["delegate"]:
            return call("delegate", task="list the tasks")
        case ["list", *_] if "task_Task_List" in str(body.get("tools")):
            return call("task_Task_List")
    return "I remember: " + " / ".join(message["content"] for message in said)


class Office:
    """`retinue run agents/office` in a folder of its own, and the commands that talk to it."""

    def __init__(self, folder: Path, extra: dict[str, str]) -> None:
        self.folder, self.extra = folder, extra

    async def chat(self, message: str, *args: str) -> dict[str, Any]:
        done = await asyncio.to_thread(retinue, self.folder, "chat", message, "--json", *args, extra=self.extra)
        assert done.returncode == 0, done.stderr
        reply: dict[str, Any] = json.loads(done.stdout)
        return reply

    async def while_running(self, work: Callable[[], Any], *, end: Callable[[Any], None]) -> None:
        def run() -> Any:
            return started(self.folder, "run", OFFICE, extra=self.extra)

        command = run()
        office = await asyncio.to_thread(command.__enter__)
        try:
            await asyncio.to_thread(office.wait_for, "ready")
            await work()
            await asyncio.to_thread(end, office)
        finally:
            await asyncio.to_thread(command.__exit__, None, None, None)
        await asyncio.to_thread(wait_until_gone, self.folder)


@pytest.fixture
def place(tmp_path: Path, consul_url: str, redis_url: str) -> tuple[Path, dict[str, str]]:
    return tmp_path, {"RETINUE_REGISTRY": consul_url, "RETINUE_STORE": redis_url}


def office_of(place: tuple[Path, dict[str, str]], server: ModelServer) -> Office:
    folder, extra = place
    model = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "k", "RETINUE_MODEL": "openai/scripted"}
    return Office(folder, extra | model)


def kill_all(office: Office) -> Callable[[Any], None]:
    def kill(run: Any) -> None:
        for pid in sorted(processes_of(office.folder)):
            os.kill(pid, signal.SIGKILL)
        run.process.wait(20)

    return kill


def stop(run: Any) -> None:
    assert run.end() == 0, "\n".join(run.lines)


async def test_consul_lists_the_agents_and_redis_remembers_them_through_kill_9(
    place: tuple[Path, dict[str, str]], consul_url: str, redis_url: str
) -> None:
    async with ModelServer(answer) as server:
        office = office_of(place, server)

        async def first() -> None:
            health = await asyncio.to_thread(catalogue, consul_url, "task-mgr")
            (node,) = health
            assert (node["Service"]["Meta"]["type"], node["Service"]["Meta"]["services"]) == ("agent", "task")
            assert [check["Status"] for check in node["Checks"] if check["ServiceID"]] == ["passing"]
            await office.chat("plan the week", "--agent", "task-mgr")
            with redis.from_url(redis_url) as store:
                assert store.llen("agent/{task-mgr}/history") == 4
                assert json.loads(store.get("agent/{task-mgr}/plan")) == {
                    "steps": [{"task": "buy milk", "status": "pending"}]
                }

        async def second() -> None:
            reply = await office.chat("what did I say?", "--agent", "task-mgr")
            assert reply["reply"] == "I remember: plan the week / what did I say?"
            assert "buy milk" in server.requests[-1].body["messages"][0]["content"]

        await office.while_running(first, end=kill_all(office))
        await office.while_running(second, end=stop)


async def test_project_mgr_delegates_to_a_process_of_its_own_and_to_a_sub_agent_that_stores_nothing(
    place: tuple[Path, dict[str, str]], redis_url: str
) -> None:
    async with ModelServer(answer) as server:
        office = office_of(place, server)

        async def work() -> None:
            reply = await office.chat("delegate-to task-mgr", "--agent", "project-mgr")
            (made,) = reply["tool_calls"]
            with redis.from_url(redis_url) as store:
                log = store.lrange("agent/{task-mgr/default~project-mgr}/history", 0, -1)
            messages = [json.loads(entry) for entry in log]
            assert (made["name"], made["status"]) == ("delegate", "OK")
            assert made["run_id"] == messages[0]["run_id"] != reply["run_id"]
            assert messages[1]["tool_calls"][0]["name"] == "task_Task_List"

            with redis.from_url(redis_url) as store:
                before = sorted(store.keys("agent/*/history") + store.keys("agent/*/plan"))
                for to in ("delegate", "delegate-to researcher"):
                    reply = await office.chat(to, "--agent", "project-mgr")
                    assert "a sub-agent answered" in reply["tool_calls"][0]["result"]
                assert sorted(store.keys("agent/*/history") + store.keys("agent/*/plan")) == before
            offered = [tool["function"]["name"] for tool in server.requests[-2].body.get("tools", [])]
            assert offered == ["project_Project_Create", "project_Project_List"]

            reply = await office.chat("delegate-to task-mgrr", "--agent", "project-mgr")
            assert reply["tool_calls"][0]["status"] == "ERROR"
            assert "did you mean task-mgr?" in reply["tool_calls"][0]["error"]

        await office.while_running(work, end=stop)


def catalogue(consul_url: str, name: str) -> list[dict[str, Any]]:
    address = consul_url.removeprefix("consul://")
    with urllib.request.urlopen(f"http://{address}/v1/health/service/{name}") as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found
