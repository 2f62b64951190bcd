"""The Spark data source beside Parquet of the same records, and beside the other ways from a log to a DataFrame.

Each time is that of a whole query as written, from ``load`` to its last row. Medians of rounds in which all of them run
in turn, after warm-up rounds: by then the workers run and the JVM has compiled.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kstore.config import CompressionType
from tools.bench.logs import fresh
from tools.bench.measure import MILLION, Line, Run, all_in_turn, seconds_of
from tools.bench.spark_logs import BATCH_COUNT, drain, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS_MAX = 5
WARM_UP = 2
CORES = 2
# Four splits of 128 MiB: a whole number of rounds for the cores.
BATCHES = 4_000
CODECS: tuple[CompressionType, ...] = ("uncompressed", "lz4", "zstd")
FOUR = ("key", "value", "offset", "timestamp")
# The requirements, as shares of Parquet's rate, and of the plain log's; and of Parquet's time.
FOUR_MIN, SEVEN_MIN, CODEC_MIN, FILTER_MAX = 0.9, 0.7, 0.7, 1.5

# Creates a new frame: the cost of ``load`` is part of a query.
Query = Callable[[], "DataFrame"]


@contextmanager
def session(root: Path) -> Iterator[SparkSession]:
    """A session of its own on two cores; its files are below ``root``."""
    import kstore.spark

    local = root.absolute()
    found = kstore.spark.session(
        master=f"local[{CORES}]",
        app_name="kstore-bench",
        **{
            "spark.ui.enabled": False,
            "spark.ui.showConsoleProgress": False,
            "spark.driver.memory": "3g",
            "spark.local.dir": local / "spark-local",
            "spark.sql.warehouse.dir": local / "warehouse",
            "spark.log.level": "ERROR",
        },
    )
    try:
        yield found
    finally:
        found.stop()


def spark(run: Run) -> list[Line]:
    """The data source and everything else that reads the same 4,000,000 records."""
    rounds, records = min(run.rounds, ROUNDS_MAX), BATCHES * BATCH_COUNT
    with fresh(run.root, "spark") as root, session(run.root) as found:
        fill_all(root, BATCHES)
        frames = frames_of(found, root, records)
        taken = all_in_turn([timed(frame) for frame in frames.values()], rounds=rounds, warm_up=WARM_UP)
    seconds = {name: statistics.median(each) for name, each in zip(frames, taken, strict=True)}
    return [
        share("key, value, offset, timestamp", "four", "four, parquet", seconds, records, FOUR_MIN),
        share("all seven columns", "seven", "seven, parquet", seconds, records, SEVEN_MIN),
        share("count, sums and a maximum of four columns", "aggregate", "aggregate, parquet", seconds, records),
        share("the offset alone", "offset", "offset, parquet", seconds, records),
        _times("a filter on offset that keeps 1 %", "filter", "filter, parquet", seconds, FILTER_MAX),
        share("four columns, of an lz4 log", "four, lz4", "four", seconds, records, CODEC_MIN, "plain log"),
        share("four columns, of a zstd log", "four, zstd", "four", seconds, records, CODEC_MIN, "plain log"),
        share("four columns", "four", "four, mapInArrow", seconds, records, None, "mapInArrow"),
        share("four columns", "four", "four, binaryFile", seconds, records, None, "binaryFile"),
    ]


# --- the queries ------------------------------------------------------------------------------------------------------


class Source:
    """The data source on one log."""

    def __init__(self, found: SparkSession, path: Path) -> None:
        self._spark = found
        self.path = path.absolute()

    def load(self, columns: Sequence[str] = (), **options: bool | int | str) -> DataFrame:
        reader = self._spark.read.format("kstore").options(**options)
        return (reader.option("columns", ",".join(columns)) if columns else reader).load(str(self.path))


def fill_all(root: Path, batches: int) -> None:
    """The same log, plain and in the codecs, below ``root``."""
    for codec in CODECS:
        fill(root / codec / "orders-0", batches, codec=codec)


def frames_of(found: SparkSession, root: Path, records: int) -> dict[str, Query]:
    """The measured frames, by name: each reads ``records`` records, or some of them, of ``fill_all``."""
    plain, lz4, zstd = (Source(found, root / codec / "orders-0") for codec in CODECS)
    table = str(root / "orders.parquet")
    plain.load().write.parquet(table)
    kept = f"offset >= {records // 2} and offset < {records // 2 + records // 100}"

    def parquet() -> DataFrame:
        return found.read.parquet(table)

    def aggregate(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("count(key)", "sum(offset)", "max(timestamp)", "sum(length(value))")

    return {
        "four": lambda: plain.load(FOUR),
        "four, parquet": lambda: parquet().select(*FOUR),
        "seven": lambda: plain.load(),
        "seven, parquet": parquet,
        "aggregate": lambda: aggregate(plain.load(FOUR)),
        "aggregate, parquet": lambda: aggregate(parquet()),
        "offset": lambda: plain.load(["offset"]),
        "offset, parquet": lambda: parquet().select("offset"),
        "filter": lambda: plain.load(FOUR, filterPushdown=True).where(kept),
        "filter, parquet": lambda: parquet().select(*FOUR).where(kept),
        "four, lz4": lambda: lz4.load(FOUR),
        "four, zstd": lambda: zstd.load(FOUR),
        "four, mapInArrow": lambda: _map_in_arrow(found, plain.path, records),
        "four, binaryFile": lambda: _binary_file(found, plain.path),
    }


# What a user's own task would do; nested functions go to the workers unchanged, without this module.


def _map_in_arrow(found: SparkSession, path: Path, records: int) -> DataFrame:
    """A task for each quarter of the log, which reads it with ``kstore.Log``."""
    columns, schema, name, parts = FOUR, "key binary, value binary, offset long, timestamp timestamp", str(path), 4

    def decode(batches: Iterator[Any]) -> Iterator[Any]:
        import kstore

        with kstore.Log(name, read_only=True) as log:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    start, stop = records * number // parts, records * (number + 1) // parts
                    yield from log.to_arrow_batches(
                        start, stop, columns=columns, timestamp_unit="us", max_records=20_000, max_bytes=8 << 20
                    )

    return found.range(0, parts, 1, parts).mapInArrow(decode, schema)


def _binary_file(found: SparkSession, path: Path) -> DataFrame:
    """Spark reads each segment into one value, and a task decodes it."""
    columns, schema = FOUR, "key binary, value binary, offset long, timestamp timestamp"

    def decode(batches: Iterator[Any]) -> Iterator[Any]:
        from kstore.record.columns import ArrowDecoder, ColumnOptions
        from kstore.record.scan import parse_batches

        decoder = ArrowDecoder(ColumnOptions(columns, timestamp_unit="us", max_records=20_000, max_bytes=8 << 20))
        for batch in batches:
            for content in batch.column(0):
                for parsed in parse_batches(content.as_buffer()):
                    parsed.ensure_valid()
                    yield from decoder.add(parsed)
        rest = decoder.flush()
        if rest is not None:
            yield rest

    files = found.read.format("binaryFile").option("pathGlobFilter", "*.log").load(str(path)).select("content")
    return files.mapInArrow(decode, schema)


# --- the lines --------------------------------------------------------------------------------------------------------


def timed(query: Query) -> Callable[[], float]:
    return lambda: seconds_of(lambda: drain(query()))


def share(
    what: str,
    name: str,
    other: str,
    seconds: dict[str, float],
    records: int,
    share_min: float | None = None,
    beside: str = "parquet",
) -> Line:
    """A rate beside another one, for the same records."""
    rate, limit = records / seconds[name], records / seconds[other]
    asked = "" if share_min is None else f"{share_min} of it"
    return Line(
        f"Spark: {what}",
        f"{rate / MILLION:.2f} M records/s",
        f"{beside} {limit / MILLION:.2f} M/s",
        f"{rate / limit:.2f}",
        asked,
        None if share_min is None else rate >= share_min * limit,
    )


def _times(what: str, name: str, other: str, seconds: dict[str, float], times_max: float) -> Line:
    """A time beside another one."""
    ratio = seconds[name] / seconds[other]
    return Line(
        f"Spark: {what}",
        f"{seconds[name] * 1000:,.0f} ms",
        f"parquet {seconds[other] * 1000:,.0f} ms",
        f"{ratio:.2f}",
        f"at most {times_max} of it",
        ratio <= times_max,
    )
