"""What makes a service an agent: a prompt, a model, tools, and turns that are never lost.

    from retinue.agent import Agent, tool

An Agent is a Chat, so a Mesh serves it and any gRPC client asks it. Models and dialects live in retinue.agent.model,
test doubles in retinue.agent.testing; nothing here speaks HTTP or knows a command line.
"""

from retinue.agent.agent import Agent
from retinue.agent.hooks import Ask, Block, Change, Hooks
from retinue.agent.limits import Limits
from retinue.agent.tools import Invocation, Tool, ToolResult
from retinue.agent.tools.function import tool

__all__ = ["Agent", "Ask", "Block", "Change", "Hooks", "Invocation", "Limits", "Tool", "ToolResult", "tool"]
