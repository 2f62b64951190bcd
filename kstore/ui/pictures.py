"""What only these pages draw, as SVG with links. Pure: from the numbers of a page's model to text.

Colours come from the style sheet; there are no style attributes, which the Content-Security-Policy forbids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kstore.reports.drawing import WIDTH, n, safe, svg
from kstore.upkeep.numbers import count_text, size_text

BAND_Y, BAND_HEIGHT = 20.0, 26.0
STRIP_HEIGHT = 64.0
WIDTH_MIN = 1.5


def _linked(url: str, title: str, drawn: str, *, is_listed: bool = False) -> str:
    """``is_listed``: a list on the page has the link too, so the keyboard need not stop here."""
    stop = ' tabindex="-1"' if is_listed else ""
    return f'<a href="{safe(url)}"{stop}><title>{safe(title)}</title>{drawn}</a>'


def _box(css: str, left: float, width: float, *, y: float = BAND_Y, height: float = BAND_HEIGHT) -> str:
    return f'<rect class="{css}" x="{n(left)}" y="{n(y)}" width="{n(max(width, WIDTH_MIN))}" height="{n(height)}"/>'


def _needle(css: str, x: float, title: str) -> str:
    """A mark below the band."""
    top = BAND_Y + BAND_HEIGHT
    return f'<path class="{css}" d="M{n(x)} {n(top + 1)}l-4 8h8z"><title>{safe(title)}</title></path>'


# --- bytes ------------------------------------------------------------------------------------------------------------


def segment_strip(page: dict[str, Any]) -> str:
    """All bytes of a segment: each part leads to its page; the window that the page shows, and damage, are marked."""
    size = page["bytes"] or 1
    parts = [{"position": 0, "offset": page["base"]}, *page["parts"]]
    stops = [part["position"] for part in parts[1:]] + [size]
    body = []
    for number, (part, stop) in enumerate(zip(parts, stops, strict=True)):
        left, right = (min(at, size) / size * WIDTH for at in (part["position"], stop))
        title = f"from position {count_text(part['position'])}, about offset {part['offset']}"
        box = _box("part" + (" odd" if number % 2 else ""), left, right - left)
        body.append(_linked(f"{page['url']}?position={part['position']}", title, box))
    left, right = (page[name] / size * WIDTH for name in ("start", "stop"))
    body.append(_box("window", left, right - left, y=BAND_Y - 4, height=BAND_HEIGHT + 8))
    for found in (*page["findings"], *page["damages"]):
        x = min(found["position"], size) / size * WIDTH
        body.append(_box(found["severity"], x, 0, y=BAND_Y - 2, height=BAND_HEIGHT + 4))
        body.append(_needle(found["severity"], x, f"position {found['position']}: {found['reason']}"))
    body.append(f'<text x="0" y="10">{safe(size_text(page["bytes"]))}</text>')
    body.append(f'<text x="{n(WIDTH)}" y="10" text-anchor="end">{count_text(page["bytes"])}</text>')
    return svg(WIDTH, STRIP_HEIGHT, "all bytes of the segment", "".join(body), "bytes", role="group")


def window_strip(page: dict[str, Any]) -> str:
    """The bytes that a page of a segment shows: its batches, damage, and where the offset index points."""
    start, span = page["start"], max(page["stop"] - page["start"], 1)
    body = []
    for number, batch in enumerate(page["batches"]):
        left, width = (batch["position"] - start) / span * WIDTH, batch["bytes"] / span * WIDTH
        title = (
            f"position {batch['position']}: offsets {batch['first']} to {batch['last']}, {size_text(batch['bytes'])}"
        )
        css = "control" if batch["control"] else "batch" + (" odd" if number % 2 else "")
        body.append(_linked(batch["url"], title, _box(css, left, width), is_listed=True))
    for damage in page["damages"]:
        left, width = (damage["position"] - start) / span * WIDTH, damage["bytes"] / span * WIDTH
        title = f"position {damage['position']} to {damage['stop']}: {damage['reason']}"
        body.append(_linked(damage["url"], title, _box(damage["severity"], left, width), is_listed=True))
    # What a check of every byte has found within batches whose CRC holds.
    sizes = {batch["position"]: batch["bytes"] for batch in page["batches"]}
    for found in page["findings"]:
        if found["position"] in sizes:
            left, width = (found["position"] - start) / span * WIDTH, sizes[found["position"]] / span * WIDTH
            title = f"position {found['position']}: {found['reason']}"
            body.append(
                _linked(
                    f"{page['url']}/{found['position']}", title, _box(found["severity"], left, width), is_listed=True
                )
            )
    for entry in page["index"]:
        title = f"entry {entry['slot']} of the index: offset {entry['offset']} at position {entry['position']}"
        if entry["wrong"]:
            title += ", where no batch with it starts"
        css = "damage" if entry["wrong"] else "indexed"
        body.append(_needle(css, (entry["position"] - start) / span * WIDTH, title))
    body.append(f'<text x="0" y="10">position {count_text(start)}</text>')
    body.append(f'<text x="{n(WIDTH)}" y="10" text-anchor="end">{count_text(page["stop"])}</text>')
    return svg(WIDTH, STRIP_HEIGHT, "the bytes of these batches", "".join(body), "bytes", role="group")


# --- lookups ----------------------------------------------------------------------------------------------------------

COLUMNS = 4
STEPS_MAX = 24
STEP_WIDTH, STEP_HEIGHT = 218.0, 66.0
GAP_X, GAP_Y = 42.0, 26.0
assert COLUMNS * STEP_WIDTH + (COLUMNS - 1) * GAP_X + 2 <= WIDTH


def path_of_lookup(steps: Sequence[dict[str, Any]]) -> str:
    """The steps of a lookup as boxes, in the order in which they were made."""
    body = []
    for number, step in enumerate(steps[:STEPS_MAX]):
        row, column = divmod(number, COLUMNS)
        x, y = column * (STEP_WIDTH + GAP_X), row * (STEP_HEIGHT + GAP_Y)
        kind = {"damage": "damage", "record": "found"}.get(step["step"], "step")
        body.append(f'<g class="{kind}"><title>{safe(step["text"])}</title>')
        body.append(f'<rect x="{n(x + 1)}" y="{n(y + 1)}" width="{n(STEP_WIDTH)}" height="{n(STEP_HEIGHT)}" rx="6"/>')
        body.append(f'<text class="name" x="{n(x + 12)}" y="{n(y + 19)}">{safe(step["step"])}</text>')
        for line, fact in enumerate(_facts(step["step"], step["values"])):
            body.append(f'<text x="{n(x + 12)}" y="{n(y + 37 + 17 * line)}">{safe(fact)}</text>')
        body.append("</g>")
        if number + 1 < min(len(steps), STEPS_MAX):
            body.append(_arrow(x, y, is_last=column + 1 == COLUMNS))
    rows = -(-min(len(steps), STEPS_MAX) // COLUMNS)
    return svg(WIDTH, rows * (STEP_HEIGHT + GAP_Y), "the path of the lookup", "".join(body), "lookup")


def _arrow(x: float, y: float, *, is_last: bool) -> str:
    """From the box at ``x``, ``y`` to the next one, which begins a row after the last one of a row."""
    middle = y + STEP_HEIGHT / 2
    if not is_last:
        return f'<path class="arrow" d="M{n(x + STEP_WIDTH + 5)} {n(middle)}h{n(GAP_X - 12)}m-6 -5l6 5l-6 5"/>'
    below, left = y + STEP_HEIGHT + GAP_Y / 2, STEP_WIDTH / 2
    path = f"M{n(x + left)} {n(y + STEP_HEIGHT + 3)}V{n(below)}H{n(left)}v{n(GAP_Y / 2 - 2)}m-5 -6l5 6l5 -6"
    return f'<path class="arrow" d="{path}"/>'


def _facts(step: str, values: dict[str, Any]) -> Iterator[str]:
    """At most two short lines; the whole sentence is in the box's title and in the list below the picture."""
    match step:
        case "log":
            yield f"offsets {values.get('start_offset', '')} to {values.get('high_watermark', '')}"
            yield "can be read"
        case "segment":
            yield f"base offset {values['base_offset']}"
            yield size_text(values["size"])
        case "index" | "timeindex" if "slot" in values:
            yield f"slot {values['slot']}, {values['section']}" if values["slot"] >= 0 else "no entry before it"
            yield f"offset {values['offset']}" + (f" at {values['position']}" if "position" in values else "")
        case "scan":
            yield f"{size_text(values['size'])} of headers"
            yield f"to position {values['stop']}"
        case "batch":
            yield f"offsets {values['base_offset']} to {values['last_offset']}"
            yield f"position {values['position']}, {values['codec']}"
        case "record":
            yield f"offset {values['offset']}"
            yield f"time {values['timestamp']}"
        case "damage":
            yield f"position {values['position']}" if "position" in values else "in the batch"
        case "marker" | "end" if "offset" in values:
            yield f"offset {values['offset']}"
