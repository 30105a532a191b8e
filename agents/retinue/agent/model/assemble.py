"""Puts the tool calls of one message together from the fragments of a stream.

Servers number, name and identify fragments in many ways; a call is whole only when the stream has ended. Arguments
that are not one JSON object are reported as they came, never repaired.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from retinue.agent.model import ModelToolInput, WantedCall
from retinue.service.text import sane, sane_json


@dataclass(slots=True)
class _Draft:
    """A call as far as it has come."""

    position: int
    index: Any
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    extra: Any = None

    def renamed(self, name: str) -> bool:
        """Whether that name belongs to another call: it differs, and arguments came already."""
        return bool(name and self.name and name != self.name and any(self.pieces))


class CallAssembly:
    """The calls of one message. `add` a fragment as it comes; `finish` once the stream has ended."""

    def __init__(self) -> None:
        self._drafts: list[_Draft] = []

    def add(self, fragment: Mapping[str, Any], *, whole: bool = False) -> ModelToolInput:
        """Takes one fragment; `whole`: it is a call of its own, from a reply that was not streamed."""
        function = fragment.get("function") or {}
        call_id, name = _given(fragment.get("id")), _given(function.get("name"))
        index = fragment.get("index")  # some servers write it as text; it is only compared
        draft = None if whole else self._find(call_id, name, index)
        if draft is None:
            draft = _Draft(len(self._drafts), index)
            self._drafts.append(draft)
        draft.id = draft.id or call_id
        # A name comes once, maybe late, maybe again and again: repeats cannot be told from pieces.
        draft.name = draft.name or name
        draft.extra = fragment.get("extra_content") or draft.extra
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            draft.pieces.append(arguments)
            return ModelToolInput(draft.position, draft.name, sane(arguments))
        if arguments is None or arguments == {}:  # an empty object may stand for text that follows
            return ModelToolInput(draft.position, draft.name, "")
        draft.pieces = [json.dumps(arguments)]
        return ModelToolInput(draft.position, draft.name, draft.pieces[0])

    def finish(self) -> tuple[WantedCall, ...]:
        """The calls in the order in which they began, each with an id that is unique among them."""
        taken: set[str] = set()
        for draft in self._drafts:
            draft.id = unique_id(draft.id, taken)
            taken.add(draft.id)
        return tuple(wanted_call(draft.id, draft.name, "".join(draft.pieces)) for draft in self._drafts)

    def extras(self) -> list[Any]:
        """What the server sent beside each call and wants back with it, in call order; [] when it sent nothing."""
        found = [storable(draft.extra) for draft in self._drafts]
        return found if any(found) else []

    def _find(self, call_id: str, name: str, index: Any) -> _Draft | None:
        """The call that the fragment goes on with; None where it begins one."""
        same = [draft for draft in reversed(self._drafts) if call_id and draft.id == call_id]
        if same:
            # One id for every call: another index, or another name, tells them apart.
            draft = min(same, key=lambda each: each.index != index)
            apart = draft.index != index and None not in (draft.index, index)
            return None if draft.renamed(name) or (apart and name and draft.name) else draft
        if index is not None:
            known = next((draft for draft in reversed(self._drafts) if draft.index == index), None)
            # Ollama gave every call index 0: another id together with a name opens a new one. Another id alone
            # is a server whose ids change with every fragment.
            opens = known and ((call_id and known.id and name and known.name) or known.renamed(name))
            return None if opens else known
        return self._drafts[-1] if self._drafts and not (call_id or name) else None


def wanted_call(call_id: str, name: str, raw: str) -> WantedCall:
    """The call whose arguments are the text `raw`; blank text and null mean no arguments."""
    raw = sane(raw)
    try:
        arguments = _strictly(raw) if raw.strip() else {}
    except (ValueError, RecursionError) as error:
        return WantedCall(call_id, sane(name), None, raw, f"the arguments are no JSON: {error}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return WantedCall(call_id, sane(name), None, raw, f"the arguments are no JSON object but: {raw[:80]}")
    return WantedCall(call_id, sane(name), sane_json(arguments), raw)


def as_text(arguments: Any) -> str:
    """A call's arguments as JSON text, which some proxies make of them already."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def unique_id(call_id: str, taken: Container[str]) -> str:
    """A call's id as its server gave it; the first free one of ours where that is missing or taken in this message."""
    if call_id and call_id not in taken:
        return call_id
    return next(made for count in itertools.count(1) if (made := f"call_{count}") not in taken)


def storable(value: Any) -> Any:
    """A JSON value as a history can keep it: sane, and integers beyond 64 bits as floats."""
    match value:
        case dict():
            return {sane(key): storable(item) for key, item in value.items()}
        case list():
            return [storable(item) for item in value]
        case int() if not -(2**63) <= value < 2**64:
            return float(value)
        case _:
            return sane_json(value)


def _given(value: Any) -> str:
    """An id or a name; some servers write none as "" or "null"."""
    return sane(value) if isinstance(value, str) and value != "null" else ""


def _strictly(raw: str) -> Any:
    """JSON as its standard has it: no NaN, no infinity, no key twice."""
    return json.loads(raw, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        _refuse(number)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return found
