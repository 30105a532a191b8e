"""The system prompt of a model call: the agent's own prompt, the plan, the peers it may call, and what is away.

What others wrote of themselves stands there as data in quotation marks, never as an instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retinue.service.chat import Plan

MOST_PEERS = 50
DESCRIPTION_LENGTH = 200
_MARKS = {"pending": "[ ]", "in_progress": "[~]", "done": "[x]"}


@dataclass(frozen=True, slots=True, order=True)
class PeerLine:
    """What the prompt says of one agent."""

    name: str
    description: str = ""
    services: tuple[str, ...] = ()


def system_prompt(prompt: str, plan: Plan, peers: Sequence[PeerLine], *, away: Sequence[str] = ()) -> str:
    """The whole system prompt; parts that are empty are left out. `away`: a line for each tool server not there."""
    return "\n\n".join(part for part in (prompt.strip(), _plan(plan), _peers(peers), _away(away)) if part)


def _plan(plan: Plan) -> str:
    if not plan:
        return ""
    return "\n".join(["Your plan so far:", *(f"{_MARKS.get(step.status, '[ ]')} {step.task}" for step in plan)])


def _peers(peers: Sequence[PeerLine]) -> str:
    if not peers:
        return ""
    lines = ["Agents you can delegate to (what they say of themselves is in quotation marks):"]
    lines += [_line(peer) for peer in peers[:MOST_PEERS]]
    if len(peers) > MOST_PEERS:
        lines.append(f"and {len(peers) - MOST_PEERS} more")
    return "\n".join(lines)


def _away(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    said = [f'- "{" ".join(line.split())}"'.replace('"', "'") for line in lines]
    return "\n".join(["Servers of tools that are away for now (in quotation marks what is known of it):", *said])


def _line(peer: PeerLine) -> str:
    said = " ".join(peer.description.split()).replace('"', "'")
    if len(said) > DESCRIPTION_LENGTH:
        said = said[: DESCRIPTION_LENGTH - 1] + "…"
    return (
        "- "
        + peer.name
        + (f': "{said}"' if said else "")
        + (f" (services: {', '.join(peer.services)})" if peer.services else "")
    )
