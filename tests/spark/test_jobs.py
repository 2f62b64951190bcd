"""The jobs with a session: on a broker's logs, on a kstore store, and one by ``spark-submit``."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PythonException

import kstore
import kstore.spark.jobs
import kstore.upkeep.verify
from kstore.producer.partitioner import partition_for_key
from kstore.spark.java import java_home
from kstore.spark.jobs import rebuild_indexes, stats, verify
from kstore.spark.jobs.compact import compact, compact_into
from kstore.spark.jobs.export import ExportOptions, export
from kstore.spark.jobs.export import main as export_main
from kstore.spark.jobs.export_state import STATE_DIRECTORY
from kstore.spark.jobs.repartition import repartition
from kstore.spark.jobs.verify import main as verify_main
from kstore.types import INT64_MAX
from kstore.upkeep.stats import log_stats
from tests.support.harness.golden_data import copy_partition, golden_partitions, golden_root
from tests.support.lives.log_helpers import TIME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Some jobs are deprecated.
pytestmark = pytest.mark.filterwarnings(r"ignore:kstore\.spark\.jobs\..* will be removed:DeprecationWarning")

MINUTE_MS = 60_000
Row = tuple[str, int, int, bytes | None, bytes | None]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("jobs") / "store")


def make_store(path: Path, count: int = 3000) -> Path:
    """A topic of three partitions: records with and without keys, tombstones, and aborted transactions."""
    with kstore.open(path, segment_bytes=6_000, durability="os") as opened:
        opened.create_topic("orders", 3)
        with opened.producer(transactional_id="one", compression_type="lz4") as producer:
            producer.init_transactions()
            for number in range(count):
                if number % 100 == 0:
                    producer.begin_transaction()
                key = None if number % 10 == 3 else b"key-%d" % (number * 7919 % 61)
                value = None if number % 50 == 7 else b"%d" % number * 5
                producer.send(
                    "orders", value, key=key, timestamp=TIME + number * MINUTE_MS, headers=[("n", b"%d" % number)]
                )
                if number % 100 == 99:
                    producer.flush()
                    if number % 700 == 599:
                        producer.abort_transaction()
                    else:
                        producer.commit_transaction()
    return path


def read(store: Path) -> list[Row]:
    """All committed records of a store."""
    rows: list[Row] = []
    with kstore.open(store, read_only=True) as opened:
        for topic in opened.topics():
            for partition in opened.partitions(topic):
                for record in opened.log(topic, partition).read(isolation_level="read_committed"):
                    rows.append((topic, partition, record.offset, record.key, record.value))
    return rows


def consumed(tree: str) -> list[Row]:
    """The committed records that Kafka's consumer read from topics that are not internal."""
    rows: list[Row] = []
    directory = golden_root() / f"{tree}.consumed"
    for name in golden_partitions(tree):
        if name.startswith("__"):
            continue
        path = directory / f"{name}.read_committed.jsonl"
        lines = (path if path.exists() else directory / f"{name}.jsonl").read_text().splitlines()
        topic, _, partition = name.rpartition("-")
        for line in lines[1:]:
            record = json.loads(line)
            rows.append((topic, int(partition), record["offset"], _bytes(record["key"]), _bytes(record["value"])))
    return rows


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def table(spark: SparkSession, out: Path) -> list[Row]:
    """What Spark reads from an export."""
    found = spark.read.parquet(str(out)).select("topic", "partition", "offset", "key", "value").collect()
    return [
        (
            row["topic"],
            row["partition"],
            row["offset"],
            None if row["key"] is None else bytes(row["key"]),
            None if row["value"] is None else bytes(row["value"]),
        )
        for row in found
    ]


# --- verify -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_verify_tells_damage_as_a_dataframe_and_by_its_exit_status(
    spark: SparkSession, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    assert verify_main([str(copy)]) == 0
    capsys.readouterr()
    file = sorted((copy / "orders-1").glob("*.log"))[0]
    data = bytearray(file.read_bytes())
    data[100] ^= 4
    file.write_bytes(data)
    sorted((copy / "orders-2").glob("*.index"))[0].unlink()
    report = tmp_path / "report"
    assert verify_main(["--report", str(report), str(copy)]) == 1
    text = capsys.readouterr().out
    assert f"damage: {file} at position 0, offset" in text
    rows = spark.read.parquet(str(report / "findings")).where("severity = 'damage'").collect()
    found = {(row["kind"], row["path"]): row for row in rows}
    damage = found.pop(("batch", str(file)))
    assert (damage["position"], damage["first_offset"]) == (0, 0)
    ((kind, path),) = found
    assert kind == "index"
    assert path.endswith(".index")
    segments = spark.read.parquet(str(report / "segments"))
    assert segments.count() == len(list(copy.glob("*/*.log")))


@pytest.mark.long
def test_verify_of_broker_s_logs_finds_what_one_process_finds(spark: SparkSession) -> None:
    roots = [golden_root() / tree for tree in ("clean", "damaged")]
    result = verify.verify(spark, [str(root) for root in roots])
    expected = [finding for root in roots for log in kstore.upkeep.verify.verify(root) for finding in log.findings]
    assert sorted(finding for _, finding in result.findings) == sorted(expected)
    assert result.report.where("severity = 'damage'").count() == sum(each.severity == "damage" for each in expected)


# --- export -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_export_of_a_broker_s_directory_is_what_kafka_s_consumer_read(spark: SparkSession, tmp_path: Path) -> None:
    done = export(spark, [str(golden_root() / "clean")], str(tmp_path / "out"))
    expected = consumed("clean")
    assert done.records == len(expected)
    assert Counter(table(spark, tmp_path / "out")) == Counter(expected)


@pytest.mark.long
def test_export_by_hour_is_a_table_with_date_and_hour(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export_main(["--by", "hour", str(store), str(out)]) == 0
    frame = spark.read.parquet(str(out))
    assert dict(frame.dtypes)["date"] == "date"
    assert dict(frame.dtypes)["hour"] == "int"
    wrong = frame.where("to_date(timestamp) != date or hour(timestamp) != hour")
    assert wrong.count() == 0
    assert Counter(table(spark, out)) == Counter(read(store))


@pytest.mark.long
def test_an_export_whose_task_fails_goes_on_when_the_reason_is_gone(
    spark: SparkSession, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, out = tmp_path / "store", tmp_path / "out"
    shutil.copytree(store, copy)
    file = sorted((copy / "orders-2").glob("*.log"))[1]
    sound = file.read_bytes()
    file.write_bytes(sound[:70] + b"\xff" + sound[71:])
    arguments = ["--task-size", "9k", str(copy), str(out)]
    assert export_main(arguments) == 1
    assert "CorruptBatchError" in capsys.readouterr().err
    receipts = list((out / STATE_DIRECTORY).glob("000000.0*.json"))
    assert receipts
    assert not (out / STATE_DIRECTORY / "000000.json").exists()
    file.write_bytes(sound)
    assert export_main(arguments) == 0
    assert f"done before  {len(receipts)}" in capsys.readouterr().out
    assert Counter(table(spark, out)) == Counter(read(copy))


@pytest.mark.long
def test_an_export_by_spark_submit_that_is_killed_half_way_goes_on(
    spark: SparkSession, store: Path, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    out = tmp_path / "out"
    script = Path(kstore.spark.jobs.__path__[0]) / "export.py"
    submit = Path(sys.executable).with_name("spark-submit")
    environ = {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    command = [str(submit), "--master", "local[1]", "--conf", "spark.ui.enabled=false", str(script)]
    arguments = ["--task-size", "9k", str(store), str(out)]
    job = subprocess.Popen(
        [*command, *arguments], env=environ, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    state = out / STATE_DIRECTORY
    deadline = time.monotonic() + 240
    # From outside only the files show the progress.
    while job.poll() is None and time.monotonic() < deadline and not list(state.glob("000000.0*.json")):
        time.sleep(0.002)
    os.killpg(job.pid, signal.SIGKILL)
    said, _ = job.communicate()
    assert job.returncode == -signal.SIGKILL, said.decode()[-3000:]
    tried("kills", 1)
    receipts = len(list(state.glob("000000.0*.json")))
    assert receipts > 0
    seen = Counter(table(spark, out))
    assert not seen - Counter(read(store))
    done = export(spark, [str(store)], str(out), ExportOptions(task_bytes=9 << 10))
    assert done.resumed == receipts
    assert Counter(table(spark, out)) == Counter(read(store))


# --- stats ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_stats_add_up_to_those_of_the_logs(spark: SparkSession, store: Path) -> None:
    found = stats.stats(spark, [str(store)], every_ms=60 * MINUTE_MS, deep=True)
    rows = found.frame.collect()
    assert len({row["time"] for row in rows}) > 25
    for partition in range(3):
        expected = log_stats(store / f"orders-{partition}", deep=True)
        own = [row for row in rows if row["partition"] == partition and row["topic"] == "orders"]
        assert sum(row["records"] for row in own) == expected.record_count
        assert sum(row["bytes"] for row in own) == expected.batch_sizes.sum
        assert expected.records is not None
        assert sum(row["keyed"] or 0 for row in own) == expected.records.keyed_count
        assert max(row["batch_bytes"]["max"] for row in own) == expected.batch_sizes.maximum


@pytest.mark.long
def test_the_keys_with_the_most_records_are_reported(spark: SparkSession, store: Path) -> None:
    counts = Counter(key for _, _, _, key, _ in read(store) if key is not None)
    found = [(bytes(row["key"]), row["records"]) for row in stats.top_keys(spark, [str(store)], 5, {}).collect()]
    assert [count for _, count in found] == [count for _, count in counts.most_common(5)]
    assert all(counts[key] == count for key, count in found)


# --- compact and repartition ------------------------------------------------------------------------------------------


def latest(rows: list[Row], *, keep_tombstones: bool = False) -> set[Row]:
    last: dict[tuple[str, int, bytes], Row] = {}
    kept = set()
    for row in rows:
        if row[3] is None:
            kept.add(row)
        else:
            last[row[0], row[1], row[3]] = row
    return kept | {row for row in last.values() if keep_tombstones or row[4] is not None}


@pytest.mark.parametrize("keep_tombstones", [False, True])
@pytest.mark.long
def test_compact_gives_the_last_record_of_each_key(
    spark: SparkSession, store: Path, tmp_path: Path, keep_tombstones: bool
) -> None:
    compact(spark, [str(store)], keep_tombstones=keep_tombstones).write.parquet(str(tmp_path / "table"))
    assert Counter(table(spark, tmp_path / "table")) == Counter(latest(read(store), keep_tombstones=keep_tombstones))


@pytest.mark.long
def test_compacted_logs_keep_offsets_and_ends(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "compacted"
    compact_into(spark, [str(store)], str(out), settings={"compression_type": "zstd"})
    assert set(read(out)) == latest(read(store))
    with kstore.open(store, read_only=True) as old, kstore.open(out) as new:
        assert new.describe_topic("orders").settings == {"compression_type": "zstd"}
        for one, two in zip(
            old.describe_topic("orders").partitions, new.describe_topic("orders").partitions, strict=True
        ):
            assert (one.start_offset, one.end_offset) == (two.start_offset, two.end_offset)
    assert all(log.is_sound for log in kstore.upkeep.verify.verify(out))
    assert not (tmp_path / "compacted.part").exists()


@pytest.mark.long
def test_repartition_keeps_every_record_and_the_order_of_each_key(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "wider"
    written = repartition(spark, [str(store)], str(out), topic="orders", partitions=7)
    old, new = read(store), read(out)
    assert sum(each.records for each in written) == len(old)
    assert Counter((key, value) for *_, key, value in new) == Counter((key, value) for *_, key, value in old)
    assert all(partition == partition_for_key(key, 7) for _, partition, _, key, _ in new if key is not None)
    assert by_key(new) == by_key(old)
    assert {partition for _, partition, *_ in new} == set(range(7))
    with kstore.open(out, read_only=True) as opened:
        for partition in range(7):
            records = list(opened.log("orders", partition).read())
            assert all(record.headers for record in records)
            times = [record.timestamp for record in records]
            # Times rise in the old partitions, so merging by time keeps them rising.
            assert times == sorted(times)
    assert all(log.is_sound for log in kstore.upkeep.verify.verify(out))


@pytest.mark.long
def test_jobs_copy_a_timestamp_that_spark_cannot_hold(spark: SparkSession, tmp_path: Path) -> None:
    far_ms = INT64_MAX // 1000 + 1
    with kstore.Log(tmp_path / "store" / "t-0", message_timestamp_after_max_ms=INT64_MAX) as log:
        log.append(b"value", key=b"key", timestamp=far_ms)
    repartition(spark, [str(tmp_path / "store")], str(tmp_path / "wider"), topic="t", partitions=1)
    compact_into(spark, [str(tmp_path / "store")], str(tmp_path / "compacted"))
    for out in ("wider", "compacted"):
        with kstore.Log(tmp_path / out / "t-0", read_only=True) as log:
            assert [(record.key, record.timestamp) for record in log.read()] == [(b"key", far_ms)]
    with pytest.raises(PythonException, match=f"the record at offset 0 has a timestamp of {far_ms} ms"):
        compact(spark, [str(tmp_path / "store")]).collect()


def by_key(rows: list[Row]) -> dict[bytes, list[Any]]:
    found: dict[bytes, list[Any]] = defaultdict(list)
    for *_, key, value in rows:
        if key is not None:
            found[key].append(value)
    return found


@pytest.mark.long
def test_a_repartition_that_fails_leaves_no_store_and_can_be_run_again(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    copy, out = tmp_path / "store", tmp_path / "wider"
    shutil.copytree(store, copy)
    file = sorted((copy / "orders-0").glob("*.log"))[1]
    sound = file.read_bytes()
    file.write_bytes(sound[:70] + b"\xff" + sound[71:])
    with pytest.raises(Exception, match="CorruptBatchError"):
        repartition(spark, [str(copy)], str(out), topic="orders", partitions=2)
    assert not out.exists()
    file.write_bytes(sound)
    repartition(spark, [str(copy)], str(out), topic="orders", partitions=2)
    assert by_key(read(out)) == by_key(read(copy))


# --- rebuild-indexes --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_rebuilt_indexes_have_the_bytes_that_appending_made(spark: SparkSession, tmp_path: Path) -> None:
    # Not a copy: a copy does not count as cleanly closed, and its last segments would be left alone.
    copy = make_store(tmp_path / "store", 1500)
    expected = {path: path.read_bytes() for path in copy.glob("*/*index")}
    for number, path in enumerate(sorted(expected)):
        if number % 2:
            path.unlink()
        else:
            path.write_bytes(b"\xee" * 100)
    assert rebuild_indexes.main([str(copy)]) == 0
    assert {path: path.read_bytes() for path in copy.glob("*/*index")} == expected
    assert verify.verify(spark, [str(copy)]).is_sound


@pytest.mark.long
def test_rebuilding_a_broker_s_indexes_gives_the_broker_s_bytes(spark: SparkSession, tmp_path: Path) -> None:
    log = copy_partition("clean", "retained-0", tmp_path)
    expected = {path: path.read_bytes() for path in sorted(log.glob("*index"))[:-2]}
    assert expected
    for path in expected:
        path.unlink()
    rebuilt = rebuild_indexes.rebuild_indexes(spark, [str(log)])
    assert {path: path.read_bytes() for path in expected} == expected
    assert {row["file"] for row in rebuild_indexes.report(spark, rebuilt).where("changed").collect()} >= {
        path.name for path in expected
    }
