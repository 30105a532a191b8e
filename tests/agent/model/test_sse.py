"""The framing of server-sent events, where the standard and real servers differ."""

from __future__ import annotations

import pytest

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
        ("\ufeffdata: a\n\n", ["a"]),
        (": comment\n\ndata: a\n\n", ["a"]),
        ("data: : keep-alive\n\ndata: a\n\n", ["a"]),
        ("retry: 5\n\nid: 7\n\ndata:\n\ndata: a\n\n", ["a"]),
        ("data: a\u2028b\u2029c\u0085d\x0be\x0cf\n\n", ["a\u2028b\u2029c\u0085d\x0be\x0cf"]),
        ('data: {"a": 1}', ['{"a": 1}']),
        ('data: {"a": 1}\r', ['{"a": 1}']),
        ("data: [DONE]", ["[DONE]"]),
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


@pytest.mark.parametrize("chunk", [b"data: xxxx\n", b"data: xxxx"])
def test_an_event_without_end_is_stopped_at_its_limit(chunk: bytes) -> None:
    reader = SseReader(event_bytes=100)
    with pytest.raises(TooLarge, match="100 bytes"):
        for _ in range(50):
            list(reader.feed(chunk))


def test_a_stream_without_end_is_stopped_at_its_limit() -> None:
    reader = SseReader(stream_bytes=100)
    with pytest.raises(TooLarge, match="100 bytes"):
        for _ in range(50):
            list(reader.feed(b": keep-alive\n\n"))
