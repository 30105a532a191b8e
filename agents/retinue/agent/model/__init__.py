"""The seam to language models: one request, one stream of events that ends with the model's whole message.

A Model speaks one dialect to one server. It never runs a tool, keeps no conversation and knows no agent.
Dialects are sibling modules: openai, anthropic, gemini, ollama. Beside them stand offline (rules, no server),
custom (any async function) and scripted (the test double).
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from retinue.agent.tools import ToolSpec
from retinue.service.chat import Message, Part
from retinue.service.usage import Usage


class Stop(enum.Enum):
    """Why the model stopped, whatever its server calls it. TOOL_CALLS is derived: there are calls to run."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    REFUSAL = "refusal"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class WantedCall:
    """A call that the model wants made. `id` is the server's, unique within the message.

    `arguments` is None when the text was no JSON object: then `raw` is the text and `error` says what is wrong.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    raw: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class ModelText:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelThinking:
    """A piece of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelToolInput:
    """A piece of a call's arguments, for display; `index` counts the calls of the message from 0."""

    index: int
    name: str
    delta: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEnd:
    """The last event: the whole message. Only the calls in here are run, and only when `stop` is TOOL_CALLS.

    `refusal` is what the model said in refusing, where its server keeps that apart; `text` ends with it. `parts` are
    images that it made. `cache_write` is how many tokens of the input were written to the server's cache.
    `provider_parts` is what the server wants back unchanged with this message (signatures, reasoning), or None.
    """

    stop: Stop
    text: str = ""
    calls: tuple[WantedCall, ...] = ()
    usage: Usage = Usage()
    provider_parts: Any = None
    refusal: str = ""
    parts: tuple[Part, ...] = ()
    cache_write: int | None = None


@dataclass(frozen=True, slots=True)
class ModelNote:
    """What a person should know while nothing comes, such as when the server is asked again. No part of the answer."""

    text: str


ModelEvent: TypeAlias = ModelText | ModelThinking | ModelToolInput | ModelNote | ModelEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMessage:
    """A message of the request, with what this provider wanted back beside it, if it was this provider's.

    `failed` is of a tool's message: its call did not come to a good end. `tokens` is how many the conversation had
    up to the end of this message, as this model's server counted them; 0 where it did not.
    """

    message: Message
    provider_parts: Any = None
    failed: bool = False
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request: the system prompt, the conversation oldest first, and the tools on offer.

    The conversation is valid: each call of an assistant message is followed by one tool message, in call order.
    """

    system: str = ""
    messages: tuple[ModelMessage, ...] = ()
    tools: tuple[ToolSpec, ...] = ()


class Model(Protocol):
    """A model by name. `stream` raises a ModelError, also after events; a stream that is cut never yields an end.

    `name` is provider/model. Closing the iterator (or cancelling its task) closes the connection at once.
    """

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]: ...
