"""One table of a mesh file: its values, checked as they are taken, with the place that errors name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from retinue.service.errors import Invalid, cut
from retinue.service.names import check_name, did_you_mean


def shown(value: Any) -> str:
    """A value of the file for an error line: on one line, and not too long."""
    try:
        return cut(repr(value), 120)
    except (ValueError, RecursionError):
        # A number of more digits than Python writes, or a table too deep for it.
        return f"a {type(value).__name__} too large to show"


class Table:
    """One table of the file, with the place that errors name. `known` None: any key."""

    def __init__(self, file: str, name: str, values: Any, known: Iterable[str] | None) -> None:
        # MCP servers may be called anything.
        plain = name if name.isprintable() and len(name) <= 120 else shown(name)
        self.where = f"{file}: [{plain}]" if name else file
        self._file = file
        self._name = name
        if not isinstance(values, dict):
            raise Invalid(f"{self.where}: use a table, not {shown(values)}")
        self.values: Mapping[str, Any] = values
        known = values if known is None else tuple(known)
        for key in values:
            if key not in known:
                raise Invalid(f"{self.where}: unknown key {shown(key)}{did_you_mean(key, known)}", field=key)

    def wrong(self, key: str, what: str) -> Invalid:
        """The error for a key's value."""
        return Invalid(f"{self.where}: {key}: {what}")

    def text(self, key: str) -> str:
        value = self.values.get(key, "")
        if not isinstance(value, str):
            raise self.wrong(key, f"use a text, not {shown(value)}")
        return value

    def count(self, key: str, default: int) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, f"use a whole number above 0, not {shown(value)}")
        return value

    def flag(self, key: str) -> bool:
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key, f"use true or false, not {shown(value)}")
        return value

    def names(self, key: str) -> tuple[str, ...] | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(key, f"use a list of names, not {shown(value)}")
        return tuple(value)

    def table(self, key: str, known: Iterable[str] | None) -> Table:
        name = f"{self._name}.{key}" if self._name else key
        return Table(self._file, name, self.values.get(key, {}), known)

    def of(self, values: Mapping[str, Any]) -> Table:
        """A table in the same place with other values."""
        return Table(self._file, self._name, values, None)

    def tables(self, key: str, known: Iterable[str] | None, *, checked: bool = True) -> list[tuple[str, Table]]:
        """The tables below `key`, each under a name that is `checked` to be one of ours."""
        outer = self.table(key, None)
        # MCP servers are named by their users, and only in tool names.
        check = checked and key != "mcpServers"
        return [
            (check_name(name, field=f"{self._file}: {key}") if check else name, outer.table(name, known))
            for name in outer.values
        ]
