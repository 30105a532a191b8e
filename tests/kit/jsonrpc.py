"""MCP clients written by hand, in plain JSON-RPC: what a server must be good for beside the clients of one package."""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from kit.commands import COMMAND, environment

LIMIT_S = 60.0
_HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "by-hand", "version": "1"},
}


class RpcError(Exception):
    """What a server answered instead of a result."""


class Speaker:
    """A client over the standard streams of a process: requests by id, in whatever order their answers come."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.noise: list[str] = []
        self.stderr = ""
        self.notes: queue.Queue[dict[str, Any]] = queue.Queue()
        self._ids = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any] | None]] = {}
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._drain)]
        for thread in self._threads:
            thread.start()

    def hello(self) -> dict[str, Any]:
        """The handshake: what the server says of itself."""
        about = self.request("initialize", _HELLO)
        self.notify("notifications/initialized")
        return about

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Sends a request and returns its id."""
        number = next(self._ids)
        self._answers[number] = queue.Queue()
        self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}})
        return number

    def answer(self, number: int) -> dict[str, Any]:
        """The result of a request that was sent. RpcError for an error."""
        answer = self._answers[number].get(timeout=LIMIT_S)
        assert answer is not None, f"the server ended: {self.stderr}"
        if "error" in answer:
            raise RpcError(answer["error"]["message"])
        result: dict[str, Any] = answer["result"]
        return result

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self.answer(self.send(method, params))

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self._write({"jsonrpc": "2.0", "method": method, "params": params or {}})

    def cancel(self, number: int) -> None:
        self.notify("notifications/cancelled", {"requestId": number})

    def tools(self) -> dict[str, dict[str, Any]]:
        """The tools by name."""
        return {tool["name"]: tool for tool in self.request("tools/list")["tools"]}

    def start(self, tool: str, **arguments: Any) -> int:
        """Begins a call and returns the id of its request."""
        return self.send("tools/call", {"name": tool, "arguments": arguments})

    def ended(self, number: int) -> tuple[str, bool]:
        """The text of a call that was begun, and whether it went wrong."""
        return told(self.answer(number))

    def call(self, tool: str, **arguments: Any) -> str:
        """The text of a call that goes well."""
        text, failed = self.ended(self.start(tool, **arguments))
        assert not failed, text
        return text

    def refused(self, tool: str, **arguments: Any) -> str:
        """The text of a call that does not go well."""
        text, failed = self.ended(self.start(tool, **arguments))
        assert failed, text
        return text

    def wait_for(self, method: str) -> dict[str, Any]:
        """The next notification of that method."""
        while (note := self.notes.get(timeout=LIMIT_S))["method"] != method:
            pass
        return note

    def close(self) -> int:
        """Hangs up and returns the exit code."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            code = self.process.wait(LIMIT_S)
        finally:
            self.process.kill()
        for thread in self._threads:
            thread.join(LIMIT_S)
        self.process.stdout.close()
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                self.noise.append(line.decode(errors="replace"))
                continue
            if "method" in message:
                self.notes.put(message)
            else:
                self._answers[message["id"]].put(message)
        for waiting in self._answers.values():
            waiting.put(None)

    def _drain(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr += line.decode(errors="replace")


@contextmanager
def speaking(
    folder: Path, *args: str, extra: Mapping[str, str] | None = None, ends: tuple[int, ...] = (0,)
) -> Iterator[Speaker]:
    """A command of ours as an MCP server, greeted. It may end as `ends` says, and print nothing but protocol."""
    process = subprocess.Popen(
        [*COMMAND, *args],
        cwd=folder,
        env=environment(folder, extra),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    speaker = Speaker(process)
    try:
        speaker.hello()
        yield speaker
    finally:
        code = speaker.close()
    assert code in ends, speaker.stderr
    assert speaker.noise == []


def told(result: Mapping[str, Any]) -> tuple[str, bool]:
    """The texts of a result, and whether it is an error."""
    return "\n".join(block.get("text", "") for block in result["content"]), bool(result.get("isError"))


class Poster:
    """A client over streamable HTTP with httpx: one POST a request, whose answer is JSON or a stream of events."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http, self._url = http, url
        self._headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        self._ids = itertools.count(1)

    async def hello(self) -> None:
        """The handshake; the session that the server names goes with all that follows."""
        answer = await self._post({"id": next(self._ids), "method": "initialize", "params": _HELLO})
        self._headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        self._headers["MCP-Protocol-Version"] = _HELLO["protocolVersion"]  # type: ignore[assignment]
        await self._post({"method": "notifications/initialized"})

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        number = next(self._ids)
        answer = await self._post({"id": number, "method": method, "params": params or {}})
        for message in _messages(answer):
            if message.get("id") == number:
                if "error" in message:
                    raise RpcError(message["error"]["message"])
                result: dict[str, Any] = message["result"]
                return result
        raise AssertionError(f"no answer in {answer.text}")

    async def call(self, tool: str, **arguments: Any) -> tuple[str, bool]:
        return told(await self.request("tools/call", {"name": tool, "arguments": arguments}))

    async def _post(self, message: Mapping[str, Any]) -> httpx.Response:
        answer = await self._http.post(self._url, json={"jsonrpc": "2.0", **message}, headers=self._headers)
        return answer.raise_for_status()


def _messages(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    if answer.headers["content-type"].startswith("application/json"):
        yield answer.json()
        return
    for line in answer.text.split("\n"):
        if line.startswith("data:") and line[5:].strip():
            yield json.loads(line[5:])
