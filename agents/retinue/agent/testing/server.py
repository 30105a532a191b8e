"""A model server for tests: real HTTP on loopback that says what a script says, in the dialect that it is asked in.

It counts no tokens. A model that says more than a dialect has words for is told by the nearest that it has.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from retinue.agent.model import ModelEnd, Stop, WantedCall
from retinue.agent.model.scripted import Step, resolve, text_and_calls
from retinue.agent.testing.asked import text_of
from retinue.agent.testing.dialects import Spoken, known_path, spelling
from retinue.service.errors import MeshError, ModelAuth

logger = logging.getLogger("retinue.model")

_JSON = "application/json"
# Where the dialects have the key.
_KEYS = ("authorization", "x-api-key", "x-goog-api-key", "api-key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a request is answered, where it is not plainly with its step.

    `latency` is in seconds before the first byte (None: never), `pause` after each event. With a `status` of 400
    or more the step is the error's message. `thinking` goes before it. `body` is sent as it is, as `content_type` ("":
    the dialect's stream). `cut` closes the connection after that many bytes of the body; 0 closes it before the answer
    begins. `hold` keeps the last piece of the answer back until it is set.
    """

    step: Step = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    latency: float | None = 0.0
    pause: float = 0.0
    body: bytes | None = None
    content_type: str = ""
    cut: int | None = None
    thinking: str = ""
    hold: asyncio.Event | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came; header names are in lower case, and `body` is None where there was none."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


Script: TypeAlias = Callable[[Any], Step | Answer]


def echo(body: Any) -> str:
    """The script that answers with the last user message."""
    said = (message["content"] for message in reversed(body["messages"]) if message["role"] == "user")
    return text_of(next(said, ""))


class ModelServer:
    """A scripted model server, open while it is entered; `base_url` ends before /chat/completions, `url` is its root.

    `script` is a list, one item a request (HTTP 400 once it ran out), or a function of the request, which it gets as
    an OpenAI body whatever dialect it came in. What it raises is answered as the HTTP error that means it. `models` are
    the names that it lists. With an `api_key` it refuses whoever shows another. `requests` are those for messages, as
    they came; `connections` counts; `hung_up` is set when a client leaves before it has its answer.
    """

    def __init__(
        self,
        script: Script | Sequence[Step | Answer] = (),
        *,
        port: int = 0,
        models: Sequence[str] = ("scripted",),
        api_key: str = "",
    ) -> None:
        if isinstance(script, str | bytes):
            raise TypeError(f"script is a list of steps or a function, not {script!r}")
        self._steps = None if callable(script) else deque(script)
        self._script = script if callable(script) else None
        self._port = port
        self._models = tuple(models)
        self._api_key = api_key
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.requests: list[Received] = []
        self.connections = 0
        self.hung_up = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    async def __aenter__(self) -> ModelServer:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._connection(reader, writer))
            self._open[task] = writer
            task.add_done_callback(self._open.pop)

        self._server = await asyncio.start_server(accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        # No TaskGroup: it would wrap what the body of the `async with` raises.
        if self._server is not None:
            self._server.close()
        tasks = list(self._open)
        for task, writer in self._open.items():
            writer.transport.abort()
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while received := await _read(reader, writer):
                if received.method == "POST":
                    self.requests.append(received)
                answer = await self._answer(received)
                if not await self._send(answer, received, reader, writer):
                    break
            await writer.drain()
        except ConnectionError:
            self.hung_up.set()
        except Exception:
            logger.exception("the scripted model server failed")
        finally:
            writer.close()
            await _closed(writer)

    async def _answer(self, received: Received) -> Answer:
        """The answer to that request, with a step that is settled."""
        shown = [received.headers.get(name, "").removeprefix("Bearer ") for name in _KEYS]
        if self._api_key and self._api_key not in shown:
            return Answer(step=ModelAuth("this key is not known here"))
        if not known_path(received.path, received.method):
            return Answer(status=404, step=f"there is no {received.method} {received.path} at any of these APIs")
        if received.method != "POST":
            return Answer(body=json.dumps(_list(received.path, self._models)).encode(), content_type=_JSON)
        try:
            body = spelling(received.path).asked(received.body)
            all(message["role"] for message in body["messages"])
        except (LookupError, TypeError, AttributeError) as error:
            return Answer(status=400, step=f"this is no request of the API at {received.path}: {error!r}")
        return await self._told(body)

    async def _told(self, body: Any) -> Answer:
        """The script's answer to that body."""
        answer: Any = self._script
        if self._steps is not None:
            ran_out = Answer(status=400, step=f"the script has no step for request {len(self.requests)}")
            answer = self._steps.popleft() if self._steps else ran_out
        try:
            chosen: Any = await resolve(answer, body)
            answer = chosen if isinstance(chosen, Answer) else Answer(step=chosen)
            said = await resolve(answer.step, body)
        except Exception as error:
            if not isinstance(error, MeshError):
                logger.exception("the script of the model server raised")
                return Answer(status=400, step=f"the script raised {error!r}")
            said, answer = error, Answer()
        if not isinstance(said, str | WantedCall | Sequence | ModelEnd | BaseException):
            return Answer(status=400, step=f"the script says {said!r}: a step is text, calls, a ModelEnd or an error")
        if isinstance(said, MeshError) and said.retry_after is not None:
            answer = replace(answer, headers={"retry-after": str(said.retry_after), **answer.headers})
        settled: Answer = replace(answer, step=said)
        return settled

    async def _send(
        self, answer: Answer, received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Sends the answer; false when the connection is of no more use."""
        await _wait(reader, answer.latency)
        if answer.cut == 0:
            return False
        status, kind, events = _encode(answer, received)
        head = [f"HTTP/1.1 {status} X", f"content-type: {kind}", "transfer-encoding: chunked"]
        head += [f"{key}: {value}" for key, value in answer.headers.items()]
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n")
        left = answer.cut if answer.cut is not None else sum(map(len, events))
        for position, event in enumerate(events):
            if position and answer.pause:
                await writer.drain()
                await _wait(reader, answer.pause)
            if answer.hold is not None and position == len(events) - 1:
                await writer.drain()
                await _released(reader, answer.hold)
            piece = event[:left]
            left -= len(piece)
            if piece:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        if answer.pause:
            await writer.drain()
            await _wait(reader, answer.pause)
        if answer.cut is None:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return answer.cut is None


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Received | None:
    """The next request of a connection, or None at its end; a body that is no JSON comes as its text."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in head[1:] if line)}
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = await _chunks(reader)
        else:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
    except asyncio.IncompleteReadError:
        return None
    method, path, *_ = head[0].split()
    try:
        return Received(method, path, headers, json.loads(body) if body else None)
    except ValueError:
        return Received(method, path, headers, body.decode("utf-8", "replace"))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """A body that came in chunks, without trailers."""
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


async def _wait(reader: asyncio.StreamReader, seconds: float | None) -> None:
    """Waits so long, or until the client is gone: then ConnectionResetError."""
    if seconds == 0:
        return
    try:
        async with asyncio.timeout(seconds):
            await reader.read(1)
    except TimeoutError:
        return
    raise ConnectionResetError("the client is gone")


async def _released(reader: asyncio.StreamReader, hold: asyncio.Event) -> None:
    """Waits until `hold` is set, or until the client is gone: then ConnectionResetError."""
    released, gone = asyncio.create_task(hold.wait()), asyncio.create_task(_wait(reader, None))
    try:
        await asyncio.wait([released, gone], return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            await gone
    finally:
        released.cancel()
        gone.cancel()
        await asyncio.wait([released, gone])


async def _closed(writer: asyncio.StreamWriter) -> None:
    try:
        await writer.wait_closed()
    except ConnectionError as error:
        logger.debug("the client was first to close: %r", error)


def _list(path: str, models: Sequence[str]) -> Any:
    """The list of models, as the API at that path has it."""
    if "/v1beta/" in path:
        return {"models": [{"name": f"models/{name}"} for name in models]}
    if path.endswith("/api/tags"):
        return {"models": [{"name": name} for name in models]}
    return {"object": "list", "data": [{"id": name, "object": "model"} for name in models]}


def _encode(answer: Answer, received: Received) -> tuple[int, str, list[bytes]]:
    """The status, the content type and the body, in the pieces that pauses come between."""
    spoken = spelling(received.path)
    if answer.body is not None:
        return answer.status, answer.content_type or spoken.content_type, [answer.body]
    said: Any = answer.step
    failed = isinstance(said, BaseException)
    if failed or answer.status >= 400:
        refused = spoken.refused(answer.status, str(said) or repr(said), said if failed else None)
        return refused.status, _JSON, [json.dumps(refused.body).encode()]
    message = _spoken(answer, str(received.body.get("model", "")))
    if not spoken.streamed(received.path, received.body):
        return answer.status, _JSON, [json.dumps(spoken.whole(message)).encode()]
    events = list(spoken.stream(message))
    kind = answer.content_type or spoken.content_type
    apart = answer.pause or answer.hold is not None
    return answer.status, kind, events if apart else [b"".join(events)]


def _spoken(answer: Answer, model: str) -> Spoken:
    said: Any = answer.step
    if isinstance(said, ModelEnd):
        return Spoken(
            text=said.text,
            calls=said.calls,
            stop=said.stop,
            thinking=answer.thinking,
            model=model,
            usage=said.usage,
        )
    text, calls = text_and_calls(said)
    stop = Stop.TOOL_CALLS if calls else Stop.STOP
    return Spoken(text=text, calls=calls, stop=stop, thinking=answer.thinking, model=model)
