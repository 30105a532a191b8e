"""What model calls used, as their server counted it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens as the model server counted them; None is unknown. input includes cached, output includes reasoning."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    model_calls: int = 0

    def __add__(self, other: Usage) -> Usage:
        def both(a: int | None, b: int | None) -> int | None:
            return a if b is None else b if a is None else a + b

        return Usage(
            input=both(self.input, other.input),
            output=both(self.output, other.output),
            cached=both(self.cached, other.cached),
            reasoning=both(self.reasoning, other.reasoning),
            model_calls=self.model_calls + other.model_calls,
        )
