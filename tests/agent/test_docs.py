"""The programs of docs/models.md do what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kit.dialect_models import model_of

from retinue.agent import Agent, tool
from retinue.agent.testing import Answer, ModelServer, Rules

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


@tool
async def overdue(owner: str) -> list[str]:
    """What an owner is late with."""
    return ["the form"]


async def test_the_test_of_the_page_passes() -> None:
    (program,) = re.findall(r"```python\n(from retinue.agent import .*?)```", PAGE, flags=re.DOTALL)
    names: dict[str, Any] = {"overdue": overdue}
    exec(program, names)
    await names["test_the_clerk_looks_up_who_is_late"]()


async def test_the_rules_of_the_page_are_rules() -> None:
    (rules,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    async with (
        ModelServer(Rules(json.loads(rules))) as server,
        Agent("clerk", model=model_of("openai", server.url)) as clerk,
    ):
        assert (await clerk.ask("hello")).text == "You said: hello"


async def test_whoever_reads_the_stream_is_told_that_the_server_is_asked_again() -> None:
    script: list[Any] = [Answer(step="slow down", status=429, headers={"retry-after": "0"}), "hello"]
    async with ModelServer(script) as server, Agent("clerk", model=model_of("openai", server.url)) as clerk:
        told = [event.body async for event in clerk.stream("hi")]
    assert "asking again in" in str(told[0])
