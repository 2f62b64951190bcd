"""The stream reader, called as Spark calls it, on stores that change meanwhile."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

import kstore
from kstore.errors import ConfigError, LogNotFoundError, TopicNotFoundError
from kstore.spark.options import ReadOptions
from kstore.spark.schema import arrow_schema, spark_schema
from kstore.spark.stream import KStoreStreamReader
from tests.support.fakes.fake_clock import ManualClock

Json = dict[str, Any]
ALL = ReadAllAvailable()


@pytest.fixture(name="store")
def opened_store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store(tmp_path / "store") as opened:
        opened.create_topic("t", 2)
        yield opened


class Query:
    """Spark's state of a query: its position, and the records that it got."""

    def __init__(self, reader: KStoreStreamReader) -> None:
        self.reader = reader
        self.at: Json = {}
        self.values: list[bytes] = []

    def begin(self, at: Json | None = None) -> Json:
        self.at = self.reader.initialOffset() if at is None else at
        return self.at

    def step(self, limit: ReadLimit | None = None) -> int:
        """One trigger; returns how many records it read."""
        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit() if limit is None else limit)
        values = read(self.reader, self.at, end)
        self.at = end
        self.values += values
        return len(values)

    def until_nothing_is_new(self, limit: ReadLimit | None = None) -> list[int]:
        counts = []
        while True:
            before = self.at
            counts.append(self.step(limit))
            if self.at == before:
                return counts[:-1]


def reader(store: kstore.Store | Path, clock: ManualClock | None = None, /, **given: str) -> KStoreStreamReader:
    path = store if isinstance(store, Path) else store.path
    options = ReadOptions.parse({"path": str(path), **given}, streaming=True)
    schema = spark_schema(options.columns, include_headers=options.include_headers)
    return KStoreStreamReader(options, schema, clock=clock or ManualClock())


def read(source: KStoreStreamReader, start: Json, end: Json) -> list[bytes]:
    """The values, by partition and offset, that tasks read: each has a copy of the reader, sent to it."""
    source_there: KStoreStreamReader = pickle.loads(pickle.dumps(source))
    rows = []
    for split in source.partitions(start, end):
        for batch in source_there.read(pickle.loads(pickle.dumps(split))):
            assert batch.schema.equals(arrow_schema(source._schema))
            rows += pa.Table.from_batches([batch]).to_pylist()
    source_there.stop()
    found = [(row["topic"], row["partition"], row["offset"]) for row in rows]
    assert len(set(found)) == len(found)
    return [row["value"] for row in sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))]


def append(store: kstore.Store, count: int, *, topic: str = "t", partition: int = 0, size: int = 10) -> list[bytes]:
    log = store.log(topic, partition)
    first = log.end_offset
    values = [b"%s-%d-%d" % (topic.encode(), partition, first + number) for number in range(count)]
    for value in values:
        log.append(value=value.ljust(size))
    return [value.ljust(size) for value in values]


# --- where it begins --------------------------------------------------------------------------------------------------


def test_offsets_are_in_the_form_of_kafkas_source(store: kstore.Store) -> None:
    append(store, 3)
    append(store, 2, partition=1)
    source = reader(store)
    assert source.initialOffset() == {"t": {"0": 3, "1": 2}}
    assert reader(store, startingOffsets="earliest").initialOffset() == {"t": {"0": 0, "1": 0}}
    given = '{"t":{"0":1,"1":-1}}'
    assert reader(store, startingOffsets=given).initialOffset() == {"t": {"0": 1, "1": 2}}


def test_a_stream_begins_at_a_time(store: kstore.Store) -> None:
    for number in range(5):
        store.log("t", 0).append(value=b"v", timestamp=1000 * number)
    append(store, 1, partition=1)
    assert reader(store, startingTimestamp="1500").initialOffset() == {"t": {"0": 2, "1": 0}}
    with pytest.raises(ConfigError, match="No offset matched"):
        reader(store, startingTimestamp=str(10**15)).initialOffset()


def test_the_first_answer_stays(store: kstore.Store) -> None:
    source = reader(store)
    first = source.initialOffset()
    append(store, 5)
    assert source.initialOffset() == first


def test_a_topic_asked_for_has_to_be_there_at_the_start(store: kstore.Store) -> None:
    with pytest.raises(TopicNotFoundError, match="there is no topic other"):
        reader(store, subscribe="t,other").initialOffset()
    with pytest.raises(LogNotFoundError):
        reader(store.path / "nowhere").initialOffset()


def test_only_chosen_topics_and_partitions_are_read(store: kstore.Store) -> None:
    store.create_topic("u", 1)
    for given, expected in (
        ({"subscribe": "u"}, {"u": {"0": 0}}),
        ({"subscribePattern": "[t-z]"}, {"t": {"0": 0, "1": 0}, "u": {"0": 0}}),
        ({"assign": '{"t":[1]}'}, {"t": {"1": 0}}),
    ):
        assert reader(store, **given).initialOffset() == expected


# --- everything that comes, once --------------------------------------------------------------------------------------


def test_a_stream_reads_what_is_there_and_what_comes(store: kstore.Store) -> None:
    first = append(store, 20)
    query = Query(reader(store, startingOffsets="earliest"))
    query.begin()
    assert query.step() == 20
    assert query.step() == 0
    second = append(store, 5)
    other = append(store, 3, partition=1)
    assert query.step() == 8
    assert query.values == first + second + other
    assert query.reader.reportLatestOffset() == {"t": {"0": 25, "1": 3}}


def test_an_end_that_was_given_out_is_read_the_same_again(store: kstore.Store) -> None:
    append(store, 30)
    source = reader(store, startingOffsets="earliest", maxOffsetsPerTrigger="7")
    start = source.initialOffset()
    end = source.latestOffset(start, source.getDefaultReadLimit())
    values = read(source, start, end)
    append(store, 30)
    assert read(source, start, end) == read(reader(store), start, end) == values


def test_nothing_is_reported_before_it_was_looked_at(store: kstore.Store) -> None:
    assert reader(store).reportLatestOffset() is None


def test_a_new_partition_begins_with_its_first_record(store: kstore.Store) -> None:
    append(store, 4)
    query = Query(reader(store))
    query.begin()
    store.add_partitions("t", 3)
    store.create_topic("u", 1)
    new = append(store, 5, partition=2) + append(store, 2, topic="u")
    query.until_nothing_is_new()
    assert query.values == new
    assert query.at == {"t": {"0": 4, "1": 0, "2": 5}, "u": {"0": 2}}


def test_a_store_without_topics_is_a_beginning(tmp_path: Path) -> None:
    with kstore.Store(tmp_path / "store") as store:
        query = Query(reader(store))
        assert query.begin() == {}
        assert query.step() == 0
        assert query.reader.reportLatestOffset() is None
        store.create_topic("t", 1)
        new = append(store, 3)
        assert query.step() == 3
        assert query.values == new


def test_new_partitions_keep_to_the_limits(store: kstore.Store) -> None:
    query = Query(reader(store, startingOffsets="earliest", maxOffsetsPerTrigger="10"))
    query.begin()
    store.add_partitions("t", 3)
    new = append(store, 35, partition=2)
    assert query.until_nothing_is_new() == [10, 10, 10, 5]
    assert query.values == new


# --- limits -----------------------------------------------------------------------------------------------------------


def test_max_offsets_are_shared_by_partitions(store: kstore.Store) -> None:
    append(store, 90)
    append(store, 10, partition=1)
    query = Query(reader(store, startingOffsets="earliest", maxOffsetsPerTrigger="20"))
    query.begin()
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(20)
    assert query.step() == 20
    assert query.at == {"t": {"0": 18, "1": 2}}
    assert sum(query.until_nothing_is_new()) == 80
    assert query.reader.reportLatestOffset() == {"t": {"0": 90, "1": 10}}


def test_a_trigger_that_wants_everything_gets_it(store: kstore.Store) -> None:
    append(store, 90)
    given = {"maxOffsetsPerTrigger": "20", "minOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"}
    query = Query(reader(store, startingOffsets="earliest", **given))
    query.begin()
    assert query.step(ALL) == 90


def test_bytes_limit_a_batch(store: kstore.Store) -> None:
    values = append(store, 50, size=1000)
    sizes = [path.stat().st_size for path in (store.path / "t-0").glob("*.log")]
    query = Query(reader(store, startingOffsets="earliest", maxBytesPerTrigger=str(sum(sizes) // 10)))
    query.begin()
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(sum(sizes) // 10)
    assert query.until_nothing_is_new() == [5] * 10
    assert query.values == values


def test_bytes_are_counted_across_segments_and_whole_batches_are_taken(tmp_path: Path) -> None:
    with kstore.Store(tmp_path, segment_bytes=5000) as store:
        store.create_topic("t", 1)
        for number in range(40):
            store.log("t").append_many([b"%02d-%d" % (number, i) for i in range(10)])
        query = Query(reader(store, startingOffsets="earliest", maxBytesPerTrigger="1"))
        query.begin()
        assert query.until_nothing_is_new() == [10] * 40
        query = Query(reader(store, startingOffsets="earliest", maxBytesPerTrigger="1000"))
        query.begin()
        counts = query.until_nothing_is_new()
        assert sum(counts) == 400
        assert len(set(counts[:-1])) == 1
        assert all(count % 10 == 0 for count in counts)


def test_both_limits_hold(store: kstore.Store) -> None:
    append(store, 50, size=1000)
    given = {"maxOffsetsPerTrigger": "10", "maxBytesPerTrigger": "5500"}
    query = Query(reader(store, startingOffsets="earliest", **given))
    query.begin()
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(10)
    assert query.step() == 5
    given["maxBytesPerTrigger"] = "1m"
    query = Query(reader(store, startingOffsets="earliest", **given))
    query.begin()
    assert query.step() == 10


def test_min_offsets_hold_a_batch_back_until_there_are_enough_or_it_is_time(store: kstore.Store) -> None:
    clock = ManualClock()
    given = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "30s"}
    query = Query(reader(store, clock, startingOffsets="earliest", **given))
    query.begin()
    assert query.reader.getDefaultReadLimit() == ReadMinRows(10)
    append(store, 3)
    assert query.step() == 3  # the first one is not held back
    append(store, 9)
    assert query.step() == 0
    append(store, 1, partition=1)
    assert query.step() == 10
    append(store, 2)
    clock.advance(29_999)
    assert query.step() == 0
    clock.advance(1)
    assert query.step() == 2


def test_min_and_max_go_together(store: kstore.Store) -> None:
    append(store, 25)
    given = {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "12"}
    query = Query(reader(store, startingOffsets="earliest", **given))
    query.begin()
    assert query.until_nothing_is_new() == [12, 12]
    assert query.at == {"t": {"0": 24, "1": 0}}


# --- available now ----------------------------------------------------------------------------------------------------


def test_available_now_reads_what_was_there_and_stops(store: kstore.Store) -> None:
    there = append(store, 30)
    source = reader(store, startingOffsets="earliest", maxOffsetsPerTrigger="10", minOffsetsPerTrigger="8")
    assert isinstance(source, SupportsTriggerAvailableNow)
    source.prepareForTriggerAvailableNow()
    query = Query(source)
    query.begin()
    assert query.step() == 10
    append(store, 30)
    append(store, 5, partition=1)
    store.add_partitions("t", 3)
    append(store, 5, partition=2)
    # Not held back either: no more records will come.
    assert query.until_nothing_is_new() == [10, 10]
    assert query.values == there


def test_available_now_from_a_checkpoint_reads_new_partitions(store: kstore.Store) -> None:
    append(store, 4)
    store.add_partitions("t", 3)
    new = append(store, 3, partition=2)
    source = reader(store)
    source.prepareForTriggerAvailableNow()
    query = Query(source)
    query.begin({"t": {"0": 4, "1": 0}})
    assert query.until_nothing_is_new() == [3]
    assert query.values == new


def test_available_now_at_the_end_has_nothing_to_do(store: kstore.Store) -> None:
    append(store, 4)
    source = reader(store)
    source.prepareForTriggerAvailableNow()
    append(store, 4)
    query = Query(source)
    query.begin()
    assert query.until_nothing_is_new() == []


# --- starting again ---------------------------------------------------------------------------------------------------


def test_a_first_batch_that_failed_loses_nothing_of_what_came_meanwhile(store: kstore.Store) -> None:
    append(store, 10)
    source = reader(store)
    start = source.initialOffset()
    append(store, 5)
    # Spark keeps only the first batch's end, which is where the query began.
    end = source.latestOffset(start, ALL)
    assert end == start
    assert source.partitions(start, end) == []
    source.stop()
    # It failed. More records come, and the query is started again.
    append(store, 8)
    append(store, 2, partition=1)
    store.add_partitions("t", 3)
    append(store, 1, partition=2)
    query = Query(reader(store))
    query.begin()
    assert query.at == {"t": {"0": 23, "1": 2, "2": 1}}
    assert query.reader.partitions(query.at, end) == []
    query.at = end
    query.until_nothing_is_new()
    assert len(query.values) == 5 + 8 + 2 + 1


def test_what_was_pinned_goes_on_with_the_second_batch(store: kstore.Store) -> None:
    append(store, 10)
    append(store, 10, partition=1)
    query = Query(reader(store, startingOffsets='{"t":{"0":-1,"1":4}}'))
    query.begin()
    new = append(store, 3)
    assert query.step() == 6
    assert query.at == {"t": {"0": 10, "1": 10}}
    assert query.step() == 3
    assert query.values[-3:] == new


def test_a_query_that_began_at_the_end_of_all_logs_reads_what_comes_after_its_first_batch(
    store: kstore.Store,
) -> None:
    append(store, 10)
    query = Query(reader(store))
    query.begin()
    new = append(store, 3)
    assert query.step() == 0
    assert query.reader.initialOffset() == query.at
    assert query.step() == 3
    new += append(store, 2, partition=1)
    assert query.step() == 2
    assert query.values == new


def test_a_query_goes_on_from_its_checkpoint_whatever_startingoffsets_says(store: kstore.Store) -> None:
    values = append(store, 10)
    query = Query(reader(store))
    query.begin({"t": {"0": 4, "1": 0}})
    assert query.step() == 6
    assert query.values == values[4:]


def test_a_checkpoint_of_another_source_is_refused(store: kstore.Store) -> None:
    with pytest.raises(ConfigError, match="it is another source's"):
        reader(store).latestOffset({"logOffset": 5}, ALL)


# --- what must not be read --------------------------------------------------------------------------------------------


def test_a_stream_stops_in_front_of_an_open_transaction(store: kstore.Store) -> None:
    append(store, 3)
    with store.producer(transactional_id="p") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"open", partition=0)
        producer.flush()
        append(store, 2)
        committed = Query(reader(store, startingOffsets="earliest"))
        committed.begin()
        assert committed.step() == 3
        uncommitted = Query(reader(store, startingOffsets="earliest", isolationLevel="read_uncommitted"))
        uncommitted.begin()
        assert uncommitted.step() == 6
        # A query that read it uncommitted before waits at its position.
        behind = Query(reader(store))
        behind.begin(uncommitted.at)
        assert behind.step() == 0
        assert behind.at == uncommitted.at
        producer.commit_transaction()
        assert committed.step() == 3
        producer.begin_transaction()
        producer.send("t", b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()
    assert committed.step() == 0
    assert committed.values[3] == b"open"
    assert b"aborted" not in committed.values


# --- what tasks get ---------------------------------------------------------------------------------------------------


def test_a_copy_for_a_task_holds_no_log_and_leaves_the_query_its_own(store: kstore.Store) -> None:
    append(store, 3)
    source = reader(store, startingOffsets="earliest")
    start = source.initialOffset()
    copy = pickle.loads(pickle.dumps(source))
    assert copy._holdings._logs == {}
    assert len(source._holdings._logs) == 2
    assert source.latestOffset(start, ALL) == {"t": {"0": 3, "1": 0}}
    source.stop()
    assert source._holdings._logs == {}


def test_many_logs_stay_open_with_few_files(store: kstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_topic("many", 20)
    values = [append(store, 2, topic="many", partition=number)[1] for number in range(20)]
    # A quarter of it is for files that can be opened again.
    monkeypatch.setattr("kstore.files.handles.soft_limit", lambda: 40)
    query = Query(reader(store, startingOffsets="earliest", maxOffsetsPerTrigger="20", maxBytesPerTrigger="1m"))
    before = len(list(Path("/dev/fd").iterdir()))
    query.begin()
    assert query.until_nothing_is_new() == [20, 20]
    assert len(query.reader._holdings._logs) >= 20
    assert len(list(Path("/dev/fd").iterdir())) <= before + 10
    assert sorted(query.values[20:]) == sorted(values)


def test_min_partitions_and_records_divide_a_batch(store: kstore.Store) -> None:
    append(store, 40)
    source = reader(store, startingOffsets="earliest", minPartitions="4")
    start = source.initialOffset()
    assert len(source.partitions(start, source.latestOffset(start, ALL))) >= 4
    source = reader(store, startingOffsets="earliest", maxRecordsPerPartition="5")
    assert len(source.partitions(start, source.latestOffset(start, ALL))) == 8
