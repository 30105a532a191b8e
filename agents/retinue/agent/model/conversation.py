"""What the dialects' requests have in common: the names of tools on the wire, what is echoed, what is left out.

Pure functions of a request. They trust the conversation to be valid: each call is followed by its one result.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.model.schemas import Unreducible
from retinue.agent.tools import NAME_LENGTH, ToolSpec
from retinue.service.chat import Blob, Message, ToolCall
from retinue.service.errors import Invalid

logger = logging.getLogger("retinue.model")

T = TypeVar("T")

# What every server takes for a function's name.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")
# Servers refuse a message without any text.
BLANK = "(no text)"
# Tools as they were written before: an agent offers the same few in each request, and writing a schema costs more than
# all the rest of one. Found by identity, and held so that no other tool takes the same identity.
_memo: dict[tuple[int, Callable[[ToolSpec], Any]], tuple[ToolSpec, Any]] = {}
_MOST_KNOWN = 4096


def wire_name(name: str) -> str:
    """The name of a tool as servers take it; one that they would refuse is changed, and marked with a hash of it.

    The same name always becomes the same, so that a history keeps its prefix; two names never become one.
    """
    if _NAME.fullmatch(name):
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    words = _ILLEGAL.sub("_", name) or "unnamed"
    return f"{words if words[:1].isalpha() else f't_{words}'}"[: NAME_LENGTH - len(mark) - 1] + f"_{mark}"


def own_names(tools: Sequence[ToolSpec]) -> Mapping[str, str]:
    """The names of tools by what they are called on the wire, where that differs."""
    return {wire: spec.name for spec in tools if (wire := wire_name(spec.name)) != spec.name}


def wire_id(call_id: str) -> str:
    """A call's id as servers take it: letters, digits, _ and -."""
    return call_id if _ID.fullmatch(call_id) else "call_" + hashlib.sha256(call_id.encode()).hexdigest()[:24]


def offered(request: ModelRequest, name: str, write: Callable[[ToolSpec], T]) -> list[T]:
    """The tools as `write` puts them; one whose schema the server has no words for is left out, aloud."""
    return list(_written(request, name, write))


def _written(request: ModelRequest, name: str, write: Callable[[ToolSpec], T]) -> Iterator[T]:
    for spec in request.tools:
        known = _memo.get((id(spec), write))
        if known is not None and known[0] is spec:
            yield known[1]
            continue
        try:
            written = write(spec)
        except Unreducible as error:
            logger.warning("%s is not offered the tool %s: its schema cannot be put so: %s", name, spec.name, error)
            continue
        if len(_memo) == _MOST_KNOWN:
            _memo.clear()
        _memo[id(spec), write] = spec, written
        yield written


def open_turn(messages: Sequence[ModelMessage]) -> int:
    """Where the last message of a person stands; what follows is the turn that goes on. -1 without one."""
    return max((at for at, each in enumerate(messages) if each.message.role == "user"), default=-1)


def parts_of(each: ModelMessage, name: str) -> Mapping[str, Any]:
    """What the server wants back with a message, if it was this very model that wanted it."""
    parts = each.provider_parts
    return parts if isinstance(parts, Mapping) and parts.get("model") == name else {}


def says_the_same(message: Message, text: str, names: Sequence[str]) -> bool:
    """Whether kept parts of that text, with calls of those names, still are the message.

    A hook may have changed it since; then what was kept must not bring the old words back. Arguments are never kept:
    they are the message's.
    """
    called = [wire_name(call.name) for call in message.tool_calls]
    same = called == [wire_name(name) for name in names]
    return same and "".join(text.split()) == "".join(message.text.split())


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call as it stands in a history: always one JSON object."""
    arguments: dict[str, Any] = json.loads(call.arguments)
    return arguments


def answer_of(message: Message) -> str:
    """The text of a model's message, for servers that take no image back from a model; a note where it has no other."""
    images = [part.image.mime for part in message.parts if part.image]
    return message.text if message.text.strip() or not images else f"[made here: {', '.join(images)}]"


def contents(message: Message, *, current: bool, uris: bool = True) -> list[str | Blob]:
    """The texts and images of a person's message in order, none of them empty, and never nothing.

    What is neither, or is an image that the server cannot take (by address, without `uris`), is refused in the
    `current` message with Invalid. In an older one a note stands for it, or the session could never go on.
    """
    found: list[str | Blob] = [message.text] if message.text.strip() else []
    for part in message.parts:
        image = part.image
        if part.text is not None:
            found += [part.text] if part.text.strip() else []
        elif image and (image.data or (image.uri and uris)):
            found.append(image)
        elif current:
            taken = "data or uri" if uris else "by data"
            raise Invalid(f"this model takes text and images ({taken}) only", field="parts")
        else:
            blob = image or part.file
            found.append(f"[{blob.mime if blob else 'a part'}: left out, this model takes text and images only]")
    return found or [BLANK]
