"""The framing of server-sent events and of lines of JSON, where the standard and real servers differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retinue.agent.model.ndjson import NdjsonReader
from retinue.agent.model.sse import ServerEvent, SseReader, TooLarge


def read(*chunks: bytes) -> list[ServerEvent]:
    reader = SseReader()
    return [event for chunk in chunks for event in reader.feed(chunk)] + list(reader.close())


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("data: a\n\n", ["a"]),
        ("data:a\r\n\r\ndata:  b\r\r", ["a", " b"]),
        ("data: a\ndata: b\n\n", ["a\nb"]),
        (": comment\n\ndata: a\n\n", ["a"]),
        ("data: : keep-alive\n\ndata: a\n\n", ["a"]),
        ("retry: 5\n\nid: 7\n\ndata:\n\ndata: a\n\n", ["a"]),
        ("data: a\u2028b\u2029c\u0085d\x0be\x0cf\n\n", ["a\u2028b\u2029c\u0085d\x0be\x0cf"]),
        ('data: {"a": 1}', ['{"a": 1}']),
        ('data: {"a": 1}\r', ['{"a": 1}']),
        ("data: [DONE]", ["[DONE]"]),
        ('data: 1\n\n{"error": {\n  "code": 500\n}}\n', ["1", '{"error": {\n  "code": 500\n}}']),
        ("data: 1\n\n{nonsense\n\ndata: 2\n\n", ["1", "2"]),
        ('{"error": 1}\ndata: [DONE]\n\n', ['{"error": 1}', "[DONE]"]),
        ('data: 1\n{\n"error": 1\n}\n: busy\ndata: 2\n\n', ["1", '{\n"error": 1\n}', "2"]),
        ('data: {"a": \n', []),
        ('data: {"a": 1', []),
        ("", []),
    ],
)
def test_events_are_read_alike_however_they_are_split(text: str, data: list[str]) -> None:
    raw = text.encode()
    assert [event.data for event in read(raw)] == data
    for size in (1, 2, 3):
        assert [event.data for event in read(*(raw[at : at + size] for at in range(0, len(raw), size)))] == data


def test_an_event_has_its_own_name_and_no_other() -> None:
    assert read(b"event: error\ndata: a\n\ndata: b\n\n") == [ServerEvent("error", "a"), ServerEvent("", "b")]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"a": 1}\n{"b": "é\u2028"}\n', ['{"a": 1}', '{"b": "é\u2028"}']),
        ('{"a": 1}\r\n\n  \n{"b": 2}', ['{"a": 1}', '{"b": 2}']),
        ('{"a": 1}\n{"b": ', ['{"a": 1}']),
        ('{"a": 1}\n{\n "b": {\n }\n}\n', ['{"a": 1}', '{\n "b": {\n }\n}']),
        ('{"a": 1}\nnonsense\n{"b": 2}\n', ['{"a": 1}']),
        ("", []),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_of_json_are_read_alike_however_they_are_split(text: str, lines: list[str], size: int) -> None:
    reader, raw = NdjsonReader(), text.encode()
    seen = [event for at in range(0, len(raw), size) for event in reader.feed(raw[at : at + size])]
    assert [event.data for event in [*seen, *reader.close()]] == lines


@pytest.mark.parametrize(
    ("reader", "chunk"),
    [(SseReader, b"data: xxxx\n"), (SseReader, b"data: xxxx"), (SseReader, b"{xx\n"), (NdjsonReader, b"{")],
)
def test_an_event_without_end_is_stopped_at_its_limit(reader: Callable[..., Any], chunk: bytes) -> None:
    limited = reader(event_bytes=100)
    with pytest.raises(TooLarge, match="100 bytes"):
        for _ in range(150):
            list(limited.feed(chunk))


@pytest.mark.parametrize(("reader", "chunk"), [(SseReader, b": keep-alive\n\n"), (NdjsonReader, b"\n\n\n")])
def test_a_stream_without_end_is_stopped_at_its_limit(reader: Callable[..., Any], chunk: bytes) -> None:
    limited = reader(stream_bytes=100)
    with pytest.raises(TooLarge, match="100 bytes"):
        for _ in range(50):
            list(limited.feed(chunk))
