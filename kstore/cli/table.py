"""Tables of text, and colours on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Literal, TextIO

import click

__all__ = ["painted", "table"]


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Lines of a table: the first column left-aligned, the others, usually numbers, right-aligned."""
    cells = [tuple(columns), *(tuple(map(_text, row)) for row in rows)]
    widths = [max(len(row[number]) for row in cells) for number in range(len(columns))]
    for row in cells:
        first = row[0].ljust(widths[0])
        yield "  ".join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]).rstrip()


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def painted(text: str, colour: Literal["red", "yellow", "green"], stream: TextIO | None = None) -> str:
    """``text`` in ``colour`` if ``stream`` (default: standard output) is a terminal and ``NO_COLOR`` is not set."""
    out = stream or sys.stdout
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not out.isatty():
        return text
    return click.style(text, fg=colour)
