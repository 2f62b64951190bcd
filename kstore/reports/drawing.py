"""The pictures of a report, as SVG. Pure: from numbers of the document to text; colours come from the page's style.

Every text goes through ``safe``: a topic may be called anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

from kstore.rules.notebook import visible
from kstore.upkeep.numbers import count_text, duration_text, size_text, time_text
from kstore.upkeep.observed.timeline import Bucket, clusters_of

# More segments than this share blocks with their neighbours.
BLOCKS_MAX = 48
STRIP_BLOCKS_MAX = 16
# The treemap shows this many logs by themselves, the rest as one.
TREEMAP_BOXES_MAX = 120
# The list in its place this many.
LISTED_MAX = 12
WIDTH = 1000.0


class Block(NamedTuple):
    """One segment, or several neighbours. ``start`` and ``end`` are offsets, -1 if no batch was found."""

    segment_count: int
    base: int
    size: int
    batch_count: int
    record_count: int
    start: int
    end: int
    damage_count: int
    is_active: bool

    @property
    def density(self) -> float:
        """The share of its offsets that have a record: compaction lowers it."""
        return min(self.record_count / (self.end - self.start), 1.0) if self.end > self.start >= 0 else 1.0


def blocks_of(segments: Sequence[dict[str, Any]], count_max: int) -> list[Block]:
    """At most ``count_max`` blocks for the segments of a log; the last one, which is active, is by itself."""
    if not segments:
        return []
    *sealed, active = segments
    step = max(-(-len(sealed) // max(count_max - 1, 1)), 1)
    groups = [sealed[at : at + step] for at in range(0, len(sealed), step)] + [[active]]
    return [_block(group, group[-1] is active) for group in groups]


def _block(group: Sequence[dict[str, Any]], is_active: bool) -> Block:
    known = [segment for segment in group if segment["end"] >= 0]
    return Block(
        len(group),
        group[0]["base"],
        sum(segment["bytes"] for segment in group),
        sum(segment["batches"] for segment in group),
        sum(segment["records"] for segment in group),
        known[0]["start"] if known else -1,
        known[-1]["end"] if known else -1,
        sum(segment["damage"] for segment in group),
        is_active,
    )


def svg(width: float, height: float, label: str, body: str, css: str = "", *, role: str = "img") -> str:
    """``role``: "group" for a picture with links, which readers of an "img" would not reach."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" class="{css}" role="{role}" aria-label="{safe(label)}"'
        f' xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def safe(text: str) -> str:
    """``text`` for the inside of an element or an attribute."""
    return escape(visible(text), quote=True)


def n(value: float) -> str:
    """A coordinate or a length, without digits that no eye sees."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


# --- segments ---------------------------------------------------------------------------------------------------------

MAP_HEIGHT = 108.0
BAND_HEIGHT = 18.0
BYTES_Y, OFFSETS_Y = 27.0, 70.0


def segment_map(log: dict[str, Any], damages: Sequence[dict[str, Any]], blocks_max: int = BLOCKS_MAX) -> str:
    """The segments of a log twice: as wide as their bytes, and as wide as their offsets, with lines between the two.

    ``damages`` are findings with a position in a ``.log``. Where compaction removed records, a block of offsets is
    paler.
    """
    blocks = blocks_of(log["segment_list"], blocks_max)
    by_bytes = _spans([block.size for block in blocks])
    first = min([block.base for block in blocks], default=0)
    ends = [max(block.end, block.base) for block in blocks]
    last = max(ends, default=0)
    span = max(last - first, 1)
    body: list[str] = []
    for number, block in enumerate(blocks):
        left, right = by_bytes[number]
        following = blocks[number + 1].base if number + 1 < len(blocks) else last
        low, high = ((value - first) / span * WIDTH for value in (block.base, max(following, ends[number])))
        kind = "active" if block.is_active else "sealed"
        title = f"<title>{safe(_block_title(block))}</title>"
        joint = f"M{n(left)} {n(BYTES_Y + BAND_HEIGHT)}H{n(right)}L{n(high)} {n(OFFSETS_Y)}H{n(low)}Z"
        body.append(f'<g class="{kind}">{title}<path class="joint" d="{joint}"/>{_rect(left, right, BYTES_Y)}')
        body.append(_rect(low, high, OFFSETS_Y, opacity=0.25 + 0.75 * block.density))
        body.append("</g>")
    body += _damage_marks(log, damages, first, span)
    body.append(f'<text x="0" y="11">bytes: {safe(size_text(log["bytes"]))}</text>')
    body.append(f'<text x="0" y="{n(MAP_HEIGHT - 4)}">offset {first}</text>')
    body.append(f'<text x="{n(WIDTH)}" y="{n(MAP_HEIGHT - 4)}" text-anchor="end">{last}</text>')
    count = len(log["segment_list"])
    if len(blocks) < count:
        body.append(f'<text x="{n(WIDTH)}" y="11" text-anchor="end">{count} segments, neighbours joined</text>')
    return svg(WIDTH, MAP_HEIGHT, f"segments of {log['name']}", "".join(body), "segments")


def _spans(sizes: Sequence[int]) -> list[tuple[float, float]]:
    """Where each begins and ends if all of them fill the width."""
    total = sum(sizes) or 1
    spans, at = [], 0.0
    for size in sizes:
        width = size / total * WIDTH
        spans.append((at, at + width))
        at += width
    return spans


def _rect(left: float, right: float, y: float, *, opacity: float = 1.0) -> str:
    width = max(right - left - 1, 1.0)
    faded = f' fill-opacity="{opacity:.2f}"' if opacity < 1 else ""
    return f'<rect x="{n(left)}" y="{n(y)}" width="{n(width)}" height="{n(BAND_HEIGHT)}"{faded}/>'


def _block_title(block: Block) -> str:
    name = "active segment" if block.is_active else "segment"
    if block.segment_count > 1:
        name = f"{block.segment_count} segments"
    offsets = f"offsets {block.start} to {block.end - 1}" if block.end > block.start >= 0 else "no batch"
    return (
        f"{name} from {block.base}: {size_text(block.size)}, {offsets}, {count_text(block.batch_count)} batches,"
        f" {count_text(block.record_count)} records ({block.density:.0%} of the offsets)"
    )


def _damage_marks(log: dict[str, Any], damages: Sequence[dict[str, Any]], first: int, span: int) -> Iterator[str]:
    """Where each damage is in the bytes, and in the offsets, of which ``span`` are drawn from ``first`` on."""
    starts, at = {}, 0
    for segment in log["segment_list"]:
        starts[segment["base"]] = at
        at += segment["bytes"]
    total = at or 1
    for damage in damages:
        base = damage["path"].rpartition("/")[2].partition(".")[0]
        if not base.isdigit() or int(base) not in starts:
            continue
        x = (starts[int(base)] + damage["position"]) / total * WIDTH
        title = f"<title>{safe(damage['reason'])}</title>"
        yield f'<path class="damage" d="M{n(x)} {n(BYTES_Y - 3)}l-5 -8h10z">{title}</path>'
        yield f'<path class="damage" d="M{n(x)} {n(BYTES_Y)}v{n(BAND_HEIGHT)}">{title}</path>'
        if "first" in damage:
            offset_x = min((damage["first"] - first) / span, 1.0) * WIDTH
            count = damage.get("last", damage["first"]) - damage["first"] + 1
            wide = min(count / span * WIDTH, WIDTH - offset_x)
            yield (
                f'<rect class="damage" x="{n(offset_x)}" y="{n(OFFSETS_Y)}" width="{n(max(wide, 1.5))}"'
                f' height="{n(BAND_HEIGHT)}">{title}</rect>'
            )


def strip(log: dict[str, Any], size_max: int) -> str:
    """A log as a bar of its segments, as long as its share of the largest log's bytes."""
    blocks = blocks_of(log["segment_list"], STRIP_BLOCKS_MAX)
    length = 160.0 * log["bytes"] / (size_max or 1)
    total = log["bytes"] or 1
    paths = {"sealed": "", "active": "", "damage": ""}
    at = 0.0
    for block in blocks:
        width = length * block.size / total
        kind = "damage" if block.damage_count else "active" if block.is_active else "sealed"
        drawn = max(width - 0.6, 0.4)
        paths[kind] += f"M{n(at)} 0h{n(drawn)}v12h-{n(drawn)}z"
        at += width
    body = "".join(f'<path class="{kind}" d="{path}"/>' for kind, path in paths.items() if path)
    return svg(160, 12, f"{len(log['segment_list'])} segments", body, "strip")


# --- where the bytes are ----------------------------------------------------------------------------------------------

TREEMAP_HEIGHT = 300.0
# In the picture's units; a letter is about 7 wide.
LABEL_WIDTH_MIN, LABEL_HEIGHT_MIN, LETTER_WIDTH = 44.0, 20.0, 7.2


def treemap(logs: Sequence[dict[str, Any]], links: dict[int, str]) -> str:
    """A box for each log, as large as its bytes, and a list of the largest, which a narrow screen shows instead.

    ``links``: where a log's box leads, by place in ``logs``.
    """
    sized = sorted((number for number, log in enumerate(logs) if log["bytes"]), key=lambda at: -logs[at]["bytes"])
    shown, rest = sized[:TREEMAP_BOXES_MAX], sized[TREEMAP_BOXES_MAX:]
    sizes = [float(logs[number]["bytes"]) for number in shown]
    rest_size = sum(logs[number]["bytes"] for number in rest)
    body = []
    # All others together come last, whatever their size: the picture is of the largest.
    boxes = squarified([*sizes, float(rest_size)] if rest else sizes, Box(0, 0, WIDTH, TREEMAP_HEIGHT))
    for number, box in zip(shown, boxes, strict=False):
        log = logs[number]
        body.append(
            _linked(_box(box, log["name"], log["bytes"], "damaged" if log["damage"] else "sound"), number, links)
        )
    if rest:
        body.append(_box(boxes[-1], f"{len(rest)} others", rest_size, "rest"))
    role = "group" if links else "img"
    picture = svg(WIDTH, TREEMAP_HEIGHT, "where the bytes are", "".join(body), "treemap", role=role)
    return picture + _sizes(logs, sized, links)


def _linked(drawn: str, number: int, links: dict[int, str]) -> str:
    return f'<a href="{safe(links[number])}">{drawn}</a>' if number in links else drawn


def _sizes(logs: Sequence[dict[str, Any]], by_size: Sequence[int], links: dict[int, str]) -> str:
    """The largest logs with their bytes, and the others as one entry."""
    entries = []
    for number in by_size[:LISTED_MAX]:
        log = logs[number]
        damage = ' <b class="number-damage">damaged</b>' if log["damage"] else ""
        name = _linked(safe(log["name"]), number, links)
        entries.append(f"<li><span>{name}{damage}</span> <span>{safe(size_text(log['bytes']))}</span></li>")
    if others := by_size[LISTED_MAX:]:
        size = sum(logs[number]["bytes"] for number in others)
        entries.append(f"<li><span>{count_text(len(others))} others</span> <span>{safe(size_text(size))}</span></li>")
    return f'<ul class="sizes">{"".join(entries)}</ul>' if entries else ""


def _box(box: Box, name: str, size: int, css: str) -> str:
    x, y, width, height = box
    drawn = (
        f'<rect class="{css}" x="{n(x + 0.5)}" y="{n(y + 0.5)}" width="{n(max(width - 1, 0.3))}"'
        f' height="{n(max(height - 1, 0.3))}" rx="2"><title>{safe(name)}: {safe(size_text(size))}</title></rect>'
    )
    if width < LABEL_WIDTH_MIN or height < LABEL_HEIGHT_MIN:
        return drawn
    shown = visible(name)
    letters = int((width - 12) / LETTER_WIDTH)
    label = shown if len(shown) <= letters else f"{shown[: max(letters - 1, 1)]}…"
    drawn += f'<text x="{n(x + 7)}" y="{n(y + 17)}">{escape(label)}</text>'
    if height > 2 * LABEL_HEIGHT_MIN and width > 80:
        drawn += f'<text class="size" x="{n(x + 7)}" y="{n(y + 33)}">{safe(size_text(size))}</text>'
    return drawn


# --- distributions ----------------------------------------------------------------------------------------------------

HISTOGRAM_WIDTH, HISTOGRAM_HEIGHT, AXIS_HEIGHT = 480.0, 120.0, 18.0


def histogram(bars: Sequence[Sequence[int]], label: str, *, in_bytes: bool) -> str:
    """Bars of [low, high, count], which are powers of two; the count's axis is linear."""
    most = max([count for _, _, count in bars], default=1)
    step = HISTOGRAM_WIDTH / max(len(bars), 6)
    body = []
    shown = size_text if in_bytes else count_text
    for number, (low, high, count) in enumerate(bars):
        x, height = number * step, count / most * (HISTOGRAM_HEIGHT - 14)
        if count:
            height = max(height, 1.0)  # the rarest must be seen
        range_text = shown(low) if low == high else f"{shown(low)} to {shown(high)}"
        body.append(
            f'<rect x="{n(x + 1)}" y="{n(HISTOGRAM_HEIGHT - height)}" width="{n(step - 2)}" height="{n(height)}"'
            f' rx="1.5"><title>{safe(range_text)}: {count_text(count)}</title></rect>'
        )
        if count and step >= 26:
            above = HISTOGRAM_HEIGHT - height - 3
            body.append(f'<text class="count" x="{n(x + step / 2)}" y="{n(above)}">{_short(count)}</text>')
        if number % max(-(-58 // step), 1) == 0:
            y = HISTOGRAM_HEIGHT + AXIS_HEIGHT - 4
            body.append(f'<text class="axis" x="{n(x + 1)}" y="{n(y)}">{safe(_short_size(low, in_bytes))}</text>')
    body.append(f'<path class="line" d="M0 {n(HISTOGRAM_HEIGHT)}H{n(HISTOGRAM_WIDTH)}"/>')
    return svg(HISTOGRAM_WIDTH, HISTOGRAM_HEIGHT + AXIS_HEIGHT, label, "".join(body), "histogram")


def _short(count: int) -> str:
    """``1234567`` -> ``"1.2 M"``."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            value = count / size
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return str(count)


def _short_size(value: int, in_bytes: bool) -> str:
    if not in_bytes:
        return _short(value)
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if value >> shift:
            return f"{value >> shift} {unit}"
    return f"{value} B"


# --- time -------------------------------------------------------------------------------------------------------------

TIME_HEIGHT = 110.0
BAR_WIDTH_MIN = 1.2
# A break in the axis, the least for the times on one side of it, and for a label.
BREAK_WIDTH, CLUSTER_WIDTH_MIN, LABEL_WIDTH = 30.0, 130.0, 125.0
# Open transactions have a line each, the oldest ones first.
OPEN_DRAWN_MAX, LANE_HEIGHT = 8, 8.0


def timeline(fields: dict[str, Any], *, titled: bool) -> str:
    """Bytes by time, as bars in proportion; the axis leaves out long times without a batch.

    ``titled``: each bar shows its numbers. Without it a picture takes a few KiB: a page may have many.
    """
    buckets, width_ms = [Bucket._make(each) for each in fields["buckets"]], fields["width"]
    most = max([bucket.size for bucket in buckets], default=0) or 1
    body: list[str] = []
    stretches = list(_stretches(buckets, width_ms))
    for stretch in stretches:
        body += _axis(stretch)
        body += _bars(stretch, width_ms, most, titled)
    body += _offsets(stretches, width_ms)
    return svg(WIDTH, TIME_HEIGHT + AXIS_HEIGHT, "bytes by time", "".join(body), "timeline")


class _Stretch(NamedTuple):
    """Neighbouring times on an axis: the picture shows ``duration`` ms from the first bucket on, from ``left`` on."""

    buckets: list[Bucket]
    duration: int
    left: float
    width: float

    def x(self, timestamp: float) -> float:
        return self.left + (timestamp - self.buckets[0].start) * self.width / self.duration


def _stretches(buckets: list[Bucket], width_ms: int) -> Iterator[_Stretch]:
    """``buckets`` on an axis over the width of a picture, with breaks where there is nothing for long."""
    clusters = clusters_of(buckets, width_ms)
    room = WIDTH - BREAK_WIDTH * (len(clusters) - 1) - CLUSTER_WIDTH_MIN * len(clusters)
    left = 0.0
    for cluster in clusters:
        width = CLUSTER_WIDTH_MIN + room * len(cluster) / len(buckets)
        yield _Stretch(cluster, cluster[-1].start + width_ms - cluster[0].start, left, width)
        left += width + BREAK_WIDTH


def transactions(fields: dict[str, Any]) -> str:
    """When transactions ended, aborts above commits, and below the axis the open ones, each from its first batch on."""
    width_ms = fields["width"]
    ends = {start: (commits, aborts) for start, commits, aborts in fields["times"]}
    opened = [each for each in fields["open_list"] if each["began"] >= 0][:OPEN_DRAWN_MAX]
    for each in opened:
        ends.setdefault(each["began"] // width_ms * width_ms, (0, 0))
    buckets = [Bucket(start, *counts, sum(counts)) for start, counts in sorted(ends.items())]
    most = max([bucket.batch_count for bucket in buckets], default=0) or 1
    body: list[str] = []
    for stretch in _stretches(buckets, width_ms):
        body += _axis(stretch)
        body += _ends(stretch, width_ms, most)
    low = TIME_HEIGHT + AXIS_HEIGHT
    for lane, each in enumerate(opened):
        stretch = next(
            one for one in _stretches(buckets, width_ms) if each["began"] < one.buckets[0].start + one.duration
        )
        x, y = stretch.x(each["began"]), low + lane * LANE_HEIGHT
        title = f"open: producer {each['producer_id']}, from offset {each['first']}, {time_text(each['began'])}"
        body.append(
            f'<rect class="open" x="{n(x)}" y="{n(y)}" width="{n(max(WIDTH - x, 2))}"'
            f' height="{n(LANE_HEIGHT - 2)}"><title>{safe(title)}</title></rect>'
        )
    return svg(WIDTH, low + len(opened) * LANE_HEIGHT, "transactions by time", "".join(body), "timeline")


def _ends(stretch: _Stretch, width_ms: int, most: int) -> Iterator[str]:
    """Commits and aborts as bars; ``most`` is the count of the highest one."""
    width = max(width_ms * stretch.width / stretch.duration - 0.8, BAR_WIDTH_MIN)
    paths = {"commit": "", "abort": ""}
    for start, commits, aborts, *_ in stretch.buckets:
        y = TIME_HEIGHT
        for kind, count in (("commit", commits), ("abort", aborts)):
            if count:
                height = max(count / most * (TIME_HEIGHT - 6), 1.0)
                paths[kind] += f"M{n(stretch.x(start) + width / 2)} {n(y)}v-{n(height)}"
                y -= height
    for kind, path in paths.items():
        if path:
            yield f'<path class="bars {kind}" stroke-width="{n(width)}" d="{path}"/>'


def _bars(stretch: _Stretch, width_ms: int, most: int, titled: bool) -> Iterator[str]:
    """The bars of neighbouring times; ``most`` is the size of the highest one."""
    width = max(width_ms * stretch.width / stretch.duration - 0.8, BAR_WIDTH_MIN)
    path = ""
    for start, size, record_count, batch_count, _ in stretch.buckets:
        x, height = stretch.x(start), max(size / most * (TIME_HEIGHT - 6), 1.0)
        if not titled:
            path += f"M{n(x + width / 2)} {n(TIME_HEIGHT)}v-{n(height)}"
            continue
        title = (
            f"from {time_text(start)}, for {duration_text(width_ms)}: {size_text(size)},"
            f" {count_text(record_count)} records, {count_text(batch_count)} batches"
        )
        yield (
            f'<rect class="bar" x="{n(x)}" y="{n(TIME_HEIGHT - height)}" width="{n(width)}" height="{n(height)}">'
            f"<title>{safe(title)}</title></rect>"
        )
    if path:
        yield f'<path class="bars" stroke-width="{n(width)}" d="{path}"/>'


def _offsets(stretches: Sequence[_Stretch], width_ms: int) -> Iterator[str]:
    """The last offset of each time as a line over the bars, from the lowest to the highest of them."""
    known = [bucket.last_offset for stretch in stretches for bucket in stretch.buckets if bucket.last_offset >= 0]
    low, high = min(known, default=0), max(known, default=0)
    if low == high:
        return
    scale = (TIME_HEIGHT - 9) / (high - low)
    for stretch in stretches:
        places = [
            (stretch.x(bucket.start + width_ms / 2), TIME_HEIGHT - 3 - (bucket.last_offset - low) * scale)
            for bucket in stretch.buckets
            if bucket.last_offset >= 0
        ]
        if len(places) > 1:
            yield f'<path class="offsets" d="M{"L".join(f"{n(x)} {n(y)}" for x, y in places)}"/>'


def _axis(stretch: _Stretch) -> Iterator[str]:
    """The axis of neighbouring times, and the break before it."""
    cluster, duration, left, width = stretch
    if left:
        x, y = left - BREAK_WIDTH / 2, TIME_HEIGHT + 4
        yield f'<text class="axis" x="{n(x)}" y="{n(y)}" text-anchor="middle">//</text>'
    yield f'<path class="line" d="M{n(left)} {n(TIME_HEIGHT)}h{n(width)}"/>'
    marks = [("start", 0.0)]
    if width > 2 * LABEL_WIDTH and len(cluster) > 1:
        marks.append(("end", 1.0))
    if width > 4 * LABEL_WIDTH and len(cluster) > 1:
        marks.append(("middle", 0.5))
    y = TIME_HEIGHT + AXIS_HEIGHT - 4
    for anchor, share in marks:
        text = time_text(int(cluster[0].start + share * duration))
        yield f'<text class="axis" x="{n(left + share * width)}" y="{n(y)}" text-anchor="{anchor}">{text}</text>'


# --- squarified treemaps, from Bruls, Huizing, van Wijk: Squarified Treemaps (2000) -----------------------------------


class Box(NamedTuple):
    """A rectangle; ``x`` and ``y`` are its upper left corner."""

    x: float
    y: float
    width: float
    height: float


def squarified(sizes: Sequence[float], box: Box) -> list[Box]:
    """A rectangle in ``box`` for each of ``sizes``, which decrease and are above 0.

    Their areas are in proportion to the sizes; they are as close to squares as they come.
    """
    boxes: list[Box] = []
    left = sum(sizes)
    at = 0
    while at < len(sizes):
        area = box.width * box.height / left
        side = min(box.width, box.height)
        count = 1
        while at + count < len(sizes) and _worst(sizes[at : at + count + 1], area, side) <= _worst(
            sizes[at : at + count], area, side
        ):
            count += 1
        row = sizes[at : at + count]
        box = _lay(row, sum(row) / left, box, boxes)
        left -= sum(row)
        at += count
    return boxes


def _worst(row: Sequence[float], area: float, side: float) -> float:
    """The largest ratio of sides in a row along ``side``."""
    total = sum(row) * area
    if not total or not side:
        return float("inf")
    return max(side * side * row[0] * area / total**2, total**2 / (side * side * row[-1] * area))


def _lay(row: Sequence[float], share: float, box: Box, boxes: list[Box]) -> Box:
    """Adds the row's boxes, along the shorter side of ``box``, which takes ``share`` of it; returns the rest."""
    x, y, width, height = box
    row_size = sum(row)
    if width >= height:
        depth = width * share
        for size in row:
            boxes.append(Box(x, y, depth, height * size / row_size))
            y += height * size / row_size
        return Box(x + depth, box.y, max(width - depth, 0.0), height)
    depth = height * share
    for size in row:
        boxes.append(Box(x, y, width * size / row_size, depth))
        x += width * size / row_size
    return Box(box.x, y + depth, width, max(height - depth, 0.0))
