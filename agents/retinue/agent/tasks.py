"""Tasks that an agent gave away without waiting, and the tools by which it asks for them: check_task and wait_task.

What a session gave away is noted in the store, so that it is found by run id also after a restart, and so that no
session asks for another's. How a task stands is read from its run, whoever did it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Any

import orjson

from retinue.agent.keys import RUN_TTL_S, tasks_key
from retinue.agent.runs.book import RunBook
from retinue.agent.runs.record import Record
from retinue.agent.tools import Invocation, Tool, ToolResult, ToolSpec
from retinue.service.background import Background
from retinue.service.chat import Reply, RunState, ToolStatus
from retinue.service.errors import StoreUnavailable, UnknownName
from retinue.service.names import did_you_mean
from retinue.service.store import Store

# How long wait_task waits unless told otherwise, seconds.
WAIT_S = 30.0
_RUN_ID = {"type": "string", "minLength": 1, "description": "The id that delegate gave."}
CHECK = ToolSpec(
    "check_task",
    "Say how a task stands that was given away by delegate with wait=false, with its answer once it has one.",
    {"type": "object", "properties": {"run_id": _RUN_ID}, "required": ["run_id"], "additionalProperties": False},
)
WAIT = ToolSpec(
    "wait_task",
    "Wait for tasks that were given away by delegate with wait=false, and get their answers.",
    {
        "type": "object",
        "properties": {
            "run_ids": {"type": "array", "items": _RUN_ID, "description": "Which; all of this session if left out."},
            "mode": {"type": "string", "enum": ["all", "any"], "description": "all (default), or the first of them."},
            "seconds": {"type": "number", "minimum": 0, "description": f"How long at most; {WAIT_S:g} if left out."},
        },
        "additionalProperties": False,
    },
)


class Tasks:
    """What one session of one agent gave away."""

    def __init__(self, store: Store, agent: str, session: str) -> None:
        self._store = store
        self._key = tasks_key(agent, session)
        self._book = RunBook(store)

    async def note(self, reply: Reply, invocation: Invocation) -> ToolResult:
        """Notes the run that `reply` stands for as a task of this session; what the model is told of it."""
        row = orjson.dumps({"agent": reply.agent, "task": invocation.arguments["task"]})
        await self._store.put_row(self._key, reply.run_id, row, ttl=RUN_TTL_S)
        text = f"[{reply.agent} works on it as {reply.run_id}; ask for it by check_task or wait_task]"
        return ToolResult(text, run_id=reply.run_id)

    def tools(self) -> list[Tool]:
        """check_task and wait_task."""
        return [Tool(CHECK, self._check, idempotent=True), Tool(WAIT, self._wait, idempotent=True)]

    async def _check(self, invocation: Invocation) -> ToolResult:
        run_id = invocation.arguments["run_id"]
        if wrong := await self._unknown([run_id]):
            return wrong
        return ToolResult(_told([await self._stands(run_id)]))

    async def _wait(self, invocation: Invocation) -> ToolResult:
        arguments = invocation.arguments
        run_ids = list(dict.fromkeys(arguments.get("run_ids") or await self._store.rows(self._key)))
        if wrong := await self._unknown(run_ids):
            return wrong
        if not run_ids:
            return ToolResult("nothing was given away in this session", ToolStatus.ERROR)
        enough = asyncio.FIRST_COMPLETED if arguments.get("mode") == "any" else asyncio.ALL_COMPLETED
        async with Background() as background:
            waits = [background.start(self._ended(run_id)) for run_id in run_ids]
            await asyncio.wait(waits, timeout=arguments.get("seconds", WAIT_S), return_when=enough)
        tasks = [await self._stands(run_id) for run_id in run_ids]
        for task in tasks:
            if task["state"] == RunState.RUNNING.name:
                task["error"] = "it has not finished: wait for it again, or go on without it"
        return ToolResult(_told(tasks))

    async def _ended(self, run_id: str) -> None:
        with contextlib.suppress(UnknownName, StoreUnavailable):
            await self._book.ended(run_id)

    async def _unknown(self, run_ids: Sequence[str]) -> ToolResult | None:
        known = await self._store.rows(self._key)
        for run_id in run_ids:
            if run_id not in known:
                text = f"this session gave away no task {run_id!r}{did_you_mean(run_id, known)}"
                return ToolResult(text, ToolStatus.ERROR)
        return None

    async def _stands(self, run_id: str) -> dict[str, Any]:
        try:
            record = await self._book.record(run_id)
        except UnknownName as error:
            return {"run_id": run_id, "state": "UNKNOWN", "error": error.message}
        return {"run_id": run_id, "agent": record.agent, "state": record.state.name} | _outcome(record)


def _outcome(record: Record) -> dict[str, str]:
    """The reply of a run that ended well, why it did not, or nothing while it runs."""
    if record.state is RunState.RUNNING:
        return {}
    text = record.reply.text if record.reply else ""
    if record.state is RunState.COMPLETED:
        return {"reply": text}
    return {"error": record.message or record.reason} | ({"reply": text} if text else {})


def _told(tasks: Sequence[dict[str, Any]]) -> str:
    return json.dumps(tasks, ensure_ascii=False)
