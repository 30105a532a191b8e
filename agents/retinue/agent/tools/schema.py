"""The JSON Schema of a protobuf message, as a model needs it to fill one in: proto field names, proto JSON values.

It is made from descriptors alone, which may come from another pool than the generated code's. It uses no `$ref`,
`oneOf` or `anyOf`, which not every model server takes.

proto3 knows no required fields. A field counts as required when proto2 says so, when it has the option
`(google.api.field_behavior) = REQUIRED`, or when its `(retinue.v1.field_description)` ends in "Required.".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.api import field_behavior_pb2  # type: ignore[import-untyped]
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldOptions

from retinue.agent.tools.annotation import object_schema
from retinue.v1 import options_pb2

# How often a message may hold itself before it is only named, and how many fields one schema spells out in all.
REPEATS = 2
MOST_FIELDS = 512

_INT = {"type": "integer"}
_UINT = {"type": "integer", "minimum": 0}
_INT64 = {"type": "string", "pattern": "^-?[0-9]+$"}
_UINT64 = {"type": "string", "pattern": "^[0-9]+$"}
_NUMBER = {"type": "number"}
_STRING = {"type": "string"}
_BYTES = {"type": "string", "contentEncoding": "base64", "description": "Base64."}

_SCALARS: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_DOUBLE: _NUMBER,
    FieldDescriptor.TYPE_FLOAT: _NUMBER,
    FieldDescriptor.TYPE_INT32: _INT,
    FieldDescriptor.TYPE_SINT32: _INT,
    FieldDescriptor.TYPE_SFIXED32: _INT,
    FieldDescriptor.TYPE_UINT32: _UINT,
    FieldDescriptor.TYPE_FIXED32: _UINT,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_SINT64: _INT64,
    FieldDescriptor.TYPE_SFIXED64: _INT64,
    FieldDescriptor.TYPE_UINT64: _UINT64,
    FieldDescriptor.TYPE_FIXED64: _UINT64,
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: _STRING,
    FieldDescriptor.TYPE_BYTES: _BYTES,
}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return schema | {"type": [schema["type"], "null"]}


# What proto JSON writes in another way than as an object of its fields.
_WELL_KNOWN: dict[str, dict[str, Any]] = {
    "google.protobuf.Timestamp": _STRING | {"format": "date-time", "description": "RFC 3339: 2026-01-31T09:30:00Z."},
    "google.protobuf.Duration": _STRING
    | {"pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$", "description": "Seconds with an s: 1.5s."},
    "google.protobuf.FieldMask": _STRING | {"description": "Names of fields, joined by commas: title,dueDate."},
    "google.protobuf.Struct": {"type": "object"},
    "google.protobuf.Value": {},
    "google.protobuf.ListValue": {"type": "array", "items": {}},
    "google.protobuf.Any": {
        "type": "object",
        "description": 'Any message: its type URL under the key "@type", its fields beside it.',
    },
    "google.protobuf.DoubleValue": _nullable(_NUMBER),
    "google.protobuf.FloatValue": _nullable(_NUMBER),
    "google.protobuf.Int64Value": _nullable(_INT64),
    "google.protobuf.UInt64Value": _nullable(_UINT64),
    "google.protobuf.Int32Value": _nullable(_INT),
    "google.protobuf.UInt32Value": _nullable(_UINT),
    "google.protobuf.BoolValue": _nullable({"type": "boolean"}),
    "google.protobuf.StringValue": _nullable(_STRING),
    "google.protobuf.BytesValue": _nullable(_BYTES),
}


@dataclass(frozen=True, slots=True)
class _Place:
    """A message whose schema is still to be written into `schema`; `above` are the messages around it."""

    message: Descriptor
    schema: dict[str, Any]
    above: tuple[str, ...] = ()

    @property
    def repeats(self) -> int:
        return self.above.count(self.message.full_name)


_Later: TypeAlias = Callable[[Descriptor, dict[str, Any]], None]


def schema_of(message: Descriptor) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a message, a fresh object each time.

    A message that holds itself is spelled out REPEATS times below itself, and MOST_FIELDS fields in all, nearest to
    the root first; beyond that it is an object without further word but a note of what it is.
    """
    if message.full_name in _WELL_KNOWN:
        return deepcopy(_WELL_KNOWN[message.full_name])
    root: dict[str, Any] = {}
    waiting = deque([_Place(message, root)])
    left = MOST_FIELDS
    while waiting:
        place = waiting.popleft()
        size = len(place.message.fields)
        if place.above and (size > left or place.repeats > REPEATS):
            place.schema["type"] = "object"
            _note(place.schema, f"A {place.message.full_name}, in proto JSON.")
        else:
            left -= size
            waiting.extend(_spell_out(place))
    return root


def _spell_out(place: _Place) -> list[_Place]:
    """Writes the schema of one message and returns the places of the messages in its fields."""
    message, schema = place.message, place.schema
    inner: list[_Place] = []

    def later(message: Descriptor, schema: dict[str, Any]) -> None:
        inner.append(_Place(message, schema, (*place.above, place.message.full_name)))

    properties: dict[str, Any] = {}
    required: list[str] = []
    for field in message.fields:
        # The options may be of another pool, where our extensions are unknown bytes.
        options = FieldOptions.FromString(field.GetOptions().SerializeToString())
        text = options.Extensions[options_pb2.field_description]
        behaviours = options.Extensions[field_behavior_pb2.field_behavior]
        if field.is_required or field_behavior_pb2.REQUIRED in behaviours or text.rstrip().endswith("Required."):
            required.append(field.name)
        properties[field.name] = _field(field, text, later)
    schema |= object_schema(properties, required)
    for oneof in message.oneofs:
        if len(oneof.fields) > 1:
            _note(schema, f"Set at most one of {', '.join(member.name for member in oneof.fields)}.")
    return inner


def _field(field: FieldDescriptor, text: str, later: _Later) -> dict[str, Any]:
    """The schema of a field; a message in it is put off to `later`, with the object to write it into."""
    schema: dict[str, Any]
    if field.message_type and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        schema = {"type": "object", "additionalProperties": _value(value, later)}
        if key.type != FieldDescriptor.TYPE_STRING:
            schema["description"] = f"Keys are {'true and false' if key.type == key.TYPE_BOOL else 'integers'}."
    elif field.is_repeated:
        schema = {"type": "array", "items": _value(field, later)}
    else:
        schema = _value(field, later)
    if text:
        schema["description"] = f"{text} {schema.get('description', '')}".rstrip()
    return schema


def _value(field: FieldDescriptor, later: _Later) -> dict[str, Any]:
    """The schema of one value of a field."""
    if field.enum_type:
        if field.enum_type.full_name == "google.protobuf.NullValue":
            return {"type": "null"}
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    if not field.message_type:
        return dict(_SCALARS[field.type])
    if field.message_type.full_name in _WELL_KNOWN:
        return deepcopy(_WELL_KNOWN[field.message_type.full_name])
    schema: dict[str, Any] = {}
    later(field.message_type, schema)
    return schema


def _note(schema: dict[str, Any], text: str) -> None:
    schema["description"] = f"{schema.get('description', '')} {text}".lstrip()
