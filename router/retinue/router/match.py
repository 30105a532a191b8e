"""The cheap half of routing: what a message says by itself, without a model.

It reads `@name`, tells a follow-up from a new subject, and compares words with what the agents are and do. It
decides only what is clear; the rest is left to the model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import sqrt

from retinue.service.names import nearest

# An address such as ada@example.com is no mention.
_MENTION = re.compile(r"(?<![\w@.])@([A-Za-z0-9][A-Za-z0-9-]{0,62})")
_WORD = re.compile(r"[^\W_]+")
_NAME_WEIGHT, _SERVICE_WEIGHT, _TEXT_WEIGHT = 3.0, 3.0, 1.0
# The best agent is clear when it scores this much, and so many times as much as the next.
_ENOUGH, _MARGIN = 1.5, 2.0
_SHORT = 3


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FOLLOWS = _set(
    "and also but or then so it its that this those these them they he she his her their again same "
    "yes no yep nope ok okay sure thanks why"
)
_FOLLOWS_IN_TWO = frozenset({("what", "about"), ("how", "about"), ("what", "else"), ("who", "else")})
_EMPTY = _set(
    "a an the and or but of for to in on at by with from as is are was were be been do does did has have had can "
    "could will would should may i me my you your he she it we they them his her its our their this that these "
    "those what which who when where how why all any some please so not no yes if then than there here about "
    "agent agents service services mgr manager keep keeps work works need want know tell give show let get"
)
_ENDINGS = ("ings", "ing", "ies", "ed", "s")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent that may be chosen, as the registry describes it."""

    name: str
    services: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True, slots=True)
class Mentions:
    """The agents that a message names with `@`, and a name that is near one but is none (or stands first)."""

    agents: tuple[str, ...] = ()
    unknown: str = ""


def mentions(message: str, known: Collection[str]) -> Mentions:
    """Who is named with `@name`. A name of nobody is taken for an agent's when it comes first or is near one."""
    found: list[str] = []
    unknown = ""
    for match in _MENTION.finditer(message):
        name = match[1].lower().rstrip("-")
        if name in known:
            found.append(name)
        elif not unknown and (not message[: match.start()].strip() or nearest(name, known)):
            unknown = name
    return Mentions(tuple(dict.fromkeys(found)), unknown)


def scores(message: str, candidates: Iterable[Candidate]) -> dict[str, float]:
    """How well each candidate's name, services and description match; a word that several share counts for less."""
    weights = {one.name: _weights(one) for one in candidates}
    shared = Counter(word for words in weights.values() for word in words)
    asked = set(_stems(message))
    return {
        name: sum(words[word] / sqrt(shared[word]) for word in asked & words.keys()) for name, words in weights.items()
    }


def clearest(found: Mapping[str, float]) -> str | None:
    """The candidate that stands out, if one does."""
    first, second = (*sorted(found.items(), key=lambda item: -item[1]), ("", 0.0), ("", 0.0))[:2]
    return first[0] if first[1] >= _ENOUGH and first[1] >= _MARGIN * second[1] else None


def continues(message: str, last: str, found: Mapping[str, float]) -> bool:
    """Whether `message` goes on with agent `last`, given every agent's score.

    It does when it leans on what was said before and matches nobody better, or when it matches `last` and nobody
    else to speak of.
    """
    if last not in found:
        return False
    rest = max((score for name, score in found.items() if name != last), default=0.0)
    if _leans(message):
        return found[last] >= rest
    return found[last] >= rest and found[last] > 0.0 and rest < _ENOUGH


def _leans(message: str) -> bool:
    """Whether a message leans on what was said before: it is very short, or begins with a pronoun or conjunction."""
    words = _WORD.findall(message.lower())
    return len(words) <= _SHORT or words[0] in _FOLLOWS or (words[0], words[1]) in _FOLLOWS_IN_TWO


def _weights(candidate: Candidate) -> dict[str, float]:
    weights: dict[str, float] = {}
    described = (
        (candidate.description, _TEXT_WEIGHT),
        (" ".join(candidate.services), _SERVICE_WEIGHT),
        (candidate.name, _NAME_WEIGHT),
    )
    for text, weight in described:
        for stem in _stems(text):
            weights[stem] = max(weights.get(stem, 0.0), weight)
    return weights


def _stems(text: str) -> list[str]:
    return [_stem(word) for word in map(str.lower, _WORD.findall(text)) if word not in _EMPTY]


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)] + ("y" if ending == "ies" else "")
            break
    return word.removesuffix("e")
