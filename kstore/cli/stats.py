"""``kstore stats``: the composition of logs: sizes, times, batches, codecs, transactions, keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

import click

from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.finding_text import findings_lines
from kstore.cli.json_fields import log_fields, old_names
from kstore.cli.options import JOBS, format_option
from kstore.cli.places import LogPlace, log_bytes, log_places
from kstore.cli.progress import progress
from kstore.cli.record_json import compact
from kstore.cli.spread import each_log
from kstore.cli.table import bar as drawn
from kstore.cli.table import has_blocks, painted, print_table, room, sparkline, table, wrapped
from kstore.scan.visits import Advance
from kstore.types import NO_OFFSET
from kstore.upkeep.distribution import Distribution
from kstore.upkeep.numbers import duration_text
from kstore.upkeep.observed.observations import Observations
from kstore.upkeep.observed.timeline import Timeline, clusters_of
from kstore.upkeep.stat_fields import index_size, stat_fields
from kstore.upkeep.stats import Stats, is_deleted, log_stats

EXAMPLES = """
\b
Examples:
  kstore stats data/orders-0
  kstore stats --segments data/orders-0
  kstore stats --deep /var/lib/kafka/data           keys, tombstones, how well compression does
  kstore stats --format json data/ | jq 'select(.type == "total") | .codecs'

\b
Exit status:
  0  everything was counted
  1  damage: unreadable data is not counted
  2  bad usage
"""

LOG_COLUMNS = ("log", "segments", "bytes", "index bytes", "batches", "records", "start", "end", "first", "last")
SEGMENT_COLUMNS = ("segment", "bytes", "batches", "records", "start", "end", "first", "last", "codecs")
DISTRIBUTION_COLUMNS = ("", "min", "p50", "p99", "max", "mean")
CODEC_COLUMNS = ("codec", "batches", "bytes", "ratio")
BAR_COLUMNS = ("bytes", "batches")
BAR_WIDTH = 40
# Next to a sparkline: two times and two spaces.
TIMES_WIDTH, SPARKS_MIN = 42, 20


@click.command("stats", cls=KstoreCommand, epilog=EXAMPLES, short_help="Count what logs contain.")
@click.argument("directories", nargs=-1, required=True, type=click.Path(), metavar="PATHS...")
@click.option("--deep", is_flag=True, help="Check, decompress and count every record too: keys, tombstones, ratios.")
@click.option("--segments", is_flag=True, help="Report each segment too.")
@JOBS
@format_option('text: tables. json: one object a line, of type "log", "segment", "finding" or "total".')
def command(directories: tuple[str, ...], deep: bool, segments: bool, jobs: int | None, form: str) -> int:
    """Count what the logs in PATHS, kstore's or a Kafka broker's, contain.

    A path is one partition, or holds partitions, or is a single .log file, or a place of backups or of logs in an
    object store. Without --deep only batch headers are read: this is fast, but misses damaged records ("kstore verify"
    finds them). Percentiles are at most 1/16 too high.

    With --deep several logs are counted on all cores. Nothing is written, no lock is taken, and a writer may be at
    work.
    """
    logs = [log for directory in directories for log in log_places(directory)]
    printer = _TablePrinter() if form == "text" else _JsonPrinter()
    every = Stats("")
    sizes = [log_bytes(log) for log in logs]
    look = partial(_counted, deep, segments, form == "text" and has_blocks())
    timeline = Timeline()
    with progress("stats", sum(sizes)) as advance:
        # Headers alone are counted before other processes have started.
        for log, times in each_log(look, logs, sizes if deep else [0] * len(sizes), advance, jobs):
            if log is None:
                continue  # it has been deleted since it was found
            every.merge(log)
            printer.log(log)
            if times is not None:
                timeline.merge(times)
    printer.end(every, timeline)
    return OK if every.is_sound else DAMAGED


def _counted(
    deep: bool, segments: bool, with_times: bool, place: LogPlace, advance: Advance
) -> tuple[Stats | None, Timeline | None]:
    seen = Observations(with_keys=False) if with_times else None
    log = log_stats(place.path, fs=place.fs, deep=deep, with_segments=segments, advance=advance, observations=seen)
    return None if is_deleted(log, place.fs) else log, None if seen is None else seen.timeline


# --- json -------------------------------------------------------------------------------------------------------------


class _JsonPrinter:
    """One object a line."""

    def log(self, log: Stats) -> None:
        for segment in log.segments:
            print(compact({"type": "segment", "path": segment.path, **stat_fields(segment)}))
        print(compact({"type": "log", **log_fields(log.path), **stat_fields(log)}))
        for finding in log.findings:
            print(compact({"type": "finding", **finding.fields()}))

    def end(self, every: Stats, timeline: Timeline) -> None:
        print(
            compact(old_names("stats", {"type": "total", "log_count": every.log_count, **stat_fields(every)})),
            flush=True,
        )


# --- text -------------------------------------------------------------------------------------------------------------


class _TablePrinter:
    """A table of the logs, then the composition of all of them together, then the damage."""

    def __init__(self) -> None:
        self._rows: list[tuple[object, ...]] = []
        self._segment_rows: list[tuple[object, ...]] = []
        self._notes: list[str] = []

    def log(self, log: Stats) -> None:
        self._rows.append(_log_row(log))
        if log.elsewhere:
            self._notes.append(f"{log.path}: {log.elsewhere}")
        self._segment_rows.extend(map(_segment_row, log.segments))

    def end(self, every: Stats, timeline: Timeline) -> None:
        if len(self._rows) > 1:
            self._rows.append(_log_row(every, "total"))
        _print(LOG_COLUMNS, self._rows)
        for note in self._notes:
            print(f"{painted('note', 'yellow')}: {note}")
        if self._segment_rows:
            print()
            _print(SEGMENT_COLUMNS, self._segment_rows)
        for text in _details(every):
            for line in wrapped(text):
                print(line)
        for line in _times_drawn(timeline):
            print(line)
        for line in findings_lines(every.findings):
            print(line)
        if every.damage_count:
            print(painted(f"damage: {every.damage_count}", "red"), flush=True)


def _print(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print_table(columns, rows)


def _log_row(log: Stats, name: str = "") -> tuple[object, ...]:
    return (
        name or log.path,
        log.segment_count,
        log.size,
        index_size(log),
        log.batch_count,
        log.record_count,
        *_range(log),
        *_times(log),
    )


def _segment_row(segment: Stats) -> tuple[object, ...]:
    return (
        segment.path,
        segment.size,
        segment.batch_count,
        segment.record_count,
        *_range(segment),
        *_times(segment),
        ",".join(sorted(segment.codecs)) or "-",
    )


def _range(stats: Stats) -> tuple[object, object]:
    return ("-", "-") if stats.start_offset == NO_OFFSET else (stats.start_offset, stats.end_offset)


def _times(stats: Stats) -> tuple[str, str]:
    return _time(stats.first_timestamp), _time(stats.last_timestamp)


def _time(timestamp_ms: int) -> str:
    """The time in UTC; the bare number if its year does not have four digits."""
    if timestamp_ms < 0:
        return "-"
    try:
        return datetime.fromtimestamp(timestamp_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def _details(every: Stats) -> Iterator[str]:
    rows = [("bytes of a batch", every.batch_sizes), ("records of a batch", every.batch_records)]
    rows.append(("bytes of a segment", every.segment_sizes))
    if (records := every.records) is not None:
        rows += [("bytes of a key", records.key_sizes), ("bytes of a value", records.value_sizes)]
    yield ""
    yield from table(DISTRIBUTION_COLUMNS, [(name, *_spread(values)) for name, values in rows if values.count])
    if every.codecs:
        yield ""
        codecs = sorted(every.codecs.items())
        ratios = [codec.ratio for _, codec in codecs]
        yield from table(
            CODEC_COLUMNS,
            [
                (name, codec.batch_count, codec.size, "-" if ratio is None else f"{ratio:.2f}")
                for (name, codec), ratio in zip(codecs, ratios, strict=True)
            ],
        )
    yield ""
    yield from _counts(every)
    bars = every.batch_sizes.histogram()
    if bars:
        yield ""
        most = max(bar.value_count for bar in bars)
        yield "batches by size (upper bounds)"
        title, *lines = table(BAR_COLUMNS, [(f"{bar.high:,}", bar.value_count) for bar in bars])
        yield title
        for line, one in zip(lines, bars, strict=False):
            yield f"{line}  {drawn(one.value_count, most, BAR_WIDTH)}".rstrip()


def _times_drawn(timeline: Timeline) -> Iterator[str]:
    """Bytes by time as a line for each stretch without long gaps; nothing if no time is known."""
    buckets, width_ms = timeline.buckets(), timeline.width_ms
    if not buckets:
        return
    most = max(bucket.size for bucket in buckets)
    yield ""
    yield f"bytes by time, at most {most:,} in {duration_text(width_ms)}"
    columns = max((room() or 0) - TIMES_WIDTH, SPARKS_MIN)
    for cluster in clusters_of(buckets, width_ms):
        first, last = cluster[0].start, cluster[-1].start
        count = min((last - first) // width_ms + 1, columns)
        sizes = [0] * count
        for bucket in cluster:
            sizes[(bucket.start - first) // width_ms * count // ((last - first) // width_ms + 1)] += bucket.size
        yield f"{_time(first)} {sparkline(sizes)} {_time(last)}"


def _spread(values: Distribution) -> tuple[object, ...]:
    mean = values.sum // values.count
    return values.minimum, values.percentile(50), values.percentile(99), values.maximum, mean


def _counts(every: Stats) -> Iterator[str]:
    formats = ", ".join(f"{count:,} of version {magic}" for magic, count in sorted(every.formats.items()))
    yield f"batches: {formats or 'none'}; {every.empty_batch_count:,} empty"
    yield (
        f"producers: {every.producer_batch_count:,} batches with a producer's id, "
        f"{every.transactional_batch_count:,} in transactions; "
        f"{every.commit_count:,} commits, {every.abort_count:,} aborts"
    )
    if (records := every.records) is not None:
        yield (
            f"records: {records.record_count:,} decoded, {records.keyed_count:,} with a key, "
            f"{records.tombstone_count:,} tombstones, {records.header_count:,} headers"
        )
    if every.fenced_count or every.lost_count or every.accepted_count:
        yield (
            f"losses: {every.fenced_count:,} offsets in damaged batches, {every.lost_count:,} lost, "
            f"{every.accepted_count:,} accepted as lost"
        )
    if other := every.side_sizes.get("", 0):
        yield f"other files: {other:,} bytes that wait for removal, or were set aside"
