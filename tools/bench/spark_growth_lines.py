"""What a Spark query costs as a log grows: in segments, in bytes, with other batches; its plan; its workers' memory."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tools.bench.logs import fresh, many_segments
from tools.bench.measure import MILLION, Line, Run, all_in_turn, seconds_of
from tools.bench.spark_lines import FOUR, ROUNDS_MAX, WARM_UP, Source, session, timed
from tools.bench.spark_logs import BATCH_COUNT, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEGMENT_COUNTS = (1, 10, 100, 1_000)
SEGMENT_BATCHES = 1_000
BATCH_COUNTS = (10, 100, 5_000)
# For a log of 1 GiB.
GIB_BATCHES = (1 << 30) // (117 * BATCH_COUNT)
# The requirements: time per GiB as a share of that of the smaller log; seconds of a plan; a worker's memory.
GROWTH_MAX = 1.15
PLAN_SEGMENTS, PLAN_SECONDS_MAX = 10_000, 2.0
WORKER_BYTES_MAX = 200 << 20
MIB = 1 << 20


def spark_growth(run: Run) -> list[Line]:
    """The cost of a query as a log grows; to 10 GiB with ``--spark-gib 10``."""
    rounds = min(run.rounds, ROUNDS_MAX)
    with fresh(run.root, "spark") as root, session(run.root) as found:
        return [
            *_segment_lines(found, root, rounds),
            *_batch_lines(found, root, rounds),
            _plan_line(found, root, rounds),
            *_size_lines(found, root, rounds, run.spark_gib),
        ]


def _segment_lines(found: SparkSession, root: Path, rounds: int) -> list[Line]:
    paths = [root / f"in-{count}" / "orders-0" for count in SEGMENT_COUNTS]
    for count, path in zip(SEGMENT_COUNTS, paths, strict=True):
        fill(path, SEGMENT_BATCHES, roll_after=SEGMENT_BATCHES // count)
    first, *rest = _seconds(found, paths, rounds)
    return [
        _beside(f"in {count:,} segments", seconds, first, "in one segment")
        for count, seconds in zip(SEGMENT_COUNTS[1:], rest, strict=True)
    ]


def _batch_lines(found: SparkSession, root: Path, rounds: int) -> list[Line]:
    counts = (BATCH_COUNT, *BATCH_COUNTS)
    paths = [root / f"batches-of-{count}" / "orders-0" for count in counts]
    for count, path in zip(counts, paths, strict=True):
        fill(path, SEGMENT_BATCHES, batch_count=count)
    first, *rest = _seconds(found, paths, rounds)
    return [
        _beside(f"in batches of {count:,}", seconds, first, f"of {BATCH_COUNT:,}")
        for count, seconds in zip(counts[1:], rest, strict=True)
    ]


def _seconds(found: SparkSession, paths: list[Path], rounds: int) -> list[float]:
    """The time of a query on each of these logs."""
    queries = [timed(partial(Source(found, path).load, FOUR)) for path in paths]
    return [statistics.median(each) for each in all_in_turn(queries, rounds=rounds, warm_up=WARM_UP)]


def _beside(what: str, seconds: float, first: float, beside: str) -> Line:
    return Line(
        f"Spark: {SEGMENT_BATCHES * BATCH_COUNT:,} records {what}",
        f"{seconds:.2f} s",
        f"{beside} {first:.2f} s",
        f"{seconds / first:.2f}",
        "",
        None,
    )


def _plan_line(found: SparkSession, root: Path, rounds: int) -> Line:
    """Up to the splits, from ``load`` on."""
    path = root / "planned" / "orders-0"
    many_segments(path, PLAN_SEGMENTS)
    source = Source(found, path)
    (taken,) = all_in_turn([lambda: seconds_of(lambda: source.load(FOUR).rdd.getNumPartitions())], rounds=rounds)
    seconds = statistics.median(taken)
    return Line(
        f"Spark: the plan of a read of {PLAN_SEGMENTS:,} segments",
        f"{seconds:.2f} s",
        "-",
        "-",
        f"at most {PLAN_SECONDS_MAX:g} s",
        seconds <= PLAN_SECONDS_MAX,
    )


def _size_lines(found: SparkSession, root: Path, rounds: int, gib_max: float) -> list[Line]:
    path = root / "grown" / "orders-0"
    source = Source(found, path)
    batches, lines, first, bytes_before = 0, [], 0.0, 0
    for gib in (min(1.0, gib_max / 2), gib_max):
        wanted = int(gib * GIB_BATCHES)
        fill(path, wanted - batches, start=batches)
        batches = wanted
        queries = [partial(source.load, FOUR), partial(_middle, source, wanted)]
        taken, narrow = all_in_turn([timed(query) for query in queries], rounds=rounds, warm_up=1)
        seconds, kept = statistics.median(taken) / gib, statistics.median(narrow)
        is_first, first = not first, first or seconds
        rate = batches * BATCH_COUNT / statistics.median(taken)
        lines.append(
            Line(
                f"Spark: a log of {gib:g} GiB, four columns",
                f"{seconds:.2f} s a GiB",
                f"the smallest {first:.2f} s; {rate / MILLION:.1f} M records/s; 100,000 records of it {kept:.2f} s",
                f"{seconds / first:.2f}",
                "" if is_first else f"at most {GROWTH_MAX} of it",
                None if is_first else seconds <= GROWTH_MAX * first,
            )
        )
        grown = worker_bytes()
        if grown:
            lines.append(
                Line(
                    f"Spark: memory of the largest worker, after a log of {gib:g} GiB",
                    f"{grown / MIB:.0f} MiB",
                    f"after the smallest {bytes_before / MIB:.0f} MiB" if bytes_before else "-",
                    f"{grown / bytes_before:.2f}" if bytes_before else "-",
                    f"at most {WORKER_BYTES_MAX // MIB} MiB",
                    grown <= WORKER_BYTES_MAX,
                )
            )
            bytes_before = bytes_before or grown
    return lines


def worker_bytes() -> int:
    """The greatest peak, since their start, of the resident memory of Spark's Python workers on this machine; 0 if the
    system does not tell."""
    peaks = [0]
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            # As an argument of its own: Spark's settings name the module too.
            if b"kstore.spark.daemon" in (directory / "cmdline").read_bytes().split(b"\0"):
                status = (directory / "status").read_text()
                peaks += [int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:")]
        except OSError:
            continue  # it has ended
    return max(peaks)


def _middle(source: Source, batches: int) -> DataFrame:
    """100,000 records from the middle of a log with the given number of batches."""
    middle = batches * BATCH_COUNT // 2
    return source.load(FOUR, filterPushdown=True).where(f"offset >= {middle} and offset < {middle + 100_000}")
