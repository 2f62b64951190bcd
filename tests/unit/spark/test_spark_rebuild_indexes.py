"""The Spark job that rebuilds indexes: it writes the bytes that appends wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.errors import ConfigError, LockedError
from kstore.files.local import SYSTEM_FS
from kstore.spark.jobs import export, rebuild_indexes, stats, verify
from tests.support.harness.golden_data import copy_partition, golden_partitions
from tests.support.lives.log_helpers import TIME
from tests.support.lives.spark_job_parts import filled, here

# The job is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*rebuild_indexes will be removed:DeprecationWarning")


@pytest.fixture
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (export, rebuild_indexes, stats, verify):
        monkeypatch.setattr(module, "spread_objects", here)


# --- rebuild-indexes --------------------------------------------------------------------------------------------------


INDEXES = (".index", ".timeindex", ".txnindex")


def indexes_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.suffix in INDEXES}


def with_aborts(path: Path) -> Path:
    with kstore.open(path, segment_bytes=20_000, durability="os") as store:
        store.create_topic("orders", index_interval_bytes=512)
        with store.producer(transactional_id="one", linger_ms=0) as producer:
            for number in range(200):
                try:
                    with producer.transaction():
                        producer.send("orders", b"v" * 200, key=b"k%d" % number, timestamp=TIME + number)
                        if number % 4 == 0:
                            producer.flush()  # unwritten batches need no abort
                            raise KeyError
                except KeyError:
                    pass
    return path


@pytest.mark.usefixtures("_without_spark")
@pytest.mark.parametrize("harm", ["missing", "garbage", "empty", "ragged"])
@pytest.mark.sampled(2)
def test_rebuilt_indexes_have_the_bytes_that_appending_made(
    harm: str, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    store = with_aborts(tmp_path / "store")
    log = store / "orders-0"
    expected = indexes_of(log)
    assert len([name for name in expected if name.endswith(".txnindex")]) > 2
    assert sum(len(data) > 24 for data in expected.values()) > 6
    for name, data in expected.items():
        path = log / name
        if harm == "missing":
            path.unlink()
        else:
            path.write_bytes({"garbage": b"\xff" * (len(data) or 1), "empty": b"", "ragged": data + b"\1\2\3"}[harm])
        tried("faults", 1)
    rebuilt = rebuild_indexes.rebuild_indexes(None, [str(store)])
    assert indexes_of(log) == expected
    assert not any(each.problem for each in rebuilt)
    assert verify.verify(None, [str(store)]).is_sound
    with kstore.open(store) as opened:
        assert opened.log("orders").recovery.clean


@pytest.mark.usefixtures("_without_spark")
def test_all_indexes_of_a_broker_s_logs_come_out_as_the_broker_made_them(tmp_path: Path) -> None:
    # The topics that did not have Kafka's default.
    intervals = dict.fromkeys(["compacted-0", "compacted-no-tombstones-0", "rolled-0", "txn-rolled-0"], 256)
    # A restarted broker restarts its count of the bytes between two entries.
    names = [name for name in golden_partitions("clean") if name != "epochs-0"]
    for name in names:
        log = copy_partition("clean", name, tmp_path)
        expected = indexes_of(log)
        for each in expected:
            if not each.endswith(".txnindex"):
                (log / each).unlink()
        rebuild_indexes.rebuild_indexes(
            None,
            [str(log)],
            every=True,
            index_interval_bytes=intervals.get(name),
        )
        last = f"{max(int(each.split('.')[0]) for each in expected):020d}"
        found = indexes_of(log)
        # The last segment of a log that does not count as closed, because the marker is not copied.
        sealed = {each: data for each, data in expected.items() if not each.startswith(last)}
        assert {each: found[each] for each in sealed} == sealed


@pytest.mark.usefixtures("_without_spark")
def test_sound_indexes_are_left_alone(tmp_path: Path) -> None:
    store = with_aborts(tmp_path / "store")
    before = {path: path.stat().st_mtime_ns for path in (store / "orders-0").iterdir() if path.suffix in INDEXES}
    assert rebuild_indexes.rebuild_indexes(None, [str(store)]) == []
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


@pytest.mark.usefixtures("_without_spark")
def test_a_log_with_a_writer_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "store", 10)
    with kstore.open(tmp_path / "store"), pytest.raises(LockedError):
        rebuild_indexes.rebuild_indexes(None, [str(tmp_path / "store")])


@pytest.mark.usefixtures("_without_spark")
def test_the_last_segment_of_a_log_that_was_not_closed_is_its_next_writer_s(tmp_path: Path) -> None:
    log = copy_partition("crashed", golden_partitions("crashed")[0], tmp_path)
    last = sorted(log.glob("*.log"))[-1]
    last.with_suffix(".index").unlink()
    (problem,) = {each.problem for each in rebuild_indexes.rebuild_indexes(None, [str(log)]) if each.problem}
    assert "not closed cleanly" in problem


def test_an_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("hdfs://x/y is not a local path")):
        rebuild_indexes.rebuild_indexes(None, ["hdfs://x/y"])
    assert SYSTEM_FS.exists(tmp_path)
