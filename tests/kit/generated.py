"""Requests, metadata and settings that nobody would think of: strategies for hypothesis, and how many examples to take.

What is made is right as often as wrong, so that a test meets both what is refused and what runs.
"""

from __future__ import annotations

import os
from typing import Any, TypeAlias

from google.protobuf import struct_pb2
from google.protobuf.message import Message
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from retinue.v1 import agent_pb2 as pb

Pair: TypeAlias = tuple[str, str | bytes]

ALL = os.environ.get("FAULTS") == "all"
METHODS: dict[str, type[Message]] = {
    "Chat": pb.ChatRequest,
    "StreamChat": pb.ChatRequest,
    "FollowUp": pb.FollowUpRequest,
    "Resolve": pb.ResolveRequest,
    "Cancel": pb.CancelRequest,
    "GetRun": pb.GetRunRequest,
    "WatchRun": pb.WatchRunRequest,
    "GetHistory": pb.GetHistoryRequest,
    "ClearHistory": pb.ClearHistoryRequest,
    "Describe": pb.DescribeRequest,
}
STREAMS = frozenset(("StreamChat", "WatchRun"))
# Stands for the id of a run that there is, and is as long: who sends the request puts one in.
KNOWN_RUN = f"run-{'k' * 32}"

texts = st.text(st.characters(codec="utf-8"), max_size=30)
_names = st.sampled_from(["clerk", "mailer", "router", "nobody", "Not A Name", "x" * 64, ""])
_sessions = st.sampled_from(["", "default", "ada", "bob", "a~b", "no spaces", "s" * 128, "s" * 129, "{x}", "%0a"])
_ids = st.sampled_from(["", "q1", "q2", "q" * 256, "q" * 257, "not one"])
_messages = st.sampled_from(["", " ", "hello", "@clerk hello", "@nobody hello", "@", "/", "x" * 5000, "\0", "👩‍👩‍👧"])
_runs = st.sampled_from(["", KNOWN_RUN, KNOWN_RUN, "r1", "r" * 201, "no id!", "a:b~c", "{x}"])
_TEXTS = {
    "session": _sessions,
    "request_id": _ids,
    "message": _messages,
    "run_id": _runs,
    "pending_id": _runs,
    "page_token": st.sampled_from(
        ["", "0", "1", "2", "-1", "9" * 18, "9" * 20, "9" * 60, "9" * 5000, "x", "1.5", "MQ=="]
    ),
}


def examples(ordinary: int, all_of_them: int) -> settings:
    """So many examples in an ordinary run, always the same; so many others under FAULTS=all."""
    return settings(
        max_examples=all_of_them if ALL else ordinary,
        derandomize=not ALL,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def messages(kind: type[Message]) -> st.SearchStrategy[Any]:
    """Messages of a kind, any of their fields set."""
    if kind is struct_pb2.Struct:
        return st.dictionaries(texts, _values, max_size=3).map(lambda fields: struct_pb2.Struct(fields=fields))
    fields = {field.name: _field(kind, field) for field in kind.DESCRIPTOR.fields}
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: _of(kind, given))


def _of(kind: type[Message], given: dict[str, Any]) -> Message:
    return kind(**given)


def _field(kind: type[Message], field: Any) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        inner = messages(type(getattr(kind(), field.name)) if not field.is_repeated else pb.Part)
        return st.lists(inner, max_size=3) if field.is_repeated else inner
    numbers = {field.CPPTYPE_INT32: 31, field.CPPTYPE_INT64: 63}
    if bits := numbers.get(field.cpp_type):
        limit = 2**bits
        return st.sampled_from([0, 1, 2, -1, 100, limit - 1, -limit]) | st.integers(-limit, limit - 1)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return st.booleans()
    if field.type == field.TYPE_BYTES:
        return st.binary(max_size=40)
    return st.one_of(_TEXTS[field.name], _TEXTS[field.name], texts) if field.name in _TEXTS else texts


_values: st.SearchStrategy[struct_pb2.Value] = st.recursive(
    st.one_of(
        st.just(struct_pb2.Value()),
        st.booleans().map(lambda value: struct_pb2.Value(bool_value=value)),
        st.floats().map(lambda value: struct_pb2.Value(number_value=value)),
        texts.map(lambda value: struct_pb2.Value(string_value=value)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: struct_pb2.Value(list_value=struct_pb2.ListValue(values=each))),
        st.dictionaries(texts, inner, max_size=3).map(
            lambda fields: struct_pb2.Value(struct_value=struct_pb2.Struct(fields=fields))
        ),
    ),
    max_leaves=6,
)


def broken(raw: bytes) -> st.SearchStrategy[bytes]:
    """Bytes that were `raw` once: cut, or with something else in their midst."""
    at = st.integers(0, len(raw))
    return st.one_of(
        at.map(lambda end: raw[:end]),
        st.tuples(at, st.binary(min_size=1, max_size=4)).map(lambda cut: raw[: cut[0]] + cut[1] + raw[cut[0] + 1 :]),
        st.binary(max_size=40),
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    """A method of Agent, and the bytes of a request for it, one in six of them broken."""
    method = draw(st.sampled_from(sorted(METHODS)))
    raw = draw(messages(METHODS[method])).SerializeToString()
    return method, draw(broken(raw)) if draw(st.integers(0, 5)) == 0 else raw


_printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
_paths = st.lists(_names, max_size=10).map(",".join)
_budgets = st.sampled_from(
    [
        "calls=3,depth=2",
        "calls=0",
        "depth=0",
        "tokens=0",
        "calls=-1",
        "calls=many",
        "calls",
        "calls=" + "9" * 30,
        "depth=" + "9" * 30,
        "tokens=" + "9" * 30,
        "calls=" + "9" * 5000,
        "calls=1_0",
        ",=,",
        "other=1",
    ]
)
# What the mesh's own keys may hold, right and wrong, and keys of others.
_own: st.SearchStrategy[Pair] = st.one_of(
    st.tuples(st.just("retinue-to"), _names),
    st.tuples(st.just("retinue-path"), _paths | _printable),
    st.tuples(st.sampled_from(["retinue-root", "retinue-parent"]), _runs | _printable),
    st.tuples(st.just("retinue-budget"), _budgets | _printable),
    st.tuples(st.just("traceparent"), _printable | st.just("00-" + "a" * 32 + "-" + "b" * 16 + "-01")),
)
_others: st.SearchStrategy[Pair] = st.one_of(
    st.tuples(st.sampled_from(["x-a", "authorization", "cookie", "user-agent", ".", "_"]), _printable),
    st.tuples(st.sampled_from(["x-bin", "retinue-path-bin", "retinue-budget-bin"]), st.binary(max_size=40)),
)
# What gRPC itself can carry: beyond 8 KiB it refuses a call by chance, before any of our code.
metadata: st.SearchStrategy[list[Pair]] = st.lists(_own | _others, max_size=4).filter(
    lambda pairs: sum(len(value) for _, value in pairs) < 7000
)
# What somebody may give to our client, which gRPC may choke on.
odd_metadata: st.SearchStrategy[list[Pair]] = st.lists(
    _own | _others | st.tuples(texts | st.sampled_from(["grpc-x", "te", "x-bin", "host"]), texts | st.binary()),
    max_size=3,
)
