"""Recorded answers of real servers, told to a real agent: whatever they were, every later request is legal anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit.dialect_models import DIALECTS
from kit.modelled import clerk_of, scripted_mesh

from retinue.agent.model import retry
from retinue.agent.testing import Answer
from retinue.service.chat import RunState
from retinue.service.errors import ModelError

CASES = {path.stem: json.loads(path.read_text()) for path in Path(__file__).parents[2].glob("cases/wire/*.json")}
# Answers that a server gave with success; what an error status means ends a turn, and leaves nothing to be sent back.
ANSWERED = sorted(name for name, case in CASES.items() if case["http_status"] == 200)


@pytest.mark.parametrize("name", ANSWERED)
async def test_a_session_goes_on_after_it_with_every_provider(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)
    case = CASES[name]
    own = case["provider"] if case["provider"] in DIALECTS else "openai"
    kind = {key.lower(): value for key, value in case["headers"].items()}.get("content-type", "")
    told = Answer(body=case["body"].encode(), content_type=kind)

    def script(body: Any) -> Any:
        said = [each for each in body["messages"] if each["role"] == "user"][-1]["content"]
        return told if said == "Go." and body["messages"][-1]["role"] == "user" else "Well."

    expect = case["expect"]
    called = expect["tool_calls"] or expect.get("malformed_tool_calls")
    text = "Well." if called else expect["text"] or expect.get("refusal", "")
    async with scripted_mesh(script) as (server, mesh):
        async with mesh.serve(clerk_of(own, server)):
            if expect["stop"] == "error":
                with pytest.raises(ModelError):
                    await mesh.ask("clerk", "Go.")
            else:
                reply = await mesh.ask("clerk", "Go.")
                # A turn that was cut has a text of our own where the model had said nothing.
                assert reply.text == text or (reply.state is RunState.INCOMPLETE and not text)
        for dialect in (own, *DIALECTS):
            async with mesh.serve(clerk_of(dialect, server)):
                assert (await mesh.ask("clerk", "And now?")).text == "Well."
