"""Turns the results of tool calls into sentences that name the items, for the offline rules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.agent.model import offline_words as say


@dataclass(frozen=True, slots=True)
class Result:
    """One finished call of this turn."""

    name: str
    arguments: Mapping[str, Any]
    text: str

    @property
    def value(self) -> Any:
        """The result as JSON, or its text where it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            return self.text

    def items(self) -> list[Any] | None:
        """The list that the result is or holds; [] for an empty reply of a tool that lists; None when it has none."""
        value = self.value
        if isinstance(value, dict):
            lists = [each for each in value.values() if isinstance(each, list)]
            return lists[0] if lists else [] if not value and say.words(self.name)[-1:] == ["list"] else None
        return value if isinstance(value, list) else None


def answer(results: Sequence[Result]) -> str:
    """One sentence a result; of what was only looked up on the way, none."""
    labels = {item["id"]: label(item) for result in results for item in result.items() or () if _has_id(item)}
    done = [result for result in results if result.items() is None]
    return " ".join(_sentence(result, labels) for result in done or results)


def label(item: Any) -> str:
    """What people call an item."""
    if isinstance(item, dict):
        return next((str(item[key]) for key in say.LABELS if item.get(key)), json.dumps(item, ensure_ascii=False))
    return str(item)


def _sentence(result: Result, labels: Mapping[str, str]) -> str:
    if result.name == "plan":
        steps = [label(step) for step in result.arguments.get("steps", ())]
        return f"The plan has {len(steps)} step{'s' * (len(steps) != 1)}: {', '.join(steps)}."
    if (items := result.items()) is not None:
        return _list(result, items)
    value = result.value
    if isinstance(value, dict):
        return _single(result, value, labels)
    return _ended(str(value)) if value != "" else "Done."


def _list(result: Result, items: Sequence[Any]) -> str:
    value = result.value
    keys = [key for key, each in value.items() if isinstance(each, list)] if isinstance(value, dict) else []
    kind = keys[0] if keys else next((f"{word}s" for word in say.words(result.name) if word not in say.VERBS), "items")
    whose = next((str(result.arguments[key]) for key in ("owner", "to") if result.arguments.get(key)), "")
    if not items:
        return f"{whose} has no {kind}." if whose else f"There are no {kind}."
    listed = ", ".join(label(item) + _note(item, whose) for item in items)
    return f"{whose} has: {listed}." if whose else f"{kind.capitalize()}: {listed}."


def _note(item: Any, whose: str) -> str:
    """What else is worth saying of a listed item."""
    if not isinstance(item, dict):
        return ""
    owner = "" if whose else item.get("owner") or item.get("to") or ""
    notes = [str(owner), f"due {item['due']}" if item.get("due") else "", "done" if item.get("done") is True else ""]
    return f" ({', '.join(note for note in notes if note)})" if any(notes) else ""


def _single(result: Result, value: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    past = say.PAST.get((say.words(result.name) or [""])[-1])
    if past is None:
        return _ended(", ".join(f"{key}: {label(each)}" for key, each in value.items()) or "Done")
    if past == "Sent" and value.get("to"):
        return _ended(f"Sent to {value['to']}: {label(value)}")
    if any(value.get(key) for key in say.LABELS):
        return f"{past} {label(value)}{''.join(_details(value))}."
    about = next((str(result.arguments[key]) for key in say.LABELS if result.arguments.get(key)), "it")
    if False in value.values() or not value:
        return f"There was no {about} to {past.lower().removesuffix('d')}."
    return f"{past} {labels.get(about, about)}."


def _details(value: Mapping[str, Any]) -> Iterator[str]:
    for key, before in (("owner", " for "), ("project", " in project "), ("due", ", due ")):
        if value.get(key):
            yield f"{before}{value[key]}"


def _has_id(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("id"), str)


def _ended(text: str) -> str:
    return text if text.rstrip().endswith((".", "!", "?", "…")) else f"{text.rstrip()}."
