"""The pictures of the documents show what BENCHMARKS.md and the commands say."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from tools.pictures import speed, terminal
from tools.pictures.drawn import picture, text

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "docs" / "images"
BENCHMARKS = (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
REDRAW = "make pictures draws it again"

PAGE = """\
# Benchmarks

- kstore: 1.2.0
- processor: a processor, 2 cores

### Batches of 1,000 records

|            | append, synced | a new column | read all    | look up one, p50 |
|------------|----------------|--------------|-------------|------------------|
| kstore     | 1,950,000/s    | 3            | 11,400,000/s | 2.0 us          |
| a <tree>   | 384,000/s      |              | 2,300,000/s | 5.4 us           |
| a new one  | 9,500/s        | 4            |             | 1,000.5 us       |
| plain file | 2,350,000/s    | 5            | 99,240,000/s | 1.7 us          |

### A new section

| kstore | 7 |

### One record a call

|            | append, synced | append, not synced | on disk, a record |
|------------|----------------|--------------------|-------------------|
| kstore     | 3,890/s        | 383,000/s          | 171 bytes         |
| a <tree>   | 3,900/s        | 63,600/s           | 112 bytes         |
"""


def words_of(svg: str) -> list[str]:
    return [unescape(words) for words in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def test_the_picture_of_speeds_is_drawn_from_the_benchmarks() -> None:
    assert (IMAGES / "speed.svg").read_text(encoding="utf-8") == speed.drawn(BENCHMARKS), REDRAW


@pytest.mark.parametrize(
    ("heading", "column", "title"),
    [
        ("Batches of 1,000 records", 1, "Append in batches, on disk"),
        ("Batches of 1,000 records", 3, "Read everything"),
        ("One record a call", 2, "Append one by one"),
        ("One record a call", 1, "Append one by one, on disk"),
        ("Batches of 1,000 records", 4, "Look up one record"),
        ("One record a call", 5, "Space of a single record"),
    ],
)
def test_the_picture_of_speeds_shows_the_numbers_of_the_benchmarks(heading: str, column: int, title: str) -> None:
    table = BENCHMARKS.partition(f"### {heading}\n")[2].partition("\n#")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    expected = {row[0]: row[column] for row in cells[2:] if row[0] != "plain file"}
    words = words_of((IMAGES / "speed.svg").read_text(encoding="utf-8"))
    shown = words[words.index(title) :]
    assert len(expected) == 5
    for store, said in expected.items():
        found = shown[shown.index(store) + 1]
        factor = {"M": 1e6, "k": 1e3}.get(found.split()[-1], 1)
        number = float(said.split("/")[0].split()[0].replace(",", ""))
        assert float(found.split()[0].replace(",", "")) * factor == pytest.approx(number, rel=0.005), store


def test_a_panel_has_every_store_of_the_table_but_the_plain_file() -> None:
    words = words_of(speed.drawn(PAGE))
    assert words[words.index("Append in batches, on disk") :][2:8] == [
        *("kstore", "1.95 M"),
        *("a <tree>", "384 k"),
        *("a new one", "9,500"),
    ]
    # A cell without a number has no bar.
    assert words[words.index("Read everything") :][2:6] == ["kstore", "11.4 M", "a <tree>", "2.3 M"]
    assert words[-1] == "Values of 100 bytes. From BENCHMARKS.md: kstore 1.2.0, a processor, 2 cores"


def test_the_picture_says_where_kstore_is_behind() -> None:
    words = words_of(speed.drawn(PAGE))
    titles = [panel.title for panel in speed.PANELS]
    behind = [words[at - 2] for at, word in enumerate(words) if word == "kstore is behind"]
    assert behind == ["Append one by one, on disk", "Space of a single record"]
    assert set(behind) < set(titles)
    assert speed.described(PAGE).endswith("kstore is behind in: append one by one, on disk; space of a single record")


@pytest.mark.parametrize("lacking", ["### One record a call", "read all", "| kstore     | 1,950,000/s"])
def test_a_page_that_lacks_a_number_is_refused(lacking: str) -> None:
    with pytest.raises(ValueError, match=r"has no (heading|column|row) "):
        speed.drawn(PAGE.replace(lacking, "### Other" if lacking.startswith("#") else "| other"))


@pytest.mark.parametrize(
    ("name", "description"),
    [("speed.svg", speed.described(BENCHMARKS)), ("terminal.svg", terminal.DESCRIPTION)],
)
def test_the_readme_says_in_words_what_its_pictures_show(name: str, description: str) -> None:
    found = re.findall(rf"!\[([^\]]*)\]\(docs/images/{name}\)", README)
    assert found == [description]


@pytest.mark.long
def test_the_picture_of_a_terminal_is_what_the_commands_print(tmp_path: Path) -> None:
    terminal.lay_out(tmp_path)
    drawn = terminal.drawn(terminal.session(tmp_path))
    assert (IMAGES / "terminal.svg").read_text(encoding="utf-8") == drawn, REDRAW
    assert "171 records, offsets 165 to 335, cannot be read" in drawn


@pytest.mark.parametrize("name", ["speed.svg", "terminal.svg"])
def test_a_picture_asks_for_nothing_and_brings_its_background(name: str) -> None:
    svg = (IMAGES / name).read_text(encoding="utf-8")
    assert re.findall(r'(?:https?:|href|url\(|@import|<script)[^"]*', svg) == ["http://www.w3.org/2000/svg"]
    assert '<rect class="back"' in svg


def test_words_in_a_picture_are_escaped() -> None:
    svg = picture(10, 10, "a & b", [text(0, 0, "<i>")])
    assert "a &amp; b" in svg
    assert "&lt;i&gt;" in svg
