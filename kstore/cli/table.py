"""Tables of text, and colours on a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from kstore.cli.terminal import Colour, TerminalText, coloured, escaped

__all__ = ["painted", "table"]

GAP = "  "
FOLDED_WIDTH_MIN = 8


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Lines of a table: the first column left-aligned, the others, usually numbers, right-aligned.

    On a terminal that is too narrow the widest column is folded, if that is enough.
    """
    cells = [tuple(columns), *(tuple(map(_text, row)) for row in rows)]
    widths = [max(len(row[number]) for row in cells) for number in range(len(columns))]
    if isinstance(sys.stdout, TerminalText):
        excess = sum(widths) + len(GAP) * (len(widths) - 1) - shutil.get_terminal_size().columns
        widest = max(range(len(widths)), key=widths.__getitem__)
        if 0 < excess <= widths[widest] - FOLDED_WIDTH_MIN:
            widths[widest] -= excess
            cells = [line for row in cells for line in _folded(row, widest, widths[widest])]
    for row in cells:
        first = row[0].ljust(widths[0])
        yield GAP.join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]).rstrip()


def _folded(row: tuple[str, ...], column: int, width: int) -> Iterator[tuple[str, ...]]:
    """The lines of ``row`` with one column cut into pieces of ``width``."""
    yield (*row[:column], row[column][:width], *row[column + 1 :])
    for start in range(width, len(row[column]), width):
        yield (*[""] * column, row[column][start : start + width], *[""] * (len(row) - column - 1))


def _text(value: object) -> str:
    # A line break in a name would break the table, on a terminal or not.
    return f"{value:,}" if isinstance(value, int) else escaped(str(value)) if "\n" in str(value) else str(value)


def painted(text: str, colour: Colour, stream: TextIO | None = None) -> str:
    """``text`` in ``colour`` if ``stream`` (default: standard output) is a terminal and ``NO_COLOR`` is not set."""
    return coloured(text, colour, stream or sys.stdout)
