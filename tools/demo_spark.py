"""The whole pipeline: a live producer, a Spark stream that is killed once half way, and its results.

A producer writes clicks into one store. A Spark session streams them into Parquet unchanged, and as counts by window
and user into another store, exactly once. The session is killed (SIGKILL) at half of the clicks and restarted. At the
end both outputs are compared with what plain Python computes from the log.

usage: python tools/demo_spark.py [--records N] [DIRECTORY]
       the directory is created, and must not exist (default: .demo-spark, removed first)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import kstore  # noqa: E402  # the checkout comes first on the path
import kstore.spark  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RECORDS = 100_000
PARTITIONS = 4
USERS = 17
RECORDS_PER_SECOND = 5_000
# The largest micro-batch, so that neither query ends before the other has started.
AT_ONCE = 10_000
# By the clicks' times: one each ms, counted in windows of 5 s; a click may be late by 30 s.
FIRST_MS = 1_700_000_000_000
WINDOW_MS = 5_000
LATE_SECONDS = 30
# A click without a user, long after all others: it closes the earlier windows.
CLOSING_MS = FIRST_MS + 10**9
NOBODY = b"nobody"

SOURCE, RESULTS, PARQUET, CHECKPOINTS, ROWS = "clicks-store", "results-store", "parquet", "checkpoints", "rows.parquet"
CLICKS, WINDOWS = "clicks", "windows"

Window = tuple[int, str]


# --- the producer's process -------------------------------------------------------------------------------------------


def produce(directory: Path, count: int) -> None:
    """Sends the clicks at an even pace, waits for a word, sends the clicks that close the windows, and ends."""
    started = time.monotonic()
    with kstore.open(directory / SOURCE) as store, store.producer(linger_ms=5) as producer:
        for number in range(count):
            user = b"user-%d" % (number * 7919 % USERS)
            producer.send(CLICKS, b"%d" % number, key=user, timestamp=FIRST_MS + number, partition=number % PARTITIONS)
            if number % 500 == 0:
                time.sleep(max(0.0, number / RECORDS_PER_SECOND - (time.monotonic() - started)))
        producer.flush()
        print("sent", flush=True)
        sys.stdin.readline()
        for partition in range(PARTITIONS):
            producer.send(CLICKS, b"", key=NOBODY, timestamp=CLOSING_MS, partition=partition)
        producer.flush()
        print("closed", flush=True)
        sys.stdin.readline()


# --- Spark's process --------------------------------------------------------------------------------------------------


def stream(directory: Path) -> None:
    """Runs both queries and reports how many records each has seen, until a signal says that no more will come."""
    import pyarrow.parquet as parquet

    conf = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    conf["spark.sql.session.timeZone"] = "UTC"
    conf["spark.sql.warehouse.dir"] = str(directory / "warehouse")
    spark = kstore.spark.session(master="local[2]", app_name="demo", **conf)
    spark.sparkContext.setLogLevel("OFF")
    queries = [start_rows(spark, directory)]
    # One after another: Spark gives a Python process 10 s to start, too short for all of them at once.
    first = queries[0]
    while first.isActive and first.lastProgress is None and first.status["message"] != "Waiting for data to arrive":
        time.sleep(0.1)
    queries.append(start_windows(spark, directory))
    with reporting(queries):
        sys.stdin.readline()
        for query in queries:
            query.processAllAvailable()
    for query in queries:
        query.stop()
    # Spark's own reader knows which Parquet files count: a killed batch may have left others.
    rows = spark.read.parquet(str(directory / PARQUET)).select("partition", "offset", "key", "value")
    parquet.write_table(rows.toArrow(), directory / ROWS)
    spark.stop()


def start_rows(spark: SparkSession, directory: Path) -> StreamingQuery:
    clicks = read_clicks(spark, directory)
    return (
        clicks.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / CHECKPOINTS / "rows"))
        .start(str(directory / PARQUET))
    )


def start_windows(spark: SparkSession, directory: Path) -> StreamingQuery:
    """Counts by window and user, each written once, when its window closes."""
    from pyspark.sql import functions as f

    counts = (
        read_clicks(spark, directory)
        .withColumn("user", f.col("key").cast("string"))
        .withWatermark("timestamp", f"{LATE_SECONDS} seconds")
        .groupBy(f.window("timestamp", f"{WINDOW_MS // 1000} seconds"), "user")
        .agg(f.count("*").alias("clicks"), f.sum(f.length("value")).alias("bytes"))
    )
    records = counts.select(
        f.col("user").alias("key"),
        f.to_json(f.struct(f.unix_millis("window.start").alias("start"), "user", "clicks", "bytes")).alias("value"),
    )
    return (
        records.writeStream.format("kstore")
        .outputMode("append")
        .option("topic", WINDOWS)
        .option("checkpointLocation", str(directory / CHECKPOINTS / "windows"))
        .start(str(directory / RESULTS))
    )


def read_clicks(spark: SparkSession, directory: Path) -> DataFrame:
    reader = spark.readStream.format("kstore").option("startingOffsets", "earliest").option("subscribe", CLICKS)
    return reader.option("maxOffsetsPerTrigger", AT_ONCE).load(str(directory / SOURCE))


@contextmanager
def reporting(queries: list[StreamingQuery]) -> Iterator[None]:
    """Prints the end of each query's last batch whenever it changes, in its own thread.

    A query that fails ends the process, so that no process waits for it.
    """
    done = Event()

    def report() -> None:
        said: list[int] = []
        while not done.wait(0.2):
            ends = [records_behind(query) for query in queries]
            if ends != said:
                said = ends
                print(*ends, flush=True)
            for query in queries:
                if not query.isActive:
                    print(f"a query failed: {query.exception()}", file=sys.stderr, flush=True)
                    os._exit(1)

    thread = Thread(target=report)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def records_behind(query: StreamingQuery) -> int:
    """How many records are before the end of the query's last batch."""
    progress = query.lastProgress
    if progress is None or not progress.sources or not progress.sources[0].endOffset:
        return 0
    ends: dict[str, dict[str, int]] = json.loads(progress.sources[0].endOffset)
    return sum(ends.get(CLICKS, {}).values())


# --- the demo ---------------------------------------------------------------------------------------------------------


@contextmanager
def child(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """This file in another process, and in its own process group; killed at the end if it still runs."""
    command = [sys.executable, __file__, *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    sys.exit(f"the process that should say {word!r} ended with {process.wait()}")


def run_until(process: subprocess.Popen[str], reached: Callable[[list[int]], bool]) -> list[int]:
    """Reads a streaming process's reports until both queries are far enough; returns the last one."""
    assert process.stdout is not None
    for line in process.stdout:
        ends = [int(word) for word in line.split()]
        if reached(ends):
            return ends
    sys.exit(f"Spark's process ended with {process.wait()}")


def expected(directory: Path) -> tuple[Counter[tuple[int, int, bytes, bytes]], dict[Window, tuple[int, int]]]:
    """Plain Python's result: every row, and for each window and user the clicks and their bytes."""
    rows: Counter[tuple[int, int, bytes, bytes]] = Counter()
    windows: dict[Window, tuple[int, int]] = {}
    with kstore.open(directory / SOURCE, read_only=True) as store:
        for partition in range(PARTITIONS):
            for record in store.log(CLICKS, partition).read():
                assert record.key is not None
                assert record.value is not None
                rows[partition, record.offset, record.key, record.value] += 1
                if record.key != NOBODY:
                    window = record.timestamp - record.timestamp % WINDOW_MS, record.key.decode()
                    clicks, size = windows.get(window, (0, 0))
                    windows[window] = clicks + 1, size + len(record.value)
    return rows, windows


def found_rows(directory: Path) -> Counter[tuple[int, int, bytes, bytes]]:
    import pyarrow.parquet as parquet

    columns = parquet.read_table(directory / ROWS).select(["partition", "offset", "key", "value"]).to_pydict()
    return Counter(zip(*columns.values(), strict=True))


def found_windows(directory: Path) -> list[tuple[Window, tuple[int, int]]]:
    found = []
    with kstore.open(directory / RESULTS, read_only=True) as store:
        for partition in range(PARTITIONS):
            for record in store.log(WINDOWS, partition).read(isolation_level="read_committed"):
                assert record.value is not None
                row = json.loads(record.value)
                found.append(((row["start"], row["user"]), (row["clicks"], row["bytes"])))
    return found


def compare(directory: Path) -> None:
    """Raises: SystemExit for anything that is lost, doubled or wrong."""
    rows, windows = expected(directory)
    parquet = found_rows(directory)
    lost, more = (rows - parquet).total(), (parquet - rows).total()
    print(f"5. Parquet: {parquet.total():,} rows, of {rows.total():,} records {lost} lost, {more} doubled or wrong")
    found = found_windows(directory)
    doubled = len(found) - len(dict(found))
    wrong = sum(windows.get(window) != row for window, row in found)
    missing = len(windows.keys() - dict(found).keys())
    print(f"   sink: {len(found):,} windows of {len(windows):,}, {missing} lost, {doubled} doubled, {wrong} wrong")
    if lost or more or missing or doubled or wrong:
        sys.exit("WRONG: the output differs from the input")
    print("   both are what plain Python makes of the log")


def demo(directory: Path, count: int) -> None:
    with kstore.open(directory / SOURCE) as store:
        store.create_topic(CLICKS, partitions=PARTITIONS, segment_bytes="1MiB")
    with kstore.open(directory / RESULTS) as store:
        store.create_topic(WINDOWS, partitions=PARTITIONS)
    with ExitStack() as children:
        with child("--stream", directory) as spark:
            run_until(spark, lambda ends: True)
            print(f"1. Spark is up; a producer sends {count:,} clicks, {RECORDS_PER_SECOND:,} a second")
            producer = children.enter_context(child("--produce", directory, "--records", count))
            killed_at = run_until(spark, lambda ends: min(ends) > 0 and max(ends) >= count // 2)
            os.killpg(spark.pid, signal.SIGKILL)
        print(f"2. Spark was killed (SIGKILL) after {killed_at[0]:,} clicks (Parquet) and {killed_at[1]:,} (windows)")
        started = time.perf_counter()
        with child("--stream", directory) as spark:
            run_until(spark, lambda ends: sum(ends) > sum(killed_at))
            print(f"3. Started again, it continues there after {time.perf_counter() - started:.0f} s")
            wait_for(producer, "sent")
            run_until(spark, lambda ends: min(ends) >= count)
            tell(producer)
            wait_for(producer, "closed")
            print("4. All is sent and read; the last clicks close the windows")
            run_until(spark, lambda ends: min(ends) >= count + PARTITIONS)
            tell(spark)
            spark.communicate()
            if spark.returncode:
                sys.exit(f"Spark's process ended with {spark.returncode}")
        tell(producer)
        producer.communicate()
    compare(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--produce", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    directory = arguments.directory or ROOT / ".demo-spark"
    if arguments.produce:
        produce(directory, arguments.records)
    elif arguments.stream:
        stream(directory)
    else:
        if arguments.directory is None:
            shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        started = time.perf_counter()
        demo(directory, arguments.records)
        print(f"   {time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
