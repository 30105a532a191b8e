"""JSON Schemas of tools, reduced to what a model server takes. Arguments are still held against the whole schema.

`rooted` is for servers that take JSON Schema but want a plain object at its root; `subset` is for Gemini, which fails
a whole request over one word that it does not know. What only narrows a schema is dropped; what cannot be said at all
raises Unreducible, and the tool is not offered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

_COMBINED = ("allOf", "anyOf", "oneOf")
# What the root may not have beside its properties.
_NOT_AT_ROOT = {*_COMBINED, "$ref", "not", "enum", "const", "if", "then", "else", "dependentSchemas"}
_KEPT = {"title", "description", "nullable", "default"}
_KEPT_BY_TYPE = {
    "string": {"minLength", "maxLength", "pattern"},
    "number": {"minimum", "maximum"},
    "integer": {"minimum", "maximum"},
    "array": {"minItems", "maxItems"},
    "object": {"minProperties", "maxProperties"},
    "boolean": set[str](),
}
_FORMATS = {"string": {"date-time"}, "number": {"float", "double"}, "integer": {"int32", "int64"}}
_MOST_NODES = 2000


class Unreducible(Exception):
    """The server's language has no words for this schema; the text says which part."""


@contextmanager
def _readable() -> Iterator[None]:
    """Whoever writes a schema may write nonsense: that is a tool left out, not a request that fails."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise Unreducible(f"it is no JSON Schema: {error!r}") from error


@_readable()
def rooted(schema: Mapping[str, Any]) -> Schema:
    """The schema with a plain object at its root: what was combined there is merged into one."""
    root = _plain(schema)
    merged = _flat_root(root, root, ())
    kinds = merged.get("type", "object")
    if "object" not in ([kinds] if isinstance(kinds, str) else kinds):
        raise Unreducible(f"its root is no object but {kinds!r}")
    kept = {key: value for key, value in merged.items() if key not in _NOT_AT_ROOT}
    return {**kept, "type": "object", "properties": kept.get("properties", {})}


@_readable()
def subset(schema: Mapping[str, Any]) -> Schema | None:
    """The schema in Gemini's words; None for an object without properties, which it wants left out."""
    root = rooted(schema)
    reduced = _Subset(root).object_of(root, ())
    return reduced if reduced.get("properties") else None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _flat_root(schema: Any, root: Schema, refs: tuple[str, ...]) -> Schema:
    """An object schema without references and combinations at its top."""
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise Unreducible(f"{json.dumps(schema)[:80]} is no schema")
    if "$ref" in schema:
        target, refs = _target(schema["$ref"], root, refs)
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _flat_root({**target, **rest}, root, refs)
    flat = {key: value for key, value in schema.items() if key not in _NOT_AT_ROOT}
    for part in schema.get("allOf", ()):
        flat = _both(flat, _flat_root(part, root, refs))
    for key in ("anyOf", "oneOf"):
        if branches := [_flat_root(branch, root, refs) for branch in schema.get(key, ())]:
            if any("object" not in _kinds(branch) for branch in branches):
                raise Unreducible("its root may be something else than an object")
            flat = _both(flat, _any(branches))
    return flat


def _kinds(schema: Schema) -> Sequence[str]:
    kinds = schema.get("type", "object")
    return [kinds] if isinstance(kinds, str) else kinds


def _both(one: Schema, other: Schema) -> Schema:
    """A schema for what fits both; of one property in both, the later says what it is."""
    merged = {**other, **one}
    if "properties" in one or "properties" in other:
        properties = dict(one.get("properties", {}))
        for name, schema in other.get("properties", {}).items():
            known = properties.get(name)
            properties[name] = {**known, **schema} if isinstance(known, dict) and isinstance(schema, dict) else schema
        merged["properties"] = properties
    if needed := [*dict.fromkeys([*one.get("required", ()), *other.get("required", ())])]:
        merged["required"] = needed
    return merged


def _any(branches: Sequence[Schema]) -> Schema:
    """A schema for what fits one of them: all their properties, and required what all require."""
    properties: dict[str, list[Any]] = {}
    for branch in branches:
        for name, schema in branch.get("properties", {}).items():
            if schema not in properties.setdefault(name, []):
                properties[name].append(schema)
    merged: Schema = {
        "type": "object",
        "properties": {name: found[0] if len(found) == 1 else {"anyOf": found} for name, found in properties.items()},
    }
    needed = [name for name in branches[0].get("required", ()) if all(name in b.get("required", ()) for b in branches)]
    return merged | ({"required": needed} if needed else {})


def _target(ref: Any, root: Schema, refs: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
    """What a reference inside the schema points at. Unreducible when it points elsewhere, or at itself."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        raise Unreducible(f"it refers to {ref!r}, which is not inside it")
    if ref in refs:
        raise Unreducible(f"{ref} is defined by itself")
    target: Any = root
    steps = ref.removeprefix("#").strip("/").split("/") if ref.strip("#/") else ()
    for step in (each.replace("~1", "/").replace("~0", "~") for each in steps):
        if isinstance(target, list) and step.isdecimal() and int(step) < len(target):
            target = target[int(step)]
        elif isinstance(target, dict) and step in target:
            target = target[step]
        else:
            raise Unreducible(f"it refers to {ref}, which is not there")
    if not isinstance(target, dict):
        raise Unreducible(f"{ref} is no schema")
    return target, (*refs, ref)


class _Subset:
    """Puts the nodes of one schema into Gemini's words."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._nodes = 0

    def node(self, schema: Any, refs: tuple[str, ...]) -> Schema:
        """Any schema but `false`. `refs` are the references around it: one that comes again is only named."""
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise Unreducible(f"it has more than {_MOST_NODES} parts when its references are written out")
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise Unreducible(f"{json.dumps(schema)[:80]} is no schema")
        if "$ref" in schema:
            return self._referred(schema, refs)
        if parts := schema.get("allOf"):
            merged = {key: value for key, value in schema.items() if key != "allOf"}
            for part in parts:
                merged = _both(merged, self._resolved(part, refs))
            return self.node(merged, refs)
        if branches := [each for key in ("anyOf", "oneOf") for each in schema.get(key, ()) if _says_type(each)]:
            return self._alternatives(schema, branches, refs)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        kinds = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type")
        kinds = list(kinds or (_kinds_of(values) if values else _implied(schema)))
        real = [kind for kind in kinds if kind != "null"]
        if len(real) > 1 or not kinds:
            every = real or ["string", "number", "boolean", "object"]
            return self._alternatives(schema, [{"type": kind} for kind in every], refs, null="null" in kinds)
        typed = self._typed(schema, real[0] if real else "string", values, refs)
        return typed | ({"nullable": True} if "null" in kinds or (values and None in values) else {})

    def object_of(self, schema: Schema, refs: tuple[str, ...]) -> Schema:
        return self._typed(schema, "object", None, refs)

    def _resolved(self, schema: Any, refs: tuple[str, ...]) -> Schema:
        if not isinstance(schema, dict):
            return {}
        if "$ref" not in schema:
            return schema
        target, refs = _target(schema["$ref"], self._root, refs)
        return self._resolved({**target, **{key: value for key, value in schema.items() if key != "$ref"}}, refs)

    def _referred(self, schema: Schema, refs: tuple[str, ...]) -> Schema:
        if schema["$ref"] in refs:
            return _noted({"type": "object"}, "Nested in the same way.")
        target, refs = _target(schema["$ref"], self._root, refs)
        return self.node({**target, **{key: value for key, value in schema.items() if key != "$ref"}}, refs)

    def _alternatives(
        self, schema: Schema, branches: Sequence[Any], refs: tuple[str, ...], *, null: bool = False
    ) -> Schema:
        """One of several: what stands beside them belongs to each."""
        beside = {key: schema[key] for key in schema if key not in (*_COMBINED, "title", "description", "default")}
        real = [each for each in branches if each.get("type") != "null"]
        nodes = [self.node(_both(each, beside), refs) for each in real]
        null = null or len(real) < len(branches)
        kept = {key: schema[key] for key in ("title", "description") if isinstance(schema.get(key), str)}
        reduced = {**nodes[0], **kept} if len(nodes) == 1 else {**kept, "anyOf": nodes} if nodes else {"type": "string"}
        return reduced | ({"nullable": True} if null else {})

    def _typed(self, schema: Schema, kind: str, values: Any, refs: tuple[str, ...]) -> Schema:
        if kind not in _KEPT_BY_TYPE:
            raise Unreducible(f"there is no type {kind!r}")
        reduced = {key: schema[key] for key in schema if key in _KEPT | _KEPT_BY_TYPE[kind]} | {"type": kind}
        if (form := schema.get("format")) and isinstance(form, str):
            reduced = reduced | {"format": form} if form in _FORMATS.get(kind, ()) else _noted(reduced, f"({form})")
        if real := [value for value in values or () if value is not None]:
            if kind == "string" and all(isinstance(value, str) and value for value in real):
                reduced["enum"] = real
            else:
                reduced = _noted(reduced, f"One of {json.dumps(real)}.")
        if kind == "array":
            reduced["items"] = self._items(schema, refs)
        if kind == "object":
            reduced |= self._properties(schema, refs)
            free = schema.get("additionalProperties")
            if isinstance(free, dict) and free and not reduced.get("properties"):
                reduced = _noted(reduced, f"Keys are free; each value fits {json.dumps(free)[:200]}.")
        return reduced

    def _items(self, schema: Schema, refs: tuple[str, ...]) -> Schema:
        items = schema.get("prefixItems", schema.get("items", True))
        if isinstance(items, list):
            each = [item for index, item in enumerate(items) if item not in items[:index]]
            items = each[0] if len(each) == 1 else {"anyOf": each} if each else True
        return self.node(items or True, refs)

    def _properties(self, schema: Schema, refs: tuple[str, ...]) -> Schema:
        """The properties: their names are data, whatever words they are."""
        found = {name: each for name, each in schema.get("properties", {}).items() if each is not False}
        properties = {name: self.node(each, refs) for name, each in found.items()}
        required = [name for name in dict.fromkeys(schema.get("required", ())) if name in properties]
        return ({"properties": properties} if properties else {}) | ({"required": required} if required else {})


def _says_type(schema: Any) -> bool:
    """Whether an alternative says what a value is; one that only requires more of it says nothing."""
    telling = {"type", "properties", "$ref", "enum", "const", "items", "format", *_COMBINED}
    return isinstance(schema, dict) and not telling.isdisjoint(schema)


def _implied(schema: Schema) -> Iterator[str]:
    if {"properties", "additionalProperties", "patternProperties"} & schema.keys():
        yield "object"
    elif {"items", "prefixItems"} & schema.keys():
        yield "array"
    elif {"pattern", "minLength", "maxLength"} & schema.keys():
        yield "string"
    elif {"minimum", "maximum"} & schema.keys():
        yield "number"


def _kinds_of(values: Sequence[Any]) -> list[str]:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array"}
    return [*dict.fromkeys(kinds.get(type(value), "object") for value in values)]


def _noted(schema: Schema, note: str) -> Schema:
    return schema | {"description": f"{schema.get('description') or ''} {note}".strip()}
