"""What the commands print: data and replies on standard output, all else on standard error.

On a terminal with rich; elsewhere plain text as it is, without colour, wrapping or Markdown. Error lines are never
wrapped anywhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import Console


def note(line: str) -> None:
    """One line for the person, on standard error."""
    print(line, file=sys.stderr, flush=True)


def out(text: str) -> None:
    """Text on standard output, at once."""
    print(text, flush=True)


def on_terminal() -> bool:
    """Whether a person reads standard output."""
    return sys.stdout.isatty()


def console() -> Console:
    """The terminal behind standard output."""
    from rich.console import Console

    return Console(highlight=False)


def out_json(data: Any, *, lines: bool = False) -> None:
    """JSON on standard output: indented for a person, unless it is one of several `lines`; one line elsewhere."""
    indent = 2 if on_terminal() and not lines else None
    out(json.dumps(data, ensure_ascii=False, indent=indent))


def out_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output; elsewhere than on a terminal, columns two spaces apart and nothing cut."""
    if on_terminal():
        from rich.table import Table

        table = Table(*head, box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*map(_literal, row))
        console().print(table)
        return
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        out("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def one_line(text: str) -> str:
    """`text` without line breaks."""
    return " ".join(text.split())


def as_json(message: Message) -> Mapping[str, Any]:
    """A message of the wire as JSON data: proto field names, zero values and all."""
    from google.protobuf.json_format import MessageToDict

    data: Mapping[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return data


def _literal(text: str) -> Any:
    from rich.text import Text

    return Text(text)
