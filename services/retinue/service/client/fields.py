"""What JSON may stand in the fields of a message: the value that does not fit is found and named, in a person's words.

protobuf's own reader decides first; it takes some values for what they are not (true for 1, a list for an object, bytes
that are no base64), and those are found here. It sends nothing and changes no value.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from retinue.service.errors import Invalid, cut
from retinue.service.names import did_you_mean

_NUMBERS = frozenset(
    (
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
        FieldDescriptor.CPPTYPE_FLOAT,
        FieldDescriptor.CPPTYPE_DOUBLE,
    )
)
# The known types whose JSON is an object; protobuf itself checks the others.
_OBJECTS = frozenset(f"google.protobuf.{name}" for name in ("Empty", "Any"))
_WRAPPER = re.compile(r"google\.protobuf\.(Bool|Bytes|Double|Float|U?Int(32|64)|String)Value")


def misfit(message: Descriptor, data: Mapping[str, Any], at: str = "") -> Invalid | None:
    """The first value that protobuf would read as something else than it is, as an error; None when there is none."""
    for key, value in data.items():
        field = _field(message, key)
        if field is None or value is None:
            continue
        for one, item, place in _items(field, value, at + key):
            if not _fits(one, item):
                return Invalid(f"field {place!r} must be {_kind(one, single=True)}, not {_shown(item)}", field=place)
        for inner, part, place in _inside(field, value, at + key):
            if deeper := misfit(inner, part, f"{place}."):
                return deeper
    return None


def blame(message: Descriptor, data: Mapping[str, Any], at: str = "") -> Invalid | None:
    """What is wrong with `data`: the innermost field that cannot be parsed by itself; None when each of them can."""
    for key, value in data.items():
        field = _field(message, key)
        if field is None:
            near = did_you_mean(key, message.fields_by_name)
            return Invalid(f"{message.name} has no field {at + key!r}{near}", field=at + key)
        try:
            json_format.ParseDict({key: value}, GetMessageClass(message)(), descriptor_pool=message.file.pool)
        except json_format.ParseError as error:
            for inner, part, place in _inside(field, value, at + key):
                if deeper := blame(inner, part, f"{place}."):
                    return deeper
            return Invalid(f"field {at + key!r} must be {_kind(field)}: {error}", field=at + key)
    return None


def _field(message: Descriptor, key: str) -> FieldDescriptor | None:
    """The field of that name, or with that name in JSON."""
    return message.fields_by_name.get(key) or next((one for one in message.fields if one.json_name == key), None)


def _items(field: FieldDescriptor, value: Any, at: str) -> Iterator[tuple[FieldDescriptor, Any, str]]:
    """The single values that stand in a field, each with the field that it must fit and its place."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        for key, item in value.items() if isinstance(value, Mapping) else ():
            yield inner, item, f"{at}.{key}"
    elif field.is_repeated:
        for index, item in enumerate(value) if isinstance(value, list | tuple) else ():
            yield field, item, f"{at}[{index}]"
    else:
        yield field, value, at


def _fits(field: FieldDescriptor, value: Any) -> bool:
    """Whether protobuf may be left to judge the value."""
    if field.message_type is not None:
        name = field.message_type.full_name
        if _WRAPPER.fullmatch(name):
            return _fits(field.message_type.fields_by_name["value"], value)
        return isinstance(value, Mapping) or (name.startswith("google.protobuf.") and name not in _OBJECTS)
    if field.enum_type is not None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        null = field.enum_type.full_name == "google.protobuf.NullValue" and value is None
        return whole or null or (isinstance(value, str) and value in field.enum_type.values_by_name)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return isinstance(value, str) and _is_base64(value)
    if field.type == FieldDescriptor.TYPE_STRING:
        return isinstance(value, str)
    return field.cpp_type not in _NUMBERS or not isinstance(value, bool)


def _is_base64(text: str) -> bool:
    """Either alphabet, padded or not: what the JSON of protobuf allows."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except ValueError:
        return False
    return len(text) - len(plain) in (0, -len(plain) % 4)


def _shown(value: Any) -> str:
    kinds = {bool: "true" if value is True else "false", dict: "an object", list: "an array", type(None): "null"}
    return kinds.get(type(value)) or cut(repr(value), 64)


def _inside(field: FieldDescriptor, value: Any, at: str) -> Iterator[tuple[Descriptor, Mapping[str, Any], str]]:
    """The messages that the value of a field holds, with the place of each; none for a type with JSON of its own."""
    kind = field.message_type
    if kind is None or kind.full_name.startswith("google.protobuf."):
        return
    if kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"]
        for key, item in value.items() if isinstance(value, Mapping) else ():
            yield from _inside(inner, item, f"{at}.{key}")
        return
    items = enumerate(value) if field.is_repeated and isinstance(value, list) else [(None, value)]
    for index, item in items:
        if isinstance(item, Mapping):
            yield kind, item, at if index is None else f"{at}[{index}]"


def _kind(field: FieldDescriptor, *, single: bool = False) -> str:
    """A field's type in a word or two, for a person; of a repeated one that of its items when it is `single`."""
    names = {
        FieldDescriptor.TYPE_STRING: "a string",
        FieldDescriptor.TYPE_BOOL: "true or false",
        FieldDescriptor.TYPE_BYTES: "bytes in base64",
        FieldDescriptor.TYPE_DOUBLE: "a number",
        FieldDescriptor.TYPE_FLOAT: "a number",
    }
    if field.enum_type is not None:
        kind = f"one of {', '.join(field.enum_type.values_by_name)}"
    elif field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            return "an object"
        name = field.message_type.full_name
        known = name.startswith("google.protobuf.") and name not in _OBJECTS
        kind = f"a {field.message_type.name}" if known else "an object"
    else:
        kind = names.get(field.type, "a whole number")
    return f"an array, each {kind}" if field.is_repeated and not single else kind
