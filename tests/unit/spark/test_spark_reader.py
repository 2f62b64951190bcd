"""Batch reads without a session: a query's splits give what Kafka's consumer and ``Log.read`` give."""

from __future__ import annotations

import logging
import os
import pickle
import random
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, GreaterThanOrEqual, InputPartition, LessThan

import kstore
from kstore.errors import (
    ConfigError,
    CorruptBatchError,
    DataLossError,
    InvalidRecordError,
    LogNotFoundError,
    NotALogError,
    TopicNotFoundError,
)
from kstore.log import Log, reads_of
from kstore.record.walk import Damage
from kstore.spark.places import LogPlace
from kstore.spark.plan import Split, SplitPiece
from kstore.spark.timestamps import Timestamps
from kstore.types import INT64_MAX, IsolationLevel
from tests.golden.test_golden_reads import as_consumed, consumed_files, expected_records
from tests.spark.reading import batches, make_reader, offsets_of, record_rows, splits_of, table_of
from tests.support.harness.evidence import Wrong
from tests.support.harness.golden_data import golden_partitions, golden_root
from tests.support.lives.log_cases import data, fenced, lost_in_the_middle, marker, transaction
from tests.support.lives.odd_batches import LATIN

ISOLATION_LEVELS: tuple[IsolationLevel, ...] = ("read_uncommitted", "read_committed")
Count = Callable[[str, int], None]


def without_epochs(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "epoch"} for record in records]


def filled(path: Path, count: int = 100, *, per_batch: int = 10, **settings: Any) -> Log:
    """A log of batches with ten records each, in several segments."""
    log = Log(path, **{"segment_bytes": 2000, "index_interval_bytes": 0, "durability": "os", **settings})
    for first in range(0, count, per_batch):
        log.append_many([b"value %d" % number for number in range(first, min(first + per_batch, count))])
    return log


@pytest.mark.parametrize("given", [{}, {"headerKeys": "binary"}], ids=["text", "binary"])
def test_header_keys_that_are_not_utf_8_are_read(tmp_path: Path, given: dict[str, str]) -> None:
    with Log(tmp_path / "t-0", durability="os") as log:
        log.append_many([b"a", b"b"], headers=[[(LATIN, b"1")], None])
    found = table_of(make_reader(tmp_path, **given))
    assert found.column("headers").to_pylist() == [
        [{"key": LATIN if given else "gr\ufffd\ufffde", "value": b"1"}],
        None,
    ]
    assert table_of(make_reader(tmp_path, includeHeaders=False)).num_rows == 2


# --- the same records -------------------------------------------------------------------------------------------------


GOLDEN_CUTS: tuple[tuple[IsolationLevel, dict[str, Any]], ...] = (
    ("read_uncommitted", {"maxPartitionBytes": 1}),
    ("read_committed", {}),
    ("read_committed", {"maxRecordsPerPartition": 53}),
)


@pytest.mark.parametrize(("tree", "path"), consumed_files(".jsonl"))
@pytest.mark.sampled(4)
def test_a_broker_partition_is_what_its_consumer_read(tree: str, path: Path, tried: Count) -> None:
    name = path.name.removesuffix(".jsonl")
    expected = {level: without_epochs(expected_records(path)[1]) for level in ISOLATION_LEVELS}
    committed = path.with_name(f"{name}.read_committed.jsonl")
    if committed.exists():
        expected["read_committed"] = without_epochs(expected_records(committed)[1])
    for level, cut in GOLDEN_CUTS:
        table = table_of(make_reader(golden_root() / tree / name, isolationLevel=level, **cut))
        if record_rows(table) != expected[level]:
            raise Wrong(f"{level}, {cut}")
        owners = {f"{topic}-{number}" for topic, number in zip(table["topic"], table["partition"], strict=True)}
        assert owners <= {name}
        tried("reads", 1)


def test_a_broker_directory_is_all_its_topics_without_the_internal_ones() -> None:
    root = golden_root() / "clean"
    reader = make_reader(root)
    expected = {}
    for name in golden_partitions("clean"):
        if not name.startswith("__"):
            with Log(root / name, read_only=True) as log:
                expected[name] = [record.offset for record in log.read(isolation_level="read_committed")]
    found: dict[str, list[int]] = {name: [] for name in expected}
    splits = splits_of(reader)
    for row in table_of(reader, splits).select(["topic", "partition", "offset"]).to_pylist():
        found[f"{row['topic']}-{row['partition']}"].append(row["offset"])
    assert found == expected
    # The logs are small, and a task costs more than reading one.
    assert len(splits) < len(expected) / 4


def some_transactions(path: Path, seed: int) -> Log:
    """A log of small transactions of three producers, interleaved, over many segments; the last ones stay open."""
    rng = random.Random(seed)
    log = Log(path, segment_bytes=1024, index_interval_bytes=0, durability="os")
    offset = 0
    is_open: set[int] = set()
    for _ in range(100):
        producer = rng.randrange(4)
        if producer == 3:
            log.append(b"no transaction")
            offset += 1
        elif producer in is_open and rng.random() < 0.4:
            is_open.remove(producer)
            log.append_batches(marker(producer, offset, commit=rng.random() < 0.5), assign_offsets=False)
            offset += 1
        else:
            count = rng.randrange(1, 4)
            batch = transaction(producer, *range(offset, offset + count), sequence=offset)
            log.append_batches(batch, assign_offsets=False)
            is_open.add(producer)
            offset += count
    return log


CUTS: tuple[dict[str, Any], ...] = (
    {},
    {"maxPartitionBytes": 300},
    {"maxRecordsPerPartition": 2},
    {"minPartitions": 7},
)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.sampled(1)
def test_transactions_that_cross_splits_are_left_out_as_a_committed_read_does(
    number: int, tmp_path: Path, seed: int, tried: Count
) -> None:
    with some_transactions(tmp_path / "orders-0", seed + number) as log:
        for level in ISOLATION_LEVELS:
            expected = without_epochs(as_consumed(log.read(isolation_level=level)))
            for cut in CUTS:
                reader = make_reader(log.path, isolationLevel=level, **cut)
                splits = splits_of(reader)
                assert cut == {} or len(splits) > 6
                if record_rows(table_of(reader, splits)) != expected:
                    raise Wrong(f"{level}, {cut}")
                tried("reads", len(splits))


def test_a_split_is_read_again_as_it_was_whatever_its_writer_does_meanwhile(tmp_path: Path) -> None:
    with filled(tmp_path / "orders-0", 100) as log:
        reader = make_reader(tmp_path, maxRecordsPerPartition=15)
        splits = splits_of(reader)
        found = []
        for number, split in enumerate(splits):
            log.append_many([b"later"] * 20)
            if number == 2:
                log.roll()
            found += offsets_of(reader, [split])
        assert found == list(range(100))
        assert offsets_of(reader, splits) == list(range(100))
        assert offsets_of(make_reader(tmp_path)) == list(range(log.end_offset))


def test_a_log_that_is_compacted_between_plan_and_read_gives_what_is_left(tmp_path: Path) -> None:
    with Log(tmp_path / "orders-0", durability="os", segment_bytes=1024, cleanup_policy="compact") as log:
        for number in range(60):
            log.append(b"value", key=b"%d" % (number % 5))
        reader = make_reader(tmp_path, maxRecordsPerPartition=7)
        splits = splits_of(reader)
        log.compact()
        assert offsets_of(reader, splits) == [record.offset for record in log.read()]
        assert offsets_of(reader) == [record.offset for record in log.read()]


def test_a_writer_half_way_through_a_batch_is_read_up_to_the_one_before(tmp_path: Path) -> None:
    with filled(tmp_path / "orders-0", 50, segment_bytes=1 << 20) as log:
        (segment,) = sorted(log.path.glob("*.log"))
        found = reads_of(log).segment_for(0)
        assert found is not None
        with segment.open("r+b") as file:
            file.seek(found[0].size)
            file.write(data(50, 51)[:70])
        assert offsets_of(make_reader(tmp_path)) == list(range(50))


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.sampled(1)
def test_a_log_in_a_store_reads_as_on_a_disk(with_index: bool) -> None:
    filesystem = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem()
    root = golden_root() / "clean"
    try:
        for name in ("plain-0", "txn-rolled-0", "lz4-0"):
            for file in (root / name).iterdir():
                if with_index or not file.name.endswith("index"):
                    filesystem.pipe_file(f"/logs/{name}/{file.name}", file.read_bytes())
        for name in ("plain-0", "txn-rolled-0" if with_index else "plain-0", "lz4-0"):
            there, here = (make_reader(f"{at}/{name}", maxPartitionBytes=2000) for at in ("memory://logs", root))
            assert record_rows(table_of(there)) == record_rows(table_of(here))
        whole = make_reader("memory://logs", subscribe="plain,lz4", maxPartitionBytes=2000)
        assert len(table_of(whole)) == sum(len(table_of(make_reader(root / name))) for name in ("plain-0", "lz4-0"))
    finally:
        filesystem.store.clear()
        filesystem.pseudo_dirs[:] = [""]


# --- columns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [("offset",), ("topic",), ("partition", "topic"), ("headers", "value"), ("timestampType", "key", "partition")],
)
def test_only_the_columns_that_are_asked_for_come_in_their_order(columns: tuple[str, ...], tmp_path: Path) -> None:
    filled(tmp_path / "orders-3", 25).close()
    everything = table_of(make_reader(tmp_path))
    found = table_of(make_reader(tmp_path, columns=columns))
    assert found.column_names == list(columns)
    assert found.equals(everything.select(columns))


def test_only_the_columns_that_are_asked_for_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "orders-0", 10).close()
    built = []
    inner = Log.to_arrow_batches

    def watched(self: Log, *arguments: Any, **options: Any) -> Any:
        built.append(options["columns"])
        return inner(self, *arguments, **options)

    monkeypatch.setattr(Log, "to_arrow_batches", watched)
    for columns in (("value",), ("topic", "offset"), ("topic", "partition")):
        table_of(make_reader(tmp_path, columns=columns))
    assert built == [("value",), ("offset",), ("offset",)]


def test_what_is_the_same_for_all_records_is_made_once(tmp_path: Path) -> None:
    filled(tmp_path / "orders-0", 100).close()
    reader = make_reader(tmp_path, columns=("topic", "partition", "offset"), batchRows=10)
    found = list(batches(reader))
    assert [batch.num_rows for batch in found] == [10] * 10
    for at in (0, 1):
        assert len({batch.column(at).buffers()[-1].address for batch in found}) == 1


def test_a_batch_costs_what_it_holds_however_many_rows_it_may_have(tmp_path: Path) -> None:
    filled(tmp_path / "orders-0", 100).close()
    columns = ("topic", "partition", "offset")
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        (found,) = batches(make_reader(tmp_path, columns=columns, batchRows=2**31 - 1))
        assert pa.total_allocated_bytes() - before < 100_000
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    assert found.column(0).to_pylist() == ["orders"] * 100
    assert found.column(1).to_pylist() == [0] * 100


def test_batches_are_as_large_as_the_options_say(tmp_path: Path) -> None:
    with Log(tmp_path / "orders-0", durability="os") as log:
        for _ in range(20):
            log.append_many([b"v" * 1000] * 50)
    assert {batch.num_rows for batch in batches(make_reader(tmp_path, batchRows=100))} == {100}
    found = list(batches(make_reader(tmp_path, columns=("value",), batchBytes=10_500)))
    assert sum(batch.num_rows for batch in found) == 1000
    assert max(batch.get_total_buffer_size() for batch in found) <= 10_500


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    with Log(tmp_path / "orders-0", durability="os", segment_bytes=4 << 20) as log:
        for _ in range(48):
            log.append_many([os.urandom(1000)] * 500)
    reader = make_reader(tmp_path, batchBytes="1m")
    splits = splits_of(reader)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        count = 0
        for batch in batches(reader, splits):
            count += batch.num_rows
            del batch
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 24_000
    assert peak < 8 << 20
    assert pa.total_allocated_bytes() - before < 1 << 20


def open_files(below: Path) -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(str(link.readlink()))
    return {name for name in found if name.startswith(str(below))}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc here")
def test_no_file_stays_open_after_a_plan_or_an_iterator_is_dropped(tmp_path: Path) -> None:
    filled(tmp_path / "orders-0", 200).close()
    reader = make_reader(tmp_path, batchRows=10)
    splits = splits_of(reader)
    assert not open_files(tmp_path)
    iterator = reader.read(splits[0])
    next(iterator)
    assert open_files(tmp_path)
    iterator.close()  # type: ignore[attr-defined]
    assert not open_files(tmp_path)


# --- nothing to read --------------------------------------------------------------------------------------------------


def test_of_an_empty_log_there_are_no_splits_and_none_reads_as_nothing(tmp_path: Path) -> None:
    Log(tmp_path / "orders-0").close()
    reader = make_reader(tmp_path)
    assert splits_of(reader) == []
    # Spark passes these if there are no partitions.
    assert list(reader.read(InputPartition(None))) == []
    assert list(reader.read(None)) == []


def test_a_store_without_topics_reads_as_nothing(tmp_path: Path) -> None:
    kstore.open(tmp_path / "store").close()
    assert splits_of(make_reader(tmp_path / "store")) == []


def test_where_nothing_is_the_error_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError, match=r"no log, and no directory of logs.*nowhere"):
        make_reader(tmp_path / "nowhere").partitions()
    with pytest.raises(LogNotFoundError, match=r"nothing matches this pattern.*nowhere"):
        make_reader(tmp_path / "nowhere*").partitions()
    filled(tmp_path / "orders-0", 1).close()
    with pytest.raises(TopicNotFoundError, match="there is no topic payments"):
        make_reader(tmp_path, subscribe="payments").partitions()
    with pytest.raises(NotALogError, match="a file, expected"):
        make_reader(tmp_path / "orders-0" / f"{0:020}.log").partitions()


def test_a_reader_and_its_splits_are_sent_as_plain_values(tmp_path: Path) -> None:
    filled(tmp_path / "orders-0", 30).close()
    reader = make_reader(tmp_path, maxRecordsPerPartition=10, filterPushdown=True)
    list(reader.pushFilters([LessThan(("offset",), 20)]))
    splits = splits_of(reader)
    reader, splits = pickle.loads(pickle.dumps((reader, splits)))
    assert offsets_of(reader, splits) == list(range(20))


# --- timestamps beyond Spark's ----------------------------------------------------------------------------------------

LAST_MS = 9223372036854775


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """A log whose record at offset 4 is later than Spark can say; that at offset 3 is the latest possible."""
    with Log(tmp_path / "orders-0", message_timestamp_after_max_ms=INT64_MAX) as log:
        for timestamp in (1, 2, 3, LAST_MS, LAST_MS + 1, 5):
            log.append(b"value", timestamp=timestamp)
    return tmp_path


def microseconds(table: pa.Table) -> list[int | None]:
    return table.column("timestamp").cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]


EXACT = [1000, 2000, 3000, LAST_MS * 1000]


@pytest.mark.parametrize(
    "columns", [("timestamp",), ("offset", "timestamp"), ("key", "topic", "timestamp", "value")], ids="-".join
)
def test_a_timestamp_that_spark_cannot_hold_is_clamped_with_a_warning_that_names_it(
    far: Path, columns: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert microseconds(table_of(make_reader(far, columns=columns))) == [*EXACT, INT64_MAX, 5000]
    (told,) = [record.message for record in caplog.records if "timestampOutOfRange" in record.message]
    assert "topic orders, partition 0: the record at offset 4" in told
    assert str(LAST_MS + 1) in told
    assert "from the next release on it is an error" in told


def test_the_record_behind_the_warning_is_searched_for_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Log(tmp_path / "orders-0", message_timestamp_after_max_ms=INT64_MAX) as log:
        for _ in range(20):
            log.append(b"value", timestamp=LAST_MS + 1)
    with caplog.at_level(logging.WARNING):
        table = table_of(make_reader(tmp_path, batchRows=2))
    assert microseconds(table) == [INT64_MAX] * 20
    assert sum("timestampOutOfRange" in record.message for record in caplog.records) == 1
    searches: list[int] = []
    timestamps = Timestamps(LogPlace("orders-0", "orders", 0), None)
    for batch in table.select(["timestamp"]).to_batches(max_chunksize=2):
        timestamps.checked(batch, lambda: searches.append(1))
    assert len(searches) == 1


def test_a_timestamp_is_clamped_without_a_word_or_null_if_so_chosen(
    far: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert microseconds(table_of(make_reader(far, timestampOutOfRange="clamp"))) == [*EXACT, INT64_MAX, 5000]
        assert microseconds(table_of(make_reader(far, timestampOutOfRange="NULL"))) == [*EXACT, None, 5000]
    assert "timestamp" not in caplog.text


def test_a_timestamp_that_spark_cannot_hold_is_an_error_if_so_chosen(far: Path) -> None:
    with pytest.raises(InvalidRecordError, match=f"topic orders, partition 0: .* offset 4 .* {LAST_MS + 1} ms"):
        table_of(make_reader(far, timestampOutOfRange="error"))
    rows = table_of(make_reader(far, timestampOutOfRange="error", columns=("offset",)))
    assert rows.num_rows == 6
    with pytest.raises(ConfigError, match="clamp, null, error"):
        make_reader(far, timestampOutOfRange="ignore")


# --- damage -----------------------------------------------------------------------------------------------------------

DAMAGED = golden_partitions("damaged")


@pytest.mark.promise("damage below")
@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("going_on", ["failOnDataLoss", "checkCrcs"])
@pytest.mark.sampled(8)
def test_damage_is_an_error_or_left_out_and_counted(
    name: str, going_on: str, caplog: pytest.LogCaptureFixture, tried: Count
) -> None:
    path = golden_root() / "damaged" / name
    with Log(path, read_only=True) as log:
        reading = log.read(isolation_level="read_committed", on_corrupt="skip")
        expected = [record.offset for record in reading]
        corrupt = reading.corrupt
    cut: dict[str, Any] = {"maxRecordsPerPartition": 10}
    if corrupt:
        with pytest.raises(CorruptBatchError) as caught:
            table_of(make_reader(path, **cut))
        assert str(caught.value).startswith(corrupt[0].path)
        assert f"at position {corrupt[0].position}" in str(caught.value)
        assert "(offsets " in str(caught.value)
        assert "failOnDataLoss" in caught.value.__notes__[0]
    else:
        assert offsets_of(make_reader(path, **cut)) == expected
    with caplog.at_level(logging.WARNING, "kstore.spark.reader"):
        assert offsets_of(make_reader(path, **{**cut, going_on: False})) == expected
    told = [record.message for record in caplog.records if record.name == "kstore.spark.reader"]
    assert bool(told) == bool(corrupt)
    for lost in corrupt:
        assert any(f"{lost.path}: offsets " in line and f"at position {lost.position}" in line for line in told)
    tried("reads", 2)


def test_the_records_in_front_of_damage_come_before_its_error(tmp_path: Path) -> None:
    with filled(tmp_path / "orders-0", 100, segment_bytes=1 << 20) as log:
        (segment,) = log.path.glob("*.log")
        positions = [position for position, batch in walked(log)]
    with segment.open("r+b") as file:
        file.seek(positions[4] + 70)
        file.write(b"\xff\xff\xff")
    reader = make_reader(tmp_path, batchRows=15)
    found: list[int] = []
    with pytest.raises(CorruptBatchError) as caught:
        found.extend(offset for batch in batches(reader) for offset in batch.column("offset").to_pylist())
    assert found == list(range(40))
    assert caught.value.path == str(segment)
    assert caught.value.position == positions[4]
    assert (caught.value.first_offset, caught.value.last_offset) == (40, 49)
    rest = offsets_of(make_reader(tmp_path, failOnDataLoss=False))
    assert rest == [*range(40), *range(50, 100)]


@pytest.mark.parametrize("make", [lost_in_the_middle, fenced])
def test_lost_records_are_an_error_until_their_loss_is_accepted(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path / "orders-0")
    cuts: tuple[dict[str, Any], ...] = ({}, {"maxRecordsPerPartition": 1})
    for cut in cuts:
        with pytest.raises(CorruptBatchError, match="accept_loss"):
            table_of(make_reader(path, **cut))
    with Log(path) as log:
        (gone,) = log.verify().corrupt
        log.accept_loss(gone.first, gone.last)
        expected = [record.offset for record in log.read()]
    for cut in cuts:
        assert offsets_of(make_reader(path, **cut)) == expected


def walked(log: Log) -> Iterator[tuple[int, Any]]:
    found = reads_of(log).segment_for(0)
    assert found is not None
    segment = found[0]
    for item in segment.walk_from(segment.locate(0, segment.size), segment.size):
        assert not isinstance(item, Damage)
        yield item


# --- what goes away between plan and read -----------------------------------------------------------------------------


def test_retention_between_plan_and_read_is_data_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with filled(tmp_path / "orders-0", 100) as log:
        strict, lenient = (
            make_reader(tmp_path, maxRecordsPerPartition=30, failOnDataLoss=how) for how in (True, False)
        )
        splits = splits_of(strict)
        log.delete_records(45)
        with pytest.raises(DataLossError, match=r"failOnDataLoss.*\[0, 30\).*orders-0.*starts at offset 45"):
            table_of(strict, splits)
        with caplog.at_level(logging.WARNING, "kstore.spark.reader"):
            assert offsets_of(lenient, splits) == list(range(45, 100))
        told = [record.message for record in caplog.records if record.name == "kstore.spark.reader"]
        assert ["[0, 25)" in told[0] or "[0, 30)" in told[0], len(told)] == [True, 2]
        # Planned again, nothing is missing.
        assert offsets_of(strict) == list(range(45, 100))


def test_retention_in_the_middle_of_a_read_is_data_loss(tmp_path: Path) -> None:
    for how in (True, False):
        with filled(tmp_path / f"{how}" / "orders-0", 400, segment_bytes=1024) as log:
            reader = make_reader(log.path, batchRows=10, failOnDataLoss=how)
            (split,) = splits_of(reader)
            found = []
            failure: Exception | None = None
            try:
                for batch in reader.read(split):
                    found += batch.column("offset").to_pylist()
                    if found[-1] >= 100 and log.start_offset == 0:
                        log.delete_records(300)
            except DataLossError as error:
                failure = error
            assert (failure is not None) == how
            assert found == sorted(set(found))
            if not how:
                assert found[-100:] == list(range(300, 400))


def test_a_log_that_was_cut_or_removed_since_the_plan_is_data_loss(tmp_path: Path) -> None:
    with filled(tmp_path / "orders-0", 100) as log:
        strict, lenient = (make_reader(tmp_path, failOnDataLoss=how) for how in (True, False))
        splits = splits_of(strict)
        log.truncate_to(60)
        with pytest.raises(DataLossError, match="ends at offset 60"):
            table_of(strict, splits)
        assert offsets_of(lenient, splits) == list(range(60))
    shutil.rmtree(tmp_path / "orders-0")
    with pytest.raises(DataLossError, match="the log is gone"):
        table_of(strict, splits)
    assert offsets_of(lenient, splits) == []


def test_a_password_in_a_url_is_in_no_error(caplog: pytest.LogCaptureFixture) -> None:
    place = LogPlace("memory://user:secret@host/gone/orders-0", "orders", 0)
    split = Split([SplitPiece(place, 0, 10)])
    with pytest.raises(DataLossError, match="at memory://user@host/gone/orders-0: the log is gone") as caught:
        table_of(make_reader(Path("/")), [split])
    assert "secret" not in str(caught.value)
    assert offsets_of(make_reader(Path("/"), failOnDataLoss=False), [split]) == []
    assert "user@host" in caplog.text
    assert "secret" not in caplog.text


# --- filters ----------------------------------------------------------------------------------------------------------


def read_offsets(splits: list[Split]) -> int:
    return sum(split.offset_count for split in splits)


def test_filters_on_offsets_bound_what_is_read(tmp_path: Path) -> None:
    filled(tmp_path / "orders-0", 1000).close()
    reader = make_reader(tmp_path, filterPushdown=True)
    filters = [GreaterThanOrEqual(("offset",), 500), LessThan(("offset",), 510)]
    assert [id(each) for each in reader.pushFilters(list(filters))] == [id(each) for each in filters]
    splits = splits_of(reader)
    assert read_offsets(splits) == 10
    assert offsets_of(reader, splits) == list(range(500, 510))


def test_records_that_are_cut_while_a_task_reads_are_missed(tmp_path: Path) -> None:
    log = filled(tmp_path / "orders-0", 400)
    reader = make_reader(tmp_path, batchRows=50)
    (split,) = splits_of(reader)
    found = reader.read(split)
    assert next(found).column("offset").to_pylist()[0] == 0
    log.truncate_to(200)
    with pytest.raises(DataLossError, match=r"the log ends at offset 200"):
        list(found)
    log.close()


def test_filters_that_nothing_passes_open_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in range(3):
        filled(tmp_path / f"orders-{partition}", 10).close()
    other: list[Filter] = [EqualTo(("topic",), "other")]
    contradiction: list[Filter] = [EqualTo(("offset",), 5), EqualTo(("offset",), 6)]
    for filters in (other, contradiction):
        reader = make_reader(tmp_path, filterPushdown=True)
        list(reader.pushFilters(filters))
        with monkeypatch.context() as patched:
            patched.setattr("kstore.spark.holdings.open_at", None)
            assert splits_of(reader) == []
    reader = make_reader(tmp_path, filterPushdown=True)
    list(reader.pushFilters([EqualTo(("partition",), 1)]))
    assert table_of(reader).column("partition").unique().to_pylist() == [1]


def test_a_filter_on_time_begins_at_the_first_record_that_is_late_enough(tmp_path: Path) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    begin_ms = int(begin.timestamp() * 1000)
    with Log(tmp_path / "orders-0", segment_bytes=2000, durability="os") as log:
        for hour in range(100):
            # Now and then an early record comes late.
            early = 50 if hour % 10 == 9 else 0
            log.append_many([b"v"] * 2, timestamps=[begin_ms + 3_600_000 * (hour - early)] * 2)
    moment = begin + timedelta(hours=70)
    everything = table_of(make_reader(tmp_path))
    reader = make_reader(tmp_path, filterPushdown=True)
    list(reader.pushFilters([GreaterThanOrEqual(("timestamp",), moment)]))
    found = table_of(reader)
    assert len(found) < len(everything) / 2

    def late(table: pa.Table) -> list[int]:
        return [row["offset"] for row in table.to_pylist() if row["timestamp"] >= moment]

    assert late(found) == late(everything) != []
    list(reader.pushFilters([GreaterThanOrEqual(("timestamp",), begin + timedelta(days=50))]))
    assert splits_of(reader) == []


def test_filters_are_not_taken_unless_the_user_asks_for_it(tmp_path: Path) -> None:
    filled(tmp_path / "orders-0", 100).close()
    reader = make_reader(tmp_path)
    filters: list[Filter] = [LessThan(("offset",), 20)]
    # To Spark this is a reader without filters, like a class without the method.
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    assert reader.pushFilters(filters) == filters
    assert offsets_of(reader) == list(range(100))
