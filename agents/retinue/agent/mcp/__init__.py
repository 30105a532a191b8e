"""MCP servers as tools of an agent: started with it, kept running beside its turns, and called like any other tool.

    Agent("clerk", tools=[overdue, McpServer("files", command="retinue", args=["mcp", "run", "filesystem", "."])])

The `mcp` package is imported only when a server is started. Nothing here decides what a model may do beyond the
exact names that a server's settings allow.
"""

from retinue.agent.mcp.server import McpServer

__all__ = ["McpServer"]
