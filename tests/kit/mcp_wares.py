"""An MCP server made with the `mcp` package: over stdio, or over streamable HTTP when a port is given."""

from __future__ import annotations

import os
import struct
import sys
import zlib

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp_types import EmbeddedResource, TextContent, TextResourceContents, ToolAnnotations

server = MCPServer("wares", log_level="ERROR")
cancelled: list[str] = []


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
async def wait(name: str) -> str:
    """Waits for ever."""
    print(name, "waits", file=sys.stderr, flush=True)
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        cancelled.append(name)
        raise
    return ""


@server.tool()
def waited() -> str:
    """Who waited in vain."""
    return " ".join(cancelled)


@server.tool()
def die() -> str:
    """Ends the server in the middle of a call."""
    os._exit(7)


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("no")


@server.tool()
def picture() -> Image:
    """A picture of one point."""
    return Image(data=_png(), format="png")


@server.tool()
def paper() -> list[EmbeddedResource | TextContent]:
    """A paper, and a word to it."""
    paper = TextResourceContents(uri="file:///paper.txt", mime_type="text/plain", text="It says so.")
    return [TextContent(type="text", text="here"), EmbeddedResource(type="resource", resource=paper)]


@server.tool()
async def grow(ctx: Context) -> str:
    """Adds a tool."""
    server.add_tool(waited, name="grown")
    await ctx.session.send_tool_list_changed()
    return "grown"


def _png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
