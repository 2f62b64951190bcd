"""Metrics: what is counted, when, and how it is exported."""

from __future__ import annotations

import builtins
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import kstore
from kstore.errors import PoisonedError, SyncFailedError
from kstore.files.local import SYSTEM_FS
from kstore.log import reads_of, writer_of
from kstore.metrics import (
    CONSUMER_METRICS,
    CONSUMER_PARTITION_METRICS,
    COUNTED,
    DELIVERED_RECORDS,
    DOOR_METRICS,
    METRICS,
    PRODUCER_METRICS,
    PRODUCER_TOPIC_METRICS,
    STORE_METRICS,
    Histogram,
    LogCounters,
    collector,
    summed,
)
from kstore.record.builder import build_batch
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault
from tests.support.lives.log_cases import edit
from tests.unit.project.test_docs import code_blocks

ROOT = Path(__file__).resolve().parents[3]
# In the order of the document.
TABLES = (
    (*METRICS, *STORE_METRICS),
    PRODUCER_METRICS,
    PRODUCER_TOPIC_METRICS,
    CONSUMER_METRICS,
    CONSUMER_PARTITION_METRICS,
    DOOR_METRICS,
)
ALL = tuple(metric for rows in TABLES for metric in rows)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[kstore.Log]:
    with kstore.Log(tmp_path / "orders-0", durability="os") as log:
        yield log


def changed(log: kstore.Log, before: dict[str, Any]) -> dict[str, Any]:
    """The metrics that differ from ``before``, except times."""
    now = log.metrics()
    return {name: value for name, value in now.items() if value != before[name] and "seconds" not in name}


# --- the table --------------------------------------------------------------------------------------------------------


def test_a_writer_has_every_metric_of_the_table_in_its_order(log: kstore.Log) -> None:
    assert list(log.metrics()) == [metric.name for metric in METRICS if not metric.name.startswith("dirty_")]


def test_a_compacted_log_has_the_rest_of_the_table_too(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log", cleanup_policy="compact") as log:
        assert list(log.metrics()) == [metric.name for metric in METRICS]


def test_names_and_meanings_are_fit_for_prometheus() -> None:
    for rows in TABLES:
        assert len({metric.name for metric in rows}) == len(rows)
    for metric in ALL:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", metric.name)
        assert metric.meaning.endswith(".")
        assert metric.unit
        # Base units, as the last part of the name, before any "_total".
        assert metric.unit not in ("ms", "milliseconds", "MiB", "percent")
        assert f"_{metric.name}".endswith(f"_{metric.unit}") or metric.unit not in ("bytes", "seconds", "ratio"), metric
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket"))


def test_every_counter_of_a_log_is_in_the_table() -> None:
    counted = {metric.name for metric in METRICS if metric.kind in ("counter", "histogram")}
    assert set(COUNTED) == counted - {"recoveries"} | {"last_compaction_timestamp_seconds"}


# --- what is counted --------------------------------------------------------------------------------------------------


def test_appends_count_their_batches_records_and_bytes(log: kstore.Log) -> None:
    before = log.metrics()
    info = log.append_many([b"a", b"b", b"c"])
    log.append(b"d")
    after = changed(log, before)
    size = after.pop("size_bytes")
    assert after == {
        "appends": 2,
        "append_batches": 2,
        "append_records": 4,
        "append_bytes": size,
        "end_offset": 4,
        "high_watermark": 4,
        "last_stable_offset": 4,
        "flush_lag_records": 4,
    }
    assert info.size < size


def test_an_append_of_nothing_counts_as_none(log: kstore.Log) -> None:
    before = log.metrics()
    log.append_many([])
    assert changed(log, before) == {}


def test_failed_appends_count_by_the_type_of_their_error(log: kstore.Log) -> None:
    class OwnError(Exception):
        pass

    class Values(list[bytes]):
        def __len__(self) -> int:
            raise OwnError

    with pytest.raises(kstore.RecordTooLargeError):
        log.append(b"x" * (2 << 20))
    with pytest.raises(TypeError):
        log.append("text")  # type: ignore[arg-type]
    with pytest.raises(kstore.CorruptBatchError):
        log.append_batches(b"\0" * 61)
    with pytest.raises(OwnError):
        log.append_many(Values([b"x"]))
    metrics = log.metrics()
    assert metrics["append_errors"] == {
        "RecordTooLargeError": 1,
        "TypeError": 1,
        "CorruptBatchError": 1,
        "other": 1,
    }
    assert metrics["appends"] == metrics["append_records"] == 0


def test_a_repeated_append_of_a_producer_is_a_duplicate_and_no_append(log: kstore.Log) -> None:
    record = kstore.Record(0, 1_700_000_000_000, value=b"v")
    data = build_batch([record], producer_id=7, producer_epoch=0, base_sequence=0)
    log.append_batches(data)
    log.append_batches(data)
    metrics = log.metrics()
    assert (metrics["appends"], metrics["append_records"], metrics["append_duplicates"]) == (1, 1, 1)


def test_a_synced_append_counts_its_sync_and_its_group(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log") as log:
        for _ in range(3):
            log.append(b"x")
        metrics = log.metrics()
    groups, syncs = metrics["group_appends"], metrics["sync_seconds"]
    assert isinstance(groups, Histogram)
    assert isinstance(syncs, Histogram)
    assert (groups.counts[0], sum(groups.counts), groups.sum) == (3, 3, 3)
    assert sum(syncs.counts) == 3
    assert syncs.sum > 0
    assert metrics["flush_lag_records"] == 0


def test_a_flush_counts_its_syncs_and_ends_the_lag(log: kstore.Log) -> None:
    log.append(b"x")
    log.flush()
    metrics = log.metrics()
    syncs = metrics["sync_seconds"]
    assert isinstance(syncs, Histogram)
    assert sum(syncs.counts) == 1
    assert (metrics["flush_lag_records"], metrics["recovery_point"]) == (0, 1)


def test_rolls_deletions_and_truncations_are_counted(log: kstore.Log) -> None:
    for value in (b"a", b"b", b"c"):
        log.append(value)
        log.roll()
    log.append(b"d")
    log.delete_records(2)
    log.truncate_to(3)
    metrics = log.metrics()
    assert (metrics["rolls"], metrics["segments"], metrics["truncations"]) == (3, 2, 1)
    assert metrics["segments_deleted"] == 2
    assert metrics["start_offset"] == 2
    writer_of(log).truncate_fully_and_start_at(50)
    metrics = log.metrics()
    assert (metrics["segments"], metrics["truncations"], metrics["segments_deleted"]) == (1, 2, 4)


def test_the_size_is_that_of_the_files_after_every_change_for_a_reader_too(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    settings: dict[str, Any] = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0}
    with kstore.Log(directory, durability="os", **settings) as log, kstore.Log(directory, read_only=True) as reader:

        def rolled_twice(size: int = 100) -> None:
            for key in (b"a", b"b"):
                log.append(b"x" * size, key=key)
                log.roll()

        def cut_and_rolled_twice() -> None:
            """As many segments as before."""
            log.truncate_to(log.end_offset - 2)
            rolled_twice(size=10)

        changes: list[Callable[[], object]] = [
            lambda: log.append(b"first", key=b"a"),
            log.roll,
            lambda: log.append(b"x" * 500, key=b"b"),
            rolled_twice,
            cut_and_rolled_twice,
            lambda: log.append_many([b"1", b"2"], keys=[b"c", b"d"]),
            lambda: log.truncate_to(log.end_offset - 1),
            rolled_twice,
            log.compact,
            lambda: log.truncate_to(2),
            rolled_twice,
            lambda: log.delete_records(2),
            lambda: writer_of(log).truncate_fully_and_start_at(50),
            rolled_twice,
        ]
        for number, change in enumerate(changes):
            change()
            files = list(directory.glob("*.log"))
            expected = len(files), sum(file.stat().st_size for file in files)
            for each in (log, reader, log):
                metrics = each.metrics()
                assert (metrics["segments"], metrics["size_bytes"]) == expected, f"after change {number}"


def test_compacted_segments_are_counted(log: kstore.Log) -> None:
    log.append_many([b"1", b"2"], keys=[b"a", b"a"])
    log.roll()
    log.compact()
    assert log.metrics()["segments_compacted"] == 1


def test_a_compaction_counts_what_it_took_away_and_ends_the_dirt(tmp_path: Path) -> None:
    clock = ManualClock()
    with kstore.Log(tmp_path / "log", cleanup_policy="compact", clock=clock, durability="os") as log:
        log.append_many([b"1", b"2", b"3"], keys=[b"a", b"a", b"b"])
        log.roll()
        log.flush()
        before = log.metrics()
        assert (before["dirty_ratio"], before["compactions"]) == (1.0, 0)
        assert before["dirty_bytes"] == before["size_bytes"]
        assert before["last_compaction_timestamp_seconds"] == 0
        log.compact()
        log.compact()  # nothing to do
        after = log.metrics()
    assert (after["compactions"], after["compaction_records_read"], after["compaction_records_removed"]) == (1, 3, 1)
    assert (after["dirty_ratio"], after["dirty_bytes"], after["compaction_damaged"]) == (0.0, 0, 0)
    assert after["last_compaction_timestamp_seconds"] == clock.now_ms() / 1000
    assert after["compaction_seconds"] >= 0  # type: ignore[operator]


def test_retention_counts_what_it_deleted(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log", retention_bytes=1, durability="os") as log:
        size = log.append_many([b"a"]).size
        log.roll()
        log.append(b"b")
        log.apply_retention()
        metrics = log.metrics()
    assert (metrics["retention_segments"], metrics["retention_deleted_bytes"]) == (1, size)
    assert metrics["segments_deleted"] == 1


def test_reads_count_what_they_hand_out(log: kstore.Log) -> None:
    info = log.append_many([b"a", b"b", b"c"])
    log.append_many([b"d", b"e"])
    before = log.metrics()
    assert len(list(log.read())) == 5
    after = changed(log, before)
    assert (after["reads"], after["read_batches"], after["read_records"]) == (1, 2, 5)
    before = log.metrics()
    assert list(log.read_values(1, 2)) == [b"b"]
    after = log.metrics()
    assert after["read_records"] == before["read_records"] + 1  # type: ignore[operator]
    assert after["read_bytes"] == before["read_bytes"] + info.size  # type: ignore[operator]


def test_fetches_count_their_slices(log: kstore.Log) -> None:
    info = log.append_many([b"a", b"b", b"c"])
    log.fetch(0)
    metrics = log.metrics()
    assert (metrics["reads"], metrics["read_bytes"], metrics["read_batches"]) == (1, info.size, 0)


def test_damage_that_reads_meet_is_counted(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log") as log:
        for value in (b"a", b"b", b"c"):
            log.append(value)
    edit(tmp_path / "log" / f"{0:020d}.log", lambda content: content.__setitem__(70 + 66, 1))
    with kstore.Log(tmp_path / "log", read_only=True) as log:
        assert [record.value for record in log.read(on_corrupt="skip")] == [b"a", b"c"]
        with pytest.raises(kstore.CorruptBatchError):
            list(log.read())
        assert log.metrics()["corrupt_ranges"] == 2


def test_what_recovery_did_is_reported(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log") as log:
        log.append(b"a")
        assert log.metrics()["recoveries"] == 0
    (tmp_path / "log" / "kstore.state").unlink()
    path = tmp_path / "log" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes() + b"garbage")
    with kstore.Log(tmp_path / "log") as log:
        metrics = log.metrics()
    assert (metrics["recoveries"], metrics["recovery_cut_bytes"], metrics["fenced_ranges"]) == (1, 7, 0)
    assert metrics["recovery_seconds"] > 0  # type: ignore[operator]


def test_a_poisoned_log_says_so(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    with kstore.Log(tmp_path / "log", fs=fs) as log:
        log.append(b"a")
        fs.faults.append(Fault(1, kinds=frozenset({"write_and_sync"}), written=None))
        with pytest.raises(SyncFailedError):
            log.append(b"b")
        with pytest.raises(PoisonedError):
            log.append(b"c")
        metrics = log.metrics()
    assert metrics["poisoned"] == 1
    assert metrics["append_errors"] == {"SyncFailedError": 1, "PoisonedError": 1}
    assert metrics["high_watermark"] == 1


def test_an_index_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    with kstore.Log(tmp_path / "log", fs=fs, index_interval_bytes=0, durability="os") as log:
        log.append(b"a")
        fs.faults.append(Fault(1, kinds=frozenset({"map"}), sticky=True))
        log.append(b"b")
        log.append(b"c")
        fs.faults.clear()
        assert log.metrics()["index_failures"] == 1


def test_a_follower_that_waits_is_counted(log: kstore.Log) -> None:
    waiting = threading.Thread(target=lambda: reads_of(log).wait_beyond(0, 10, committed=False))
    waiting.start()
    while not log.metrics()["followers"]:
        pass
    log.append(b"x")
    waiting.join()
    assert log.metrics()["followers"] == 0


def test_a_log_open_for_reading_has_its_own_counts_and_none_of_its_writer_s(log: kstore.Log) -> None:
    log.append(b"x")
    with kstore.Log(log.path, read_only=True) as view:
        list(view.read())
        metrics = view.metrics()
    assert (metrics["reads"], metrics["read_records"], metrics["appends"], metrics["segments"]) == (1, 1, 0, 1)
    assert "poisoned" not in metrics


def test_no_count_is_lost_between_threads() -> None:
    counters = LogCounters()

    def count() -> None:
        one = 1
        for _ in range(100_000):
            counters.corrupt_ranges += one
            counters.delivered[DELIVERED_RECORDS] += one

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.corrupt_ranges == 400_000
    assert counters.delivered[DELIVERED_RECORDS] == 400_000


# --- sums -------------------------------------------------------------------------------------------------------------


def test_the_metrics_of_many_logs_are_their_sums(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "a") as a, kstore.Log(tmp_path / "b", durability="os") as b:
        a.append_many([b"1", b"2"])
        b.append(b"3")
        with pytest.raises(TypeError):
            b.append(7)  # type: ignore[arg-type]
        total = summed([a.metrics(), b.metrics()])
        one, other = a.metrics()["sync_seconds"], total["sync_seconds"]
    assert (total["appends"], total["append_records"], total["segments"], total["flush_lag_records"]) == (2, 3, 2, 1)
    assert total["append_errors"] == {"TypeError": 1}
    assert other == one
    assert "end_offset" not in total
    assert summed([]) == {}


# --- of a store -------------------------------------------------------------------------------------------------------


def test_a_store_has_the_sums_of_its_logs_and_its_own(tmp_path: Path) -> None:
    with kstore.open(tmp_path, background=False) as store:
        store.create_topic("a", partitions=2)
        store.create_topic("b")
        store.log("a", 0).append_many([b"1", b"2"])
        store.log("b").append(b"3")
        (tmp_path / "foreign").mkdir()
        metrics = store.metrics()
        by_log = store.log_metrics()
    assert (metrics["appends"], metrics["append_records"], metrics["open_logs"]) == (2, 3, 2)
    assert (metrics["topics"], metrics["partitions"]) == (2, 3)
    assert "end_offset" not in metrics
    assert {str(owner): values["end_offset"] for owner, values in by_log.items()} == {"a-0": 2, "b-0": 1}
    assert set(metrics) >= {metric.name for metric in STORE_METRICS}


def test_a_store_s_tasks_are_counted_by_name(tmp_path: Path) -> None:
    clock = ManualClock()
    with kstore.Store(tmp_path, background=False, clock=clock) as store:
        store.run_task("retention")
        store.run_task("checkpoints")
        store.run_task("retention")
        metrics = store.metrics()
    runs, errors, last = (metrics[f"task_{name}"] for name in ("runs", "errors", "last_run_timestamp_seconds"))
    assert isinstance(runs, dict)
    assert isinstance(errors, dict)
    assert isinstance(last, dict)
    assert (runs["retention"], runs["checkpoints"], runs["cleaner"]) == (2, 1, 0)
    assert set(errors.values()) == {0}
    assert (last["retention"], last["cleaner"]) == (clock.now_ms() / 1000, 0)


def test_a_task_that_fails_is_counted(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    with kstore.Store(tmp_path, background=False, fs=fs) as store:
        store.create_topic("a")
        store.log("a").append(b"x")
        fs.faults.append(Fault(1, kinds=frozenset({"open", "rename"}), sticky=True))
        with pytest.raises(kstore.StorageError):
            store.run_task("checkpoints")
        fs.faults.clear()
        errors = store.metrics()["task_errors"]
    assert isinstance(errors, dict)
    assert errors["checkpoints"] == 1


def test_counts_outlive_the_closing_of_a_log_that_background_work_opened(tmp_path: Path) -> None:
    with kstore.Store(tmp_path, background=False) as store:
        store.create_topic("a", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
        log = store.log("a")
        log.append_many([b"1", b"2"], keys=[b"k", b"k"])
        log.roll()
    with kstore.Store(tmp_path, background=False) as store:
        store.run_task("cleaner")
        metrics = store.metrics()
        assert (metrics["open_logs"], metrics["compactions"]) == (0, 1)
        store.log("a").append(b"3", key=b"k")
        metrics = store.metrics()
    assert (metrics["open_logs"], metrics["compactions"], metrics["appends"]) == (1, 1, 1)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    with kstore.open(tmp_path) as store:
        pass
    with pytest.raises(kstore.ClosedError):
        store.metrics()


# --- Prometheus -------------------------------------------------------------------------------------------------------


def exported(*sources: kstore.Log | kstore.Store) -> str:
    registry = CollectorRegistry()
    registry.register(collector(*sources))
    return generate_latest(registry).decode()


def labels(log: kstore.Log) -> str:
    """In the order in which prometheus-client writes them."""
    topic, _, partition = log.path.name.rpartition("-")
    return f'partition="{partition}",store="{log.path.parent}",topic="{topic}"'


def test_prometheus_gets_every_metric_with_type_and_meaning(log: kstore.Log) -> None:
    log.append(b"x")
    text = exported(log)
    tables = {
        "kstore_": (*METRICS, *STORE_METRICS),
        "kstore_producer_": PRODUCER_METRICS,
        "kstore_producer_topic_": PRODUCER_TOPIC_METRICS,
        "kstore_consumer_": CONSUMER_METRICS,
        "kstore_consumer_partition_": CONSUMER_PARTITION_METRICS,
    }
    for prefix, metric in [(prefix, metric) for prefix, rows in tables.items() for metric in rows]:
        name = f"{prefix}{metric.name}" + ("_total" if metric.kind == "counter" else "")
        assert f"# TYPE {name} {metric.kind}\n" in text
        assert f"# HELP {name} {metric.meaning}\n" in text
    assert f"kstore_appends_total{{{labels(log)}}} 1.0\n" in text
    assert f"kstore_end_offset{{{labels(log)}}} 1.0\n" in text


def test_a_histogram_is_cumulative_in_prometheus(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "orders-0") as log:
        log.append(b"x")
        log.append(b"y")
        text = exported(log)
    buckets = re.findall(r'kstore_group_appends_bucket\{le="([^"]+)",[^}]+\} (\S+)', text)
    assert [bound for bound, _ in buckets] == ["1.0", "2.0", "4.0", "8.0", "16.0", "32.0", "64.0", "+Inf"]
    assert {count for _, count in buckets} == {"2.0"}
    assert f"kstore_group_appends_sum{{{labels(log)}}} 2.0" in text


def test_errors_have_their_type_as_a_label(log: kstore.Log) -> None:
    with pytest.raises(kstore.RecordTooLargeError):
        log.append(b"x" * (2 << 20))
    assert f'kstore_append_errors_total{{error="RecordTooLargeError",{labels(log)}}} 1.0' in exported(log)


def test_several_logs_are_told_apart_and_a_closed_one_is_left_out(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "a") as a:
        with kstore.Log(tmp_path / "b") as b:
            assert re.findall(r'kstore_segments\{partition="",store="[^"]+",topic="(\w)"\}', exported(a, b)) == [
                "a",
                "b",
            ]
        assert re.findall(r'kstore_segments\{partition="",store="[^"]+",topic="(\w)"\}', exported(a, b)) == ["a"]


def test_a_store_is_exported_log_by_log_with_its_own_beside(tmp_path: Path) -> None:
    with kstore.Store(tmp_path, background=False) as store:
        store.create_topic("orders", partitions=2)
        store.log("orders", 0).append(b"x")
        store.log("orders", 1).append_many([b"x", b"y"])
        store.run_task("retention")
        text = exported(store)
    ours = f'store="{tmp_path}",topic="orders"'
    assert f'kstore_append_records_total{{partition="0",{ours}}} 1.0\n' in text
    assert f'kstore_append_records_total{{partition="1",{ours}}} 2.0\n' in text
    assert f'kstore_open_logs{{store="{tmp_path}"}} 2.0\n' in text
    assert f'kstore_task_runs_total{{store="{tmp_path}",task="retention"}} 1.0\n' in text
    assert exported(store).count("kstore_open_logs{") == 0  # it is closed


def test_a_store_is_exported_with_its_door(tmp_path: Path) -> None:
    with kstore.Store(tmp_path, background=False) as store:
        assert store.door_metrics() == {}
        with kstore.Door(store, port=0) as door:
            assert door.metrics().keys() == {metric.name for metric in DOOR_METRICS}
            with socket.create_connection(("127.0.0.1", door.port)) as peer:
                # ApiVersions, version 0, of client "c".
                peer.sendall(bytes.fromhex("0000000b 0012 0000 00000007 0001 63"))
                assert peer.recv(8)[4:] == bytes.fromhex("00000007")
                # Bytes that are no request.
                peer.sendall(bytes.fromhex("00000002 ffff"))
                with suppress(ConnectionResetError):
                    while peer.recv(1 << 16):
                        pass
            text = exported(store)
        own = f'store="{tmp_path}"'
        assert f'kstore_door_requests_total{{api="ApiVersions",{own}}} 1.0\n' in text
        assert f"kstore_door_refusals_total{{{own}}} 1.0\n" in text
        assert f"kstore_door_groups{{{own}}} 0.0\n" in text
        assert "kstore_door_requests_total{" not in exported(store)  # it is closed


def test_to_register_asks_nothing_of_a_log(tmp_path: Path) -> None:
    class Source:
        path = tmp_path

        def metrics(self) -> dict[str, Any]:
            raise AssertionError("asked")

    CollectorRegistry().register(collector(Source()))


def test_without_prometheus_client_the_extra_is_named(log: kstore.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def importing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'kstore\[metrics\]'"):
        collector(log)


# --- the document -----------------------------------------------------------------------------------------------------


def test_the_document_has_the_rows_of_the_table() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    expected = [
        [
            f"`{metric.name}`",
            metric.kind + (f" by `{metric.label}`" if metric.label else ""),
            metric.unit,
            metric.meaning,
        ]
        for metric in ALL
    ]
    assert rows == expected


@pytest.mark.long
def test_the_guide_s_example_serves_what_prometheus_reads(tmp_path: Path) -> None:
    (example,) = code_blocks((ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), "python")
    # Serves on any free port; then the program ends with the store open.
    code = example.replace("start_http_server(9000)", "server, _ = start_http_server(0)")
    assert code != example
    code += (
        'from urllib.request import urlopen\nprint(urlopen(f"http://localhost:{server.server_port}/metrics").read())'
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "NO_PROXY": "*"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "kstore_topics{" in done.stdout
