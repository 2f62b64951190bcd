"""How a log, a store and a queue look in a notebook: a small table of HTML, with a map of segments as SVG. Pure.

Every text is escaped. Colours suit light and dark pages, and nothing is loaded from anywhere.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 320.0, 14.0
# More segments than this share a piece of the map with their neighbours.
PIECES_MAX = 64
SEALED_COLOUR, ACTIVE_COLOUR = "#7f9fbf", "#12a594"
CELL = 'style="text-align:left;padding:2px 12px 2px 0"'
# The most characters of a name that are shown; some are as long as a path may be.
TEXT_MAX = 200


class DrawnSegment(NamedTuple):
    """One segment, ``size`` bytes from offset ``base`` on."""

    base: int
    size: int
    is_active: bool = False


# Control characters, formatting ones (which reverse or hide text), halves of pairs, private and unassigned characters.
HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def visible(text: str) -> str:
    """``text`` with every character that has no shape of its own written as its number: ``"a\\u202eb"``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join([_escaped(char) if unicodedata.category(char) in HIDDEN_CATEGORIES else char for char in text])


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def size_text(size: int) -> str:
    """``1536`` -> ``"1.5 kB"``."""
    amount, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"


def shown(text: str) -> str:
    """``text`` as HTML: escaped, with invisible characters as their numbers, and cut if it is very long."""
    return escape(visible(text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"))


def html_table(title: str, rows: Sequence[Sequence[str]], pieces: Sequence[DrawnSegment] = ()) -> str:
    """A table with ``title``; the cells of ``rows`` are texts. ``pieces``: segments, drawn in a row of their own."""
    lines = "".join(f"<tr>{''.join(f'<td {CELL}>{shown(cell)}</td>' for cell in row)}</tr>" for row in rows)
    columns = max(map(len, rows), default=1)
    drawn = f'<tr><td {CELL} colspan="{columns}">{_map(pieces)}</td></tr>' if pieces else ""
    return f"<table><caption {CELL}><b>{shown(title)}</b></caption><tbody>{lines}{drawn}</tbody></table>"


def _map(pieces: Sequence[DrawnSegment]) -> str:
    """The segments as a bar, each as wide as its bytes."""
    total = sum(piece.size for piece in pieces) or 1
    step = -(-len(pieces) // PIECES_MAX)
    body, left = "", 0.0
    for at in range(0, len(pieces), step):
        group = pieces[at : at + step]
        size = sum(piece.size for piece in group)
        width = WIDTH * size / total
        name = f"{len(group)} segments" if len(group) > 1 else "the active segment" if group[0].is_active else "segment"
        body += (
            f'<rect x="{left:.1f}" width="{max(width - 0.6, 0.4):.1f}" height="{HEIGHT:g}"'
            f' fill="{ACTIVE_COLOUR if group[-1].is_active else SEALED_COLOUR}">'
            f"<title>{name} from {group[0].base}: {size_text(size)}</title></rect>"
        )
        left += width
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:g}" height="{HEIGHT:g}"'
        f' viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{len(pieces)} segments">{body}</svg>'
    )
