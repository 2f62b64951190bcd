"""A report as one self-contained HTML page: no script, no font, no picture from anywhere.

Texts are escaped as ``rendering`` says; a Content-Security-Policy in the page also forbids scripts and requests.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from kstore.reports import drawing
from kstore.reports.document import Document, as_finding
from kstore.reports.drawing import BLOCKS_MAX
from kstore.reports.rendering import parts, templates
from kstore.reports.savings import LARGER_FACTOR
from kstore.rules.losses import OffsetSpans, joined, span_size
from kstore.upkeep.observed.keys import FREQUENT_MAX
from kstore.upkeep.observed.timeline import usual_times
from kstore.upkeep.verify.findings import is_loss

# A page of 1,000 partitions stays below 5 MB: the largest partitions, and those with findings, have a section.
LARGEST_SECTIONS = 50
SECTIONS_MAX = 120
# All others have a row, up to this many.
ROWS_MAX = 1000
# The most partitions, and findings, that the page shows before the reader asks for more.
ROWS_UNFOLDED = 20
# With more sections than the largest logs have, the maps have larger blocks.
BLOCKS_OF_MANY = 20
FINDINGS_MAX = 200
NOTES_MAX = 50
FINDINGS_OF_A_LOG_MAX = 20
READERS_MAX = 200
MACROS = (
    "finding",
    "folded_finding",
    "distribution",
    "frequent_keys",
    "over_time",
    "producers",
    "recovery",
    "transactions",
)


def page(document: Document) -> str:
    """The page. Raises: MissingExtraError if Jinja2 is not installed."""
    environment, markup = templates()
    sections = _sections(document)
    blocks_max = BLOCKS_OF_MANY if len(sections) > LARGEST_SECTIONS else BLOCKS_MAX
    rows = _rows(document, set(sections))
    damages = _findings(document, "damage")[:FINDINGS_MAX]
    notes = _findings(document, "note")[:NOTES_MAX]
    groups = _groups(document)
    logs = document["partitions"]
    largest = max([log["bytes"] for log in logs], default=0)
    own = parts(environment)
    text: str = environment.get_template("page.html.j2").render(
        doc=document,
        style=markup(resources.files("kstore.reports").joinpath("templates/style.css").read_text(encoding="utf-8")),
        treemap=markup(drawing.treemap(logs, {row["number"]: f"#{row['anchor']}" for row in rows})),
        has_rest=sum(log["bytes"] > 0 for log in logs) > drawing.TREEMAP_BOXES_MAX,
        usual=_usual_times(document["total"]),
        strip=lambda log: markup(drawing.strip(log, largest)),
        segment_map=lambda log: markup(drawing.segment_map(log, _placed(log), blocks_max)),
        rows=rows,
        rows_left=len(logs) - len(rows),
        rows_full=len(sections),
        rows_unfolded=ROWS_UNFOLDED,
        damaged=sum(log["damage"] > 0 for log in logs),
        lost=sum(span_size(_lost(log)) for log in logs),
        findings=damages,
        findings_left=document["total"]["damage"] - len(damages),
        findings_unfolded=ROWS_UNFOLDED,
        notes=notes,
        notes_left=document["total"]["notes"] - len(notes),
        groups=groups[:READERS_MAX],
        groups_left=max(len(groups) - READERS_MAX, 0),
        rows_max=READERS_MAX,
        keyed=[topic for topic in document["topics"] if "key_sketch" in topic and topic["key_sketch"]["keyed"]],
        keys_max=FREQUENT_MAX,
        larger_factor=LARGER_FACTOR,
        saved=_saved,
        **{name: getattr(own, name) for name in MACROS},
    )
    return text


def _sections(document: Document) -> list[int]:
    """The places of the partitions that have a section: those with damage, the largest, and those with notes."""
    logs = document["partitions"]
    by_size = sorted(range(len(logs)), key=lambda number: -logs[number]["bytes"])
    with_damage = [number for number in by_size if logs[number]["damage"]]
    with_notes = [number for number in by_size if logs[number]["notes"]]
    return list(dict.fromkeys([*with_damage, *by_size[:LARGEST_SECTIONS], *with_notes]))[:SECTIONS_MAX]


def _rows(document: Document, full: set[int]) -> list[dict[str, Any]]:
    """The partitions that have a row, in the order in which the page begins, with their places in the others.

    Styles order them: the page runs no script.
    """
    logs = document["partitions"]
    every = range(len(logs))
    by_size = sorted(every, key=lambda number: -logs[number]["bytes"])
    by_damage = sorted(by_size, key=lambda number: (not logs[number]["damage"], number not in full))
    first = by_damage[:ROWS_MAX]
    shown = set(first)
    orders = {
        "d": first,
        "s": [number for number in by_size if number in shown],
        "t": sorted(first, key=lambda number: -logs[number]["last_timestamp"]),
        "n": sorted(first),
    }
    places = {name: {number: place for place, number in enumerate(order)} for name, order in orders.items()}
    return [
        {
            "number": number,
            "anchor": f"p{number}",
            "is_full": number in full,
            "style": ";".join(f"--{name}:{place[number]}" for name, place in places.items()),
            "css": "".join(f" in-{name}" for name, place in places.items() if place[number] < ROWS_UNFOLDED)
            + (" damaged" if logs[number]["damage"] else ""),
        }
        for number in first
    ]


def _findings(document: Document, severity: str) -> list[dict[str, Any]]:
    """The findings of ``severity``, lost records first. A log with many leaves space for others."""
    every = [document["findings"], *[log["findings"] for log in document["partitions"]]]
    of_it = [[each for each in found if each["severity"] == severity] for found in every]
    some = [each for found in of_it for each in sorted(found, key=_rank)[:FINDINGS_OF_A_LOG_MAX]]
    return sorted(some, key=_rank)


def _rank(found: dict[str, Any]) -> bool:
    return not is_loss(as_finding(found))


def _lost(log: Document) -> OffsetSpans:
    """The offsets, as far as they are known, of records that cannot be read."""
    lost = [each for each in log["findings"] if is_loss(as_finding(each))]
    return joined((each["first"], each["last"]) for each in lost if "first" in each and "last" in each)


def _usual_times(every: Document) -> tuple[int, int] | None:
    """The times of most records, if a few others make the span of all of them at least twice as long."""
    usual = usual_times(every["timeline"])
    if usual is None:
        return None
    low, high = max(usual[0], every["first_timestamp"]), min(usual[1], every["last_timestamp"])
    return (low, high) if every["last_timestamp"] - every["first_timestamp"] > 2 * (high - low) else None


def _groups(document: Document) -> list[dict[str, Any]]:
    """A row for each group and topic, the largest lag first; a partition that is not there has no lag."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for each in document["groups"]:
        key = (each["group"], each["topic"])
        row = rows.setdefault(
            key, {"group": key[0], "topic": key[1], "partitions": 0, "lag": 0, "largest": 0, "committed_at": -1}
        )
        row["partitions"] += 1
        row["lag"] += each["lag"] or 0
        row["largest"] = max(row["largest"], each["lag"] or 0)
        row["committed_at"] = max(row["committed_at"], each["committed_at"])
    return sorted(rows.values(), key=lambda row: -row["lag"])


def _saved(size: int, present: int) -> str:
    """By how much ``size`` is below what is there now; more bytes are a negative saving."""
    return f"{round(100 * (present - size) / present)} %" if present else "-"


def _placed(log: Document) -> list[dict[str, Any]]:
    """The damage to batches, of which the position in a ``.log`` is known."""
    kinds = ("batch", "tail", "lost")
    found = [each for each in log["findings"] if each["severity"] == "damage" and each["kind"] in kinds]
    return [each for each in found if "position" in each][:FINDINGS_OF_A_LOG_MAX]
