"""Streams in a session: every record once, whatever the limits, restarts, new partitions, writers and retention do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kstore
from tests.spark.connecting import connected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TIMEOUT_SECONDS = 120

Row = tuple[str, int, int, bytes]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store(tmp_path / "store") as opened:
        opened.create_topic("t", 2)
        yield opened


class Sink:
    """A streaming query that keeps the rows of each of its batches in this process."""

    def __init__(self, spark: SparkSession, store: kstore.Store, checkpoint: Path) -> None:
        self._spark = spark
        self._path = str(store.path)
        self._checkpoint = checkpoint
        self.batches: dict[int, list[Row]] = {}
        self.failing: set[int] = set()

    def run(self, **options: str) -> StreamingQuery:
        """Reads everything available now. Raises the error that ended the query."""

        def finished() -> StreamingQuery:
            query = self.start(available_now=True, **options)
            finish(query)
            return query

        return connected(finished)

    def follow(self, **options: str) -> StreamingQuery:
        """A query that runs on, after it has read everything available. Raises the error that ended it."""

        def begun() -> StreamingQuery:
            query = self.start(available_now=False, **options)
            query.processAllAvailable()
            return query

        return connected(begun)

    def start(self, *, available_now: bool, **options: str) -> StreamingQuery:
        stream = self._spark.readStream.format("kstore").options(**options).load(self._path)
        writer = stream.select("topic", "partition", "offset", "value").writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def _keep(self, batch: DataFrame, number: int) -> None:
        if number in self.failing:
            raise RuntimeError(f"batch {number} is to fail")
        # A batch that runs again after a failure replaces the first try.
        self.batches[number] = [tuple(row) for row in batch.collect()]

    @property
    def rows(self) -> list[Row]:
        rows = sorted(row for batch in self.batches.values() for row in batch)
        assert len({row[:3] for row in rows}) == len(rows)
        return rows

    def counts(self) -> list[int]:
        return [len(self.batches[number]) for number in sorted(self.batches)]


@pytest.fixture
def sink(spark: SparkSession, store: kstore.Store, tmp_path: Path) -> Sink:
    return Sink(spark, store, tmp_path / "checkpoint")


def finish(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(TIMEOUT_SECONDS), "the query does not end"
    finally:
        query.stop()


def append(store: kstore.Store, count: int, *, partition: int = 0, topic: str = "t") -> None:
    log = store.log(topic, partition)
    first = log.end_offset
    log.append_many([b"%d" % (first + number) for number in range(count)])


def held(store: kstore.Store) -> list[Row]:
    return sorted(
        (topic, partition, record.offset, record.value or b"")
        for topic in store.topics()
        for partition in store.partitions(topic)
        for record in store.log(topic, partition).read()
    )


def offsets(checkpoint: Path, batch: int) -> object:
    """The offsets that Spark stores as the end of a batch."""
    return json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])


@pytest.mark.long
def test_available_now_reads_everything_in_one_batch(store: kstore.Store, sink: Sink, tmp_path: Path) -> None:
    append(store, 100)
    append(store, 50, partition=1)
    sink.run(startingOffsets="earliest")
    assert sink.rows == held(store)
    assert sink.counts() == [150]
    assert offsets(tmp_path / "checkpoint", 0) == {"t": {"0": 100, "1": 50}}


def test_limits_divide_it_and_a_checkpoint_goes_on(store: kstore.Store, sink: Sink) -> None:
    append(store, 90)
    append(store, 10, partition=1)
    query = sink.run(startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert sink.counts() == [40, 40, 20]
    progress = query.lastProgress
    assert progress is not None
    source = progress["sources"][0]
    assert json.loads(source["latestOffset"]) == {"t": {"0": 90, "1": 10}}
    assert json.loads(source["endOffset"]) == {"t": {"0": 90, "1": 10}}
    # After a restart it continues where it was; a new partition starts with its first record.
    append(store, 5)
    store.add_partitions("t", 3)
    append(store, 7, partition=2)
    sink.run(startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert sink.rows == held(store)
    assert sink.counts() == [40, 40, 20, 12]


@pytest.mark.parametrize(
    "limits",
    [
        {"maxBytesPerTrigger": "1k"},
        {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"},
        {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "30", "maxBytesPerTrigger": "100k"},
    ],
)
@pytest.mark.long
def test_each_limit_alone_reads_everything(store: kstore.Store, sink: Sink, limits: dict[str, str]) -> None:
    for _ in range(8):
        append(store, 9)
    sink.run(startingOffsets="earliest", **limits)
    assert sink.rows == held(store)


@pytest.mark.long
def test_available_now_from_the_end_reads_nothing_then_what_came(store: kstore.Store, sink: Sink) -> None:
    append(store, 10)
    sink.run()
    assert sink.rows == []
    append(store, 3)
    append(store, 2, partition=1)
    sink.run()
    assert sink.rows == [row for row in held(store) if row[2] >= 10 or row[1] == 1]


@pytest.mark.long
def test_a_first_batch_that_fails_loses_nothing_of_what_comes_meanwhile(
    store: kstore.Store, sink: Sink, tmp_path: Path
) -> None:
    append(store, 10)
    sink.failing = {0}
    with pytest.raises(Exception, match="batch 0 is to fail"):
        sink.run()
    assert offsets(tmp_path / "checkpoint", 0) == {"t": {"0": 10, "1": 0}}
    append(store, 8)
    append(store, 4, partition=1)
    store.add_partitions("t", 3)
    append(store, 2, partition=2)
    sink.failing = set()
    sink.run()
    assert sink.rows == [row for row in held(store) if row[1] != 0 or row[2] >= 10]


@pytest.mark.long
def test_a_later_batch_that_fails_is_read_again(store: kstore.Store, sink: Sink) -> None:
    append(store, 30)
    sink.failing = {1}
    with pytest.raises(Exception, match="batch 1 is to fail"):
        sink.run(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    append(store, 5)
    sink.failing = set()
    sink.run(startingOffsets="latest", maxOffsetsPerTrigger="10")
    assert sink.rows == held(store)
    assert sink.counts() == [10, 10, 10, 5]


def wait_until(query: StreamingQuery, is_so: Callable[[], bool]) -> None:
    """Runs the query until it has read everything available; raises its error if it fails."""
    for _ in range(TIMEOUT_SECONDS):
        query.processAllAvailable()
        if is_so():
            return
        query.awaitTermination(1)
    raise AssertionError("the query does not reach the end")


@pytest.mark.long
def test_a_query_that_begins_at_the_end_reads_what_comes(store: kstore.Store, sink: Sink, tmp_path: Path) -> None:
    append(store, 10)
    query = sink.follow()
    try:
        wait_until(query, lambda: (tmp_path / "checkpoint" / "commits" / "0").exists())
        append(store, 7)
        append(store, 5, partition=1)
        wait_until(query, lambda: len(sink.rows) == 12)
    finally:
        query.stop()
    assert sink.rows == [row for row in held(store) if row[1] == 1 or row[2] >= 10]


WRITER = """
import sys, kstore
with kstore.Store(sys.argv[1]) as store:
    logs = [store.log("t", 0), store.log("t", 1)]
    for number in range(2000):
        logs[number % 2].append_many([b"%d" % number] * (number % 7 + 1))
    print(sum(log.end_offset for log in logs))
"""


@pytest.mark.long
def test_a_live_writer_is_followed(store: kstore.Store, sink: Sink) -> None:
    store.close()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(store.path)], stdout=subprocess.PIPE, text=True)
    query = sink.follow(startingOffsets="earliest", maxOffsetsPerTrigger="1000")
    try:
        out, _ = writer.communicate(timeout=TIMEOUT_SECONDS)
        wait_until(query, lambda: sum(sink.counts()) >= int(out))
    finally:
        writer.kill()
        query.stop()
    with kstore.Store(store.path, read_only=True) as written:
        assert sink.rows == held(written)


@pytest.mark.long
def test_a_running_query_finds_new_partitions_and_topics(store: kstore.Store, sink: Sink) -> None:
    append(store, 3)
    query = sink.follow()
    try:
        store.add_partitions("t", 3)
        append(store, 5, partition=2)
        store.create_topic("u", 1)
        append(store, 6, topic="u")
        wait_until(query, lambda: sum(sink.counts()) >= 11)
    finally:
        query.stop()
    assert sink.rows == [row for row in held(store) if row[:2] != ("t", 0)]


@pytest.mark.long
def test_retention_that_overtakes_a_query_fails_it_or_is_skipped(store: kstore.Store, sink: Sink) -> None:
    append(store, 10)
    sink.run(startingOffsets="earliest")
    append(store, 20)
    store.log("t").delete_records(15)
    with pytest.raises(Exception, match=r"(?s)Some data may have been lost.*failOnDataLoss to false.*\[10, 15\)"):
        sink.run()
    sink.run(failOnDataLoss="false")
    assert [row[2] for row in sink.rows] == [*range(10), *range(15, 30)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"startingOffsets": '{"t":{"0":1}}'}, "Kafka start offsets don't match what are assigned"),
        ({"subscribe": "other"}, "there is no topic other"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
    ],
)
@pytest.mark.long
def test_what_is_wrong_is_said(store: kstore.Store, sink: Sink, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        sink.run(**options)
