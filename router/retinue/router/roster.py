"""Who is there: the agents that a message may be sent to now, as the registry has them.

It reads the directory at each message and keeps nothing, so that agents may join, leave and die at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from retinue.router.match import Candidate
from retinue.service.client.directory import Directory
from retinue.service.errors import UnknownName
from retinue.service.names import did_you_mean

_MOST_NAMED, _MOST_SAID = 12, 120


@dataclass(frozen=True, slots=True)
class Roster:
    """The agents that can be chosen, those that are registered but not healthy, and the services."""

    agents: tuple[Candidate, ...]
    silent: tuple[str, ...]
    services: tuple[str, ...]

    def nobody_fits(self) -> str:
        """The answer to a message that no agent fits."""
        said = "; ".join(_introduced(one) for one in self.agents[:_MOST_NAMED])
        more = len(self.agents) - _MOST_NAMED
        answer = f"No agent here fits that message. There are: {said}{f'; and {more} more' if more > 0 else ''}."
        return f"{answer} Not answering now: {', '.join(self.silent)}." if self.silent else answer

    def nobody_named(self, name: str) -> str:
        """The answer to a message for an agent that is not there."""
        if name in self.services:
            return f"{name} is a service, and only agents can be spoken to{did_you_mean('', self._names())}"
        return f"There is no agent named {name}{did_you_mean(name, self._names())}"

    def _names(self) -> Sequence[str]:
        return [*(one.name for one in self.agents), *self.silent]


async def read_roster(directory: Directory) -> Roster:
    """The roster as it is now. RegistryUnavailable when the registry was never reached."""
    names = await directory.names()
    agents: list[Candidate] = []
    silent: list[str] = []
    named = sorted(name for name, kind in names.items() if kind == "agent")
    answers = await asyncio.gather(*(directory.nodes(name) for name in named), return_exceptions=True)
    for name, nodes in zip(named, answers, strict=True):
        if isinstance(nodes, UnknownName):
            continue  # it left between the two questions
        if isinstance(nodes, BaseException):
            raise nodes
        sound = [node for node in nodes if node.healthy]
        if sound:
            agents.append(Candidate(name, sound[0].services, sound[0].description))
        else:
            silent.append(name)
    return Roster(tuple(agents), tuple(silent), tuple(name for name, kind in names.items() if kind == "service"))


def _introduced(agent: Candidate) -> str:
    said = " ".join(agent.description.split()).rstrip(".")
    if len(said) > _MOST_SAID:
        said = said[: _MOST_SAID - 1] + "…"
    return f"{agent.name} ({said})" if said else agent.name
