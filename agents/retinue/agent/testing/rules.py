"""A script for a model server that many processes share: rules in a JSON file, of which the first that fits answers.

    [{"when": "buy milk", "tool": "task_Task_Create", "calls": [{"name": "task_Task_Create",
      "arguments": {"title": "buy milk", "owner": "ada"}}]},
     {"after": "Task_Create", "reply": "Done: {result}"},
     {"reply": "You said: {message}"}]

A rule keeps no state: the same request gets the same answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from retinue.agent.model import WantedCall
from retinue.agent.testing.asked import text_of
from retinue.service.errors import Invalid, ModelError
from retinue.service.names import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When it fits, and what it says.

    `when` is part of the last user message, `system` of the system prompt, `tool` of the name of a tool on offer.
    With `after`, the last message must be the result of a tool with that in its name ("": any); without, no result.
    `{message}` and `{result}` in `reply` and in arguments stand for the last user message and the last result.
    """

    when: str = ""
    system: str = ""
    tool: str = ""
    after: str | None = None
    reply: str = ""
    calls: Sequence[Mapping[str, Any]] = ()
    error: str = ""

    def fits(self, asked: _Asked) -> bool:
        if (self.after is None) == asked.answered:
            return False
        return (
            self.when in asked.message
            and self.system in asked.system
            and (self.after or "") in asked.answered_tool
            and (not self.tool or any(self.tool in name for name in asked.tools))
        )

    def say(self, asked: _Asked) -> list[str | WantedCall]:
        if self.error:
            raise ModelError(self.error)
        said: list[str | WantedCall] = [asked.fill(self.reply)] if self.reply else []
        return said + [WantedCall("", call["name"], asked.fill(call.get("arguments", {}))) for call in self.calls]


class Rules:
    """The script made of rules; a request that none fits is an error that shows it."""

    def __init__(self, rules: Sequence[Mapping[str, Any]]) -> None:
        known = {each.name for each in fields(Rule)}
        for rule in rules:
            for key in rule.keys() - known:
                raise Invalid(f"script rule: unknown key {key!r}{did_you_mean(key, known)}", field=key)
            if not any(rule.get(key) for key in ("reply", "calls", "error")):
                raise Invalid(f"script rule {dict(rule)} says nothing: give it reply, calls or error", field="reply")
        self._rules = [Rule(**rule) for rule in rules]

    @classmethod
    def read(cls, path: Path) -> Rules:
        """The rules of a JSON file. Invalid when it holds none."""
        try:
            rules = json.loads(path.read_text())
        except OSError as error:
            raise Invalid(f"{path}: {error.strerror}", field="script") from None
        except ValueError as error:
            raise Invalid(f"{path}: no JSON: {error}", field="script") from None
        if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
            raise Invalid(f"{path}: use a list of rules, each an object", field="script")
        return cls(rules)

    def __call__(self, body: Any) -> list[str | WantedCall]:
        asked = _Asked.read(body)
        for rule in self._rules:
            if rule.fits(asked):
                return rule.say(asked)
        raise ModelError(f"no rule fits: {asked}")


@dataclass(frozen=True, slots=True)
class _Asked:
    """The parts of a request that rules look at."""

    system: str
    message: str
    answered: bool
    answered_tool: str
    result: str
    tools: tuple[str, ...]

    @classmethod
    def read(cls, body: Any) -> _Asked:
        messages = body["messages"]
        names = {
            call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()
        }
        last = messages[-1]
        answered = last["role"] == "tool"
        return cls(
            system=next((text_of(each["content"]) for each in messages if each["role"] == "system"), ""),
            message=next((text_of(each["content"]) for each in reversed(messages) if each["role"] == "user"), ""),
            answered=answered,
            answered_tool=names.get(last["tool_call_id"], "") if answered else "",
            result=str(last["content"]) if answered else "",
            tools=tuple(tool["function"]["name"] for tool in body.get("tools", ())),
        )

    def fill(self, value: Any) -> Any:
        """`value` with the placeholders in its texts filled."""
        if isinstance(value, str):
            return value.replace("{message}", self.message).replace("{result}", self.result)
        if isinstance(value, Mapping):
            return {key: self.fill(item) for key, item in value.items()}
        return [self.fill(item) for item in value] if isinstance(value, list) else value
