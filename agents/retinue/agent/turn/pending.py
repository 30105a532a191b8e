"""What was said to a run's pending calls: each answer is given once, and an approval is used once.

Answers lie beside the run, so that they survive whoever ran it. They say nothing of whether a call may be asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import orjson

from retinue.agent.keys import RUN_TTL_S, answers_key
from retinue.service.chat import Answer, Pending
from retinue.service.errors import AlreadyExists
from retinue.service.store import Conflict, Store


async def answers_to(store: Store, run_id: str, pending: Sequence[Pending]) -> Mapping[str, Answer] | None:
    """What was said to each pending call, by call id; None while one is open."""
    rows = await store.rows(answers_key(run_id))
    if any(each.id not in rows for each in pending):
        return None
    return {each.tool_call_id: _decode(rows[each.id]) for each in pending}


async def give_answer(store: Store, run_id: str, pending_id: str, answer: Answer) -> None:
    """Notes the answer. AlreadyExists when another one was given; the same one twice is one."""
    key, raw = answers_key(run_id), orjson.dumps(asdict(answer))
    try:
        await store.put_row(key, pending_id, raw, expect=None, ttl=RUN_TTL_S)
    except Conflict:
        if (await store.rows(key)).get(pending_id) != raw:
            raise AlreadyExists(f"{pending_id} was answered before: an answer is given once") from None


async def was_given(store: Store, run_id: str, pending_id: str, answer: Answer) -> bool:
    """Whether this very answer was given before."""
    return (await store.rows(answers_key(run_id))).get(pending_id) == orjson.dumps(asdict(answer))


async def use_answer(store: Store, run_id: str, pending_id: str) -> bool:
    """Uses the answer up; False when it was before."""
    try:
        await store.put_row(answers_key(run_id), f"{pending_id}/used", b"1", expect=None, ttl=RUN_TTL_S)
    except Conflict:
        return False
    return True


def _decode(raw: bytes) -> Answer:
    return Answer(**orjson.loads(raw))
