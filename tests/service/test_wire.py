"""What chat.py says survives the wire, and what the wire cannot hold is mended or refused."""

from datetime import UTC, datetime

import grpc
import pytest
from google.protobuf import message

from retinue.service import chat, errors, wire
from retinue.service.envelope import Envelope
from retinue.service.usage import Usage
from retinue.v1 import agent_pb2 as pb

CALL = chat.ToolCall(
    id="c1",
    name="task_Task_Create",
    arguments='{"title": "milk"}',
    result="done",
    status=chat.ToolStatus.UNKNOWN,
    error="gone",
    duration_ms=12,
    run_id="r2",
)
PARTS = (
    chat.Part(text="look"),
    chat.Part(image=chat.Blob("image/png", data=b"\x89PNG\x00")),
    chat.Part(file=chat.Blob("text/plain", uri="https://example.org/a.txt")),
    chat.Part(file=chat.Blob("text/plain", handle="h-1")),
)
REPLY = chat.Reply(
    text="Milk is on the list 🥛",
    agent="task-mgr",
    tool_calls=(CALL,),
    session="s",
    run_id="r1",
    state=chat.RunState.INCOMPLETE,
    usage=Usage(input=0, output=7, model_calls=2),
    plan=(chat.PlanStep("buy milk", "in_progress"), chat.PlanStep("drink it")),
    pending=(chat.Pending(id="p", kind="approval", tool_call_id="c1", name="n", arguments="{}", text="sure?"),),
    reason="model calls",
    parts=PARTS,
)
BODIES = [
    chat.TextDelta("a"),
    chat.ThinkingDelta("b"),
    chat.ToolStarted("c1", "task_Task_Create"),
    chat.ToolInput("c1", '{"ti'),
    chat.ToolDone(CALL),
    chat.StatusNote("waiting"),
    chat.PlanChanged(REPLY.plan),
    chat.PendingRaised(REPLY.pending[0]),
    chat.Completed(REPLY),
]


def through(sent: message.Message) -> message.Message:
    """`sent` as the other end reads it."""
    return type(sent).FromString(sent.SerializeToString())


def test_a_reply_arrives_as_it_was() -> None:
    assert wire.from_response(pb.ChatResponse.FromString(wire.to_response(REPLY).SerializeToString())) == REPLY


def test_unknown_usage_stays_unknown_and_zero_stays_zero() -> None:
    usage = wire.from_response(wire.to_response(REPLY)).usage
    assert (usage.input, usage.cached) == (0, None)


def test_a_request_arrives_with_its_call_and_the_envelope_beside_it() -> None:
    call = chat.Call(
        session="s", request_id="q", parts=PARTS, context={"n": 3, "half": 0.5, "deep": {"list": [None, True, "x"]}}
    )
    envelope = Envelope(path=("a",))
    sent = pb.ChatRequest.FromString(wire.to_request("hello", call).SerializeToString())
    text, arrived = wire.from_request(sent, envelope)
    assert text == "hello"
    assert arrived == chat.Call(session="s", request_id="q", parts=PARTS, context=call.context, envelope=envelope)


def test_no_context_and_an_empty_one_are_told_apart() -> None:
    contexts: tuple[dict[str, object] | None, ...] = (None, {})
    for context in contexts:
        assert wire.from_request(wire.to_request("m", chat.Call(context=context)), Envelope())[1].context == context


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_an_event_of_each_kind_arrives_as_it_was(body: chat.Body) -> None:
    event = chat.Event(3, "r1", body, parent_tool_id="c0")
    assert wire.from_event(pb.ChatEvent.FromString(wire.to_event(event).SerializeToString())) == event


def test_a_failure_arrives_as_the_same_type_with_its_wait() -> None:
    error = errors.ModelRate("slow down", retry_after=1.5)
    sent = wire.to_event(chat.Event(1, "r", chat.Failed(error)))
    assert sent.error.status == "RESOURCE_EXHAUSTED"
    body = wire.from_event(sent).body
    assert isinstance(body, chat.Failed)
    assert type(body.error) is errors.ModelRate
    assert (body.error.message, body.error.retry_after) == ("slow down", 1.5)


def test_a_foreign_failure_arrives_with_its_own_status() -> None:
    sent = wire.to_error(errors.CallFailed("no", status=grpc.StatusCode.DATA_LOSS))
    assert wire.from_error(sent).status is grpc.StatusCode.DATA_LOSS


def test_history_and_description_arrive_as_they_were() -> None:
    time = datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC)
    messages = (
        chat.Message(role="user", text="hi", parts=PARTS, time=time),
        chat.Message(role="assistant", tool_calls=(CALL,), run_id="r1"),
        chat.Message(role="tool", text="done", tool_call_id="c1"),
    )
    history = chat.History(messages, REPLY.plan, "next")
    assert wire.from_history(wire.to_history(history)) == history
    for can_invoke in (None, (), ("clerk",)):
        said = chat.Description(
            name="a",
            type="agent",
            description="d",
            services=("task",),
            model="m",
            version="1",
            tools=("t",),
            can_invoke=can_invoke,
        )
        assert wire.from_description(wire.to_description(said)) == said


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        ("a\ud83d", "a�"),
        ("\udca9a", "�a"),
        ("\udca9\ud83d", "��"),
        ("\ud83d\udca9", "💩"),
        ("a\0b", "a�b"),
        ("💩", "💩"),
    ],
)
def test_text_leaves_and_arrives_sane(broken: str, mended: str) -> None:
    call = chat.ToolCall(id="c", name=broken, arguments=broken, result=broken, error=broken)
    reply = chat.Reply(text=broken, agent="a", tool_calls=(call,), reason=broken, plan=(chat.PlanStep(broken),))
    sent = wire.to_response(reply)
    through(sent)
    assert {sent.reply, sent.reason, sent.plan.steps[0].task} == {mended}
    done = sent.tool_calls[0]
    assert {done.name, done.arguments, done.result, done.error} == {mended}
    request = wire.to_request(broken, chat.Call(parts=(chat.Part(text=broken),), context={broken: [broken]}))
    through(request)
    text, arrived = wire.from_request(request, Envelope())
    assert (text, arrived.parts[0].text, arrived.context) == (mended, mended, {mended: [mended]})
    assert wire.to_event(chat.Event(1, "r", chat.TextDelta(broken))).text == mended
    assert wire.to_error(errors.Invalid(broken)).message == mended


def test_a_nul_that_another_client_sent_is_mended() -> None:
    assert wire.from_request(pb.ChatRequest(message="a\0b"), Envelope())[0] == "a�b"


@pytest.mark.parametrize("part", [pb.Part(), pb.Part(image=pb.Blob(mime="image/png"))])
def test_an_empty_part_is_refused_by_name(part: pb.Part) -> None:
    with pytest.raises(errors.Invalid) as caught:
        wire.from_request(pb.ChatRequest(parts=[part]), Envelope())
    assert caught.value.facts["field"] == "parts"


@pytest.mark.parametrize("context", [{"when": datetime.now(UTC)}, {"n": float("nan")}, {"s": {1, 2}}])
def test_a_context_that_is_not_json_is_refused_by_name(context: dict[str, object]) -> None:
    with pytest.raises(errors.Invalid) as caught:
        wire.to_request("m", chat.Call(context=context))
    assert caught.value.facts["field"] == "context"


def test_a_number_that_json_does_not_have_is_refused_on_arrival() -> None:
    request = pb.ChatRequest(message="m")
    request.context.fields["n"].number_value = float("inf")
    with pytest.raises(errors.Invalid):
        wire.from_request(request, Envelope())


def test_what_a_later_version_sends_is_refused_in_words() -> None:
    with pytest.raises(errors.Unsupported):
        wire.from_event(pb.ChatEvent(seq=1))
    with pytest.raises(errors.Unsupported):
        wire.from_response(pb.ChatResponse.FromString(bytes([6 << 3, 99])))


@pytest.mark.parametrize("usage", [Usage(), Usage(model_calls=1), Usage(input=3, output=0, reasoning=1, model_calls=2)])
def test_usage_travels_in_a_trailer(usage: Usage) -> None:
    assert wire.usage_of_trailers([("other", "x"), *wire.usage_trailer(usage)]) == usage


def test_a_bad_usage_trailer_is_passed_over() -> None:
    assert wire.usage_of_trailers([(wire.USAGE, "calls=x,input=-1,,=3")]) == Usage()
