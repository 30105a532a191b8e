"""What a tree of runs may still spend: one counter in the store under the root run, shared by children side by side.

It refuses; it never waits, and it never gives back what was taken.
"""

from __future__ import annotations

from collections.abc import Awaitable

from retinue.agent.keys import RUN_TTL_S, cancelled_key, spent_key
from retinue.agent.model.gate import StoreGate
from retinue.service.background import together
from retinue.service.envelope import Budget
from retinue.service.errors import BudgetSpent, Cancelled
from retinue.service.store import Store
from retinue.service.usage import Usage


class Purse:
    """The part of one run in the budget of its tree. `ancestors` is how many runs wait above it for its answer."""

    def __init__(self, store: Store, root: str, budget: Budget, *, ancestors: int, gate: StoreGate | None) -> None:
        self._store = store
        self._gate = gate
        self.root = root
        self._budget = budget
        # A call is taken only while more are left than there are runs above, so that each of them can still answer.
        self._most = budget.model_calls - ancestors

    def take_model_call(self) -> Awaitable[bool]:
        """Takes one model call; True when it is not the last one, so that tools may be offered with it.

        Awaiting it raises BudgetSpent when there is none left to take, or no tokens, and Cancelled when the whole
        tree was. In the same breath it looks whether the model's server wants a pause.
        """
        taken = self._store.take(spent_key(self.root, "calls"), 1, limit=self._most, ttl=RUN_TTL_S)
        cancelled = self._store.get(cancelled_key(self.root))
        return self._taken(taken, cancelled, self._gate.look() if self._gate else None)

    async def _taken(
        self, call: Awaitable[int | None], flag: Awaitable[bytes | None], look: Awaitable[None] | None
    ) -> bool:
        taken, cancelled, *_ = await together(call, flag, *(() if look is None else (look,)))
        tokens = self._budget.tokens
        if cancelled:
            raise Cancelled("the whole task that this belongs to was cancelled")
        if tokens is not None:
            spent = await self._store.take(spent_key(self.root, "tokens"), 0, ttl=RUN_TTL_S)
            if spent is not None and spent >= tokens:
                text = f"the {tokens} tokens for this whole task are used up; raise the limit or ask less"
                raise BudgetSpent(text, limit="tokens")
        if taken is None:
            most = self._budget.model_calls
            text = f"the {most} model calls for this whole task are used up; raise the limit or ask less"
            raise BudgetSpent(text, limit="model_calls")
        return int(taken) < self._most

    async def count(self, usage: Usage) -> None:
        """Counts the tokens that a model call used, where they are limited."""
        spent = (usage.input or 0) + (usage.output or 0)
        if self._budget.tokens is not None and spent:
            await self._store.take(spent_key(self.root, "tokens"), spent, ttl=RUN_TTL_S)
