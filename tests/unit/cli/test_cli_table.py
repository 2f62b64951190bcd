"""Tables fit the width of a terminal and lose no content."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kstore.cli import table as module
from kstore.cli.table import table, wrapped
from tests.support.harness.selection import tries

COLUMNS = ("log", "first offset", "records", "last time")
ROWS = [("data/orders-0", 0, 61, "2026-11-23T04:44:02Z"), ("data/a-rather-long-name-0", 7, 1_500, "-")]
NATURAL = [
    "log                        first offset  records             last time",
    "data/orders-0                         0       61  2026-11-23T04:44:02Z",
    "data/a-rather-long-name-0             7    1,500                     -",
]
FOLDED_TITLES = [
    "log                         first  records             last time",
    "                           offset",
    "data/orders-0                   0       61  2026-11-23T04:44:02Z",
    "data/a-rather-long-name-0       7    1,500                     -",
]
FOLDED_CELLS = [
    "log                   first records last time",
    "                     offset",
    "data/orders-0             0      61 2026-11-23T",
    "                                    04:44:02Z",
    "data/a-rather-long-       7   1,500 -",
    "name-0",
]
PARAGRAPHS = [
    "data/orders-0",
    "  first offset 0  records 61",
    "  last time 2026-11-23T04:44:02Z",
    "data/a-rather-long-name-0",
    "  first offset 7  records 1,500",
]


@pytest.mark.parametrize(
    ("room", "lines"),
    [(None, NATURAL), (70, NATURAL), (69, FOLDED_TITLES), (64, FOLDED_TITLES), (48, FOLDED_CELLS), (33, PARAGRAPHS)],
)
def test_a_table_becomes_as_narrow_as_its_terminal(
    room: int | None, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "room", lambda: room)
    assert list(table(COLUMNS, ROWS)) == lines


def test_no_cell_is_lost_and_no_line_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)

    def text() -> str:
        return "".join(chance.choices("abc -_/=,T0", k=chance.randrange(1, 40))).strip() or "x"

    for _ in range(tries(3000, quick=300)):
        count = chance.randrange(1, 7)
        columns = [text() for _ in range(count)]
        rows = [
            [chance.choice([chance.randrange(10**9), text(), "-", "2026-11-23T04:44:02Z"]) for _ in columns]
            for _ in range(chance.randrange(4))
        ]
        room = chance.randrange(30, 200)
        monkeypatch.setattr(module, "room", lambda room=room: room)
        lines = list(table(columns, rows))
        assert max((len(line) for line in lines), default=0) <= max(room, 50), (room, lines)
        # Paragraphs omit the first column's title and unknown values.
        cells = Counter("".join(str(cell) for row in rows for cell in row if cell != "-").replace(" ", ""))
        assert cells <= Counter("".join(lines)), lines


def test_text_is_wrapped_at_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "batch  offsets 0 to 60 at position 0"
    monkeypatch.setattr(module, "room", lambda: None)
    assert list(wrapped(text)) == [text]
    monkeypatch.setattr(module, "room", lambda: 20)
    assert list(wrapped(text, " " * 7)) == ["batch  offsets 0 to", "       60 at", "       position 0"]
    assert list(wrapped("a" * 30 + " b")) == ["a" * 30, "  b"]
