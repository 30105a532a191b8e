"""A conversation made shorter, for a model whose window it does not fit: old results first, then whole turns.

Nothing is changed in what is stored, and no call is ever parted from its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from retinue.agent.model import ModelMessage

# Characters of a tool's result that are left of it, and what stands behind them.
KEPT = 400
NOTE = " [shortened: it was {size} characters]"


def shorter(messages: Sequence[ModelMessage]) -> tuple[ModelMessage, ...] | None:
    """The conversation one step shorter; None when nothing but the present turn's last step is left of it.

    First results of earlier turns are shortened, then the older half of the earlier turns is left out, then results of
    the present turn are shortened, but for those that the model has not seen yet.
    """
    begins = [at for at, each in enumerate(messages) if each.message.role == "user"]
    last = begins[-1] if begins else 0
    if (cut := _cut(messages, last)) != tuple(messages):
        return cut
    if len(begins) > 1:
        return tuple(messages[begins[(len(begins)) // 2] :])
    seen = max((at for at, each in enumerate(messages) if each.message.role == "assistant"), default=0)
    cut = _cut(messages, seen)
    return None if cut == tuple(messages) else cut


def _cut(messages: Sequence[ModelMessage], until: int) -> tuple[ModelMessage, ...]:
    return tuple(_shortened(each) if at < until else each for at, each in enumerate(messages))


def _shortened(each: ModelMessage) -> ModelMessage:
    text = each.message.text
    if each.message.role != "tool" or len(text) <= KEPT + len(NOTE) + 20:
        return each
    return replace(each, message=replace(each.message, text=text[:KEPT] + NOTE.format(size=len(text))))
