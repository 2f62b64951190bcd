"""Draws kstore beside other stores, from the tables of BENCHMARKS.md. Pure: from its text to SVG.

A page that has more stores, columns or sections draws as well; one that lacks a panel's column is an error.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tools.pictures.drawn import picture, text

# No store: it shows the speed of the least code.
LEFT_OUT = ("plain file",)
OWN = "kstore"
WIDTH, MARGIN, GAP = 840, 24, 40
PANEL_WIDTH = (WIDTH - 2 * MARGIN - GAP) / 2
TITLE_HEIGHT, ROW_HEIGHT, PANEL_GAP = 40, 19, 22
NAME_WIDTH, VALUE_WIDTH = 92, 78


class Panel(NamedTuple):
    """A column of a table of BENCHMARKS.md, by the heading above the table."""

    title: str
    heading: str
    column: str
    unit: str
    longer_is_better: bool = True


class Row(NamedTuple):
    """``said`` is the cell as it stands there."""

    name: str
    value: float
    said: str


PANELS = (
    Panel("Append in batches, on disk", "Batches of 1,000 records", "append, synced", "records a second"),
    Panel("Read everything", "Batches of 1,000 records", "read all", "records a second"),
    Panel("Append one by one", "One record a call", "append, not synced", "records a second, no sync"),
    Panel("Append one by one, on disk", "One record a call", "append, synced", "records a second, a sync each"),
    Panel("Look up one record", "Batches of 1,000 records", "look up one, p50", "median time, batches of 1,000", False),
    Panel("Space of a single record", "One record a call", "on disk, a record", "for a value of 100 bytes", False),
)


def rows_of(page: str, panel: Panel) -> list[Row]:
    """The rows of a panel's column, in the table's order."""
    section = re.search(rf"^#+ {re.escape(panel.heading)}$(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    if section is None:
        raise ValueError(f"BENCHMARKS.md has no heading {panel.heading!r}")
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", section[1], re.M)
    ]
    if not lines or panel.column not in lines[0]:
        raise ValueError(f"the table below {panel.heading!r} has no column {panel.column!r}")
    at = lines[0].index(panel.column)
    rows = [Row(cells[0], number(cells[at]), cells[at]) for cells in lines[2:] if cells[at]]
    found = [row for row in rows if row.name not in LEFT_OUT]
    if not any(row.name == OWN for row in found):
        raise ValueError(f"the table below {panel.heading!r} has no row {OWN!r}")
    return found


def number(cell: str) -> float:
    match = re.match(r"[\d,]+(?:\.\d+)?", cell)
    if match is None:
        raise ValueError(f"expected a number, found {cell!r}")
    return float(match[0].replace(",", ""))


def leads(panel: Panel, rows: list[Row]) -> bool:
    """Whether no other store is better."""
    own = next(row.value for row in rows if row.name == OWN)
    best = (max if panel.longer_is_better else min)(row.value for row in rows)
    return own == best


def short(row: Row) -> str:
    """The number as it is shown: ``1.95 M``, ``383 k``, ``3,890``; other units stay."""
    if not row.said.endswith("/s"):
        return row.said
    if row.value >= 1e6:
        return f"{row.value / 1e6:.3g} M"
    return f"{row.value / 1e3:.3g} k" if row.value >= 1e4 else f"{row.value:,.0f}"


def described(page: str) -> str:
    """The picture in a sentence, for those who do not see it."""
    ahead = [panel.title.lower() for panel in PANELS if leads(panel, rows_of(page, panel))]
    behind = [panel.title.lower() for panel in PANELS if panel.title.lower() not in ahead]
    others = [row.name.partition(",")[0] for row in rows_of(page, PANELS[0]) if row.name != OWN]
    parts = [f"Bars of kstore, {', '.join(others)}"]
    parts += [f"kstore is ahead in: {'; '.join(ahead)}"] if ahead else []
    parts += [f"kstore is behind in: {'; '.join(behind)}"] if behind else []
    return ". ".join(parts)


def drawn(page: str) -> str:
    """The picture."""
    parts: list[str] = []
    y = float(MARGIN)
    for at in range(0, len(PANELS), 2):
        pair = [(panel, rows_of(page, panel)) for panel in PANELS[at : at + 2]]
        for column, (panel, rows) in enumerate(pair):
            parts += drawn_panel(panel, rows, MARGIN + column * (PANEL_WIDTH + GAP), y)
        y += TITLE_HEIGHT + ROW_HEIGHT * max(len(rows) for _, rows in pair) + PANEL_GAP
    machine = [
        found[1]
        for name in ("kstore", "processor", "file system")
        if (found := re.search(rf"^- {name}: (.+)$", page, re.M))
    ]
    parts.append(text(MARGIN, y + 2, f"Values of 100 bytes. From BENCHMARKS.md: kstore {', '.join(machine)}", "soft"))
    return picture(WIDTH, round(y) + MARGIN, described(page), parts)


def drawn_panel(panel: Panel, rows: list[Row], x: float, y: float) -> list[str]:
    better = "" if panel.longer_is_better else ": shorter is better"
    parts = [text(x, y + 11, panel.title, "ink bold"), text(x, y + 27, panel.unit + better, "soft")]
    if not leads(panel, rows):
        parts.append(text(x + PANEL_WIDTH, y + 11, "kstore is behind", "behind bold right"))
    largest = max(row.value for row in rows)
    room = PANEL_WIDTH - NAME_WIDTH - VALUE_WIDTH
    for at, row in enumerate(rows):
        top = y + TITLE_HEIGHT + at * ROW_HEIGHT
        kind, weight = ("own", " bold") if row.name == OWN else ("other", "")
        width = max(room * row.value / largest, 1)
        parts += [
            text(x, top + 11, row.name, f"ink{weight}"),
            f'<rect class="{kind}" x="{x + NAME_WIDTH:g}" y="{top:g}" width="{width:.1f}" height="13" rx="2"/>',
            text(x + NAME_WIDTH + width + 6, top + 11, short(row), f"ink{weight}"),
        ]
    return parts
