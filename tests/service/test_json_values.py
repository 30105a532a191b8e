"""JSON that protobuf's own reader would take for what it is not is refused, by field, and good JSON is not."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kit.protos import compile_pool

from retinue.service.client.endpoints import Endpoint, Endpoints
from retinue.service.client.metadata import check_metadata
from retinue.service.errors import Invalid

PROTO = """
syntax = "proto3";
package probe;
import "google/protobuf/duration.proto";
import "google/protobuf/empty.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Colour { RED = 0; BLUE = 1; }
message Inner { double weight = 1; Colour colour = 2; }
message Thing {
  int32 count = 1; double weight = 2; Colour colour = 3; Inner inner = 4; repeated Inner list = 5;
  map<string, double> weights = 6; bytes raw = 7; google.protobuf.Timestamp time = 8; google.protobuf.Empty none = 9;
  google.protobuf.DoubleValue maybe = 10; google.protobuf.Value free = 11; repeated Colour colours = 12;
  google.protobuf.Struct more = 13; string named = 14 [json_name = "other"]; map<string, Inner> by_key = 15;
  google.protobuf.Duration wait = 16; google.protobuf.BytesValue some_raw = 17;
}
service Box { rpc Put(Thing) returns (Thing); }
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Endpoint:
    folder: Path = tmp_path_factory.mktemp("protos")
    pool = compile_pool(folder, PROTO)
    return Endpoints.of("box", [pool.FindServiceByName("probe.Box")]).find("Box.Put")


@pytest.mark.parametrize(
    ("data", "field", "says"),
    [
        ({"weight": True}, "weight", "a number, not true"),
        ({"count": False}, "count", "a whole number"),
        ({"colour": True}, "colour", "one of RED, BLUE, not true"),
        ({"colour": 1.5}, "colour", "one of RED, BLUE, not 1.5"),
        ({"colour": "1"}, "colour", "one of RED, BLUE, not '1'"),
        ({"colours": ["RED", False]}, "colours[1]", "one of RED, BLUE, not false"),
        ({"inner": []}, "inner", "an object, not an array"),
        ({"inner": ""}, "inner", "an object, not ''"),
        ({"list": [{}, []]}, "list[1]", "an object, not an array"),
        ({"list": [{"weight": True}]}, "list[0].weight", "a number, not true"),
        ({"weights": {"a": 1, "b": True}}, "weights.b", "a number, not true"),
        ({"by_key": {"a": []}}, "by_key.a", "an object, not an array"),
        ({"by_key": {"a": {"colour": True}}}, "by_key.a.colour", "one of RED, BLUE, not true"),
        ({"raw": "no base64!"}, "raw", "bytes in base64, not 'no base64!'"),
        ({"raw": "AAA=="}, "raw", "bytes in base64"),
        ({"raw": [0, 1]}, "raw", "bytes in base64"),
        ({"some_raw": "?"}, "some_raw", "a BytesValue, not '?'"),
        ({"time": 7}, "time", "a Timestamp"),
        ({"wait": True}, "wait", "a Duration"),
        ({"none": []}, "none", "an object, not an array"),
        ({"maybe": True}, "maybe", "a DoubleValue, not true"),
        ({"count": 10**30}, "count", "a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused_by_field(
    endpoint: Endpoint, data: Mapping[str, Any], field: str, says: str
) -> None:
    with pytest.raises(Invalid) as caught:
        endpoint.request(data)
    assert caught.value.facts == {"field": field}
    assert f"field {field!r} must be {says}" in caught.value.message


@pytest.mark.parametrize(
    "data",
    [
        {"weight": 1, "count": "7", "colour": 1, "inner": {}, "list": [], "weights": {"a": "NaN"}},
        {"weight": "1e3", "count": 7.0, "colour": "BLUE", "inner": None, "free": [], "more": {"a": True}},
        {"time": "2026-01-02T03:04:05Z", "wait": "1.5s", "none": {}, "maybe": 1.5, "free": True, "other": "x"},
        {"colours": [0, "BLUE"], "by_key": {"a": {}}, "colour": 7, "free": None, "some_raw": "AA"},
    ],
)
def test_what_the_json_of_protobuf_allows_is_taken(endpoint: Endpoint, data: Mapping[str, Any]) -> None:
    assert endpoint.request(data).IsInitialized()


@pytest.mark.parametrize("text", ["", "AA", "AA==", "-_8", "+/8=", "AAE="])
def test_base64_is_taken_in_both_alphabets_and_without_padding(endpoint: Endpoint, text: str) -> None:
    padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
    request: Any = endpoint.request({"raw": text})
    assert request.raw == base64.b64decode(padded.replace("-", "+").replace("_", "/"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"count": 1, "count": 2}', "'count' twice"),
        ('{"inner": {"weight": 1, "weight": 1}}', "'weight' twice"),
        ('{"count": ' + "9" * 5000 + "}", "cannot be read|can be read"),
        ('{"free": ' + "[" * 600 + "]" * 600 + "}", "nested too deeply|Message too deep"),
    ],
)
def test_json_that_would_lose_or_break_something_is_refused(endpoint: Endpoint, text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        endpoint.request(text)


@pytest.mark.parametrize("text", ["AAE=", "AAE"])
def test_the_text_of_a_bin_key_is_its_base64(text: str) -> None:
    assert check_metadata([("x-bin", text), ("y-bin", b"raw")]) == [("x-bin", b"\0\1"), ("y-bin", b"raw")]


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        (("x-bin", "no base64!"), "written in base64"),
        (("x-bin", "A"), "written in base64"),
        (("x-a", "x" * 9000), "the metadata has 9035 bytes, most of them in 'x-a'"),
        (("X" * 5000, "x"), "use a-z"),
    ],
)
def test_metadata_that_grpc_would_choke_on_is_invalid(pair: tuple[str, str], says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        check_metadata([("x-b", "1"), pair] if pair[0] != "x-a" else [pair])
    assert len(caught.value.message) < 300
