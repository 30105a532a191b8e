"""The test doubles themselves: the scripted model, and the scripted server in this process and in one of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retinue.agent.model import Model, ModelEnd, ModelMessage, ModelRequest, Stop
from retinue.agent.model.anthropic import Anthropic
from retinue.agent.model.exchange import HttpModel
from retinue.agent.model.gemini import Gemini
from retinue.agent.model.ollama import Ollama
from retinue.agent.model.openai import OpenAI
from retinue.agent.model.scripted import Scripted, Step, call
from retinue.agent.testing import ModelServer, Rules, echo
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Blob, Message, Part, ToolCall
from retinue.service.errors import Invalid, MeshError, ModelAuth, ModelContext, ModelError, ModelQuota, ModelRate


def request(*messages: Message, tools: tuple[ToolSpec, ...] = (), system: str = "") -> ModelRequest:
    told = tuple(ModelMessage(message=each) for each in messages or (Message(role="user", text="hello"),))
    return ModelRequest(system=system, messages=told, tools=tools)


async def end(model: Model, asked: ModelRequest | None = None) -> ModelEnd:
    async with asyncio.timeout(5):
        *_, last = [event async for event in model.stream(asked or request())]
    assert isinstance(last, ModelEnd)
    return last


STEPS: list[tuple[Step, str, list[str]]] = [
    ("hello", "hello", []),
    (call("a", x=1), "", ["a"]),
    (["first ", "this", call("a"), call("b")], "first this", ["a", "b"]),
    (lambda asked: "made", "made", []),
    (lambda asked: [call("c")], "", ["c"]),
]


@pytest.mark.parametrize(("step", "text", "names"), STEPS)
@pytest.mark.parametrize("over_http", [False, True])
async def test_a_step_says_what_it_is(step: Step, text: str, names: list[str], over_http: bool) -> None:
    if over_http:
        async with ModelServer([step]) as server, OpenAI("m", base_url=server.base_url) as model:
            said = await end(model)
    else:
        said = await end(Scripted(step))
    assert (said.text, [each.name for each in said.calls]) == (text, names)
    assert all(each.id for each in said.calls)
    assert said.stop is (Stop.TOOL_CALLS if names else Stop.STOP)


async def test_the_script_keeps_its_requests_and_says_when_it_ran_out() -> None:
    model = Scripted("one")
    await end(model)
    with pytest.raises(ModelError, match="no step for request 2"):
        await end(model)
    assert [each.messages[0].message.text for each in model.requests] == ["hello", "hello"]
    forever = Scripted("one", then="more")
    assert [(await end(forever)).text for _ in range(3)] == ["one", "more", "more"]


@pytest.mark.parametrize("error", [ModelAuth("a"), ModelQuota("q"), ModelRate("r", retry_after=61), ModelContext("c")])
@pytest.mark.parametrize("over_http", [False, True])
async def test_an_error_in_the_script_is_that_error(error: MeshError, over_http: bool) -> None:
    with pytest.raises(type(error)) as caught:
        if over_http:
            async with ModelServer([error]) as server, OpenAI("m", base_url=server.base_url) as model:
                await end(model)
        else:
            await end(Scripted(error))
    assert caught.value.retry_after == error.retry_after


async def test_a_step_may_wait_for_the_test_while_others_are_answered() -> None:
    may_go = asyncio.Event()

    async def wait(asked: Any) -> str:
        await may_go.wait()
        return "late"

    model = Scripted(wait, "soon")
    first = asyncio.create_task(end(model))
    while not model.requests:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert (await end(model)).text == "soon"
    may_go.set()
    assert (await first).text == "late"


async def test_a_request_that_is_not_streamed_gets_one_json_reply() -> None:
    async with ModelServer(["hi"]) as server:
        host, port = server.base_url.removeprefix("http://").removesuffix("/v1").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({"model": "m", "messages": []}).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(await reader.readline(), 16)
        reply = json.loads(await reader.readexactly(size))
        writer.close()
        await writer.wait_closed()
    assert b"application/json" in head
    assert reply["choices"][0]["message"]["content"] == "hi"


RULES = [
    {"system": "router", "calls": [{"name": "route_to_agent", "arguments": {"agent": "a", "message": "{message}"}}]},
    {"when": "milk", "tool": "Create", "calls": [{"name": "task_Task_Create", "arguments": {"title": "buy milk"}}]},
    {"after": "Create", "reply": "Done: {result}"},
    {"when": "fail", "error": "as told"},
    {"when": "say", "reply": "You said: {message}"},
]
CREATE = ToolSpec("task_Task_Create")
MILK = Message(role="user", text="buy milk")
CALLED = Message(role="assistant", tool_calls=(ToolCall(id="c", name="task_Task_Create"),))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(RULES))
    return path


async def test_the_first_rule_that_fits_answers(script: Path) -> None:
    async with ModelServer(Rules.read(script)) as server, OpenAI("m", base_url=server.base_url) as model:
        (routed,) = (await end(model, request(MILK, system="the router"))).calls
        assert (routed.name, routed.arguments) == ("route_to_agent", {"agent": "a", "message": "buy milk"})
        (made,) = (await end(model, request(MILK, tools=(CREATE,)))).calls
        assert made.arguments == {"title": "buy milk"}
        result = Message(role="tool", tool_call_id="c", text="t1")
        assert (await end(model, request(MILK, CALLED, result, tools=(CREATE,)))).text == "Done: t1"
        assert (await end(model, request(Message(role="user", text="say x")))).text == "You said: say x"
        for message in ("fail", "what?"):
            with pytest.raises(ModelError, match=r"as told|no rule fits"):
                async for _ in model._attempt(
                    json.dumps({"model": "m", "messages": [{"role": "user", "content": message}]}).encode()
                ):
                    pass  # fmt: skip


@pytest.mark.parametrize("build", [Anthropic, Gemini, Ollama])
async def test_rules_and_echo_read_every_dialect(build: Callable[..., HttpModel], script: Path) -> None:
    calls = (ToolCall(id="c1", name="task_Task_List"), ToolCall(id="c2", name="task_Task_Create"))
    called = Message(role="assistant", text="Wait.", tool_calls=calls)
    results = [Message(role="tool", tool_call_id=each.id, text=f"result of {each.name}") for each in calls]
    image = Part(image=Blob("image/png", data=b"x"))
    async with ModelServer(Rules.read(script)) as server, build("m", base_url=server.url) as model:
        (routed,) = (await end(model, request(MILK, system="the router"))).calls
        assert routed.arguments == {"agent": "a", "message": "buy milk"}
        assert (await end(model, request(MILK, tools=(CREATE,)))).calls[0].arguments == {"title": "buy milk"}
        done = await end(model, request(MILK, called, *results, tools=(CREATE,)))
        assert done.text == "Done: result of task_Task_Create"
        with pytest.raises(ModelError, match="no rule fits"):
            await end(model, request(Message(role="user", text="what?")))
    shown: list[Any] = []

    def keep(body: Any) -> str:
        shown.append(body)
        return echo(body)

    async with ModelServer(keep) as server, build("m", base_url=server.url) as model:
        assert (await end(model, request(Message(role="user", text="see", parts=(image,))))).text == "see"
    (text, seen) = shown[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "see"}
    assert seen["image_url"]["url"].endswith(";base64,eA==")


def test_a_rule_with_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(Invalid, match="did you mean reply"):
        Rules([{"replay": "x"}])


@pytest.mark.parametrize("arguments", [["--echo"], ["--script"]])
async def test_the_server_runs_as_a_process_until_it_is_told_to_stop(arguments: list[str], script: Path) -> None:
    if arguments == ["--script"]:
        arguments = ["--script", str(script)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "retinue.agent.testing", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    async with asyncio.timeout(20):
        url = (await process.stdout.readline()).decode().strip()
        async with OpenAI("m", base_url=url) as model:
            said = (await end(model, request(Message(role="user", text="say x")))).text
        process.terminate()
        assert await process.wait() == 0
    assert said == ("say x" if arguments == ["--echo"] else "You said: say x")


def test_echo_is_the_last_user_message() -> None:
    assert echo({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}) == "a"
