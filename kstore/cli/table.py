"""Tables of text that fit the terminal, bars and sparklines in them, and colours."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TextIO

from kstore.cli.terminal import Colour, TerminalText, coloured, escaped

GAP, NARROW_GAP = "  ", " "
# No column of text is folded to less, and the first one, which names the row, not even to that.
FOLDED_WIDTH_MIN, NAME_WIDTH_MIN = 12, 20
# A longer part of a text may be cut.
PART_WIDTH_MAX = 24
INDENT = "  "
WORD = re.compile(r"[^ ]* |[^ ]+")
NUMBER = re.compile(r"-?[0-9][0-9,.]*|-|")
# A text is folded after these, and a time between its date and the rest.
PART = re.compile(r"(?<=[0-9]T)[0-9:.]+Z|[0-9]{4}-[0-9]{2}-[0-9]{2}T|[^-/_,= ]*[-/_,= ]|[^-/_,= ]+")
# Eighths of a character, from the left and from below.
LEFT_EIGHTHS = " ▏▎▍▌▋▊▉█"
LOWER_EIGHTHS = " ▁▂▃▄▅▆▇█"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, left: Collection[int] = (0,)) -> Iterator[str]:
    """Lines of a table: the columns ``left`` left-aligned, the others, usually numbers, right-aligned.

    On a terminal that is too narrow its titles and columns of text are folded; if that is not enough, every row becomes
    a paragraph.
    """
    cells = [tuple(map(_text, row)) for row in rows]
    widths = _widths(columns, cells)
    limit = room()
    if limit is None or _sum(widths, GAP) <= limit:
        for row in (tuple(columns), *cells):
            yield _line(row, widths, left, GAP)
        return
    words = [max(map(len, column.split()), default=0) for column in columns]
    narrow = [max(word, *(len(row[at]) for row in cells)) if cells else word for at, word in enumerate(words)]
    gap = GAP if _sum(narrow, GAP) <= limit else NARROW_GAP
    folded = _fitted(narrow, _floors(words, narrow, cells), limit - len(gap) * (len(columns) - 1))
    if folded is None:
        for row in cells:
            yield from _paragraph(columns, row, limit)
        return
    aligned = {*left, *(at for at, width in enumerate(folded) if width < narrow[at])}
    yield from _folded(
        [_packed(title, width) for title, width in zip(columns, folded, strict=True)], folded, aligned, gap
    )
    for row in cells:
        yield from _folded(
            [_packed(cell, width) for cell, width in zip(row, folded, strict=True)], folded, aligned, gap
        )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, left: Collection[int] = (0,)) -> None:
    for line in table(columns, rows, left=left):
        print(line)


def wrapped(text: str, indent: str = INDENT, *, columns: int | None = None) -> Iterator[str]:
    """``text`` in lines that fit the terminal, or ``columns``, broken at spaces; the first has no ``indent``."""
    columns = columns or room()
    if columns is None or len(text) <= columns:
        yield text
        return
    line, *words = text.split(" ")
    for word in words:
        if line.strip() and len(line) + 1 + len(word) > columns:
            yield line
            line = indent + word
        else:
            line = f"{line} {word}"
    yield line


def room() -> int | None:
    """The terminal's width in columns; None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if isinstance(sys.stdout, TerminalText) else None


def _widths(columns: Sequence[str], cells: Sequence[tuple[str, ...]]) -> list[int]:
    return [max(len(row[at]) for row in (columns, *cells)) for at in range(len(columns))]


def _sum(widths: Sequence[int], gap: str) -> int:
    return sum(widths) + len(gap) * (len(widths) - 1)


def _floors(words: Sequence[int], widths: Sequence[int], cells: Sequence[tuple[str, ...]]) -> list[int]:
    """How narrow each column may become: one of numbers as it is, one of text down to its longest part."""
    floors = []
    for at, (word, width) in enumerate(zip(words, widths, strict=True)):
        if all(NUMBER.fullmatch(row[at]) for row in cells):
            floors.append(width)
            continue
        part = max((len(part) for row in cells for part in PART.findall(row[at])), default=0)
        least = FOLDED_WIDTH_MIN if at else NAME_WIDTH_MIN
        floors.append(min(width, max(word, least, min(part, PART_WIDTH_MAX))))
    return floors


def _fitted(widths: Sequence[int], floors: Sequence[int], limit: int) -> list[int] | None:
    """The widths, of which the greatest were reduced until all fit; None if the floors do not."""
    if sum(floors) > limit:
        return None
    found = list(widths)
    while sum(found) > limit:
        widest = max((at for at in range(len(found)) if found[at] > floors[at]), key=found.__getitem__)
        found[widest] -= 1
    return found


def _packed(cell: str, width: int) -> list[str]:
    """``cell`` in pieces of at most ``width``, broken between words, or parts of words, where that is possible."""
    if len(cell) <= width:
        return [cell]
    pieces = [""]
    for word in WORD.findall(cell):
        for part in [word] if len(word.rstrip()) <= width else PART.findall(word):
            if len((pieces[-1] + part).rstrip()) > width:
                pieces.append("")
            pieces[-1] += part
            while len(pieces[-1].rstrip()) > width:
                pieces[-1:] = [pieces[-1][:width], pieces[-1][width:]]
    return [piece.rstrip() for piece in pieces if piece]


def _folded(cells: Sequence[list[str]], widths: Sequence[int], left: Collection[int], gap: str) -> Iterator[str]:
    for number in range(max(map(len, cells))):
        yield _line([cell[number] if number < len(cell) else "" for cell in cells], widths, left, gap)


def _line(row: Sequence[str], widths: Sequence[int], left: Collection[int], gap: str) -> str:
    cells = zip(row, widths, strict=True)
    return gap.join(
        cell.ljust(size) if at in left else cell.rjust(size) for at, (cell, size) in enumerate(cells)
    ).rstrip()


def _paragraph(columns: Sequence[str], row: Sequence[str], limit: int) -> Iterator[str]:
    """A row whose cells follow their titles, without those that are not known."""
    yield row[0]
    line = ""
    for title, cell in zip(columns[1:], row[1:], strict=True):
        item = f"{title} {cell}"
        if cell in ("-", ""):
            continue
        if line and len(line) + len(GAP) + len(item) > limit:
            yield line
            line = ""
        line = f"{line}{GAP if line else INDENT}{item}"
        if len(line) > limit:
            lines = list(wrapped(line, INDENT * 2))
            yield from lines[:-1]
            line = lines[-1]
    if line:
        yield line


def _text(value: object) -> str:
    # A line break in a name would break the table, on a terminal or not.
    return f"{value:,}" if isinstance(value, int) else escaped(str(value)) if "\n" in str(value) else str(value)


def painted(text: str, colour: Colour, stream: TextIO | None = None) -> str:
    """``text`` in ``colour`` if ``stream`` (default: standard output) is a terminal and ``NO_COLOR`` is not set."""
    return coloured(text, colour, stream or sys.stdout)


# --- bars: block characters without colour, or ``#`` where the output cannot show them -------------------------------


def has_blocks() -> bool:
    """Whether standard output is a terminal that shows block characters."""
    stream = sys.stdout
    if not isinstance(stream, TerminalText) or os.environ.get("TERM") == "dumb":
        return False
    try:
        (LEFT_EIGHTHS + LOWER_EIGHTHS).encode(stream.encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def bar(value: int, most: int, width: int) -> str:
    """A bar for ``value``, ``width`` characters long if it is ``most``; not empty unless ``value`` is 0."""
    if value <= 0 or most <= 0:
        return ""
    if not has_blocks():
        return "#" * -(-value * width // most)
    eighths = -(-value * width * 8 // most)
    return (LEFT_EIGHTHS[8] * (eighths // 8) + LEFT_EIGHTHS[eighths % 8]).rstrip()


def sparkline(values: Sequence[int]) -> str:
    """A character for each of ``values``, as high as its share of the greatest; a space only for 0."""
    most = max(values, default=0) or 1
    return "".join([LOWER_EIGHTHS[-(-max(value, 0) * 8 // most)] for value in values])
