"""The Spark jobs, as far as possible without a session: options, plans, and a task's work on its piece of a log."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import kstore
from kstore.cli import command as shared
from kstore.cli.command import FAILED, USAGE
from kstore.cli.main import cli
from kstore.errors import ConfigError, DataLossError, InvalidRecordError, LockedError, OffsetOutOfRangeError
from kstore.files.lock import DirectoryLock
from kstore.files.paths import TopicPartition
from kstore.producer.partitioner import partition_for_key
from kstore.spark.jobs import (
    JOBS,
    command,
    compact,
    export,
    export_files,
    export_state,
    rebuild_indexes,
    repartition,
    rewrite,
    stats,
    verify,
)
from kstore.spark.jobs.export import ExportOptions
from kstore.spark.jobs.export_state import RUN_NAME, STATE_DIRECTORY, ExportedFile, ExportState
from kstore.spark.jobs.frames import ORDER_TIME, _read, _Reading
from kstore.spark.jobs.logs import Stretch
from kstore.spark.jobs.repartition import slot_of
from kstore.spark.jobs.spread import TASK_ITEMS, grouped
from kstore.spark.places import LogPlace
from kstore.types import INT64_MAX
from tests.support.harness.golden_data import golden_partitions, golden_root
from tests.support.harness.selection import tries
from tests.support.lives.log_helpers import TIME
from tests.support.lives.odd_batches import LATIN
from tests.support.lives.spark_job_parts import DAY_MS, filled, here

Spread = Callable[[Any, Sequence[Sequence[Any]], Callable[[Any], Any]], list[Any]]


@pytest.fixture
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (export, rebuild_indexes, stats, verify):
        monkeypatch.setattr(module, "spread_objects", here)


# --- options ----------------------------------------------------------------------------------------------------------


def test_exit_statuses_are_those_of_every_command() -> None:
    for name in ("OK", "DAMAGED", "FAILED", "USAGE", "INTERRUPTED"):
        assert getattr(command, name) == getattr(shared, name)


@pytest.mark.parametrize("name", sorted(JOBS))
def test_help_names_options_examples_and_exit_statuses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_module(f"kstore.spark.jobs.{name.replace('-', '_')}").main(["--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: kstore spark {name} ")
    for part in ("--master URL", "--conf KEY=VALUE", "examples:", "spark-submit", "exit status:"):
        assert part in text


def test_the_command_lists_the_jobs_and_hands_their_options_on(capfd: pytest.CaptureFixture[str]) -> None:
    listed = CliRunner().invoke(cli, ["spark", "--help"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in [*JOBS, "pack"])
    helped = CliRunner().invoke(cli, ["spark", "export", "--help"])
    assert "--by {none,date,hour}" in helped.output
    assert CliRunner().invoke(cli, ["spark", "nothing"]).exit_code == USAGE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify"], "required: PATH"),
        (["verify", "--conf", "a", "."], "--conf is 'a', expected KEY=VALUE"),
        (["verify", "--storage-option", "=a", "."], "--storage-option is '=a'"),
        (["export", "--by", "week", "a", "b"], "invalid choice: 'week'"),
        (["export", "--columns", "valu", "{store}", "b"], "did you mean 'value'?"),
        (["export", "--task-size", "big", "{store}", "b"], "--task-size is 'big'"),
        (["export", "--topic", "nope", "{store}", "b"], "no topic 'nope'"),
        (["stats", "--every", "soon", "{store}"], "--every is 'soon'"),
        (["stats", "--every", "0s", "{store}"], "expected a time above 0"),
        (["stats", "--top-keys", "-1", "{store}"], "--top-keys is -1"),
        (["compact", "{store}", "{store}"], "exists already"),
        (["compact", "{store}", "hdfs://somewhere/x"], "not a local path"),
        (["compact", "--config", "segment_bites=5", "{store}", "b"], "segment_bites"),
        (["repartition", "--topic", "orders", "--partitions", "0", "{store}", "b"], "--partitions is 0"),
        (["repartition", "--topic", "other", "--partitions", "3", "{store}", "b"], "no topic 'other'"),
        (["repartition", "--partitions", "3", "{store}", "b"], "required: --topic"),
        (["rebuild-indexes", "hdfs://somewhere/x"], "not a local path"),
        (["rebuild-indexes", "--index-interval-bytes", "-1", "{store}"], "index_interval_bytes"),
    ],
)
def test_bad_usage_is_reported_before_there_is_a_session(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "session", lambda **_: pytest.fail("a session was started"))
    name, *rest = [text.replace("{store}", str(tmp_path / "store")) for text in arguments]
    filled(tmp_path / "store", 4)
    assert import_module(f"kstore.spark.jobs.{name.replace('-', '_')}").main(rest) == USAGE
    assert message in capsys.readouterr().err


def test_a_path_without_logs_fails_before_there_is_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "session", lambda **_: pytest.fail("a session was started"))
    for name in ("verify", "stats", "rebuild_indexes"):
        assert import_module(f"kstore.spark.jobs.{name}").main([str(tmp_path)]) == FAILED
        assert "neither a log nor" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["repartition", "--topic", "orders", "--partitions", "3", "{store}", "{out}"], "Another number of partitions"),
        (["rebuild-indexes", "{store}"], "Indexes"),
        (["compact", "--to", "parquet", "{store}", "{out}"], "The last record of each key"),
        (["stats", "--top-keys", "3", "{store}"], "The keys with the most records"),
        (["compact", "{store}", "{out}"], None),
        (["stats", "{store}"], None),
        (["verify", "{store}"], None),
    ],
)
def test_a_deprecated_job_names_its_recipe(
    arguments: list[str],
    said: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(**_: object) -> None:
        raise ConfigError("no session here")

    monkeypatch.setattr(command, "session", refuse)
    store, out = filled(tmp_path / "store", 4), tmp_path / "out"
    name, *rest = [text.format(store=store, out=out) for text in arguments]
    assert import_module(f"kstore.spark.jobs.{name.replace('-', '_')}").main(rest) == FAILED
    *warned, _ = capsys.readouterr().err.splitlines()
    if said is None:
        assert warned == []
        return
    (line,) = warned
    assert re.fullmatch(
        rf"kstore: kstore spark {name}.* will be removed in the next minor release: .*recipe, \"{said}\"", line
    )


@pytest.mark.parametrize("job", [compact.compact, rebuild_indexes.rebuild_indexes, repartition.repartition])
def test_a_deprecated_function_warns_its_caller(job: Callable[..., Any]) -> None:
    said = rf"{job.__module__}\.{job.__name__} will be removed .*: docs/spark.md"
    with pytest.warns(DeprecationWarning, match=said) as caught, pytest.raises(TypeError):
        job()
    assert caught[0].filename == __file__


def test_the_last_line_of_a_tasks_error_is_reported() -> None:
    from pyspark.errors import PySparkException

    text = "[X] failed\nTraceback (most recent call last):\n  File ...\nkstore.errors.CorruptBatchError: a.log: bad CRC"
    assert command._of_spark(PySparkException(text)) == "CorruptBatchError: a.log: bad CRC"
    assert command._of_spark(PySparkException("one\ntwo")) == "one"
    assert command._of_spark(ValueError("mine")) is None


def test_settings_are_taken_in_kafka_s_spelling_too() -> None:
    assert command.settings_of("--config", ["segment.bytes=4000", "compression_type=zstd"]) == {
        "segment_bytes": 4000,
        "compression_type": "zstd",
    }


def test_items_go_together_up_to_a_size_and_in_order() -> None:
    assert grouped([5, 3, 9, 1, 1, 20, 2], lambda item: item, 10) == [[5, 3], [9, 1], [1], [20], [2]]
    assert grouped([], lambda item: 1, 10) == []
    assert list(map(len, grouped(range(TASK_ITEMS * 2 + 1), lambda item: 0, 10))) == [TASK_ITEMS, TASK_ITEMS, 1]


# --- verify -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_without_spark")
def test_verify_finds_planted_damage_with_file_position_and_offsets(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    assert verify.verify(None, [str(store)]).is_sound
    file = sorted((store / "orders-1").glob("*.log"))[2]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    result = verify.verify(None, [str(store)])
    ((log, damage),) = [each for each in result.findings if each[1].severity == "damage"]
    assert log == str(store / "orders-1")
    assert damage.path == str(file)
    following = int(sorted((store / "orders-1").glob("*.log"))[3].stem)
    assert damage.last == following - 1
    assert 0 < damage.position < len(data)
    assert not result.is_sound
    assert sum(row[6] for row in result.segment_rows) == 1


@pytest.mark.usefixtures("_without_spark")
@pytest.mark.parametrize("tree", ["clean", "crashed", "recovered", "old", "damaged"])
@pytest.mark.sampled(1, keep=("damaged",))
def test_verify_says_of_a_broker_s_directory_what_kstore_verify_says(tree: str) -> None:
    from kstore.upkeep.verify import verify as in_one

    root = golden_root() / tree
    result = verify.verify(None, [str(root)])
    expected = list(in_one(root))
    assert sorted(map(str, result.logs)) == sorted(map(str, expected)) or sorted(
        each for log in result.logs for each in log.findings
    ) == sorted(each for log in expected for each in log.findings)
    assert [(log.path, log.end_offset) for log in result.logs] == [(log.path, log.end_offset) for log in expected]


# --- export -----------------------------------------------------------------------------------------------------------


def exported(out: Path) -> list[tuple[str, int, int, bytes]]:
    """What a reader of the directory finds: Spark ignores names that begin with "_" or "."."""
    rows = []
    for path in sorted(out.rglob("*")):
        if path.is_file() and not any(part.startswith(("_", ".")) for part in path.relative_to(out).parts):
            table = pq.ParquetFile(path).read().to_pydict()
            rows += list(zip(table["topic"], table["partition"], table["offset"], table["value"], strict=True))
    return rows


def committed_rows(out: Path) -> int:
    """The rows of the files that the manifests of all committed runs name."""
    manifests = [
        path for path in (out / STATE_DIRECTORY).iterdir() if (run := RUN_NAME.fullmatch(path.name)) and not run[2]
    ]
    files = [ExportedFile(*file) for path in manifests for file in json.loads(path.read_text())["files"]]
    return sum(file.rows for file in files)


def recorded(store: Path) -> list[tuple[str, int, int, bytes]]:
    with kstore.open(store, read_only=True) as opened:
        return [
            ("orders", partition, record.offset, bytes(record.value))
            for partition in opened.partitions("orders")
            for record in opened.log("orders", partition).read()
            if record.value is not None
        ]


SMALL = ExportOptions(task_bytes=4000)


@pytest.mark.usefixtures("_without_spark")
def test_export_gives_each_record_once_and_goes_on_with_what_came_since(tmp_path: Path) -> None:
    store, out = filled(tmp_path / "store"), tmp_path / "out"
    first = export.export(None, [str(store)], str(out), SMALL)
    assert sorted(exported(out)) == sorted(recorded(store))
    assert first.records == 400
    again = export.export(None, [str(store)], str(out), SMALL)
    assert again.records == again.files == 0
    filled(store, 100, start=400)
    second = export.export(None, [str(store)], str(out), SMALL)
    assert second.records == 100
    assert sorted(exported(out)) == sorted(recorded(store))
    assert committed_rows(out) == 500


@pytest.mark.usefixtures("_without_spark")
def test_records_lie_in_the_directory_of_their_date_or_hour(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    for by, form in (("date", "date=%Y-%m-%d"), ("hour", "date=%Y-%m-%d/hour=%-H")):
        out = tmp_path / by
        export.export(None, [str(store)], str(out), ExportOptions(by=by))  # type: ignore[arg-type]
        for path in out.rglob("*.parquet"):
            for time in pq.ParquetFile(path).read(["timestamp"]).column(0).to_pylist():
                assert str(path.parent.relative_to(out)) == time.strftime(form)


@pytest.mark.usefixtures("_without_spark")
def test_jobs_read_and_write_where_only_an_url_leads(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    fs = fsspec.filesystem("memory")
    root = f"/{tmp_path.name}"
    fs.put(str(filled(tmp_path / "store", 40)), f"{root}/logs", recursive=True)
    logs, lake = f"memory://{root}/logs", f"memory://{root}/lake"
    assert verify.verify(None, [logs]).is_sound
    assert export.export(None, [logs], lake).records == 40
    assert export.export(None, [logs], lake).records == 0
    fs.get(f"{root}/lake", str(tmp_path / "lake"), recursive=True)
    assert sorted(exported(tmp_path / "lake")) == sorted(recorded(tmp_path / "store"))
    fs.rm(root, recursive=True)


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.usefixtures("_without_spark")
@pytest.mark.long
def test_an_export_that_is_killed_anywhere_goes_on_and_gives_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: Callable[[str, int], None], seed: int
) -> None:
    """Before and after each step that changes the export directory."""
    draw = random.Random(seed)
    steps = [0]
    dies_at = -1

    def dying(action: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **named: Any) -> Any:
            steps[0] += 1
            if steps[0] == dies_at:
                raise Killed
            result = action(*arguments, **named)
            steps[0] += 1
            if steps[0] == dies_at:
                raise Killed
            return result

        return act

    monkeypatch.setattr(export_files, "_put", dying(export_files._put))
    monkeypatch.setattr(export_files, "write_receipt", dying(export_state.write_receipt))
    monkeypatch.setattr(ExportState, "_write", dying(ExportState._write))
    monkeypatch.setattr(ExportState, "_remove", dying(ExportState._remove))
    store = filled(tmp_path / "store", 150)

    def run(out: Path) -> None:
        export.export(None, [str(store)], str(out), SMALL)

    run(tmp_path / "all")
    count, kills = steps[0], 0
    number = 150
    for at in sorted(draw.sample(range(1, count + 1), min(count, tries(count, quick=8)))):
        out = tmp_path / f"out{at}"
        dies_at, steps[0] = at, 0
        with pytest.raises(Killed):
            run(out)
        kills += 1
        rows = exported(out)
        assert len(set(rows)) == len(rows)
        if draw.random() < 0.3:
            filled(store, 2, start=number)
            number += 2
        dies_at, steps[0] = draw.randrange(1, count), 0
        try:
            run(out)
        except Killed:
            kills += 1
        dies_at = -1
        run(out)
        run(out)  # the first may have finished a run that was planned before more records came
        assert Counter(exported(out)) == Counter(recorded(store))
        assert committed_rows(out) == number
        assert not list((out / STATE_DIRECTORY).glob("part-*"))
        shutil.rmtree(out)
    tried("kills", kills)


@pytest.mark.usefixtures("_without_spark")
def test_an_export_with_other_settings_needs_another_directory(tmp_path: Path) -> None:
    store, out = filled(tmp_path / "store", 10), tmp_path / "out"
    export.export(None, [str(store)], str(out))
    with pytest.raises(ConfigError, match="an export with by 'date', not 'hour'"):
        export.export(None, [str(store)], str(out), ExportOptions(by="hour"))


@pytest.mark.usefixtures("_without_spark")
def test_two_exports_never_work_in_one_directory(tmp_path: Path) -> None:
    store, out = filled(tmp_path / "store", 10), tmp_path / "out"
    (out / STATE_DIRECTORY).mkdir(parents=True)
    with DirectoryLock(out / STATE_DIRECTORY), pytest.raises(LockedError):
        export.export(None, [str(store)], str(out))


@pytest.mark.usefixtures("_without_spark")
def test_records_that_retention_deletes_before_the_export_are_an_error_or_reported(tmp_path: Path) -> None:
    store, out = filled(tmp_path / "store", 20), tmp_path / "out"
    export.export(None, [str(store)], str(out))
    filled(store, 20, start=20)
    with kstore.open(store) as opened:
        opened.log("orders", 0).delete_records(15)
    with pytest.raises(DataLossError, match="orders-0: offsets 10 to 14 were removed"):
        export.export(None, [str(store)], str(out))
    done = export.export(None, [str(store)], str(out), ExportOptions(fail_on_data_loss=False))
    assert (done.records, len(done.lost)) == (15, 1)


@pytest.mark.usefixtures("_without_spark")
def test_a_log_that_was_cut_below_the_export_is_an_error(tmp_path: Path) -> None:
    store, out = filled(tmp_path / "store", 20), tmp_path / "out"
    export.export(None, [str(store)], str(out))
    with kstore.open(store) as opened:
        opened.log("orders", 0).truncate_to(5)
    with pytest.raises(OffsetOutOfRangeError):
        export.export(None, [str(store)], str(out))


@pytest.mark.usefixtures("_without_spark")
def test_damage_ends_an_export_or_is_left_out_and_reported(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", 100)
    file = sorted((store / "orders-0").glob("*.log"))[0]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(kstore.errors.CorruptBatchError):
        export.export(None, [str(store)], str(tmp_path / "a"))
    done = export.export(None, [str(store)], str(tmp_path / "b"), ExportOptions(on_corrupt="skip"))
    assert done.records == 99
    (line,) = done.corrupt
    assert str(file) in line


def batch_of(times_ms: Sequence[int]) -> pa.RecordBatch:
    times = pa.array([time * 1000 for time in times_ms], pa.timestamp("us", tz="UTC"))
    return pa.record_batch({"timestamp": times, "offset": pa.array(range(len(times_ms)), pa.int64())})


def test_times_that_no_date_is_for_lie_apart() -> None:
    unknown = "date=__HIVE_DEFAULT_PARTITION__"
    far = 9_000_000_000_000_000 // 1000
    found = list(export_files.by_time(batch_of([-1, far * 1000, 0, 86_400_000, -1]), "date"))
    assert {(name, tuple(rows.column("offset").to_pylist())) for name, rows in found} == {
        (unknown, (0, 1, 4)),
        ("date=1970-01-01", (2,)),
        ("date=1970-01-02", (3,)),
    }
    assert export_files.directory_of(-1, "hour") == unknown + "/hour=__HIVE_DEFAULT_PARTITION__"
    assert export_files.directory_of(25, "hour") == "date=1970-01-02/hour=1"


def test_times_in_any_order_go_to_their_dates_and_keep_their_order(seed: int) -> None:
    draw = random.Random(seed)
    times = [draw.randrange(5 * DAY_MS) for _ in range(1000)]
    offsets = []
    for name, rows in export_files.by_time(batch_of(times), "date"):
        own = rows.column("offset").to_pylist()
        assert own == sorted(own)
        days = {datetime.fromtimestamp(times[at] / 1000, UTC).strftime("date=%Y-%m-%d") for at in own}
        assert days == {name}
        offsets += own
    assert sorted(offsets) == list(range(1000))


def test_many_dates_in_one_stretch_are_written_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "spread_objects", here)
    monkeypatch.setattr(export_files, "OPEN_FILES_MAX", 3)
    store, out = filled(tmp_path / "store", 60, partitions=1, step_ms=DAY_MS // 2), tmp_path / "out"
    export.export(None, [str(store)], str(out))
    assert sorted(exported(out)) == sorted(recorded(store))


# --- stats ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_without_spark")
@pytest.mark.parametrize("deep", [False, True])
def test_stats_of_all_intervals_together_are_those_of_the_log(deep: bool) -> None:
    from kstore.upkeep.stats import log_stats

    root = golden_root() / "clean"
    found = stats.stats(None, [str(root)], every_ms=60_000, deep=deep)
    for name in golden_partitions("clean"):
        expected = log_stats(root / name, deep=deep)
        parts = [part for (log, _), part in found.counted.items() if log == str(root / name)]
        assert sum(part.record_count for part in parts) == expected.record_count
        assert sum(part.batch_sizes.sum for part in parts) == expected.batch_sizes.sum
        assert sum(part.abort_count for part in parts) == expected.abort_count
        if deep and expected.records:
            assert sum(part.records.keyed_count for part in parts if part.records) == expected.records.keyed_count


@pytest.mark.usefixtures("_without_spark")
def test_a_batch_counts_for_the_interval_of_its_latest_record(tmp_path: Path) -> None:
    store = filled(tmp_path / "store", 300, partitions=1)
    found = stats.stats(None, [str(store)], every_ms=DAY_MS)
    expected = Counter((TIME + number * (DAY_MS // 100)) // DAY_MS for number in range(300))
    assert {number: part.record_count for (_, number), part in found.counted.items()} == expected


# --- compact and repartition ------------------------------------------------------------------------------------------


def test_keys_go_where_kafka_s_clients_send_them_and_the_rest_in_runs() -> None:
    assert [slot_of(b"k%d" % n, 0, 0, 7) for n in range(20)] == [partition_for_key(b"k%d" % n, 7) for n in range(20)]
    runs = [slot_of(None, 1, offset, 4) for offset in range(8000)]
    assert Counter(runs) == dict.fromkeys(range(4), 2000)
    assert sum(one != two for one, two in pairwise(runs)) == 7


def rows_of(rows: Sequence[tuple[int, int, bytes | None, bytes | None, int]]) -> pa.RecordBatch:
    slots, offsets, keys, values, times = zip(*rows, strict=True)
    headers = pa.list_(pa.struct([pa.field("key", pa.binary()), pa.field("value", pa.binary())]))
    return pa.record_batch(
        {
            "slot": pa.array(slots, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array(times, pa.int64()),
            "headers": pa.array([[{"key": LATIN, "value": None}], None] * len(rows), headers)[: len(rows)],
        }
    )


def test_a_task_writes_each_slot_s_rows_to_a_log_and_keeps_offsets_where_they_are_kept(tmp_path: Path) -> None:
    targets = [
        rewrite.PartitionToWrite(TopicPartition("a", 0)),
        rewrite.PartitionToWrite(TopicPartition("a", 1)),
        rewrite.PartitionToWrite(TopicPartition("b", 0), 5, 40),
    ]
    batches = [
        rows_of([(0, 7, b"k", b"v", TIME), (0, 9, None, None, -1), (2, 11, b"x", b"y" * 400_000, TIME)]),
        rows_of([(2, 30, b"x", b"z", TIME + DAY_MS * 10_000)]),
    ]
    (result,) = rewrite._write_slots(str(tmp_path), targets, {"compression_type": "lz4"}, iter(batches))
    assert result.column("slot").to_pylist() == [0, 2]
    assert result.column("records").to_pylist() == [2, 2]
    first, second = map(Path, result.column("directory").to_pylist())
    with kstore.Log(first, read_only=True) as log:
        assert [(r.offset, r.timestamp, r.key, r.value, list(r.header_bytes)) for r in log.read()] == [
            (0, TIME, b"k", b"v", [(LATIN, None)]),
            (1, -1, None, None, []),
        ]
    with kstore.Log(second, read_only=True) as log:
        assert (log.start_offset, log.end_offset) == (5, 40)
        assert [record.offset for record in log.read()] == [11, 30]


def test_a_task_reads_header_keys_as_bytes(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "t-0", durability="os") as log:
        log.append(b"v", headers=[(LATIN, b"1")])
    place = LogPlace(str(tmp_path / "t-0"), "t", 0)
    reading = _Reading(Stretch(place, 0, 1, 100), -1)
    (batch,) = _read(("headers", "topic"), "read_uncommitted", {}, False, False, reading)
    assert batch.to_pylist() == [{"headers": [{"key": LATIN, "value": b"1"}], "topic": "t"}]


FAR_MS = INT64_MAX // 1000 + 1


def far(path: Path) -> Path:
    """A store whose record at offset 1 is one millisecond later than Spark can say."""
    with kstore.Log(path / "t-0", durability="os", message_timestamp_after_max_ms=INT64_MAX) as log:
        log.append(b"a", timestamp=FAR_MS - 1)
        log.append(b"b", timestamp=FAR_MS)
    return path


@pytest.mark.parametrize("columns", [("timestamp", "value"), ("value",)], ids="-".join)
def test_a_task_reads_any_timestamp_as_milliseconds(tmp_path: Path, columns: tuple[str, ...]) -> None:
    reading = _Reading(Stretch(LogPlace(str(far(tmp_path) / "t-0"), "t", 0), 0, 2, 100), -1)
    (batch,) = _read(columns, "read_uncommitted", {}, True, True, reading)
    if "timestamp" in columns:
        assert batch.column("timestamp").to_pylist() == [FAR_MS - 1, FAR_MS]
    assert batch.column(ORDER_TIME).to_pylist() == [FAR_MS - 1, FAR_MS]


def test_a_task_refuses_a_timestamp_that_spark_cannot_hold_if_it_is_read(tmp_path: Path) -> None:
    reading = _Reading(Stretch(LogPlace(str(far(tmp_path) / "t-0"), "t", 0), 0, 2, 100), -1)
    with pytest.raises(InvalidRecordError, match=f"topic t, partition 0: the record at offset 1 .* {FAR_MS} ms"):
        list(_read(("timestamp",), "read_uncommitted", {}, False, False, reading))
    (batch,) = _read(("value",), "read_uncommitted", {}, False, False, reading)
    assert batch.column("value").to_pylist() == [b"a", b"b"]


@pytest.mark.usefixtures("_without_spark")
def test_an_export_refuses_a_timestamp_that_parquet_s_microseconds_cannot_hold(tmp_path: Path) -> None:
    store = far(tmp_path / "store")
    with pytest.raises(InvalidRecordError, match=f"topic t, partition 0: the record at offset 1 .* {FAR_MS} ms"):
        export.export(None, [str(store)], str(tmp_path / "out"), SMALL)
    values = export.export(None, [str(store)], str(tmp_path / "values"), replace(SMALL, columns=("offset", "value")))
    assert values.records == 2


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows_of([(0, 1, b"k", b"v", TIME)])
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(rewrite._write_slots(str(tmp_path), [rewrite.PartitionToWrite(TopicPartition("a", 0))], {}, failing()))
    assert not list(tmp_path.iterdir())
