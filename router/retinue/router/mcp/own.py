"""Our own MCP servers for files over standard input and output: filesystem, edit and grep."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from retinue.router.mcp import edit, filesystem, grep
from retinue.router.mcp.folders import Folders
from retinue.router.mcp.server import ToolServer
from retinue.router.mcp.transport import serve_stdio


async def serve_own(name: str, given: Sequence[Path], *, seconds: float) -> None:
    """Serves `name` for the given folders until its client hangs up; `seconds` bounds a search.

    Raises Invalid for a folder that is none.
    """
    async with AsyncExitStack() as stack:
        folders = stack.enter_context(Folders(given))
        shown = ", ".join(map(str, folders.roots))
        match name:
            case "filesystem":
                offer, about = filesystem.Filesystem(folders).offer(), filesystem.ABOUT
            case "edit":
                offer, about = edit.LineEdits(folders).offer(), edit.ABOUT
            case _:
                searches = await stack.enter_async_context(grep.Grep(folders, seconds=seconds))
                offer, about = searches.offer(), grep.ABOUT
        await serve_stdio(ToolServer(f"retinue-{name}", offer, instructions=about.format(folders=shown)))
