"""What the dialects make of answers that no recorded case shows: pauses, refusals, errors on the way, images, ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retinue.agent.testing import decode


def sse(*values: Any) -> str:
    return "".join(f"data: {json.dumps(value)}\n\n" for value in values)


def seen(provider: str, body: str, *, kind: str = "stream", status: int = 200, **headers: str) -> dict[str, Any]:
    content = {
        "unary": "application/json",
        "stream": "application/x-ndjson" if provider == "ollama" else "text/event-stream",
        "error": "application/json",
    }[kind]
    case = {"provider": provider, "kind": kind, "http_status": status, "body": body}
    return decode(case | {"headers": {"content-type": content} | headers})


def anthropic(*blocks: dict[str, Any], stop: str, **more: Any) -> str:
    return json.dumps({"type": "message", "content": list(blocks), "stop_reason": stop, **more})


def gemini(*parts: dict[str, Any], finish: str = "STOP", **candidate: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": finish, **candidate}]}


SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}


def test_a_paused_message_keeps_what_the_server_did_itself_and_calls_nothing() -> None:
    said = seen(
        "anthropic", anthropic({"type": "text", "text": "Wait."}, SEARCH, FOUND, stop="pause_turn"), kind="unary"
    )
    assert (said["stop"], said["text"], said["tool_calls"]) == ("pause", "Wait.", [])
    assert said["echo_content"] == [{"type": "text", "text": "Wait."}, SEARCH, FOUND]


def test_the_input_of_a_servers_own_tool_is_put_together_too() -> None:
    start = {"type": "content_block_start", "index": 0, "content_block": {**SEARCH, "input": {}}}
    pieces = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}}
        for piece in ("", '{"query": ', '"x"}')
    ]
    stop = [{"type": "message_delta", "delta": {"stop_reason": "pause_turn"}}, {"type": "message_stop"}]
    assert seen("anthropic", sse(start, *pieces, *stop))["echo_content"] == [SEARCH]


@pytest.mark.parametrize(("blocks", "text"), [([], ""), ([{"type": "text", "text": "I begin"}], "I begin")])
def test_a_refusal_says_why(blocks: list[dict[str, Any]], text: str) -> None:
    details = {"type": "refusal", "explanation": "Not that."}
    said = seen("anthropic", anthropic(*blocks, stop="refusal", stop_details=details), kind="unary")
    assert (said["stop"], said["text"], said["refusal"]) == ("refusal", text, "Not that.")


def test_thinking_without_a_signature_and_blank_text_do_not_go_back() -> None:
    blocks = [{"type": "thinking", "thinking": "Hm", "signature": ""}, {"type": "text", "text": " \n"}]
    call = {"type": "tool_use", "id": "t1", "name": "a", "input": {}}
    said = seen("anthropic", anthropic(*blocks, call, stop="tool_use"), kind="unary")
    assert (said["reasoning"], said["echo_content"]) == ("Hm", [call])


def test_two_calls_of_one_id_get_two() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "a", "input": {}}
    said = seen("anthropic", anthropic(call, call, stop="tool_use"), kind="unary")
    assert said["tool_call_ids"] == [block["id"] for block in said["echo_content"]] == ["t1", "call_1"]


ERRORS = [
    ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, "overloaded", True),
    (
        "anthropic",
        {"type": "error", "error": {"type": "invalid_request_error", "message": "x"}},
        "invalid_request",
        False,
    ),
    ("anthropic", {"type": "error", "error": {"type": "rate_limit_error", "message": "x"}}, "rate_limited", True),
    ("gemini", {"error": {"code": 503, "status": "UNAVAILABLE", "message": "x"}}, "overloaded", True),
    ("gemini", [{"error": {"code": 500, "status": "INTERNAL", "message": "x"}}], "server_error", True),
    ("gemini", gemini(finish="MALFORMED_FUNCTION_CALL", finishMessage="x"), "malformed_tool_call", True),
    ("gemini", gemini(finish="OTHER"), "server_error", True),
    ("openai", {"choices": [{"error": {"code": 502, "message": "x"}, "finish_reason": "error"}]}, "server_error", True),
]


@pytest.mark.parametrize(("provider", "value", "kind", "retryable"), ERRORS)
def test_an_error_inside_a_stream_ends_it(provider: str, value: Any, kind: str, retryable: bool) -> None:
    said = seen(provider, sse(value))
    assert (said["stop"], said["error_class"], said["retryable"]) == ("error", kind, retryable)


def test_an_error_in_bare_json_inside_a_stream_is_seen() -> None:
    body = sse(gemini({"text": "Half"}, finish="")) + json.dumps({"error": {"code": 429, "message": "x"}}, indent=1)
    said = seen("gemini", body)
    assert (said["text"], said["error_class"]) == ("Half", "rate_limited")


def test_an_error_line_ends_an_answer_in_lines() -> None:
    body = '{"message": {"content": "Half"}, "done": false}\n{"error": "the runner died"}\n'
    said = seen("ollama", body)
    assert (said["text"], said["stop"], said["error_class"]) == ("Half", "error", "server_error")


def test_a_stream_of_gemini_may_come_as_one_list() -> None:
    chunks = [gemini({"text": "a"}, finish=""), gemini({"text": "b"})]
    assert seen("gemini", json.dumps(chunks), kind="unary")["text"] == "ab"
    assert seen("gemini", json.dumps(chunks[:1]), kind="unary")["error_class"] == "truncated"


@pytest.mark.parametrize(
    ("detail", "text", "wait"),
    [
        ({"retryDelay": "45.8s"}, "x", 45.8),
        ({"retryDelay": "900ms"}, "x", 0.9),
        ({}, "x. Please retry in 7.5s.", 7.5),
        ({"violations": [{"quotaId": "RequestsPerMinutePerProject"}]}, "x", 60.0),
    ],
)
def test_gemini_says_how_long_to_wait_in_its_body(detail: dict[str, Any], text: str, wait: float) -> None:
    body = json.dumps([{"error": {"code": 429, "message": text, "details": [detail]}}])
    said = seen("gemini", body, kind="error", status=429)
    assert (said["error_class"], said["retry_after_s"]) == ("rate_limited", wait)


def test_a_servers_own_word_decides_whether_to_ask_again() -> None:
    assert not seen("openai", "{}", kind="error", status=500, **{"x-should-retry": "false"})["retryable"]
    assert seen("openai", "{}", kind="error", status=500)["retryable"]


def test_long_numbers_in_arguments_stay_whole() -> None:
    args = {"n": 123456789012345678901234567890}
    said = seen("gemini", sse(gemini({"functionCall": {"name": "a", "args": args}})))
    assert said["tool_calls"] == [{"name": "a", "arguments": args}]
    line = {"message": {"tool_calls": [{"function": {"name": "a", "arguments": args}}]}, "done": True}
    assert seen("ollama", json.dumps(line))["tool_calls"] == [{"name": "a", "arguments": args}]


def test_a_web_page_is_no_answer() -> None:
    case = {"provider": "gemini", "kind": "stream", "http_status": 200, "headers": {"content-type": "text/html"}}
    assert decode(case | {"body": "<html>"})["error_class"] == "server_error"
