"""A report as one self-contained HTML page: no script, no font, no picture from anywhere.

Texts are escaped as ``rendering`` says; a Content-Security-Policy in the page also forbids scripts and requests.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from kstore.reports import drawing
from kstore.reports.document import Document
from kstore.reports.drawing import BLOCKS_MAX
from kstore.reports.keys import FREQUENT_MAX
from kstore.reports.rendering import parts, templates
from kstore.reports.savings import LARGER_FACTOR

__all__ = ["page"]

# A page of 1,000 partitions stays below 5 MB: the largest partitions, and those with findings, have a section.
LARGEST_SECTIONS = 50
SECTIONS_MAX = 150
# With more sections than the largest logs have, the maps have larger blocks.
BLOCKS_OF_MANY = 20
FINDINGS_MAX = 200
FINDINGS_OF_A_LOG_MAX = 20
READERS_MAX = 200
MACROS = ("finding", "distribution", "frequent_keys", "over_time", "producers", "recovery", "transactions")


def page(document: Document) -> str:
    """The page. Raises: MissingExtraError if Jinja2 is not installed."""
    environment, markup = templates()
    sections = _sections(document)
    blocks_max = BLOCKS_OF_MANY if len(sections) > LARGEST_SECTIONS else BLOCKS_MAX
    anchors = {number: f"p{number}" for number in sections}
    findings, left = _findings(document)
    groups = _groups(document)
    logs = document["partitions"]
    largest = max([log["bytes"] for log in logs], default=0)
    own = parts(environment)
    text: str = environment.get_template("page.html.j2").render(
        doc=document,
        style=markup(resources.files("kstore.reports").joinpath("templates/style.css").read_text(encoding="utf-8")),
        treemap=markup(drawing.treemap(logs, {number: f"#{anchor}" for number, anchor in anchors.items()})),
        strip=lambda log: markup(drawing.strip(log, largest)),
        segment_map=lambda log: markup(drawing.segment_map(log, _placed(log), blocks_max)),
        sections=[(number, logs[number]) for number in sections],
        anchors=anchors,
        findings=findings,
        groups=groups[:READERS_MAX],
        groups_left=max(len(groups) - READERS_MAX, 0),
        rows_max=READERS_MAX,
        keyed=[topic for topic in document["topics"] if "key_sketch" in topic and topic["key_sketch"]["keyed"]],
        keys_max=FREQUENT_MAX,
        larger_factor=LARGER_FACTOR,
        saved=_saved,
        findings_left=left,
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


def _findings(document: Document) -> tuple[list[dict[str, Any]], int]:
    """The findings to show, damage first, and how many more there are. A log with many leaves space for others."""
    every = [document["findings"], *[log["findings"] for log in document["partitions"]]]
    some = [each for found in every for each in _worst_first(found)[:FINDINGS_OF_A_LOG_MAX]]
    shown = _worst_first(some)[:FINDINGS_MAX]
    return shown, document["total"]["damage"] + document["total"]["notes"] - len(shown)


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


def _worst_first(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda each: each["severity"] != "damage")


def _placed(log: Document) -> list[dict[str, Any]]:
    """The damage to batches, of which the position in a ``.log`` is known."""
    kinds = ("batch", "tail", "lost")
    found = [each for each in log["findings"] if each["severity"] == "damage" and each["kind"] in kinds]
    return [each for each in found if "position" in each][:FINDINGS_OF_A_LOG_MAX]
