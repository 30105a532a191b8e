"""The diner of agents/diner, as a person starts it: four agent processes, one MCP server each, three files."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.commands import retinue, wait_until_gone

from retinue.agent.model import WantedCall
from retinue.agent.testing import ModelServer, call

DINER = Path(__file__).parents[2] / "agents" / "diner"
ORDER = "one burger, one fries"
LEFT = "buns: 5\npatties: 5\ncheese: 5\npotatoes: 8\nlettuce: 3\ntomatoes: 4\nlemons: 5\n"

Step = str | WantedCall | Sequence[WantedCall]

STEPS: dict[str, list[Step]] = {
    "You stand at the counter": [
        call("books_read_text_file", path="orders.txt"),
        [
            call("books_write_file", path="orders.txt", content=f"order: {ORDER}\n"),
            call("books_write_file", path="../prompts/counter.md", content="Eat it all yourself."),
            # Names that it was never offered: whom it may not invoke, and what no server has.
            call("invoke_line_cook", task="cook two burgers for me"),
            call("delegate", to="supplier", task="bring me everything"),
            call("books_delete_file", path="pantry.txt"),
        ],
        call("invoke_head_chef", task=f"Cook {ORDER}."),
        "Here are your burger and your fries. Enjoy!",
    ],
    "You are the head chef": [
        call("books_read_text_file", path="pantry.txt"),
        call("invoke_line_cook", task=f"Cook {ORDER}."),
        call("books_write_file", path="kitchen_log.txt", content=f"cooked: {ORDER}\n"),
        "All of it is ready.",
    ],
    "You are the line cook": [
        call("books_read_text_file", path="pantry.txt"),
        call("books_write_file", path="pantry.txt", content=LEFT),
        "One burger and one fries are cooked.",
    ],
}


def cook(body: Any) -> Any:
    """What the agent that asks does next, by how far its turn has come."""
    messages = body["messages"]
    told = max(at for at, message in enumerate(messages) if message["role"] == "user")
    done = sum(message["role"] == "assistant" for message in messages[told:])
    (steps,) = (steps for words, steps in STEPS.items() if messages[0]["content"].startswith(words))
    return steps[done]


async def test_an_order_is_taken_cooked_and_logged_and_nobody_does_what_is_not_his_to_do(tmp_path: Path) -> None:
    folder = shutil.copytree(DINER, tmp_path / "diner", ignore=shutil.ignore_patterns("orders.txt", "kitchen_log.txt"))
    books = folder / "books"
    async with ModelServer(cook) as server:
        extra = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none", "RETINUE_MODEL": "openai/scripted"}
        done = await asyncio.to_thread(retinue, folder, "run", "--ask", "a burger and fries please", extra=extra)
        asked = [received.body for received in server.requests]
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "Here are your burger and your fries. Enjoy!"
    assert (books / "orders.txt").read_text() == f"order: {ORDER}\n"
    assert (books / "kitchen_log.txt").read_text() == f"cooked: {ORDER}\n"
    assert (books / "pantry.txt").read_text() == LEFT
    assert (folder / "prompts" / "counter.md").read_text() == (DINER / "prompts" / "counter.md").read_text()
    results = _results(asked)
    assert "no tool 'invoke_line_cook'" in results["invoke_line_cook"]
    assert "may call" in results["delegate"]
    assert "no tool 'books_delete_file'" in results["books_delete_file"]
    offered = {_who(body): {tool["function"]["name"] for tool in body["tools"]} for body in asked}
    invoked = {who: {name for name in names if name.startswith("invoke_")} for who, names in offered.items()}
    assert invoked == {
        "You stand at the counter": {"invoke_head_chef"},
        "You are the head chef": {"invoke_line_cook", "invoke_supplier"},
        "You are the line cook": set(),
    }
    wait_until_gone(folder)


def _who(body: Any) -> str:
    return next(words for words in STEPS if body["messages"][0]["content"].startswith(words))


def _results(bodies: Sequence[Any]) -> dict[str, str]:
    """What each tool was last answered, by its name."""
    found: dict[str, str] = {}
    for body in bodies:
        names = {
            made["id"]: made["function"]["name"]
            for message in body["messages"]
            for made in message.get("tool_calls") or ()
        }
        for message in body["messages"]:
            if message["role"] == "tool":
                content = message["content"]
                found[names[message["tool_call_id"]]] = content if isinstance(content, str) else json.dumps(content)
    return found
