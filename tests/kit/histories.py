"""What must be true of a session whatever was done to those who wrote it: read raw from the store, afterwards.

It judges what is stored and what was done in the world; it asks no agent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from kit.dialects import check_all
from kit.driver import Effect
from retinue.agent.keys import history_key
from retinue.agent.session.history import Entry, decode, to_model, valid
from retinue.service.chat import ToolCall, ToolStatus
from retinue.service.store import Store

REPEATABLE = ("look",)
WITH_EFFECT = ("pay", "post", "look")


async def entries_of(store: Store, agent: str, session: str) -> list[Entry]:
    """All that is stored of the session, oldest first, as it stands there."""
    return [decode(raw) for raw in (await store.read(history_key(agent, session))).entries]


async def check_session(store: Store, agent: str, session: str) -> list[Entry]:
    """Asserts that the session is sound, and returns its entries."""
    entries = await entries_of(store, agent, session)
    check_log(entries)
    conversation = valid(entries)
    check_pairs(conversation)
    # With what a model wanted back, as its own server is sent it, and without, as any other server is.
    for model in {entry.model for entry in entries} | {"any/other"}:
        check_all(to_model(conversation, model=model))
    return entries


def check_log(entries: Sequence[Entry]) -> None:
    """The log itself: no call has a second result, and each run is one piece that begins with a person's message."""
    results = Counter(entry.message.tool_call_id for entry in entries if entry.message.role == "tool")
    assert max(results.values(), default=1) == 1, f"a call has two results:\n{show(entries)}"
    pieces = [(run, list(of)) for run, of in groupby(entries, key=lambda entry: entry.message.run_id)]
    runs = [run for run, _ in pieces]
    assert len(runs) == len(set(runs)), f"runs are interleaved:\n{show(entries)}"
    for run, piece in pieces:
        roles = [entry.message.role for entry in piece]
        assert roles[0] == "user" and roles.count("user") == 1, f"{run} is not one whole turn:\n{show(entries)}"


def check_pairs(conversation: Sequence[Entry]) -> None:
    """The conversation as it is sent: each call has exactly one result, right behind its message, in call order."""
    expected: list[str] = []
    for entry in conversation:
        if entry.message.role == "tool":
            assert expected and entry.message.tool_call_id == expected.pop(0), show(conversation)
        else:
            assert not expected, f"calls without a result: {expected}\n{show(conversation)}"
            expected = [call.id for call in entry.message.tool_calls]
    assert not expected, f"calls without a result: {expected}\n{show(conversation)}"


def check_effects(effects: Iterable[Effect], entries: Sequence[Entry]) -> None:
    """No tool that must not run twice did so, and what a call's result says of its effect is true."""
    times = Counter(effect.call_id for effect in effects)
    named = {call.id: call.name for entry in entries for call in entry.message.tool_calls}
    for call_id, name in named.items():
        assert name in REPEATABLE or times[call_id] <= 1, f"{name} {call_id} ran {times[call_id]} times"
    for call in results_in(entries):
        if call.status is ToolStatus.OK and call.name in WITH_EFFECT:
            assert times[call.id] >= 1, f"{call.name} {call.id} says it was done, and it was not"


def results_in(entries: Iterable[Entry]) -> list[ToolCall]:
    """The finished calls of these entries."""
    return [entry.call for entry in entries if entry.call]


def show(entries: Iterable[Entry]) -> str:
    """The entries, a line each, for a message."""
    lines = []
    for entry in entries:
        message = entry.message
        calls = " ".join(f"{call.name}({call.id[-6:]})" for call in message.tool_calls)
        status = f"{entry.call.status.name} {entry.call.id[-6:]}" if entry.call else ""
        lines.append(f"  {message.run_id[-6:]} {message.role} {status}{calls} {message.text[:60]!r}")
    return "\n".join(lines)
