"""MCP servers: four of our own for files and programs, and one that is the mesh itself.

    retinue mcp run filesystem|edit|grep|shell ...
    retinue mcp serve

Each is started by the command line and imported only there. Agents use servers by retinue.agent; nothing here does.
"""
