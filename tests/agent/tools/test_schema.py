"""JSON Schemas from descriptors of a foreign pool: what a model is told fits what proto JSON takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from jsonschema import Draft202012Validator
from kit.protos import compile_pool

from office.v1 import task_pb2
from retinue.agent.tools.schema import MOST_FIELDS, schema_of
from retinue.v1 import agent_pb2

PROBE = """
syntax = "proto3";
package probe.v1;
import "google/api/field_behavior.proto";
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/empty.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "retinue/v1/options.proto";

enum Size { SIZE_UNSPECIFIED = 0; SMALL = 1; LARGE = 2; }

message Scalars {
  int32 i32 = 1; uint32 u32 = 2; int64 i64 = 3; fixed64 f64 = 4; double real = 5; float single = 6;
  bool yes = 7; string text = 8; bytes raw = 9; Size size = 10;
  repeated sint64 many = 11; optional string maybe = 12; string twoWords = 13;
}
message Maps {
  map<string, Inner> inner = 1; map<int64, int64> numbers = 2; map<bool, Size> sizes = 3 [
    (retinue.v1.field_description) = "How large each is."];
}
message Inner { string name = 1; }
message Choice {
  oneof way { string road = 1; Inner rail = 2; }
  oneof single { string only = 3; }
  optional string maybe = 4;
}
message Described {
  string first = 1 [(retinue.v1.field_description) = "The first. Required."];
  string second = 2 [(google.api.field_behavior) = REQUIRED];
  string third = 3 [(retinue.v1.field_description) = "Not Required. Or so."];
  Inner inner = 4 [(retinue.v1.field_description) = "Inside.", (google.api.field_behavior) = REQUIRED];
  repeated Inner more = 5 [(retinue.v1.field_description) = "Further ones."];
  bytes raw = 6 [(retinue.v1.field_description) = "A picture."];
}
message WellKnown {
  google.protobuf.Timestamp at = 1; google.protobuf.Duration lasts = 2; google.protobuf.Struct data = 3;
  google.protobuf.Value value = 4; google.protobuf.ListValue list = 5; google.protobuf.Int64Value long = 6;
  google.protobuf.StringValue text = 7; google.protobuf.BoolValue yes = 8; google.protobuf.Empty empty = 9;
  google.protobuf.FieldMask mask = 10; google.protobuf.Any any = 11; google.protobuf.NullValue nothing = 12;
  repeated google.protobuf.Timestamp times = 13; google.protobuf.BytesValue raw = 14;
}
message Tree { string name = 1; repeated Tree children = 2; map<string, Tree> by_name = 3; }
message Ping { string text = 1; Pong pong = 2; }
message Pong { Ping ping = 1; }
message Wide {
  A a = 1; B b = 2; C c = 3;
}
message A { Wide w = 1; A a = 2; B b = 3; C c = 4; D d = 5; E e = 6; }
message B { Wide w = 1; A a = 2; B b = 3; C c = 4; D d = 5; E e = 6; }
message C { Wide w = 1; A a = 2; B b = 3; C c = 4; D d = 5; E e = 6; }
message D { Wide w = 1; A a = 2; B b = 3; C c = 4; D d = 5; E e = 6; }
message E { Wide w = 1; A a = 2; B b = 3; C c = 4; D d = 5; E e = 6; }
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> DescriptorPool:
    return compile_pool(tmp_path_factory.mktemp("protos"), PROBE)


def schema(pool: DescriptorPool, name: str) -> dict[str, Any]:
    made = schema_of(pool.FindMessageTypeByName(f"probe.v1.{name}"))
    Draft202012Validator.check_schema(made)
    return made


def accepted(pool: DescriptorPool, name: str, value: dict[str, Any]) -> bool:
    """Whether the schema takes `value`; what it takes, proto JSON must take as well."""
    if not Draft202012Validator(schema(pool, name)).is_valid(value):
        return False
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"probe.v1.{name}"))()
    json_format.ParseDict(value, message, descriptor_pool=pool)
    return True


def test_scalars_enums_and_lists_are_what_proto_json_reads(pool: DescriptorPool) -> None:
    made = schema(pool, "Scalars")
    long = {"type": "string", "pattern": "^-?[0-9]+$"}
    assert made == {
        "type": "object",
        "properties": {
            "i32": {"type": "integer"},
            "u32": {"type": "integer", "minimum": 0},
            "i64": long,
            "f64": {"type": "string", "pattern": "^[0-9]+$"},
            "real": {"type": "number"},
            "single": {"type": "number"},
            "yes": {"type": "boolean"},
            "text": {"type": "string"},
            "raw": {"type": "string", "contentEncoding": "base64", "description": "Base64."},
            "size": {"type": "string", "enum": ["SIZE_UNSPECIFIED", "SMALL", "LARGE"]},
            "many": {"type": "array", "items": long},
            "maybe": {"type": "string"},
            "twoWords": {"type": "string"},
        },
        "additionalProperties": False,
    }
    assert accepted(pool, "Scalars", {"i64": "-9007199254740993", "size": "LARGE", "raw": "AAE=", "many": ["1"]})
    for wrong in ({"i64": 1}, {"i64": "1.5"}, {"f64": "-1"}, {"u32": -1}, {"size": "HUGE"}, {"unknown": 1}):
        assert not accepted(pool, "Scalars", wrong)


def test_maps_are_objects_of_their_values(pool: DescriptorPool) -> None:
    inner = {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False}
    properties = schema(pool, "Maps")["properties"]
    assert properties["inner"] == {"type": "object", "additionalProperties": inner}
    assert properties["numbers"]["description"] == "Keys are integers."
    assert properties["sizes"]["description"] == "How large each is. Keys are true and false."
    assert accepted(pool, "Maps", {"inner": {"a": {"name": "x"}}, "numbers": {"1": "2"}, "sizes": {"true": "SMALL"}})
    assert not accepted(pool, "Maps", {"inner": {"a": {"nam": "x"}}})


def test_a_oneof_says_so_in_words_that_every_provider_takes(pool: DescriptorPool) -> None:
    made = schema(pool, "Choice")
    assert made["description"] == "Set at most one of road, rail."
    assert set(made["properties"]) == {"road", "rail", "only", "maybe"}
    assert "oneOf" not in json.dumps(made)


def test_descriptions_and_required_fields_are_read_from_a_foreign_pool(pool: DescriptorPool) -> None:
    made = schema(pool, "Described")
    assert made["required"] == ["first", "second", "inner"]
    said = {name: value.get("description") for name, value in made["properties"].items()}
    assert said == {
        "first": "The first. Required.",
        "second": None,
        "third": "Not Required. Or so.",
        "inner": "Inside.",
        "more": "Further ones.",
        "raw": "A picture. Base64.",
    }


def test_well_known_types_have_their_proto_json_form(pool: DescriptorPool) -> None:
    value = {
        "at": "2026-01-31T09:30:00Z",
        "lasts": "1.5s",
        "data": {"a": [1, None]},
        "value": ["any"],
        "list": [1, "x"],
        "long": "12",
        "text": None,
        "yes": True,
        "empty": {},
        "mask": "title,dueDate",
        "any": {"@type": "type.googleapis.com/probe.v1.Inner", "name": "x"},
        "nothing": None,
        "times": ["2026-01-31T09:30:00Z"],
        "raw": "AAE=",
    }
    properties = schema(pool, "WellKnown")["properties"]
    assert properties["at"]["format"] == "date-time"
    assert properties["long"]["type"] == ["string", "null"]
    assert properties["value"] == {}
    assert "@type" in properties["any"]["description"]
    assert accepted(pool, "WellKnown", value)
    wrongs: list[dict[str, Any]] = [{"lasts": "90"}, {"data": []}, {"empty": {"x": 1}}, {"list": {}}, {"long": 12}]
    for wrong in wrongs:
        assert not accepted(pool, "WellKnown", wrong)


def test_a_message_that_holds_itself_is_spelled_out_to_a_bounded_depth(pool: DescriptorPool) -> None:
    made = schema(pool, "Tree")
    depth, place = 0, made
    while "properties" in place:
        assert place["properties"]["by_name"]["type"] == "object"
        depth, place = depth + 1, place["properties"]["children"]["items"]
    assert depth == 3
    assert place == {"type": "object", "description": "A probe.v1.Tree, in proto JSON."}
    deep: dict[str, Any] = {"name": "leaf"}
    for _ in range(10):
        deep = {"name": "branch", "children": [deep]}
    assert accepted(pool, "Tree", deep)


def test_messages_that_hold_each_other_end_as_well(pool: DescriptorPool) -> None:
    text = json.dumps(schema(pool, "Ping"))
    assert text.count('"text"') == 3
    assert "$ref" not in text


def test_a_wide_web_of_messages_stays_within_the_field_limit(pool: DescriptorPool) -> None:
    def count(place: dict[str, Any]) -> int:
        inner = place.get("properties", {}).values()
        return len(inner) + sum(count(value) for value in inner)

    made = schema(pool, "Wide")
    assert 100 < count(made) <= MOST_FIELDS
    assert all("properties" in made["properties"][name] for name in "abc")


def test_a_root_that_is_no_object_in_json_says_so(pool: DescriptorPool) -> None:
    assert schema_of(pool.FindMessageTypeByName("google.protobuf.StringValue"))["type"] == ["string", "null"]
    assert schema_of(pool.FindMessageTypeByName("google.protobuf.Struct")) == {"type": "object"}
    assert schema_of(pool.FindMessageTypeByName("google.protobuf.Empty")) == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


@pytest.mark.parametrize("name", sorted(agent_pb2.DESCRIPTOR.message_types_by_name))
def test_every_message_of_our_own_wire_has_a_valid_schema(name: str) -> None:
    Draft202012Validator.check_schema(schema_of(agent_pb2.DESCRIPTOR.message_types_by_name[name]))


def test_a_schema_is_a_fresh_object_each_time() -> None:
    first = schema_of(task_pb2.CreateTaskRequest.DESCRIPTOR)
    assert first["required"] == ["title"]
    first["properties"]["title"]["type"] = "changed"
    assert schema_of(task_pb2.CreateTaskRequest.DESCRIPTOR)["properties"]["title"]["type"] == "string"
