"""A message that is known whole, told as a model would: a few pieces of text, the calls, the end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from retinue.agent.model import ModelEnd, ModelEvent, ModelText, ModelToolInput, Stop, WantedCall
from retinue.service.usage import Usage

UNKNOWN = Usage()
_PIECES = re.compile(r"\S+\s*\S*\s*\S*\s*|\s+")


def say(text: str, calls: Sequence[WantedCall] = (), *, usage: Usage = UNKNOWN) -> Iterator[ModelEvent]:
    """The events of that message; a few words of `text` an event."""
    for piece in pieces(text):
        yield ModelText(piece)
    for index, call in enumerate(calls):
        yield ModelToolInput(index, call.name, call.raw or json.dumps(call.arguments))
    stop = Stop.TOOL_CALLS if calls else Stop.STOP
    yield ModelEnd(stop=stop, text=text, calls=tuple(calls), usage=usage)


def pieces(text: str) -> list[str]:
    """`text` cut after every third word; joined they are `text`."""
    return _PIECES.findall(text)
