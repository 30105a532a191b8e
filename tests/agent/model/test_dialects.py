"""The four dialects as models over real HTTP: the same script says the same in each, and every request is legal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.dialect_models import DIALECTS, PATHS, model_of
from kit.modelled import ALL, check_received

from retinue.agent.model import (
    ModelEnd,
    ModelRequest,
    ModelText,
    ModelThinking,
    ModelToolInput,
    Stop,
    WantedCall,
    retry,
)
from retinue.agent.model.exchange import HttpModel
from retinue.agent.session.history import Entry, assistant_entry, to_model, tool_entry, user_entry, valid
from retinue.agent.testing import Answer, ModelServer, call, decode
from retinue.agent.testing.dialects import Spoken, spelling
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Blob, Call, Part, ToolCall
from retinue.service.errors import (
    Invalid,
    ModelAuth,
    ModelContext,
    ModelError,
    ModelQuota,
    ModelRate,
    ModelUnavailable,
)

SECRET = "sk-secret-1"
IMAGE = Part(image=Blob("image/png", data=b"\x89PNG"))
TOOLS = (ToolSpec("look", "Looks."), ToolSpec("server.find", "Finds.", {"type": "object", "properties": {"x": {}}}))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off without the waiting; floors that a server sets stay."""
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)


class Talk:
    """A session of one history, as an agent keeps it: each step is stored before the next."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self.entries = list(entries)

    def say(self, text: str, *parts: Part) -> None:
        self.entries.append(user_entry(text, Call(parts=parts), run_id="run-1"))

    async def step(self, model: HttpModel) -> ModelEnd:
        """One model call and made-up results of its calls."""
        messages = to_model(valid(self.entries), model=model.name)
        request = ModelRequest(system="You look.", messages=messages, tools=TOOLS)
        async with asyncio.timeout(10), aclosing(model.stream(request)) as stream:
            *_, end = [event async for event in stream]
        assert isinstance(end, ModelEnd)
        calls = [
            ToolCall(id=f"call-{len(self.entries)}-{at}", name=each.name, arguments=json.dumps(each.arguments or {}))
            for at, each in enumerate(end.calls)
        ]
        entry = assistant_entry(end, calls, run_id="run-1", model=model.name)
        stored = json.loads(json.dumps(entry.provider_parts))
        self.entries.append(Entry(message=entry.message, model=model.name, provider_parts=stored))
        self.entries += [tool_entry(each, run_id="run-1") for each in calls]
        return end


@asynccontextmanager
async def scripted(dialect: str, *script: Any, **options: Any) -> AsyncIterator[tuple[ModelServer, HttpModel]]:
    """A server with that script, and a model of the dialect; at the end every request is held against the rules."""
    async with ModelServer(script) as server, model_of(dialect, server.url, **options) as model:
        yield server, model
    check_received(server.requests)


TURN = (
    Answer(step=["Looking. ", call("look", x=1)], thinking="I should look."),
    Answer(step=[call("server.find", x="é😀"), call("look")]),
    "All done.",
)


@ALL
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_turn_with_thinking_and_parallel_calls_means_the_same_in_every_dialect(
    dialect: str, streamed: bool
) -> None:
    talk = Talk()
    talk.say("What is this?", IMAGE)
    wire = [
        TURN[0],
        # On the wire a tool has a name that servers take.
        lambda body: [call(body["tools"][1]["function"]["name"], x="é😀"), call("look")],
        TURN[2],
    ]
    async with scripted(dialect, *wire, streamed=streamed) as (server, model):
        ends = [await talk.step(model) for _ in range(3)]
    assert [end.stop for end in ends] == [Stop.TOOL_CALLS, Stop.TOOL_CALLS, Stop.STOP]
    assert [end.text for end in ends] == ["Looking. ", "", "All done."]
    assert [(each.name, each.arguments) for end in ends for each in end.calls] == [
        ("look", {"x": 1}),
        ("server.find", {"x": "é😀"}),
        ("look", {}),
    ]
    assert [(end.usage.input, end.usage.output) for end in ends] == [(1, 1)] * 3
    assert len({request.path for request in server.requests}) == 1
    assert streamed is (server.requests[0].path == PATHS[dialect] and server.requests[0].body.get("stream", True))
    kept = json.dumps(server.requests[1].body, ensure_ascii=False)
    marks = {"openai": "I should look.", "anthropic": "c2NyaXB0ZWQ=", "gemini": "c2NyaXB0ZWQ=", "ollama": "I should"}
    assert marks[dialect] in kept
    assert kept.count("iVBORw==") == 1


@ALL
async def test_text_thinking_and_input_come_in_pieces(dialect: str) -> None:
    talk = Talk()
    talk.say("Look.")
    request = ModelRequest(messages=to_model(talk.entries, model="x"), tools=TOOLS)
    said = Answer(step=["one two three four five", call("look", x=1)], thinking="six seven eight nine")
    async with scripted(dialect, said) as (_, model):
        events = [event async for event in model.stream(request)]
    texts = [event.text for event in events if isinstance(event, ModelText)]
    thoughts = [event.text for event in events if isinstance(event, ModelThinking)]
    assert len(texts) > 1 < len(thoughts)
    assert ("".join(texts), "".join(thoughts)) == ("one two three four five", "six seven eight nine")
    inputs = [event for event in events if isinstance(event, ModelToolInput)]
    assert {(event.index, event.name) for event in inputs} == {(0, "look")}
    assert json.loads("".join(event.delta for event in inputs)) == {"x": 1}


@ALL
async def test_a_cut_or_filtered_message_makes_no_calls_and_a_refusal_is_its_own_end(dialect: str) -> None:
    wanted = WantedCall("c1", "look", {})
    script = [
        ModelEnd(stop=Stop.LENGTH, text="Half", calls=(wanted,)),
        ModelEnd(stop=Stop.CONTENT_FILTER, text="Half"),
        ModelEnd(stop=Stop.REFUSAL, text="Not that."),
        "Well.",
    ]
    talk = Talk()
    ends = []
    async with scripted(dialect, *script) as (_, model):
        for _ in script:
            talk.say("Go on.")
            ends.append(await talk.step(model))
    assert (ends[0].stop, ends[0].text, ends[0].calls) == (Stop.LENGTH, "Half", ())
    filtered, refused = Stop.CONTENT_FILTER, Stop.REFUSAL
    # Not every dialect has a word for both.
    told = {
        "openai": (filtered, refused),
        "anthropic": (refused, refused),
        "gemini": (filtered, filtered),
        "ollama": (Stop.STOP, Stop.STOP),
    }
    assert (ends[1].stop, ends[2].stop, ends[2].text) == (*told[dialect], "Not that.")
    assert ends[3].text == "Well."


FAILURES: list[tuple[Any, type[ModelError], int]] = [
    (ModelAuth(f"bad key {SECRET}"), ModelAuth, 1),
    (ModelQuota("nothing left"), ModelQuota, 1),
    (ModelContext("9 > 8"), ModelContext, 1),
    (Answer(status=400, step="what?"), ModelError, 1),
    (Answer(status=404, step="gone"), ModelError, 1),
    (Answer(status=500, step="oops"), ModelUnavailable, 3),
    (Answer(status=529, step="full"), ModelUnavailable, 3),
    (Answer(step="one two three four", cut=40), ModelUnavailable, 3),
    (Answer(step="x", cut=0), ModelUnavailable, 3),
]


@ALL
@pytest.mark.parametrize(("answer", "error", "requests"), FAILURES)
async def test_a_failure_is_the_error_that_it_means(
    dialect: str, answer: Any, error: type[ModelError], requests: int
) -> None:
    talk = Talk()
    talk.say("Look.")
    async with scripted(dialect, *[answer] * 3, api_key=SECRET) as (server, model):
        with pytest.raises(error) as caught:
            await talk.step(model)
    assert len(server.requests) == requests
    assert caught.value.retryable is (requests > 1)
    assert SECRET not in repr((caught.value, caught.value.facts, str(caught.value)))
    assert f"{dialect}/m" in str(caught.value)


@ALL
async def test_a_limit_that_passes_is_waited_for_and_the_answer_comes(dialect: str) -> None:
    talk = Talk()
    talk.say("Look.")
    loop = asyncio.get_running_loop()
    async with scripted(dialect, ModelRate("slow down", retry_after=0.2), "Here.") as (server, model):
        begin = loop.time()
        assert (await talk.step(model)).text == "Here."
        assert loop.time() - begin >= 0.2
    assert len(server.requests) == 2


@ALL
async def test_nothing_is_asked_again_once_something_was_shown(dialect: str) -> None:
    cut = Answer(step="one two three " * 40, pause=0.001, cut=1500)
    talk = Talk()
    talk.say("Look.")
    async with scripted(dialect, cut, "never") as (server, model):
        with pytest.raises(ModelUnavailable) as caught:
            await talk.step(model)
    assert (caught.value.facts["kind"], len(server.requests)) == ("truncated", 1)


async def test_a_session_goes_on_under_another_provider_at_any_step() -> None:
    """Every order of two dialects: the second gets the whole turn of the first, and none of its state."""
    for first in DIALECTS:
        for second in DIALECTS:
            talk = Talk()
            talk.say("What is this?", IMAGE)
            async with scripted(first, TURN[0]) as (_, model):
                await talk.step(model)
            async with scripted(second, TURN[0], "Done.", **({"provider": "other"} if first == second else {})) as (
                server,
                model,
            ):
                await talk.step(model)
                assert (await talk.step(model)).text == "Done."
            sent = json.dumps(server.requests[0].body)
            assert "c2NyaXB0ZWQ=" not in sent
            assert "I should look." not in sent


@ALL
async def test_keys_that_no_header_can_carry_are_refused_at_once_and_not_shown(dialect: str) -> None:
    with pytest.raises(Invalid) as caught:
        model_of(dialect, "http://127.0.0.1", api_key="sk\nsecret")
    assert "secret" not in str(caught.value)


@ALL
async def test_one_connection_serves_step_after_step(dialect: str) -> None:
    talk = Talk()
    async with scripted(dialect, "a", "b", "c") as (server, model):
        for _ in range(3):
            talk.say("Look.")
            await talk.step(model)
        assert server.connections == 1


@ALL
async def test_an_answer_that_never_ends_is_given_up_when_its_time_is_over(dialect: str) -> None:
    talk = Talk()
    talk.say("Look.")
    endless = Answer(step="one two three " * 400, pause=0.02)
    async with scripted(dialect, endless, total_timeout=0.2) as (_, model):
        with pytest.raises(ModelUnavailable, match="no end after"):
            await talk.step(model)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
CALLS = st.lists(
    st.builds(
        lambda name, arguments: WantedCall("", name, arguments),
        st.from_regex("[a-z_]{1,9}", fullmatch=True),
        st.dictionaries(TEXTS, TEXTS | st.integers() | st.none() | st.booleans(), max_size=2),
    ),
    max_size=3,
)


@ALL
@settings(max_examples=40, deadline=None)
@given(TEXTS, TEXTS, CALLS, st.data())
def test_what_is_said_is_what_is_read_and_a_cut_is_never_another_answer(
    dialect: str, text: str, thinking: str, calls: list[WantedCall], data: st.DataObject
) -> None:
    calls = [WantedCall(f"id_{at}", each.name, each.arguments) for at, each in enumerate(calls)]
    stop = Stop.TOOL_CALLS if calls else Stop.STOP
    spoken = spelling(PATHS[dialect])
    body = b"".join(spoken.stream(Spoken(text=text, calls=calls, stop=stop, thinking=thinking)))
    headers = {"content-type": spoken.content_type}
    case = {"provider": dialect, "kind": "stream", "http_status": 200, "headers": headers, "body": body.decode()}
    whole = decode(case, chunk=data.draw(st.integers(1, 9)))
    assert (whole["text"], whole.get("reasoning", ""), whole["stop"]) == (text, thinking, stop.value)
    assert whole["tool_calls"] == [{"name": each.name, "arguments": each.arguments} for each in calls]
    for at in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=30)):
        cut = decode(case, cut=at)
        assert cut["stop"] == "error" or cut | {"usage": None} == whole | {"usage": None}
