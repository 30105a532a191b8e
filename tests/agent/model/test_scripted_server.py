"""The scripted model server as a user's test meets it: lists, keys, bad requests, usage, calls that are no JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from kit.dialect_models import DIALECTS, PATHS, model_of

from retinue.agent import Agent
from retinue.agent.model import ModelEnd, Stop, WantedCall
from retinue.agent.testing import ModelServer
from retinue.service.chat import ToolStatus
from retinue.service.usage import Usage


async def post(server: ModelServer, path: str, **request: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.post(f"{server.url}{path}", **request)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_it_lists_its_models_and_takes_no_step_of_the_script_for_that(dialect: str) -> None:
    async with ModelServer(["hello"], models=["b", "a"]) as server, model_of(dialect, server.url) as model:
        assert await model.names() == ("b", "a")
        assert server.requests == []


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_what_a_script_says_was_used_is_what_the_agent_counts(dialect: str) -> None:
    said = ModelEnd(stop=Stop.STOP, text="hi", usage=Usage(input=700, output=30))
    async with ModelServer([said]) as server, Agent("clerk", model=model_of(dialect, server.url)) as clerk:
        usage = (await clerk.ask("hello")).usage
        assert (usage.input, usage.output) == (700, 30)


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "ollama"])
async def test_a_call_that_is_no_json_stays_none(dialect: str) -> None:
    wanted = WantedCall("c1", "plan", None, '{"steps":')
    script: list[Any] = [ModelEnd(stop=Stop.TOOL_CALLS, calls=(wanted,)), "done"]
    async with ModelServer(script) as server, Agent("clerk", model=model_of(dialect, server.url)) as clerk:
        reply = await clerk.ask("hello")
        assert [each.status for each in reply.tool_calls] == [ToolStatus.ERROR]


@pytest.mark.parametrize("path", PATHS.values())
async def test_a_bad_request_is_answered_and_the_server_goes_on(path: str) -> None:
    async with ModelServer(["hello"]) as server:
        wrong: list[dict[str, Any]] = [
            {"content": b"no json"},
            {"json": {"messages": [{}], "contents": [{}]}},
            {"json": [1]},
        ]
        for request in wrong:
            answer = await post(server, path, **request)
            assert answer.status_code == 400, request
            assert "no request of the API" in answer.text


async def test_a_body_in_chunks_is_read_whole() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()

    async def pieces() -> Any:
        yield body[:10]
        yield body[10:]

    async with ModelServer(lambda asked: asked["messages"][-1]["content"]) as server:
        answer = await post(server, "/v1/chat/completions", content=pieces())
    assert answer.json()["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (None, "No such file"),
        ("{", "no JSON"),
        ('{"reply": "x"}', "a list of rules"),
        ('[{"when": "x"}]', "says nothing"),
    ],
)
def test_a_script_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, rules: str | None, says: str) -> None:
    script = tmp_path / "rules.json"
    if rules is not None:
        script.write_text(rules)
    command = [sys.executable, "-m", "retinue.agent.testing", "--script", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
