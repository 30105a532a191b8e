"""The OpenAI model over real HTTP: retries, broken connections, limits of time, and what a cancel does."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import httpx
import pytest

from retinue.agent.model import ModelEnd, ModelEvent, ModelMessage, ModelRequest, ModelText, Stop, retry
from retinue.agent.model.openai import OpenAI
from retinue.agent.model.retry import pause
from retinue.agent.model.transport import ModelClient
from retinue.agent.testing import Answer, ModelServer, call
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Message
from retinue.service.errors import (
    InternalError,
    Invalid,
    ModelAuth,
    ModelContext,
    ModelError,
    ModelQuota,
    ModelRate,
    ModelUnavailable,
)

HELLO = ModelRequest(messages=(ModelMessage(message=Message(role="user", text="hello")),))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off without the waiting; floors that a server sets stay."""
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)


async def events(model: OpenAI, request: ModelRequest = HELLO) -> list[ModelEvent]:
    async with asyncio.timeout(10), aclosing(model.stream(request)) as stream:
        return [event async for event in stream]


async def end(model: OpenAI, request: ModelRequest = HELLO) -> ModelEnd:
    last = (await events(model, request))[-1]
    assert isinstance(last, ModelEnd)
    return last


@asynccontextmanager
async def scripted(*script: Any, **options: Any) -> AsyncIterator[tuple[ModelServer, OpenAI]]:
    async with ModelServer(script) as server, OpenAI("m", base_url=server.base_url, **options) as model:
        yield server, model


async def test_text_comes_as_it_is_written_and_the_end_has_it_whole() -> None:
    async with scripted("one two three four five six", api_key="sk-1") as (server, model):
        seen = await events(model)
    texts = [event.text for event in seen if isinstance(event, ModelText)]
    assert len(texts) > 1
    assert isinstance(seen[-1], ModelEnd)
    assert (seen[-1].stop, seen[-1].text) == (Stop.STOP, "".join(texts))
    assert (seen[-1].usage.input, seen[-1].usage.output) == (1, 1)
    (request,) = server.requests
    assert (request.path, request.headers["authorization"]) == ("/v1/chat/completions", "Bearer sk-1")


async def test_calls_come_with_the_end_only() -> None:
    async with scripted(["Looking.", call("a", x=1), call("b")]) as (_, model):
        last = await end(model, ModelRequest(messages=HELLO.messages, tools=(ToolSpec("a"),)))
    assert (last.stop, last.text) == (Stop.TOOL_CALLS, "Looking.")
    assert [(each.name, each.arguments) for each in last.calls] == [("a", {"x": 1}), ("b", {})]


async def test_one_connection_serves_call_after_call() -> None:
    async with scripted("a", "b", "c") as (server, model):
        for _ in range(3):
            await end(model)
        assert server.connections == 1


async def test_a_connection_whose_stream_ends_late_is_kept_too() -> None:
    async with scripted(Answer(step="a", pause=0.01), "b") as (server, model):
        for _ in range(2):
            await end(model)
        assert server.connections == 1


async def test_a_stream_that_does_not_end_after_its_last_event_holds_nobody_up() -> None:
    done = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    async with scripted(Answer(body=done, pause=9.0)) as (server, model), asyncio.timeout(2):
        assert (await end(model)).text == "a"
        await server.hung_up.wait()


async def test_a_json_reply_to_a_stream_request_is_taken() -> None:
    reply = b'{"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}'
    async with scripted(Answer(body=reply, content_type="application/json")) as (_, model):
        assert (await end(model)).text == "whole"


FAILURES: list[tuple[int, str, type[ModelError], int]] = [
    (401, "invalid_api_key", ModelAuth, 1),
    (402, "", ModelQuota, 1),
    (429, "insufficient_quota", ModelQuota, 1),
    (429, "slow_down", ModelRate, 3),
    (400, "context_length_exceeded", ModelContext, 1),
    (400, "", ModelError, 1),
    (404, "model_not_found", ModelError, 1),
    (400, "tool_use_failed", ModelUnavailable, 3),
    (408, "", ModelUnavailable, 3),
    (409, "", ModelUnavailable, 3),
    (500, "", ModelUnavailable, 3),
    (529, "", ModelUnavailable, 3),
    (302, "", ModelError, 1),
]


@pytest.mark.parametrize(("status", "code", "error", "attempts"), FAILURES)
async def test_only_what_may_pass_is_asked_again(
    status: int, code: str, error: type[ModelError], attempts: int
) -> None:
    body = b'{"error": {"message": "no", "code": "%b"}}' % code.encode()
    answer = Answer(status=status, body=body, content_type="application/json")
    async with scripted(*[answer] * 4) as (server, model):
        with pytest.raises(ModelError) as caught:
            await end(model)
        assert type(caught.value) is error
        assert len(server.requests) == attempts


async def test_a_server_says_itself_whether_to_ask_again() -> None:
    def told(status: int, word: str) -> Answer:
        return Answer(status=status, headers={"x-should-retry": word}, step="no")

    async with scripted(told(400, "true"), "fine", told(500, "false")) as (server, model):
        assert (await end(model)).text == "fine"
        with pytest.raises(ModelUnavailable):
            await end(model)
        assert len(server.requests) == 3


async def test_an_answer_after_a_failure_is_as_if_nothing_had_happened() -> None:
    async with scripted(Answer(cut=0), Answer(step="cut off here", cut=10), "fine") as (server, model):
        assert [event.text for event in await events(model) if isinstance(event, ModelText)] == ["fine"]
        assert len(server.requests) == 3


async def test_a_stream_that_breaks_off_after_its_first_words_is_not_begun_again() -> None:
    async with scripted(Answer(step="one two three four five six", cut=600), "again") as (server, model):
        seen: list[ModelEvent] = []
        with pytest.raises(ModelUnavailable) as caught:
            async for event in model.stream(HELLO):
                seen.append(event)
        assert caught.value.facts["kind"] == "truncated"
        assert seen and not any(isinstance(event, ModelEnd) for event in seen)
        assert len(server.requests) == 1


async def test_a_rate_limit_is_waited_out_and_not_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty callers meet a limit of two seconds: none comes back before, and they do not come back together."""
    waits: list[float] = []

    async def waited(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("retinue.agent.model.retry.asyncio.sleep", waited)
    async with (
        ModelServer([ModelRate("slow down", retry_after=2)] * 20 + ["fine"] * 20) as server,
        AsyncExitStack() as own,
    ):
        model = await own.enter_async_context(OpenAI("m", base_url=server.base_url))
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(end(model))
    assert len(waits) == 20
    assert min(waits) >= 2
    assert max(waits) - min(waits) > 0.1
    assert len(set(waits)) == 20


def test_the_pause_grows_and_never_goes_under_the_floor() -> None:
    draw = random.Random(7).random
    assert all(0.75 <= pause(count, None, draw) / (retry.FIRST_PAUSE * 2**count) <= 1 for count in (0, 1, 2, 3))
    assert pause(20, None, draw) <= retry.LONGEST_PAUSE
    assert all(2 <= pause(0, 2.0, draw) <= 2.5 for _ in range(100))


async def test_a_wait_that_is_too_long_fails_at_once_and_says_how_long() -> None:
    async with scripted(ModelRate("tomorrow", retry_after=90), "never") as (server, model):
        with pytest.raises(ModelRate) as caught:
            await end(model)
        assert caught.value.retry_after == 90
        assert len(server.requests) == 1


async def test_a_key_is_never_in_an_error() -> None:
    async with scripted(Answer(status=401, step="bad key sk-secret-1"), api_key="sk-secret-1") as (_, model):
        with pytest.raises(ModelAuth) as caught:
            await end(model)
    assert "sk-secret-1" not in str(caught.value)
    assert "openai/m" in str(caught.value)


async def test_a_web_page_in_place_of_an_api_is_said_to_be_one() -> None:
    page = Answer(body=b"<html>hi</html>", content_type="text/html; charset=utf-8")
    async with scripted(*[page] * 3) as (_, model):
        with pytest.raises(ModelUnavailable, match="check the base URL"):
            await end(model)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
async def test_a_server_that_is_not_there_is_unreachable(host: str) -> None:
    async with OpenAI("m", base_url=f"http://{host}:{closed_port()}/v1") as model:
        with pytest.raises(ModelUnavailable) as caught:
            await end(model)
        assert caught.value.facts["kind"] == "unreachable"


@pytest.mark.parametrize("answer", [Answer(latency=None), Answer(step="one two three four", pause=9.0)])
async def test_a_server_that_falls_silent_is_given_up(answer: Answer) -> None:
    async with scripted(*[answer] * 3, idle_timeout=0.1) as (server, model):
        with pytest.raises(ModelUnavailable) as caught:
            await end(model)
        assert caught.value.facts["kind"] == "timeout"
        async with asyncio.timeout(1):
            await server.hung_up.wait()


async def test_keep_alives_do_not_stretch_the_idle_time() -> None:
    """Comments keep the socket busy; only events count."""
    hung_up = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        gone = asyncio.ensure_future(reader.read())
        while not gone.done():
            writer.write(b": keep-alive\n\n")
            await asyncio.wait([gone], timeout=0.02)
        writer.close()
        await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])
        hung_up.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, OpenAI("m", base_url=f"http://127.0.0.1:{port}", idle_timeout=0.2) as model:
        async with asyncio.timeout(5):
            with pytest.raises(ModelUnavailable, match="no event"):
                async with aclosing(model._attempt(b"{}")) as stream:
                    await anext(stream)
            await hung_up.wait()


LONG = "one two three " * 40


async def test_who_leaves_the_stream_hangs_up_within_a_second() -> None:
    async with scripted(Answer(step=LONG, pause=0.2)) as (server, model), asyncio.timeout(5):
        async with aclosing(model.stream(HELLO)) as stream:
            await anext(stream)
        async with asyncio.timeout(1):
            await server.hung_up.wait()


@pytest.mark.parametrize("answer", [Answer(latency=None), Answer(step=LONG, pause=0.2)])
async def test_a_cancelled_call_hangs_up_within_a_second(answer: Answer) -> None:
    arrived = asyncio.Event()

    def script(body: Any) -> Answer:
        arrived.set()
        return answer

    async with ModelServer(script) as server, OpenAI("m", base_url=server.base_url) as model:
        task = asyncio.create_task(events(model))
        async with asyncio.timeout(5):
            await arrived.wait()
        task.cancel()
        async with asyncio.timeout(1):
            await asyncio.wait([task])
            await server.hung_up.wait()
        assert task.cancelled()


async def test_more_calls_than_connections_wait_and_all_are_answered() -> None:
    async with ModelServer(lambda body: "fine") as server, ModelClient(connections=4) as client:
        model = OpenAI("m", base_url=server.base_url, client=client)
        async with model, asyncio.timeout(10), asyncio.TaskGroup() as group:
            tasks = [group.create_task(end(model)) for _ in range(40)]
        assert {task.result().text for task in tasks} == {"fine"}
        assert server.connections <= 4


async def test_a_wait_for_a_free_connection_does_not_blame_the_server() -> None:
    arrived = asyncio.Event()

    def script(body: Any) -> Answer:
        arrived.set()
        return Answer(latency=None)

    async with ModelServer(script) as server, ModelClient(connections=1, pool_timeout=0.05) as client:
        model = OpenAI("m", base_url=server.base_url, client=client)
        first = asyncio.create_task(end(model))
        async with asyncio.timeout(5):
            await arrived.wait()
        with pytest.raises(ModelError) as caught:
            await end(model)
        assert (caught.value.facts["kind"], caught.value.retryable) == ("busy", False)
        first.cancel()
        await asyncio.wait([first])
        assert len(server.requests) == 1


async def test_models_share_a_client_that_closes_with_the_last_of_them() -> None:
    client = ModelClient()
    async with ModelServer(["a", "b"]) as server:
        first, second = (OpenAI("m", base_url=server.base_url, client=client) for _ in range(2))
        async with first:
            async with second:
                await end(second)
            assert (await end(first)).text == "b"
        with pytest.raises(InternalError):
            await client.send(httpx.Request("GET", server.base_url), read=1.0)
        assert server.connections == 1


SPLIT: Sequence[str] = [r"\ud83d", r"\ude00 ", r"lone \ud83d!", r" nul \u0000", r" low \ude00"]


async def test_text_is_sane_and_a_pair_split_over_two_deltas_is_joined() -> None:
    chunks = "".join(f'data: {{"choices":[{{"delta":{{"content":"{piece}"}}}}]}}\n\n' for piece in SPLIT)
    body = chunks + 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    async with scripted(Answer(body=body.encode())) as (_, model):
        last = await end(model)
    assert last.text == "\U0001f600 lone \ufffd! nul \ufffd low \ufffd"


@pytest.mark.parametrize("url", ["localhost:8000/v1", "", "ftp://host/v1"])
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        OpenAI("m", base_url=url)


async def test_a_query_in_the_base_url_is_kept() -> None:
    async with ModelServer(["a"]) as server:
        async with OpenAI("m", base_url=server.base_url + "/?api-version=1") as model:
            await end(model)
        assert server.requests[0].path == "/v1/chat/completions?api-version=1"
