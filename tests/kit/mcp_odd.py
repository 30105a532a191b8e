"""An MCP server by hand, over stdio and with no library, that does what good servers do not. Its argument says what."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NONE = {"type": "object", "properties": {}}
WORDS = ("lone \ud83d|", "low \ude00|", "turned \ude00\ud83d|", "pair \U0001f600|", "nul \0|")
cancelled: list[Any] = []
tools: dict[str, Any] = {"echo": TEXT, "pid": NONE, "hang": NONE, "freeze": NONE, "die": NONE, "cancelled": NONE}
tools |= {"words": NONE, "huge": NONE, "more": NONE, "less": NONE}
listings = 0


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(request: dict[str, Any], result: dict[str, Any]) -> None:
    say({"id": request["id"], "result": result})


def listed(cursor: str | None) -> dict[str, Any]:
    if MODE == "schemas":
        return {"tools": ODD}
    if MODE != "pages":
        return {"tools": [{"name": name, "inputSchema": schema} for name, schema in tools.items()]}
    page = int(cursor or 0)
    entries = [{"name": f"t{number}", "inputSchema": NONE} for number in range(page * 50, page * 50 + 50)]
    return {"tools": entries, "nextCursor": str(page + 1) if page < 4 else "2"}


def run(request: dict[str, Any]) -> None:
    name, arguments = request["params"]["name"], request["params"].get("arguments", {})
    text = ""
    match name:
        case "echo":
            text = arguments["text"]
        case "pid":
            text = str(os.getpid())
        case "hang":
            return
        case "freeze":
            time.sleep(600)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "cancelled":
            text = json.dumps(cancelled)
        case "words":
            # Straight into the answer as escapes, as servers in other languages write them.
            answer(request, {"content": [{"type": "text", "text": "".join(WORDS)}]})
            return
        case "huge":
            text = "x" * 3_000_000
        case "more" | "less":
            tools.pop("less", None) if name == "less" else tools.update(extra=NONE)
            say({"method": "notifications/tools/list_changed"})
            text = name
        case _:
            say({"id": request["id"], "error": {"code": -32602, "message": f"Unknown tool: {name}"}})
            return
    answer(request, {"content": [{"type": "text", "text": text}]})


ODD = [
    {"name": "fine", "inputSchema": NONE},
    {"name": "fine", "inputSchema": NONE},
    {"name": "bare"},
    {"name": "no schema", "inputSchema": "text"},
    {"name": "list", "inputSchema": {"type": "array"}},
    {"name": "wrong type", "inputSchema": {"type": "object", "properties": {"a": {"type": "strin"}}}},
    {"name": "far", "inputSchema": {"$ref": "http://127.0.0.1:9/never"}},
    {"name": "nowhere", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}}},
    {"name": "one", "inputSchema": {"oneOf": [{"properties": {"a": NONE}}, {"properties": {"b": NONE}}]}},
    {"name": "pattern", "inputSchema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}},
    {"name": "near", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}},
    {"name": "dots.and spaces", "inputSchema": NONE, "description": "d" * 9000},
    {"name": "dots_and_spaces", "inputSchema": NONE},
    {"inputSchema": NONE},
    "not even an object",
    {"name": "old", "inputSchema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}},
]


def begin() -> None:
    print("a line for the log", file=sys.stderr, flush=True)
    if MODE == "banner":
        print("Welcome to the server!\n\n{}", flush=True)
    if MODE == "exit":
        print("no licence found", file=sys.stderr, flush=True)
        sys.exit(3)
    if MODE == "silent":
        time.sleep(600)
    if MODE == "loud":
        sys.stderr.write("noise\n" * 200_000)
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = os.fork()
        if not child:
            time.sleep(600)
        print(f"pids {os.getpid()} {child}", file=sys.stderr, flush=True)


def serve() -> None:
    for line in sys.stdin.buffer:
        request = json.loads(line)
        match request.get("method"):
            case "initialize":
                about = {"name": "odd", "version": "1"}
                version, abilities = request["params"]["protocolVersion"], {"tools": {"listChanged": True}}
                answer(request, {"protocolVersion": version, "capabilities": abilities, "serverInfo": about})
            case "tools/list":
                answer(request, listed(request.get("params", {}).get("cursor")))
            case "tools/call":
                run(request)
            case "ping":
                answer(request, {})
            case "notifications/cancelled":
                cancelled.append(request["params"]["requestId"])
    if MODE == "stubborn":
        time.sleep(600)


if __name__ == "__main__":
    begin()
    serve()
