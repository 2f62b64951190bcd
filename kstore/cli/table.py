"""Tables of text, and colours on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from kstore.cli.terminal import Colour, coloured, escaped

__all__ = ["painted", "table"]


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Lines of a table: the first column left-aligned, the others, usually numbers, right-aligned."""
    cells = [tuple(columns), *(tuple(map(_text, row)) for row in rows)]
    widths = [max(len(row[number]) for row in cells) for number in range(len(columns))]
    for row in cells:
        first = row[0].ljust(widths[0])
        yield "  ".join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]).rstrip()


def _text(value: object) -> str:
    # A line break in a name would break the table, on a terminal or not.
    return f"{value:,}" if isinstance(value, int) else escaped(str(value)) if "\n" in str(value) else str(value)


def painted(text: str, colour: Colour, stream: TextIO | None = None) -> str:
    """``text`` in ``colour`` if ``stream`` (default: standard output) is a terminal and ``NO_COLOR`` is not set."""
    return coloured(text, colour, stream or sys.stdout)
