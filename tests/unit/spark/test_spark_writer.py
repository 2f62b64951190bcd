"""The sink without a session: what tasks stage, what the driver commits, and what is refused."""

from __future__ import annotations

import os
import pickle
import random
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DoubleType, StructField, StructType

from kstore.errors import (
    ConfigError,
    CorruptFileError,
    FileMissingError,
    InvalidRecordError,
    KstoreError,
    LockedError,
    LogNotFoundError,
    NotALogError,
    RecordTooLargeError,
    StorageError,
    TopicNotFoundError,
)
from kstore.log import Log
from kstore.producer.partitioner import partition_for_key
from kstore.record._codec import Record
from kstore.record.scan import parse_batches
from kstore.spark.commit import BATCH_ID, group_of
from kstore.spark.staging import writer_hash
from kstore.spark.writer import KStoreStreamWriter, KStoreWriter
from kstore.store import Store, coordinator_of
from kstore.upkeep.verify import verify_log
from tests.support.harness.selection import tries
from tests.support.lives.spark_sink import (
    QUERY,
    as_task,
    batch_of,
    committed_values,
    schema_of,
    staged_names,
    stream_batch,
    stream_commit,
    write_batch,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a topic of three partitions, closed."""
    path = tmp_path / "store"
    with Store(path, background=False) as store:
        store.create_topic("orders", 3)
    return path


def options(path: Path, **more: str) -> dict[str, str]:
    # In lower case, as from Spark.
    return {
        name.lower(): text for name, text in {"path": str(path), "topic": "orders", "lockTimeout": "0", **more}.items()
    }


def all_values(path: Path, topic: str = "orders") -> list[bytes]:
    return sorted(value for values in committed_values(path, topic).values() for value in values if value is not None)


def records(path: Path, topic: str = "orders") -> list[Record]:
    with Store(path, read_only=True) as store:
        return [record for number in store.partitions(topic) for record in store.log(topic, number).read()]


# --- batch ------------------------------------------------------------------------------------------------------------


def test_a_batch_write_is_there_as_a_whole(path: Path) -> None:
    rows = batch_of(
        [b"a", b"b", None],
        key=[b"k1", b"k2", None],
        headers=[[{"key": "trace", "value": b"1"}], None, []],
        timestamp=[1_000_000, None, 2_000_999],
    )
    write_batch(options(path), [rows, rows.slice(0, 0)])
    found = {record.value: record for record in records(path)}
    assert found.keys() == {b"a", b"b", None}
    assert (found[b"a"].key, found[b"a"].timestamp, found[b"a"].headers) == (b"k1", 1000, (("trace", b"1"),))
    assert found[None].timestamp == 2000
    assert staged_names(path) == []


def test_keys_go_to_kafkas_partitions_and_keep_their_order(path: Path) -> None:
    keys = [b"key-%d" % (number % 50) for number in range(1000)]
    values = [b"%06d" % number for number in range(1000)]
    write_batch(options(path), [batch_of(values[at : at + 250], key=keys[at : at + 250]) for at in range(0, 1000, 250)])
    found = committed_values(path)
    for partition in range(3):
        expected = [value for key, value in zip(keys, values, strict=True) if partition_for_key(key, 3) == partition]
        assert found[partition] == expected


def test_nothing_is_there_before_the_commit_nor_after_an_abort(path: Path) -> None:
    messages = write_batch(options(path), [batch_of([b"a"])], commit=False)
    assert all_values(path) == []
    assert len(staged_names(path)) == 1
    KStoreWriter(schema_of(), options(path), False).abort([*messages, None])
    assert staged_names(path) == []
    assert all_values(path) == []


def test_a_task_that_fails_leaves_nothing(path: Path) -> None:
    writer = KStoreWriter(schema_of(), options(path, batchBytes="1k"), False)

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch_of([b"x" * 1000 for _ in range(3000)])
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError), as_task():
        writer.write(rows())
    assert staged_names(path) == []


def test_rows_name_their_topic_and_partition(path: Path) -> None:
    with Store(path, background=False) as store:
        store.create_topic("other")
    rows = batch_of([b"a", b"b", b"c"], topic=["orders", "other", "orders"], partition=[2, None, 0])
    write_batch({"path": str(path)}, [rows])
    assert committed_values(path) == {0: [b"c"], 1: [], 2: [b"a"]}
    assert committed_values(path, "other") == {0: [b"b"]}


def test_the_option_topic_wins_over_the_column(path: Path) -> None:
    write_batch(options(path), [batch_of([b"a"], topic=["other"])])
    assert all_values(path) == [b"a"]


def test_topics_are_made_with_as_many_partitions_as_the_option_says(path: Path, tmp_path: Path) -> None:
    write_batch(options(path, topic="new", partitions="2"), [batch_of([b"a"])])
    write_batch({"path": str(path), "partitions": "4"}, [batch_of([b"b"], topic=["newer"])])
    write_batch(options(tmp_path / "fresh", partitions="5"), [batch_of([b"c"])])
    assert len(committed_values(path, "new")) == 2
    assert len(committed_values(path, "newer")) == 4
    assert len(committed_values(tmp_path / "fresh")) == 5
    assert all_values(path, "newer") == [b"b"]


def test_a_topic_that_is_not_there_is_an_error_that_names_the_option(path: Path, tmp_path: Path) -> None:
    with pytest.raises(TopicNotFoundError, match=r"no topic 'new' in .* set the option partitions"):
        KStoreWriter(schema_of(), options(path, topic="new"), False)
    with pytest.raises(TopicNotFoundError, match="no topic 'new'"):
        write_batch({"path": str(path)}, [batch_of([b"a"], topic=["new"])])
    with pytest.raises(LogNotFoundError, match="no store: set the option partitions"):
        KStoreWriter(schema_of(), options(tmp_path / "nowhere"), False)
    assert not (tmp_path / "nowhere").exists()


def test_a_null_topic_an_internal_one_and_a_strange_partition_are_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"null topic present in the data. Use the topic option"):
        write_batch({"path": str(path)}, [batch_of([b"a", b"b"], topic=["orders", None])])
    for name in ("__consumer_offsets", "../x"):
        with pytest.raises(ConfigError, match="topic"):
            write_batch({"path": str(path), "partitions": "1"}, [batch_of([b"a"], topic=[name])])
    with pytest.raises(InvalidRecordError, match="row 0: partition 3, and the topic has 0 to 2"):
        write_batch(options(path), [batch_of([b"a"], partition=[3])])
    assert staged_names(path) == []


def test_batches_are_made_as_the_topic_wants_them(path: Path) -> None:
    with Store(path, background=False) as store:
        store.create_topic("packed", compression_type="zstd", max_message_bytes=2000)
        store.create_topic("stamped", message_timestamp_type="LogAppendTime")
    write_batch(options(path, topic="packed", batchBytes="1m"), [batch_of([b"x" * 100] * 200)])
    write_batch(options(path, topic="orders", compressionType="lz4"), [batch_of([b"x" * 100] * 200)])
    write_batch(options(path, topic="stamped"), [batch_of([b"x"], timestamp=[1_000_000])])
    with Store(path, read_only=True) as store:
        fetched = list(store.log("packed").fetch(0, 1 << 20).batches())
        assert {batch.codec for batch in fetched if not batch.is_control} == {"zstd"}
        assert len(fetched) > 10
        assert next(iter(store.log("stamped").read())).timestamp_type == "LogAppendTime"
        assert [batch.codec for batch in store.log("orders", 0).fetch(0, 1 << 20).batches()] == ["lz4", "none"]
    with pytest.raises(RecordTooLargeError, match="row 1 in a batch of its own"):
        write_batch(options(path, topic="packed"), [batch_of([b"", b"x" * 2000])])


def test_a_batch_write_with_a_version_is_there_once(path: Path) -> None:
    named = options(path, txnAppId="nightly", txnVersion="7")
    for _ in range(2):
        write_batch(named, [batch_of([b"a"])])
    write_batch(options(path, txnAppId="nightly", txnVersion="6"), [batch_of([b"older"])])
    write_batch(options(path, txnAppId="nightly", txnVersion="8"), [batch_of([b"b"])])
    write_batch(options(path, txnAppId="other", txnVersion="7"), [batch_of([b"c"])])
    assert all_values(path) == [b"a", b"b", b"c"]
    assert staged_names(path) == []
    with Store(path, read_only=True) as store:
        assert coordinator_of(store).committed(group_of("nightly"))[BATCH_ID].offset == 8


def test_batch_writes_without_a_version_are_all_there(path: Path) -> None:
    for _ in range(3):
        write_batch(options(path), [batch_of([b"a"])])
    assert all_values(path) == [b"a"] * 3


def test_a_writer_is_pickled_with_its_plan(path: Path) -> None:
    writer = pickle.loads(pickle.dumps(KStoreWriter(schema_of(), options(path), False)))
    with as_task():
        message = writer.write(iter([batch_of([b"a"])]))
    pickle.loads(pickle.dumps(writer)).commit([pickle.loads(pickle.dumps(message))])
    assert all_values(path) == [b"a"]


def test_large_writes_come_in_several_appends(path: Path) -> None:
    values = [b"%08d" % number + b"x" * 992 for number in range(20_000)]
    write_batch(options(path), [batch_of(values[:10_000]), batch_of(values[10_000:])])
    assert all_values(path) == sorted(values)


# --- what the driver decodes ------------------------------------------------------------------------------------------


def never(*_: object, **__: object) -> None:
    raise AssertionError("decoded")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_driver_decodes_no_record(codec: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has the same bytes as if it had: those of ``append_batches``."""
    values = [b"%06d" % number * 9 for number in range(3000)]
    rows = batch_of(values, key=values, timestamp=[1_700_000_000_000_000 + number % 77 for number in range(3000)])
    other = Path(shutil.copytree(path, path.with_name("other")))
    for place, name in (
        (path, "kstore.rules.validate.check_records"),
        (other, "kstore.engine.over.foreign.are_timely"),
    ):
        given = options(place, compressionType=codec, batchBytes="4k")
        messages = write_batch(given, [rows], commit=False)
        with monkeypatch.context() as patched:
            patched.setattr(name, never if place == path else lambda *_: False)
            KStoreWriter(schema_of(), given, False).commit(messages)
    assert all_values(path) == values
    for number in range(3):
        logs = [each / f"orders-{number}" / f"{0:020}.log" for each in (path, other)]
        ours, theirs = (each.read_bytes() for each in logs)
        assert [bytes(batch.data) for batch in parse_batches(ours) if not batch.is_control] == [
            bytes(batch.data) for batch in parse_batches(theirs) if not batch.is_control
        ]
        for suffix in ("index", "timeindex"):
            ours, theirs = (each.with_suffix(f".{suffix}").read_bytes() for each in logs)
            # The last entry of times is that of the marker.
            assert ours[:-12] == theirs[:-12]
    with Store(path, read_only=True) as store:
        for number in range(3):
            assert verify_log(store.log("orders", number).path).damages == []


@pytest.mark.parametrize(
    ("settings", "columns", "error"),
    [
        ({"cleanup_policy": "compact"}, {"key": [b"k", None]}, "record 0: no key, which a compacted log needs"),
        ({"cleanup_policy": "compact"}, {}, "record 0: no key, which a compacted log needs"),
        (
            {"message_timestamp_before_max_ms": 1000},
            {"timestamp": [1_000_000, None]},
            "record 0: timestamp 1000 ms, expected",
        ),
        ({"max_message_bytes": 100}, {}, "over the limit of 100 bytes"),
    ],
    ids=["a key is missing", "all keys are missing", "too old", "too large"],
)
def test_what_a_log_refuses_is_refused_with_the_record(
    settings: dict[str, Any], columns: dict[str, list[Any]], error: str, path: Path
) -> None:
    """The topic has been changed since the tasks looked at it, so that only the commit can find out."""
    messages = write_batch(options(path), [batch_of([b"x" * 100, b"y" * 100], **columns)], commit=False)
    with Store(path, background=False) as store:
        store.alter_topic("orders", **settings)
    with pytest.raises(KstoreError, match=error):
        KStoreWriter(schema_of(), options(path), False).commit(messages)
    assert all_values(path) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"cleanup_policy": "compact"},
        {"message_timestamp_before_max_ms": 1000},
        {"message_timestamp_type": "LogAppendTime"},
        {"compression_type": "zstd"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_a_log_accepts_is_there(settings: dict[str, Any], path: Path) -> None:
    messages = write_batch(options(path), [batch_of([b"a", None], key=[b"k", b"l"])], commit=False)
    with Store(path, background=False) as store:
        store.alter_topic("orders", **settings)
    before_ms = time.time() * 1000
    KStoreWriter(schema_of(), options(path), False).commit(messages)
    found = records(path)
    assert sorted(each.value or b"" for each in found) == [b"", b"a"]
    if "message_timestamp_type" in settings:
        assert all(each.timestamp_type == "LogAppendTime" and each.timestamp >= int(before_ms) for each in found)


# --- overwrite --------------------------------------------------------------------------------------------------------


def test_an_overwrite_is_refused_unless_it_is_confirmed(path: Path) -> None:
    with pytest.raises(ConfigError, match=r'mode\("overwrite"\) would delete every record .* set to "truncate"'):
        KStoreWriter(schema_of(), options(path), True)
    with pytest.raises(ConfigError, match=r'outputMode\("complete"\) would delete'):
        KStoreStreamWriter(schema_of(), options(path), True)


def test_an_overwrite_leaves_only_what_it_wrote(path: Path) -> None:
    write_batch(options(path), [batch_of([b"old %d" % number], partition=[number]) for number in range(3)])
    write_batch(options(path, overwrite="truncate"), [batch_of([b"new"], partition=[1])], overwrite=True)
    assert committed_values(path) == {0: [], 1: [b"new"], 2: []}
    write_batch(options(path, overwrite="truncate"), [batch_of([])], overwrite=True)
    assert all_values(path) == []


def test_a_repeated_overwrite_deletes_no_more_than_the_first(path: Path) -> None:
    write_batch(options(path), [batch_of([b"old"])])
    named = options(path, overwrite="truncate", txnAppId="job", txnVersion="1")
    write_batch(named, [batch_of([b"new"])], overwrite=True)
    write_batch(options(path), [batch_of([b"newer"])])
    write_batch(named, [batch_of([b"again"])], overwrite=True)
    assert all_values(path) == [b"new", b"newer"]


def test_an_overwrite_that_dies_after_its_decision_deletes_the_old_when_it_is_repeated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batch(options(path), [batch_of([b"old"])])
    named = options(path, overwrite="truncate", txnAppId="job", txnVersion="1")

    def dies(store: Store, boundaries: object) -> None:
        raise StorageError(None, "the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr("kstore.spark.commit._delete_before", dies)
        with pytest.raises(StorageError):
            write_batch(named, [batch_of([b"new"])], overwrite=True)
    assert all_values(path) == [b"new", b"old"]
    write_batch(named, [batch_of([b"new"])], overwrite=True)
    assert all_values(path) == [b"new"]
    assert staged_names(path) == []


def test_a_write_of_more_tasks_than_files_may_be_open_is_committed(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    tasks = [batch_of([b"%d" % number] * 3, partition=[0, 1, 2]) for number in range(100)]
    messages = write_batch(options(path), tasks, commit=False)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/dev/fd").iterdir())) + 60, hard))
    try:
        KStoreWriter(schema_of(), options(path), False).commit(messages)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert committed_values(path) == {number: [b"%d" % task for task in range(100)] for number in range(3)}


def test_seconds_as_double_are_times(path: Path) -> None:
    frame = pa.record_batch(
        {"value": pa.array([b"a", b"b", b"c"]), "timestamp": pa.array([1.5, None, 1_100_000_000.001], pa.float64())}
    )
    schema = StructType([StructField("value", BinaryType()), StructField("timestamp", DoubleType())])
    writer = KStoreWriter(schema, options(path), False)
    with as_task():
        writer.commit([writer.write(iter([frame]))])
    times = {record.value: record.timestamp for record in records(path)}
    assert times[b"a"] == 1500
    assert times[b"b"] > 1_700_000_000_000
    # As a double it is slightly less.
    assert times[b"c"] == 1_100_000_000_001


# --- stream -----------------------------------------------------------------------------------------------------------


def test_a_streams_batch_is_there_once_however_often_it_is_committed(path: Path) -> None:
    for batch_id in range(3):
        messages = stream_batch(
            options(path), batch_id, [batch_of([b"%d-a" % batch_id]), batch_of([b"%d-b" % batch_id])]
        )
        stream_commit(options(path), batch_id, messages)
        # Spark died before noting the commit: the same batch comes again, staged again or not.
        stream_commit(options(path), batch_id, messages)
        stream_commit(options(path), batch_id, stream_batch(options(path), batch_id, [batch_of([b"%d-a" % batch_id])]))
    assert all_values(path) == [b"0-a", b"0-b", b"1-a", b"1-b", b"2-a", b"2-b"]
    assert staged_names(path) == []


def test_another_query_has_batches_of_its_own_unless_it_takes_the_name(path: Path) -> None:
    def write(query: str, value: bytes, **more: str) -> None:
        given = options(path, **more)
        stream_commit(given, 0, stream_batch(given, 0, [batch_of([value])], query=query))

    write(QUERY, b"a")
    write("another", b"b")
    write("first", b"c", txnAppId="app")
    write("second", b"dropped", txnAppId="app")
    assert all_values(path) == [b"a", b"b", b"c"]


def test_a_batch_without_rows_or_messages_is_nothing(path: Path) -> None:
    stream_commit(options(path), 0, [])
    stream_commit(options(path), 1, stream_batch(options(path), 1, [batch_of([]), batch_of([])]))
    stream_commit(options(path), 2, stream_batch(options(path), 2, [batch_of([]), batch_of([b"a"])]))
    assert all_values(path) == [b"a"]


def test_a_zombies_late_batch_is_dropped_and_its_files_removed(path: Path) -> None:
    late = stream_batch(options(path), 1, [batch_of([b"1"])], attempt=5)
    for batch_id in range(3):
        stream_commit(options(path), batch_id, stream_batch(options(path), batch_id, [batch_of([b"%d" % batch_id])]))
    # A later batch's sweep removed the file, which is no longer needed.
    assert staged_names(path) == []
    stream_commit(options(path), 1, late)
    assert all_values(path) == [b"0", b"1", b"2"]


def test_orphans_are_swept_by_their_batch_and_by_their_age(path: Path) -> None:
    stream_batch(options(path), 3, [batch_of([b"speculation"])], attempt=9)
    stream_batch(options(path), 4, [batch_of([b"of a later batch"])])
    stream_batch(options(path), 0, [batch_of([b"another's, young"])], query="another")
    stream_batch(options(path), 0, [batch_of([b"another's, old"])], query="old")
    old = next(name for name in staged_names(path) if writer_hash("old") in name)
    os.utime(path / old, (1_000_000, 1_000_000))
    (path / "kstore.staged-not-one.tmp").write_bytes(b"")
    stream_commit(options(path), 3, stream_batch(options(path), 3, [batch_of([b"a"])]))
    left = staged_names(path)
    assert len(left) == 2
    assert any(f"{writer_hash(QUERY)}-4-" in name for name in left)
    assert any(writer_hash("another") in name for name in left)
    assert (path / "kstore.staged-not-one.tmp").exists()
    assert all_values(path) == [b"a"]


def test_a_complete_mode_leaves_the_last_batch_only(path: Path) -> None:
    given = options(path, overwrite="truncate")
    for batch_id in range(3):
        messages = stream_batch(given, batch_id, [batch_of([b"%d" % batch_id], partition=[0])], overwrite=True)
        stream_commit(given, batch_id, messages, overwrite=True)
    assert committed_values(path) == {0: [b"2"], 1: [], 2: []}


def test_a_task_that_does_not_know_its_batch_is_refused(path: Path) -> None:
    writer = KStoreStreamWriter(schema_of(), options(path), False)
    with pytest.raises(ConfigError, match="which batch of which query"), as_task():
        writer.write(iter([batch_of([b"a"])]))


# --- other writers ----------------------------------------------------------------------------------------------------


def test_a_store_that_an_application_has_open_is_locked_before_any_task_runs(path: Path) -> None:
    messages = stream_batch(options(path), 0, [batch_of([b"a"])])
    with Store(path, background=False):
        for call in (
            lambda: KStoreWriter(schema_of(), options(path), False),
            lambda: stream_commit(options(path), 0, messages),
            lambda: KStoreWriter(schema_of(), options(path, topic="new", partitions="1"), False),
        ):
            with pytest.raises(LockedError, match=r"locked by .*Spark write needs the store .* \(waited 0 ms"):
                call()
    stream_commit(options(path), 0, messages)
    assert all_values(path) == [b"a"]


def test_a_commit_waits_for_the_lock_as_long_as_requested(path: Path) -> None:
    writer = KStoreWriter(schema_of(), options(path, lockTimeout="1m"), False)
    with as_task():
        message = writer.write(iter([batch_of([b"a"])]))
    holder = Store(path, background=False)
    closing = threading.Timer(0.3, holder.close)
    closing.start()
    writer.commit([message])
    closing.join()
    assert all_values(path) == [b"a"]


def test_readers_and_applications_find_a_store_in_order_and_go_on_with_it(path: Path) -> None:
    write_batch(options(path), [batch_of([b"a"])])
    with Store(path, background=False) as store:
        assert store.ignored == []
        store.log("orders", 0).append(b"by an application")
        with store.producer(transactional_id="spark") as producer, producer.transaction():
            producer.send("orders", b"by a producer", partition=1)
    write_batch(options(path), [batch_of([b"b"])])
    assert all_values(path) == [b"a", b"b", b"by a producer", b"by an application"]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_staged_file_that_the_driver_does_not_see_is_said_so(path: Path) -> None:
    messages = write_batch(options(path), [batch_of([b"a"]), batch_of([b"b"])], commit=False)
    (path / staged_names(path)[0]).unlink()
    with pytest.raises(
        FileMissingError, match=r"the driver on .* cannot see what an executor on .* has staged: the store"
    ):
        KStoreWriter(schema_of(), options(path), False).commit(messages)
    assert all_values(path) == []


def test_an_executor_that_sees_no_store_or_another_is_refused(path: Path, tmp_path: Path) -> None:
    writer = KStoreWriter(schema_of(), options(path), False)
    shutil.move(path, tmp_path / "elsewhere")
    with pytest.raises(LogNotFoundError, match=r"the executor on .* does not see the store: .* share"), as_task():
        writer.write(iter([batch_of([b"a"])]))
    with Store(path, background=False) as store:
        store.create_topic("orders", 3)
    with pytest.raises(StorageError, match="sees another store than the driver"), as_task():
        writer.write(iter([batch_of([b"a"])]))


def test_a_path_that_is_no_store_is_refused(path: Path, tmp_path: Path) -> None:
    with Log(tmp_path / "one-0") as log:
        log.append(b"a")
    with pytest.raises(NotALogError, match="one log, expected a directory of logs"):
        KStoreWriter(schema_of(), options(tmp_path / "one-0"), False)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(KstoreError):
        KStoreWriter(schema_of(), options(tmp_path / "file"), False)


@pytest.mark.promise("hostile file")
def test_a_staged_file_that_was_changed_is_never_committed(
    path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    values = [b"%06d" % number for number in range(300)]
    chance = random.Random(seed)
    messages = write_batch(options(path, batchBytes="1k"), [batch_of(values)], commit=False)
    staged = path / staged_names(path)[0]
    whole = staged.read_bytes()
    writer = KStoreWriter(schema_of(), options(path), False)
    damaged = [whole[: chance.randrange(len(whole))], whole + b"x", b"", bytes(len(whole))]
    for _ in range(tries(20, quick=4)):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        damaged.append(bytes(flipped))
    for data in damaged:
        staged.write_bytes(data)
        with pytest.raises(CorruptFileError, match="staged"):
            writer.commit(messages)
        tried("flips", 1)
        assert all_values(path) == []
    staged.unlink()
    staged.symlink_to("/etc/passwd")
    with pytest.raises(KstoreError):
        writer.commit(messages)
    staged.unlink()
    staged.write_bytes(whole)
    writer.commit(messages)
    assert all_values(path) == values


@pytest.mark.promise("hostile file")
def test_a_message_that_names_another_file_or_lies_about_it_is_refused(path: Path, tmp_path: Path) -> None:
    message = write_batch(options(path), [batch_of([b"a"])], commit=False)[0]
    assert message.file is not None
    writer = KStoreWriter(schema_of(), options(path), False)
    (tmp_path / "secret").write_bytes(b"x")
    other = write_batch(options(path), [batch_of([b"other"])], commit=False)[0]
    assert other.file is not None
    for file in (
        message.file._replace(name="../secret"),
        message.file._replace(name="meta.properties"),
        message.file._replace(name=other.file.name),
        message.file._replace(size=message.file.size - 1),
        message.file._replace(head_size=message.file.head_size - 1),
        message.file._replace(head_crc=message.file.head_crc ^ 1),
    ):
        with pytest.raises(CorruptFileError):
            writer.commit([type(message)(message.writer_id, file)])
        assert all_values(path) == []
    with pytest.raises(ConfigError, match="earlier release"):
        writer.commit([type(message)(message.writer_id, message.file._replace(record_count=-1))])


def test_a_partition_that_is_gone_since_the_tasks_looked_is_an_error(path: Path) -> None:
    messages = write_batch(options(path), [batch_of([b"a"], partition=[2])], commit=False)
    with Store(path, background=False) as store:
        store.delete_topic("orders")
        store.create_topic("orders", 2)
    with pytest.raises(TopicNotFoundError, match="no partition 2: it has changed"):
        KStoreWriter(schema_of(), options(path), False).commit(messages)
    assert all_values(path) == []
