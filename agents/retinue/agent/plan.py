"""The built-in tool `plan`: the agent's own list of steps, kept per session and shown to it in each model call.

The plan is whatever the agent last said it is; nothing is ever ticked off by guessing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from retinue.agent.tools import Invocation, Tool, ToolResult, ToolSpec
from retinue.service.chat import Plan, PlanStep
from retinue.service.text import sane

STATUSES = ("pending", "in_progress", "done")
MOST_STEPS = 100

SPEC = ToolSpec(
    "plan",
    "Write down or update your plan: the whole list of steps, each with its status. It replaces the plan before it.",
    {
        "type": "object",
        "properties": {
            "steps": {
                "type": "array",
                "maxItems": MOST_STEPS,
                "items": {
                    "type": "object",
                    "properties": {
                        "task": {"type": "string", "minLength": 1},
                        "status": {"type": "string", "enum": list(STATUSES)},
                    },
                    "required": ["task", "status"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["steps"],
        "additionalProperties": False,
    },
)


def plan_tool(save: Callable[[Plan], Awaitable[None]]) -> Tool:
    """The tool, which hands each new plan to `save` before it answers."""

    async def run(invocation: Invocation) -> ToolResult:
        steps = tuple(PlanStep(sane(step["task"]), step["status"]) for step in invocation.arguments["steps"])
        await save(steps)
        done = sum(step.status == "done" for step in steps)
        return ToolResult(f"The plan is saved: {len(steps)} steps, {done} done.")

    return Tool(SPEC, run, idempotent=True)
