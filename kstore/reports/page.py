"""A report as one HTML page that needs nothing else: no script, no font, no picture from anywhere.

Jinja2 escapes everything that is not one of our own pictures; ``visible`` first replaces what escaping leaves alone,
such as characters that reverse text. A Content-Security-Policy in the page also forbids scripts and requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from html import escape
from importlib import resources
from typing import Any

from kstore.errors import MissingExtraError
from kstore.reports import drawing
from kstore.reports.document import Document
from kstore.reports.names import visible
from kstore.reports.numbers import count_text, duration_text, size_text, time_text
from kstore.reports.timeline import Bucket

__all__ = ["page"]

# A page of 1,000 partitions stays below 5 MB: the largest partitions, and those with damage, have a section.
LARGEST_SECTIONS = 50
SECTIONS_MAX = 150
FINDINGS_MAX = 200
FINDINGS_OF_A_LOG_MAX = 20
PRODUCERS_MAX = 10
READERS_MAX = 200
HEX_ROW_BYTES = 16


def page(document: Document) -> str:
    """The page. Raises: MissingExtraError if Jinja2 is not installed."""
    environment, markup = _environment()
    sections = _sections(document)
    anchors = {number: f"p{number}" for number in sections}
    findings, left = _findings(document)
    groups = _groups(document)
    logs = document["partitions"]
    largest = max([log["bytes"] for log in logs], default=0)
    own = environment.get_template("parts.html.j2").make_module(
        {
            "hex_lines": lambda view: markup(_hex_lines(view)),
            "timeline": lambda fields, titled: markup(drawing.timeline(fields, titled=titled)),
            "busiest_of": lambda fields: max(map(Bucket._make, fields["buckets"]), key=lambda each: each.size),
            "producers_max": PRODUCERS_MAX,
            "histogram": lambda bars, title, in_bytes: markup(drawing.histogram(bars, title, in_bytes=in_bytes)),
        }
    )
    text: str = environment.get_template("page.html.j2").render(
        doc=document,
        style=markup(resources.files("kstore.reports").joinpath("templates/style.css").read_text(encoding="utf-8")),
        treemap=markup(drawing.treemap(logs, anchors)),
        strip=lambda log: markup(drawing.strip(log, largest)),
        segment_map=lambda log: markup(drawing.segment_map(log, _placed(log))),
        sections=[(number, logs[number]) for number in sections],
        anchors=anchors,
        findings=findings,
        groups=groups[:READERS_MAX],
        groups_left=max(len(groups) - READERS_MAX, 0),
        rows_max=READERS_MAX,
        findings_left=left,
        **{name: getattr(own, name) for name in ("finding", "distribution", "over_time", "producers", "recovery")},
    )
    return text


def _environment() -> tuple[Any, Any]:
    """Jinja2's environment, and the type of a text that is not to be escaped."""
    try:
        import jinja2  # noqa: F401  # what `_templates` needs
        import markupsafe
    except ModuleNotFoundError as error:
        raise MissingExtraError("a report as a page needs Jinja2: pip install 'kstore[report]'") from error
    return _templates(), markupsafe.Markup


@cache
def _templates() -> Any:
    """Compiles each template once in a process."""
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kstore.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=False,
        finalize=partial(_finalized, markupsafe.Markup),
    )
    environment.filters |= {
        "amount": lambda value, in_bytes: size_text(value) if in_bytes else count_text(value),
        "count": count_text,
        "duration": duration_text,
        "file_name": lambda path: path.rpartition("/")[2],
        "minute": partial(time_text, form="%Y-%m-%d %H:%M"),
        "shortened": _shortened,
        "size": size_text,
        "time": time_text,
    }
    return environment


def _finalized(markup: type, value: object) -> object:
    """What is printed for ``value``, before it is escaped."""
    return visible(value) if isinstance(value, str) and not isinstance(value, markup) else value


def _shortened(text: str, length_max: int) -> str:
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


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


def _worst_first(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda each: each["severity"] != "damage")


def _placed(log: Document) -> list[dict[str, Any]]:
    """The damage to batches, of which the position in a ``.log`` is known."""
    kinds = ("batch", "tail", "lost")
    found = [each for each in log["findings"] if each["severity"] == "damage" and each["kind"] in kinds]
    return [each for each in found if "position" in each][:FINDINGS_OF_A_LOG_MAX]


# --- bytes ------------------------------------------------------------------------------------------------------------


def _hex_lines(view: dict[str, Any]) -> str:
    """Rows of bytes with their position, fields in turn with and without a background."""
    data = bytes.fromhex(view["bytes"])
    css = [""] * len(data)
    for number, field in enumerate(view["fields"]):
        start = field["position"] - view["position"]
        kind = "wrong" if field["wrong"] else "even" if number % 2 == 0 else ""
        css[start : start + field["size"]] = [kind] * field["size"]
    return "".join(f"{line}\n" for line in _rows(data, css, view["position"]))


def _rows(data: bytes, css: list[str], position: int) -> Iterator[str]:
    for at in range(0, len(data), HEX_ROW_BYTES):
        row = data[at : at + HEX_ROW_BYTES]
        cells = []
        for number, byte in enumerate(row):
            gap = "" if number == 0 else " "
            kind, before = css[at + number], css[at + number - 1] if number else ""
            # The gap belongs to the field if its neighbour does too.
            cell = f'<b class="{kind}">{byte:02x}</b>' if kind else f"{byte:02x}"
            cells.append(f'<b class="{kind}"> {byte:02x}</b>' if gap and kind and kind == before else gap + cell)
        text = "".join([chr(byte) if 32 <= byte < 127 else "·" for byte in row])
        padding = "   " * (HEX_ROW_BYTES - len(row))
        yield f'<span class="soft">{position + at:>10}</span>  {"".join(cells)}{padding}  {escape(text)}'
