"""Fills a tool's arguments from a message, field by field, for the offline rules; it invents nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from retinue.agent.model import offline_words as say
from retinue.agent.tools import ToolSpec


def required(spec: ToolSpec) -> list[str]:
    """The fields that a call must have."""
    return list(spec.parameters.get("required", ()))


def fill(spec: ToolSpec, message: str) -> dict[str, Any]:
    """What `message` says about the fields of `spec`; fields that it does not speak of are left out."""
    fields: Mapping[str, Any] = spec.parameters.get("properties", {})
    kinds = {name: say.KINDS.get(name, "") for name in fields if _is_text(fields[name])}
    found: dict[str, Any] = {}
    text = _Text(message)
    titled = "title" in kinds.values()
    # The parts with a mark of their own go first; a title is what is left.
    for kind, patterns in (
        ("date", (say.DATE,)),
        ("project", say.PROJECT),
        ("owner", say.OWNER if titled else say.ASKED_OWNER),
        ("recipient", say.RECIPIENT if titled else (*say.OWNER, *say.RECIPIENT)),
        ("id", (say.IDENTIFIER,)),
    ):
        for name in (name for name, its in kinds.items() if its == kind):
            said = text.take(*patterns)
            # People are written in small letters here, so that Ada and ada are one.
            found |= _one(name, said.lower() if kind in ("owner", "recipient") else said)
    for name in (name for name, its in kinds.items() if its == "goal"):
        found |= _one(name, text.take(*say.GOAL, after=say.NAMED))
    if title := _title(kinds, required(spec)):
        said = text.quoted or text.take(say.NAMED, say.SAID, *say.REST)
        # "create a task" names no title, though the word is there.
        found |= _one(title, said if set(say.words(said)) - set(say.words(spec.name)) else "")
    for name, schema in fields.items():
        if name not in found and (value := _other(name, schema, message, name in required(spec))) is not None:
            found[name] = value
    return {name: found[name] for name in fields if name in found}


class _Text:
    """What is left of a message while fields are taken out of it."""

    def __init__(self, message: str) -> None:
        quoted = say.QUOTED.search(message)
        self.quoted = quoted[1] if quoted else ""
        self._left = say.QUOTED.sub(" ", message)

    def take(self, *patterns: re.Pattern[str], after: re.Pattern[str] | None = None) -> str:
        """The first thing that a pattern finds (behind the start of `after`), taken out; "" when none does."""
        begin = after.search(self._left) if after else None
        if after and not begin and not self.quoted:
            return ""
        for pattern in patterns:
            for match in pattern.finditer(self._left, begin.start() if begin else 0):
                value = next((group for group in match.groups() if group), "").strip(" ,.?!'")
                if value and value.lower() not in say.NOBODY:
                    self._left = self._left[: match.start()] + self._left[match.end() :]
                    return value
        return ""


def _title(kinds: Mapping[str, str], needed: list[str]) -> str:
    titles = [name for name, kind in kinds.items() if kind == "title"]
    return next((name for name in titles if name in needed), titles[0] if titles else "")


def _other(name: str, schema: Mapping[str, Any], message: str, needed: bool) -> Any:
    """A field that is known by its type alone."""
    kind = schema.get("type")
    if kind == "boolean":
        meant = set(say.words(name)) - {"include", "only", "show", "list"}
        return True if meant & set(say.words(message)) else None
    if choices := [each for each in schema.get("enum", ()) if isinstance(each, str)]:
        return next((each for each in choices if re.search(rf"\b{re.escape(each)}\b", message, re.IGNORECASE)), None)
    if kind in ("integer", "number"):
        number = say.NUMBER.search(message) if needed else None
        return int(number[1]) if number else None
    if not _is_text(schema) or name in say.KINDS:
        return None
    marked = re.search(rf"\b{re.escape(name)}\s*(?:is|=|:|of)?\s+([\w-]+)", message, re.IGNORECASE)
    if marked or not needed:
        return marked[1] if marked else None
    return _Text(message).take(*say.PLACE) or message


def _is_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type", "string") == "string" and "enum" not in schema


def _one(name: str, value: str) -> dict[str, str]:
    return {name: value} if value else {}
