"""What a Python annotation means to a model: a JSON Schema, and how a value that fits it becomes a Python value.

It reads the types that JSON can carry and refuses every other with a TypeError; it does not check values, the
schema does.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Required, TypeAlias, Union, get_args, get_origin

Reader: TypeAlias = Callable[[Any], Any]
SUPPORTED = "str, int, float, bool, list[T], dict[str, T], T | None, Literal, Enum, dataclass and TypedDict"


@dataclass(frozen=True, slots=True)
class Shape:
    """A JSON Schema, and `read`, which turns a JSON value that is valid against it into what the annotation says."""

    schema: dict[str, Any]
    read: Reader


def _same(value: Any) -> Any:
    return value


_PLAIN: dict[Any, Shape] = {
    str: Shape({"type": "string"}, _same),
    bool: Shape({"type": "boolean"}, _same),
    int: Shape({"type": "integer"}, int),
    float: Shape({"type": "number"}, float),
    Any: Shape({}, _same),
    list: Shape({"type": "array", "items": {}}, _same),
    dict: Shape({"type": "object"}, _same),
}
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", types.NoneType: "null"}


def shape_of(annotation: Any, *, inside: tuple[type, ...] = ()) -> Shape:
    """The shape of a value that is annotated so. `Annotated[T, "text"]` adds a description.

    `inside` holds the classes around it. TypeError when JSON cannot carry it.
    """
    shape = _generic(get_origin(annotation), get_args(annotation), inside)
    if shape is None and isinstance(annotation, type):
        shape = _PLAIN.get(annotation) or _class(annotation, inside)
    if shape is None:
        raise TypeError(f"{inspect.formatannotation(annotation)} is no type that JSON can carry; use {SUPPORTED}")
    return shape


def _generic(origin: Any, args: tuple[Any, ...], inside: tuple[type, ...]) -> Shape | None:
    if origin is Annotated:
        shape = shape_of(args[0], inside=inside)
        note = next((extra for extra in args[1:] if isinstance(extra, str)), "")
        return Shape(shape.schema | ({"description": note} if note else {}), shape.read)
    if origin is Literal:
        return _literal(args)
    if origin is list:
        return _list(shape_of(args[0], inside=inside))
    if origin is dict and args[0] is str:
        return _mapping(shape_of(args[1], inside=inside))
    if origin in (Union, types.UnionType):
        others = [arg for arg in args if arg is not types.NoneType]
        if len(others) == 1:
            return _nullable(shape_of(others[0], inside=inside))
    return None


def word(member: enum.Enum) -> str:
    """How an enum member is written in JSON: its value where that is a string, its name otherwise."""
    return member.value if isinstance(member.value, str) else member.name


def _list(item: Shape) -> Shape:
    return Shape({"type": "array", "items": item.schema}, lambda values: [item.read(value) for value in values])


def _mapping(item: Shape) -> Shape:
    return Shape(
        {"type": "object", "additionalProperties": item.schema},
        lambda values: {key: item.read(value) for key, value in values.items()},
    )


def _nullable(shape: Shape) -> Shape:
    schema = dict(shape.schema)
    match schema.get("type"):
        case str(kind):
            schema["type"] = [kind, "null"]
        case list(kinds):
            schema["type"] = [*kinds, "null"]
    if "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    return Shape(schema, lambda value: None if value is None else shape.read(value))


def _literal(values: tuple[Any, ...]) -> Shape:
    for value in values:
        if type(value) not in _JSON_TYPES:
            raise TypeError(f"Literal[{value!r}] is no JSON value; use strings, integers, booleans and None")
    kinds = sorted({_JSON_TYPES[type(value)] for value in values})
    return Shape({"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}, _same)


def _enum(cls: type[enum.Enum]) -> Shape:
    members = {word(member): member for member in cls}
    if not members:
        raise TypeError(f"{cls.__name__} has no members")
    return Shape({"type": "string", "enum": list(members)}, members.__getitem__)


def _class(cls: type, inside: tuple[type, ...]) -> Shape | None:
    if cls in inside:
        raise TypeError(f"{cls.__name__} holds itself; a tool's parameters have an end")
    if issubclass(cls, enum.Enum):
        return _enum(cls)
    if dataclasses.is_dataclass(cls):
        hints, required = _dataclass_fields(cls)
    elif typing.is_typeddict(cls):
        hints, required = _typeddict_keys(cls)
    else:
        return None
    members: dict[str, Shape] = {}
    for key, hint in hints.items():
        try:
            members[key] = shape_of(hint, inside=(*inside, cls))
        except TypeError as error:
            raise TypeError(f"{cls.__name__}.{key}: {error}") from None
    schema = object_schema({key: shape.schema for key, shape in members.items()}, required)
    # A dataclass without a docstring is given its signature as one.
    if (doc := inspect.cleandoc(cls.__doc__ or "")) and not doc.startswith(f"{cls.__name__}("):
        schema["description"] = doc
    return Shape(schema, lambda values: cls(**{key: members[key].read(value) for key, value in values.items()}))


def _dataclass_fields(cls: Any) -> tuple[dict[str, Any], list[str]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    required = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return {field.name: hints[field.name] for field in fields}, required


def _typeddict_keys(cls: Any) -> tuple[dict[str, Any], list[str]]:
    hints, required = {}, []
    for key, hint in typing.get_type_hints(cls, include_extras=True).items():
        origin = get_origin(hint)
        marked = origin in (Required, NotRequired)
        hints[key] = get_args(hint)[0] if marked else hint
        # Where annotations are strings, the class itself does not know of its marks.
        if origin is Required or (not marked and key in cls.__required_keys__):
            required.append(key)
    return hints, required


def object_schema(properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    """The schema of an object that has these properties and no other."""
    schema: dict[str, Any] = {"type": "object", "properties": dict(properties)}
    if required:
        schema["required"] = required
    return schema | {"additionalProperties": False}
