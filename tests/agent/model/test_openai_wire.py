"""Every recorded answer of a compatible server is decoded the same however it is cut, and a cut one never succeeds."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from retinue.agent.model import ModelEnd, ModelMessage, ModelRequest, ModelText, ModelThinking, Stop
from retinue.agent.model.failures import Failures
from retinue.agent.model.openai import OpenAI
from retinue.agent.model.openai_request import Dialect, encode
from retinue.agent.model.transport import ModelClient
from retinue.service.chat import Message, ToolCall
from retinue.service.errors import ModelError
from retinue.service.usage import Usage

CASES = {path.stem: json.loads(path.read_text()) for path in sorted(Path(__file__).with_name("cases").glob("*.json"))}
STREAMS = [name for name, case in CASES.items() if case["kind"] != "error"]


@dataclass
class Outcome:
    """What a case's `expect` speaks of."""

    text: str = ""
    reasoning: str = ""
    end: ModelEnd | None = None
    error: ModelError | None = None

    @property
    def error_class(self) -> str | None:
        if self.error:
            return self.error.facts["kind"]
        assert self.end
        if self.end.stop is Stop.CONTENT_FILTER:
            return "content_filter"
        return "malformed_tool_call" if any(call.arguments is None for call in self.end.calls) else None

    @property
    def usage(self) -> dict[str, int] | None:
        if self.error:
            facts = self.error.facts
            found = {key: int(facts[f"{key}_tokens"]) for key in ("input", "output") if f"{key}_tokens" in facts}
        else:
            assert self.end
            usage = self.end.usage
            names = {"input": usage.input, "output": usage.output, "cache_read": usage.cached}
            found = {key: count for key, count in names.items() if count is not None}
            found |= {"reasoning": usage.reasoning} if usage.reasoning is not None else {}
        return found or None


class Canned(ModelClient):
    """A client whose every answer is this body, in pieces of `size` bytes, and then a clean end."""

    def __init__(self, case: dict[str, Any], body: bytes, size: int) -> None:
        pieces = [body[at : at + size] for at in range(0, len(body), size)]

        async def pour() -> AsyncGenerator[bytes, None]:
            for piece in pieces:
                yield piece

        def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(case["http_status"], headers=case["headers"], content=pour())

        super().__init__(httpx.MockTransport(answer))


async def outcome(case: dict[str, Any], body: bytes, size: int = 1 << 20) -> Outcome:
    """What one attempt makes of it; retries have tests of their own."""
    seen = Outcome()
    async with Canned(case, body, size) as client:
        model = OpenAI("m", client=client)
        try:
            async with aclosing(model._attempt(b"{}")) as events:
                async for event in events:
                    assert seen.end is None, "an event after the end"
                    if isinstance(event, ModelText):
                        seen.text += event.text
                    elif isinstance(event, ModelThinking):
                        seen.reasoning += event.text
                    elif isinstance(event, ModelEnd):
                        seen.end = event
        except ModelError as error:
            seen.error = error
    return seen


def check(seen: Outcome, expect: dict[str, Any]) -> None:
    assert (seen.end is None) != (seen.error is None)
    assert seen.error_class == expect["error_class"]
    assert seen.text == expect["text"] + expect.get("refusal", "")
    if "reasoning" in expect:
        assert seen.reasoning == expect["reasoning"]
    assert seen.usage == expect["usage"]
    if seen.error:
        assert expect["stop"] == "error"
        assert seen.error.retryable == expect.get("retryable", seen.error.retryable)
        return
    assert seen.end
    assert seen.end.stop.value == expect["stop"]
    assert seen.end.text == seen.text
    runnable = [
        {"name": call.name, "arguments": call.arguments} for call in seen.end.calls if call.arguments is not None
    ]
    broken = [{"name": call.name, "raw": call.raw} for call in seen.end.calls if call.arguments is None]
    assert runnable == expect["tool_calls"]
    assert broken == expect.get("malformed_tool_calls", [])
    ids = [call.id for call in seen.end.calls]
    assert all(ids) and len(set(ids)) == len(ids)
    if isinstance(expect.get("tool_call_ids"), list):
        assert ids == expect["tool_call_ids"]


@pytest.mark.parametrize("name", STREAMS)
async def test_an_answer_means_the_same_however_it_is_split(name: str) -> None:
    case = CASES[name]
    for size in (1 << 20, 1, 2, 7):
        check(await outcome(case, case["body"].encode(), size), case["expect"])


@pytest.mark.parametrize("name", STREAMS)
async def test_an_answer_cut_anywhere_is_the_same_or_an_error(name: str) -> None:
    """Usage may be lost with the tail; an error that came after the finish reason cannot be seen."""
    case = CASES[name]
    body = case["body"].encode()
    whole = await outcome(case, body)
    for at in range(len(body)):
        cut = await outcome(case, body[:at])
        if cut.error:
            assert cut.error.retryable or whole.error, f"cut at {at}"
            continue
        assert cut.end
        if whole.error:
            assert name == "openrouter_error_after_finish", f"cut at {at}: a success where the whole is an error"
            continue
        assert whole.end
        same = [(call.name, call.arguments, call.raw) for call in whole.end.calls]
        assert [(call.name, call.arguments, call.raw) for call in cut.end.calls] == same, f"cut at {at}"
        assert (cut.end.stop, cut.text) == (whole.end.stop, whole.text), f"cut at {at}"
        assert cut.end.usage in (whole.end.usage, Usage()), f"cut at {at}"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["kind"] == "error"])
async def test_a_refusal_is_the_error_that_it_means(name: str) -> None:
    case = CASES[name]
    expect = case["expect"]
    check(await outcome(case, case["body"].encode(), 7), expect)
    answer = httpx.Response(case["http_status"], headers=case["headers"])
    clock = parsedate_to_datetime(expect["clock"]).timestamp() if "clock" in expect else None
    error = Failures("openai/m").of_answer(answer, case["body"].encode(), now=clock)
    if "retry_after_s" in expect:
        assert error.retry_after == pytest.approx(expect["retry_after_s"])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "echo" in case["expect"]])
async def test_what_a_server_wants_back_is_sent_back(name: str) -> None:
    case = CASES[name]
    seen = await outcome(case, case["body"].encode())
    assert seen.end
    calls = tuple(ToolCall(id=call.id, name=call.name, arguments=json.dumps(call.arguments)) for call in seen.end.calls)
    stored = json.loads(json.dumps(seen.end.provider_parts))
    said = ModelMessage(message=Message(role="assistant", tool_calls=calls), provider_parts=stored)
    for model, echoed in (("openai/m", True), ("openai/other", False)):
        body = json.loads(encode("m", ModelRequest(messages=(said,)), name=model, dialect=Dialect()))
        for path, value in case["expect"]["echo"].items():
            assert (list(_at(body["messages"][0], path.split("."))) == [value]) is echoed


def _at(value: Any, path: list[str]) -> Iterator[Any]:
    for key in path:
        if isinstance(value, dict) and key not in value:
            return
        value = value[int(key) if isinstance(value, list) else key]
    yield value
