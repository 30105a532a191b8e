"""Rules that the checks of all dialects share: what is JSON, what is text, what is a tool."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def must(holds: object, rule: str, shown: object = None) -> None:
    """Raises AssertionError with the rule when it does not hold."""
    if not holds:
        raise AssertionError(rule if shown is None else f"{rule}: {shown!r}"[:600])


def must_be_json(body: object) -> None:
    """A body is an object that goes over the wire as JSON in UTF-8."""
    must(isinstance(body, dict), "the body is a JSON object")
    try:
        json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise AssertionError(f"the body is JSON in UTF-8: {error}") from error


def must_have(value: Any, required: set[str], optional: set[str], what: str) -> None:
    """An object with those keys and no others."""
    must(isinstance(value, dict), f"{what} is an object", value)
    must(required <= value.keys(), f"{what} has {sorted(required)}", value)
    must(value.keys() <= required | optional, f"{what} has no other keys than {sorted(required | optional)}", value)


def must_list(value: Any, what: str) -> list[Any]:
    """A list that holds something."""
    must(isinstance(value, list) and value, f"{what} is a list that is not empty", value)
    found: list[Any] = value
    return found


def must_say(value: Any, what: str) -> None:
    must(isinstance(value, str) and value.strip(), f"{what} is not blank", value)


def must_be_base64(value: Any, what: str) -> None:
    try:
        must(isinstance(value, str) and base64.b64decode(value, validate=True), f"{what} is base64", value)
    except binascii.Error as error:
        raise AssertionError(f"{what} is base64: {error}") from error


def must_be_function(name: Any, description: Any, names: set[str], *, legal: re.Pattern[str] = NAME) -> None:
    """A legal name that no other tool has, and a description that says something, if there is one."""
    must(isinstance(name, str) and legal.fullmatch(name), "a tool's name is legal", name)
    must(name not in names, "tools have different names", name)
    names.add(name)
    must(description is None or (isinstance(description, str) and description), "a description says something")


def must_be_rooted(schema: Any) -> None:
    """A schema whose root is plainly an object."""
    must(isinstance(schema, Mapping), "a tool's schema is an object", schema)
    must(schema.get("type") == "object", "a tool's schema has type object at its root", schema)
    must(isinstance(schema.get("properties", {}), dict), "properties are an object", schema)
    combined = {"anyOf", "oneOf", "allOf", "not", "enum", "$ref"} & schema.keys()
    must(not combined, "a tool's schema combines nothing at its root", sorted(combined))


def must_be_object_text(text: Any) -> None:
    """Arguments as the JSON text of one object."""
    must(isinstance(text, str), "arguments are a string", text)
    try:
        must(isinstance(json.loads(text), dict), "arguments are the text of one JSON object", text)
    except ValueError as error:
        raise AssertionError(f"arguments are the text of one JSON object: {error}") from error
