"""Draws a session in a terminal: commands on a log that a Kafka broker wrote, and exactly what they print.

One batch of the log is damaged, so that the commands have something to find. The picture is dark everywhere, as
terminals are.
"""

from __future__ import annotations

import re
import shlex
import shutil
from html import escape
from itertools import pairwise
from pathlib import Path

from rich.style import Style
from rich.text import Span, Text

from tests.support.harness.golden_data import golden_root
from tests.support.harness.terminal import in_terminal
from tools.pictures.drawn import picture

DESCRIPTION = (
    "A terminal: kstore dump-log prints a Kafka broker's records, kstore verify names the 171 records that a damaged "
    "batch holds, and kstore explain shows how a lookup finds its record"
)
# A command, and how many lines of its output are shown; the rest is three dots.
COMMANDS = (
    ("kstore dump-log --print-data-log --skip-record-metadata broker/users-0/00000000000000000000.log", 6),
    ("kstore verify broker", 20),
    ("kstore explain broker/orders-0 --offset 500", 8),
)
COLUMNS = 104
# The colours of a terminal that the commands use, by their numbers.
COLOURS = {1: "red", 2: "green", 3: "yellow"}
CHARACTER, LINE, MARGIN = 7.8, 17, 16
STYLE = """
.back { fill: #0d1117; stroke: #3d444d }
text { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #e6edf3; white-space: pre }
.prompt { fill: #2dd4bf } .typed { font-weight: 600 } .dim { fill: #9198a1 }
.red { fill: #ff8f8f } .green { fill: #7ee2a8 } .yellow { fill: #f0c674 }
"""


def lay_out(directory: Path) -> None:
    """Makes ``broker``, the disk of a broker: two of its partitions, one of them damaged."""
    trees = {"orders-0": ("damaged", "gzip-body-0"), "users-0": ("clean", "keyed-0")}
    for name, (tree, partition) in trees.items():
        shutil.copytree(golden_root() / tree / partition, directory / "broker" / name, copy_function=shutil.copyfile)


def session(directory: Path) -> list[tuple[str, list[Text]]]:
    """Each command, and the lines of its output that are shown, in ``directory``, where ``lay_out`` has been."""
    shown = []
    for command, count in COMMANDS:
        _, sent = in_terminal(*shlex.split(command)[1:], directory=directory, columns=COLUMNS)
        # What a progress bar drew is erased.
        lines = Text.from_ansi(re.sub(r"(?s)^\x1b\[\?25l.*\x1b\[2K", "", sent.decode())).split("\n")
        kept = [line for line in lines if line.plain.strip()]
        shown.append((command, [*kept[:count], *([Text("...")] if len(kept) > count else [])]))
    return shown


def drawn(shown: list[tuple[str, list[Text]]]) -> str:
    """The picture."""
    parts: list[str] = []
    y = MARGIN + 12
    for command, lines in shown:
        for line in [Text().append("$ ", "prompt").append(command, "typed"), *lines]:
            # A terminal continues a long line on the next row.
            for row in line.divide(range(COLUMNS, len(line), COLUMNS)):
                parts.append(drawn_row(row, y))
                y += LINE
        y += LINE // 2
    width = round(COLUMNS * CHARACTER) + 2 * MARGIN
    return picture(width, y - LINE // 2 + MARGIN - 12, DESCRIPTION, parts, STYLE)


def drawn_row(row: Text, y: int) -> str:
    """Every run of one colour has its place on the grid, whatever the width of the reader's font."""
    edges = sorted({0, len(row), *(edge for span in row.spans for edge in (span.start, span.end))})
    runs = []
    for begin, end in pairwise(edges):
        words = row.plain[begin:end]
        classes = " ".join(filter(None, (class_of(span) for span in row.spans if span.start <= begin < span.end)))
        place = f'x="{MARGIN + begin * CHARACTER:.1f}" textLength="{(end - begin) * CHARACTER:.1f}"'
        runs.append(f'<tspan {place} class="{classes}">{escape(words)}</tspan>')
    return f'<text y="{y}">{"".join(runs)}</text>'


def class_of(span: Span) -> str:
    if not isinstance(span.style, Style):
        return span.style
    if span.style.color is not None and span.style.color.number is not None:
        return COLOURS[span.style.color.number]
    return "typed" if span.style.bold else "dim" if span.style.dim else ""
