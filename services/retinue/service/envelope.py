"""What travels beside a call: whom it is for, the tree it belongs to, and how much that tree may still do.

It rides in gRPC metadata and is checked by the callee. The deadline is gRPC's own and only kept here; what a tree
has spent is in the store, since a number in metadata cannot be shared by children that run side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from retinue.service.errors import CycleRefused, DepthRefused, Invalid, cut
from retinue.service.names import check_name, check_run_id

TO, ROOT, PARENT, PATH, BUDGET, TRACE = (
    "retinue-to",
    "retinue-root",
    "retinue-parent",
    "retinue-path",
    "retinue-budget",
    "traceparent",
)
# The margin by which each hop's deadline lies before its caller's, so that the caller can still answer.
HOP_MARGIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Budget:
    """What a whole tree of runs may use: model calls, levels of delegation, and tokens (None: no limit)."""

    model_calls: int = 25
    depth: int = 8
    tokens: int | None = None

    def encode(self) -> str:
        """The budget as the value of its metadata key."""
        tokens = "" if self.tokens is None else f",tokens={self.tokens}"
        return f"calls={self.model_calls},depth={self.depth}{tokens}"

    @classmethod
    def decode(cls, text: str) -> Budget:
        """The budget in a metadata value; Invalid when it is none. Unknown entries are passed over."""
        pairs = dict(pair.partition("=")[::2] for pair in text.split(",") if pair)
        try:
            numbers = {key: int(value) for key, value in pairs.items() if key in ("calls", "depth", "tokens")}
        except ValueError:
            raise Invalid(f"{BUDGET}: {cut(text, 64)!r} is not a list of name=number", field=BUDGET) from None
        if any(number < 0 for number in numbers.values()):
            raise Invalid(f"{BUDGET}: {cut(text, 64)!r} has a number below 0", field=BUDGET)
        plain = cls()
        return cls(numbers.get("calls", plain.model_calls), numbers.get("depth", plain.depth), numbers.get("tokens"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The company of one call. An empty one is a person's or a foreign client's.

    `path` holds the agents at work above, root first; `deadline` is a time of the running loop's clock.
    """

    to: str = ""
    root: str = ""
    parent: str = ""
    path: tuple[str, ...] = ()
    budget: Budget | None = None
    traceparent: str = ""
    deadline: float | None = field(default=None, compare=False)

    @property
    def delegated(self) -> bool:
        """Whether an agent of the mesh made this call."""
        return bool(self.path)

    def check(self, name: str) -> None:
        """Refuses the call for agent `name` when it would close a circle or go too deep; the message shows the path."""
        way = " → ".join([*self.path, name])
        if name in self.path:
            raise CycleRefused(f"{name} is already at work on this: {way}", path=",".join([*self.path, name]))
        limit = (self.budget or Budget()).depth
        if len(self.path) >= limit:
            raise DepthRefused(f"the chain is longer than {limit} agents: {way}", path=",".join([*self.path, name]))

    def child(self, *, agent: str, run_id: str, to: str, budget: Budget) -> Envelope:
        """The envelope of a call that run `run_id` of `agent` makes to `to`."""
        return replace(
            self,
            to=to,
            root=self.root or run_id,
            parent=run_id,
            path=(*self.path, agent),
            budget=self.budget or budget,
        )

    def metadata(self) -> list[tuple[str, str]]:
        """The metadata pairs of this envelope; the deadline is not among them."""
        pairs = [
            (TO, self.to),
            (ROOT, self.root),
            (PARENT, self.parent),
            (PATH, ",".join(self.path)),
            (BUDGET, self.budget.encode() if self.budget else ""),
            (TRACE, self.traceparent),
        ]
        return [(key, value) for key, value in pairs if value]

    @classmethod
    def from_metadata(cls, metadata: Iterable[tuple[str, str | bytes]], *, deadline: float | None = None) -> Envelope:
        """The envelope that came with a call; Invalid, naming the key, when a value is not what it must be."""
        found = {key: value for key, value in metadata if isinstance(value, str)}
        for key in (ROOT, PARENT):
            if found.get(key):
                check_run_id(found[key], field=key)
        path = tuple(name for name in found.get(PATH, "").split(",") if name)
        for name in path:
            check_name(name, field=PATH)
        budget = found.get(BUDGET)
        return cls(
            to=found.get(TO, ""),
            root=found.get(ROOT, ""),
            parent=found.get(PARENT, ""),
            path=path,
            budget=Budget.decode(budget) if budget else None,
            traceparent=found.get(TRACE, ""),
            deadline=deadline,
        )
