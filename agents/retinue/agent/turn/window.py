"""How full the model's window is: what its server counted up to its last answer, and a guess at what came since.

Nothing here is exact, and nothing is refused but what cannot fit by any count: the server has the last word.
"""

from __future__ import annotations

from collections.abc import Sequence

from retinue.agent.model import ModelMessage

# Shares of the window from which on a conversation is told to be long, and is made shorter before it is sent.
NEAR, FULL = 0.75, 0.9
# Characters of a token in most texts, and more than in any that people write; tokens of an image.
_CHARACTERS, _MOST_CHARACTERS = 4, 12
_IMAGE = 1_500


def tokens_of(messages: Sequence[ModelMessage]) -> int:
    """About how many tokens the conversation has, without the prompt and the tools where the server never counted."""
    counted = max((at for at, each in enumerate(messages) if each.tokens), default=-1)
    known = messages[counted].tokens if counted >= 0 else 0
    return known + size_of(messages[counted + 1 :])


def size_of(messages: Sequence[ModelMessage]) -> int:
    """About how many tokens these messages have by themselves."""
    images = sum(part.image is not None for each in messages for part in each.message.parts)
    return _characters(messages) // _CHARACTERS + images * _IMAGE


def never_fits(messages: Sequence[ModelMessage], window: int) -> bool:
    """Whether the messages have more text than any window of so many tokens holds."""
    return _characters(messages) > window * _MOST_CHARACTERS


def _characters(messages: Sequence[ModelMessage]) -> int:
    return sum(
        len(each.message.text)
        + sum(len(call.arguments) for call in each.message.tool_calls)
        + sum(len(part.text) for part in each.message.parts if part.text is not None)
        for each in messages
    )
