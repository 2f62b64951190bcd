"""Plans and reads 10 TB that are far away, as Spark's driver and its tasks do, on one machine.

Run as ``python -m tools.bench.far_away``: 5,000 partitions of ten segments of 200 MiB in a store that answers after 20
ms. Nothing is stored: see ``far_store``. Wall times are those of the waiting, and of this machine.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql.streaming.datasource import ReadAllAvailable

from kstore.spark.options import ReadOptions
from kstore.spark.plan import Split
from kstore.spark.reader import KStoreReader
from kstore.spark.schema import spark_schema
from kstore.spark.stream import KStoreStreamReader
from tools.bench.far_store import FarStore, Shape, register

URL = "far://bucket/store"
# ru_maxrss is in KiB, on macOS in bytes.
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024
MIB = 1 << 20


@contextmanager
def told(what: str) -> Iterator[None]:
    """Prints what a step took."""
    requests, cpu, wall = FarStore.requests, time.process_time(), time.perf_counter()
    yield
    seconds = time.perf_counter() - wall
    asked = FarStore.requests - requests
    each = asked / FarStore.shape.partitions
    print(f"| {what} | {seconds:.1f} s | {time.process_time() - cpu:.1f} s | {asked:,} | {each:.2f} |", flush=True)


def options_of(streaming: bool, **given: str) -> ReadOptions:
    return ReadOptions.parse({"path": URL, **given}, streaming=streaming)


def planned(**given: str) -> tuple[KStoreReader, list[Split]]:
    options = options_of(False, **given)
    reader = KStoreReader(options, spark_schema(options.columns, include_headers=False, header_keys="string"))
    return reader, [split for split in reader.partitions() if isinstance(split, Split)]


def stream(**given: str) -> None:
    """The first batch of a stream, triggers without news, and one where three partitions have grown."""
    options = options_of(True, startingOffsets="latest", **given)
    source = KStoreStreamReader(options, spark_schema())
    with told("a stream's start"):
        start = source.initialOffset()
    for _ in range(2):
        with told("a trigger without news"):
            assert source.latestOffset(start, ReadAllAvailable()) == start
    FarStore.grown.update({7: 1, 70: 1, 700: 1})
    with told("a trigger with news in 3 partitions, and its plan"):
        end = source.latestOffset(start, ReadAllAvailable())
        splits = source.partitions(start, end)
    assert sum(split.offset_count for split in splits) > 0
    source.stop()


def read(reader: KStoreReader, split: Split) -> None:
    """One task's rate, once its process has loaded what it needs."""
    next(iter(reader.read(split)))
    wall, cpu = time.perf_counter(), time.process_time()
    rows = sum(batch.num_rows for batch in reader.read(split))
    seconds = time.perf_counter() - wall
    assert rows == split.offset_count, (rows, split.offset_count)
    size = split.size / MIB
    print(
        f"One task: {size:.0f} MiB, {rows:,} rows in {seconds:.2f} s ({size / seconds:.0f} MiB/s, "
        f"{rows / seconds / 1e6:.2f} M rows/s), {time.process_time() - cpu:.2f} s of processor time.",
        flush=True,
    )


def main() -> int:
    """Prints a table of the steps."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.far_away", description=__doc__)
    parser.add_argument("--partitions", type=int, default=5_000)
    parser.add_argument("--segments", type=int, default=10)
    parser.add_argument("--segment-mib", type=int, default=200)
    parser.add_argument("--ms", type=float, default=20.0, help="of each request")
    parser.add_argument("--rate", type=float, default=100.0, help="MB/s of one connection")
    parser.add_argument("--no-snapshots", action="store_true", help="plan by the headers of all batches")
    args = parser.parse_args()
    FarStore.shape = Shape(
        args.partitions,
        args.segments,
        args.segment_mib << 20,
        seconds=args.ms / 1000,
        rate=args.rate * 1e6,
        has_snapshots=not args.no_snapshots,
    )
    register()
    size = args.partitions * args.segments * args.segment_mib / (1 << 20)
    print(f"{size:.2f} TiB in {args.partitions:,} partitions, {args.ms:g} ms a request\n")
    print("| | time | processor | requests | of a partition |\n|---|---|---|---|---|")
    if not args.no_snapshots:
        with told("plan, read_uncommitted"):
            planned(isolationLevel="read_uncommitted")
    with told("plan, read_committed"):
        reader, splits = planned(isolationLevel="read_committed")
    if not args.no_snapshots:
        stream()
    print(f"\n{len(splits):,} tasks of {sum(split.size for split in splits) / len(splits) / MIB:.0f} MiB.")
    read(reader, splits[len(splits) // 2])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT
    print(f"The planning process had {peak / MIB:.0f} MiB at most, the fake store's own included.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
