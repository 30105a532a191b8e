"""A stand-in for a model where there is none: rules that pick a tool by its words and answer with what it brought.

It makes a fresh machine without a key useful and honest. It understands no language: what fits no rule is answered
with what it can do. One call a turn, at most two, so it never loops.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from retinue.agent.model import ModelEvent, ModelRequest, WantedCall
from retinue.agent.model import offline_words as say
from retinue.agent.model.offline_answer import Result, answer, label
from retinue.agent.model.offline_fill import fill, required
from retinue.agent.model.said import say as spoken
from retinue.agent.tools import ToolSpec, tool_name
from retinue.service.names import new_id

ROUTE = "route_to_agent"
# The heading under which a system prompt lists the agents that can be asked.
PEERS = "Agents you can delegate to"


class Offline:
    """The rules as a Model. It reaches no server and raises nothing."""

    name = "offline/rules"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        turn = _Turn(request)
        said = turn.follow() if turn.results else turn.begin()
        calls = () if isinstance(said, str) else (WantedCall(new_id("call_"), *said),)
        for event in spoken(said if isinstance(said, str) else "", calls):
            yield event


_Said = str | tuple[str, dict[str, Any]]


class _Turn:
    """The last user message, the tools on offer, and what was called since."""

    def __init__(self, request: ModelRequest) -> None:
        messages = [each.message for each in request.messages]
        last = max((at for at, each in enumerate(messages) if each.role == "user"), default=-1)
        self.whole = messages[last].text if last >= 0 else ""
        # A delegate's context stands below its task: it is no part of what is asked.
        self.message = say.MENTION.sub("", self.whole).strip().split("\n\n")[0]
        self.tools = {spec.name: spec for spec in request.tools}
        self.system = request.system
        since = messages[last + 1 :]
        calls = {call.id: call for each in since for call in each.tool_calls}
        self.results = [
            Result(calls[each.tool_call_id].name, _object(calls[each.tool_call_id].arguments), each.text)
            for each in since
            if each.role == "tool" and each.tool_call_id in calls
        ]

    def begin(self) -> _Said:
        """The first step: a call, or a sentence when nothing fits."""
        if ROUTE in self.tools:
            return self._route(self.tools[ROUTE])
        if "plan" in self.tools and (plan := say.PLAN.match(self.message)):
            steps = [say.STEP_EDGE.sub("", step) for step in say.STEPS.split(_after_colon(plan[1]).strip())]
            return "plan", {"steps": [{"task": step, "status": "pending"} for step in steps if step]}
        if handed := self._hand_over():
            return handed
        if spec := self._best(by_subject=True):
            return self._use(spec)
        if (peer := _choose(self._peers(), self.message)) and (handed := self._to(peer, self.whole)):
            return handed
        if spec := self._best():
            return self._use(spec)
        return self._last_resort() or self._able()

    def _last_resort(self) -> _Said | None:
        """Where no words fit: the one agent that the agent's own prompt speaks of, or its one tool that only looks."""
        about = set(say.words(self.system.partition(PEERS)[0]))
        spoken_of = [peer for peer in self._peers() if set(say.words(peer)) <= about]
        own = [spec for spec in self.tools.values() if not _is_own(spec.name)]
        if len(spoken_of) == 1 and not own:
            return self._to(spoken_of[0], self.whole)
        if len(own) == 1 and say.words(own[0].description)[:1] == ["list"]:
            arguments = fill(own[0], self.message)
            return (own[0].name, arguments) if arguments and set(required(own[0])) <= set(arguments) else None
        return None

    def follow(self) -> _Said:
        """The next step: the looked-up item is used, or the results are told."""
        spec = self._best()
        if len(self.results) == 1 and spec and spec is not self.tools.get(self.results[0].name):
            items = self.results[0].items() if "id" in required(spec) else None
            named = [item for item in items or () if isinstance(item, dict) and self._mentions(item)]
            if len(named) == 1 and named[0].get("id"):
                return spec.name, {"id": str(named[0]["id"])}
        return answer(self.results)

    def _use(self, spec: ToolSpec) -> _Said:
        arguments = fill(spec, self.message)
        missing = [name for name in required(spec) if name not in arguments]
        if not missing:
            return spec.name, arguments
        # An item that is named by its title is looked up first.
        lists = f"{spec.name.rpartition('_')[0]}_List"
        if missing == ["id"] and lists in self.tools:
            return lists, {}
        return f"I need the {' and the '.join(missing)} for that: {_deed(spec)}."

    def _mentions(self, item: Mapping[str, Any]) -> bool:
        name = label(item).lower()
        return name != str(item.get("id", "")).lower() and name in self.message.lower()

    def _best(self, *, by_subject: bool = False) -> ToolSpec | None:
        """The tool whose words are in the message, the earlier of equals; `by_subject`: not for its verb alone."""
        about = say.subject(self.message)
        scored = [(_score(spec, about, by_subject), spec) for spec in self.tools.values() if not _is_own(spec.name)]
        best = max((score for score, _ in scored), default=0)
        return next((spec for score, spec in scored if score == best), None) if best else None

    def _hand_over(self) -> _Said | None:
        peers = self._peers()
        for pattern in say.DELEGATE:
            if match := pattern.match(self.message):
                return self._to(match["to"], match["task"])
        tell = say.TELL.match(self.message)
        return self._to(tell["to"], tell["task"]) if tell and tell["to"] in peers else None

    def _to(self, peer: str, task: str) -> _Said | None:
        invoke = tool_name("invoke", peer)
        if peer and invoke in self.tools:
            return invoke, {"task": task}
        return ("delegate", {"task": task} | ({"to": peer} if peer else {})) if "delegate" in self.tools else None

    def _peers(self) -> dict[str, str]:
        """The agents that can be asked, with what is said of them."""
        listed = {match[1]: match[2] for match in say.PEER.finditer(self.system.partition(PEERS)[2])}
        invoked = {name.removeprefix("invoke_"): spec.description for name, spec in self.tools.items() if _is_own(name)}
        return {name: text for name, text in (listed | invoked).items() if name not in say.BUILT_IN}

    def _route(self, spec: ToolSpec) -> _Said:
        agent = spec.parameters.get("properties", {}).get("agent", {})
        told = _listed(self.system)
        peers = {name: told.get(name, "") for name in agent.get("enum", told)}
        if chosen := _choose(peers, self.message):
            return ROUTE, {"agent": chosen, "message": self.whole}
        return f"No agent here fits that; there are: {', '.join(peers)}." if peers else "There is no agent here."

    def _able(self) -> str:
        deeds = [_deed(spec) for spec in self.tools.values() if not _is_own(spec.name)][:8]
        deeds += ["plan"] * ("plan" in self.tools) + ["delegate a task"] * ("delegate" in self.tools)
        can = f"I can: {'; '.join(deeds)}." if deeds else "I have no tools here."
        return f"I answer by simple rules and found none for that. {can}"


def _score(spec: ToolSpec, about: Sequence[str], by_subject: bool) -> int:
    """How well a tool fits the words of a message; 0 when they share no word that says what it works on.

    A message that begins with the tool's verb may leave that word out ("add buy milk"), but for a mere `list`.
    """
    name, text = set(say.words(spec.name)), set(say.words(spec.description))
    fields = set(say.words(" ".join(spec.parameters.get("properties", {}))))
    said, lead = set(about), set(about[:1])
    telling = name - say.VERBS or name
    if not said & telling and (by_subject or not lead & name & (say.VERBS - {"list"})):
        return 0
    deed = say.words(spec.name)[-1:]
    # What only looks is the safer of equals.
    return (
        6 * len(said & name)
        + 3 * len(said & set(deed))
        + 2 * len(lead & name)
        + 2 * len(said & text - name)
        + len(said & fields - name)
        + (deed == ["list"])
    )


def _choose(peers: Mapping[str, str], message: str) -> str:
    """The agent whose name and description share most words with the message; "" when none does.

    A verb alone decides only where it fits one agent and no other.
    """
    said = set(say.subject(message))

    def shared(wanted: set[str]) -> list[tuple[int, str]]:
        scores = (
            (3 * len(wanted & set(say.words(name))) + len(wanted & set(say.words(text))), name)
            for name, text in peers.items()
        )
        return sorted((each for each in scores if each[0]), key=lambda each: -each[0])

    if by_subject := shared(said - say.VERBS):
        return by_subject[0][1]
    by_verb = shared(said & say.VERBS - {"list"})
    return by_verb[0][1] if len(by_verb) == 1 else ""


def _deed(spec: ToolSpec) -> str:
    first = spec.description.split(". ")[0].strip().rstrip(".") or spec.name
    return first[:1].lower() + first[1:]


def _is_own(name: str) -> bool:
    return name in say.BUILT_IN or name.startswith("invoke_")


def _after_colon(text: str) -> str:
    head, colon, tail = text.partition(":")
    return tail if colon and tail.strip() else head


def _listed(system: str) -> dict[str, str]:
    """The agents that a router's prompt ends with, as a JSON list of objects, each with all that is said of it."""
    try:
        listed = json.loads(system[max(system.find("["), 0) :])
    except ValueError:
        return {}
    agents = [each for each in listed if isinstance(each, dict) and "name" in each] if isinstance(listed, list) else []
    return {str(each["name"]): json.dumps([value for key, value in each.items() if key != "name"]) for each in agents}


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text or "{}")
    return value if isinstance(value, dict) else {}
