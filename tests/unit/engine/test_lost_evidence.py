"""Logs without ``kstore.state`` that have lost records: recovery reports what their other files prove."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import kstore
from kstore.cli.main import cli, main
from kstore.files.checkpoint import write_offset_checkpoint
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.upkeep.recover import plan_recovery
from kstore.upkeep.stats import log_stats
from kstore.upkeep.verify import verify_log
from tests.support.fakes.fake_fs import FailingFs, Fault
from tests.support.harness.golden_data import copy_partition, golden_partitions, golden_root
from tests.support.lives.log_cases import FIRST, killed, offsets, transaction
from tests.support.lives.log_helpers import TIME
from tests.support.lives.ui_parts import site

pytestmark = pytest.mark.promise("lost state")

CUTS: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "ten bytes": lambda data: data[:10],
    "torn": lambda data: data[: len(data) // 2 + 3],
}


def closed(path: Path, *, with_producers: bool = True, segment_bytes: int = 1 << 30) -> Path:
    """A cleanly closed log of 400 records, without its state."""
    with Log(path, segment_bytes=segment_bytes, index_interval_bytes=100) as log:
        for at in range(0, 400, 2):
            if with_producers:
                log.append_batches(transaction(7, at, at + 1, sequence=at), assign_offsets=False)
            else:
                # One time for all: else the last entry of the time index depends on the clock.
                log.append_many([b"%d" % at, b"%d" % (at + 1)], timestamps=[TIME, TIME])
    (path / "kstore.state").unlink()
    return path


def cut(path: Path, name: str, how: str) -> None:
    file = path / name
    file.write_bytes(CUTS[how](file.read_bytes()))


@pytest.mark.parametrize("how", CUTS)
def test_a_log_that_a_clean_close_proves_longer_has_lost_records(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = closed(tmp_path / "log")
    cut(path, FIRST, how)
    assert main(["verify", "--quiet", str(path)]) == 1
    assert main(["recover", "--dry-run", str(path)]) == 1
    assert main(["recover", str(path)]) == 1
    assert "nothing was lost" not in capsys.readouterr().out
    kept = {file.name for file in path.iterdir() if ".cut-" in file.name}
    assert f"{400:020d}.snapshot.cut-0" in kept
    assert f"{0:020d}.index.cut-0" in kept
    with Log(path) as log:
        end = log.recovery.corrupt[0].first
        assert (log.recovery.corrupt[0].last, log.end_offset) == (399, 400)
        assert log.append(b"new") == 400
        with pytest.raises(kstore.CorruptBatchError):
            list(log.read(0))
        assert offsets(log, 0, on_corrupt="skip") == [*range(end), 400]
    assert not verify_log(path).is_sound


@pytest.mark.parametrize("how", CUTS)
def test_a_sealed_segment_that_is_shorter_than_its_indexes_has_lost_records(how: str, tmp_path: Path) -> None:
    path = closed(tmp_path / "log", with_producers=False, segment_bytes=4000)
    bases = sorted(int(file.stem) for file in path.glob("*.log"))
    assert len(bases) > 3
    cut(path, f"{bases[1]:020d}.log", how)
    assert not verify_log(path).is_sound
    with Log(path) as log:
        assert log.recovery.corrupt
        assert log.recovery.corrupt[-1].last == bases[2] - 1
        assert offsets(log, bases[2]) == list(range(bases[2], 400))
        with pytest.raises(kstore.CorruptBatchError):
            list(log.read(bases[1]))


def test_a_log_of_which_every_segment_is_emptied_is_lost_from_its_start(tmp_path: Path) -> None:
    path = closed(tmp_path / "log", segment_bytes=9000)
    for file in path.glob("*.log"):
        file.write_bytes(b"")
    with Log(path) as log:
        assert (log.recovery.corrupt[0].first, log.recovery.corrupt[-1].last) == (0, 399)
        assert log.append(b"new") == 400


def test_segments_that_are_gone_are_proven_by_the_snapshot_of_the_close(tmp_path: Path) -> None:
    path = closed(tmp_path / "log")
    (path / FIRST).unlink()
    with Log(path) as log:
        assert [(gone.first, gone.last) for gone in log.recovery.corrupt] == [(0, 399)]
        assert log.append(b"new") == 400


def test_an_index_entry_of_the_active_segment_alone_skips_offsets_without_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Log(tmp_path / "open", durability="os", index_interval_bytes=100) as log:
        for at in range(200):
            log.append(b"%d" % at + b"." * 50)
        path = killed(log, tmp_path / "log")
    (path / "kstore.state").unlink()
    cut(path, FIRST, "torn")
    assert main(["verify", "--quiet", str(path)]) == 1  # the torn batch
    shutil.copytree(path, tmp_path / "copy")
    assert main(["recover", str(path)]) == 0
    out = capsys.readouterr().out
    assert "nothing was lost" not in out
    with Log(tmp_path / "copy") as log:
        (skipped,) = log.recovery.skipped
        assert (log.recovery.corrupt, skipped.last + 1) == ([], log.end_offset)
        assert f"{skipped.last - skipped.first + 1:,} offsets, {skipped.first} to {skipped.last}" in out
        assert 190 < log.append(b"new") <= 200
        assert offsets(log, 0) == [*range(skipped.first), skipped.last + 1]
    assert verify_log(tmp_path / "copy").is_sound


def test_a_cut_at_a_batch_s_end_within_the_promise_is_a_note_of_verify(tmp_path: Path) -> None:
    with Log(tmp_path / "open", durability="os", index_interval_bytes=100) as log:
        sizes = [log.append(b"%d" % at + b"." * 50) for at in range(200)]
        path = killed(log, tmp_path / "log")
    (path / "kstore.state").unlink()
    file = path / FIRST
    file.write_bytes(b"")
    assert len(sizes) == 200
    found = verify_log(path)
    assert found.damages == []
    assert any("offsets were used" in note.reason for note in found.notes)


def test_a_leader_epoch_beyond_the_end_skips_offsets(tmp_path: Path) -> None:
    path = closed(tmp_path / "log", with_producers=False)
    (path / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 450\n")
    with Log(path) as log:
        assert (log.recovery.corrupt, [(gone.first, gone.last) for gone in log.recovery.skipped]) == ([], [(400, 449)])
        assert log.append(b"new") == 450


def test_a_recovery_point_beyond_the_end_is_a_loss(tmp_path: Path) -> None:
    path = closed(tmp_path / "orders-0", with_producers=False)
    write_offset_checkpoint(
        SYSTEM_FS, tmp_path / "recovery-point-offset-checkpoint", {TopicPartition("orders", 0): 430}
    )
    assert not verify_log(path).is_sound
    with Log(path) as log:
        assert [(gone.first, gone.last) for gone in log.recovery.corrupt] == [(400, 429)]
        assert log.append(b"new") == 430


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (f"{2**62:020d}.snapshot", b"\x00\x01" + b"\xff" * 8),
        (f"{500:020d}.snapshot", b"garbage"),
        (f"{0:020d}.index", b"\xff" * 64),
        (f"{0:020d}.timeindex", b"\x7f" * 60),
        ("leader-epoch-checkpoint", b"0\n1\n0 4611686018427387904\n"),
        (f"{0:020d}.index", bytes(10 << 20)),
        (f"{0:020d}.timeindex", bytes(12 * 1000)),
    ],
)
def test_garbage_and_room_for_entries_are_no_evidence(name: str, content: bytes, tmp_path: Path) -> None:
    path = closed(tmp_path / "log", with_producers=False)
    (path / name).write_bytes(content)
    with Log(path) as log:
        assert (log.recovery.corrupt, log.recovery.skipped) == ([], [])
        assert log.append(b"new") == 400


def test_a_whole_snapshot_of_an_offset_that_no_segment_can_hold_is_not_believed(tmp_path: Path) -> None:
    path = closed(tmp_path / "log")
    shutil.copy(path / f"{400:020d}.snapshot", path / f"{2**62:020d}.snapshot")
    with Log(path) as log:
        assert (log.recovery.corrupt, log.append(b"new")) == ([], 400)


def _without_state(change: Callable[[Log], object], path: Path) -> None:
    """Changes a log, closes it, and expects that the next open without its state finds nothing lost."""
    with Log(path, index_interval_bytes=100, segment_bytes=4000) as log:
        for at in range(0, 400, 2):
            log.append_batches(transaction(7, at, at + 1, sequence=at), assign_offsets=False)
        change(log)
        end, start = log.end_offset, log.start_offset
        copy = killed(log, path.with_name("killed"))
    for one in (path, copy):
        (one / "kstore.state").unlink()
        assert not any(found.kind == "lost" for found in verify_log(one).findings)
        with Log(one) as log:
            assert (log.recovery.corrupt, log.recovery.skipped) == ([], [])
            assert (log.end_offset, log.start_offset <= start) == (end, True)


def test_retention_down_to_nothing_is_no_loss(tmp_path: Path) -> None:
    _without_state(lambda log: log.delete_records(log.end_offset), tmp_path / "log")


def test_deleted_records_are_no_loss(tmp_path: Path) -> None:
    _without_state(lambda log: log.delete_records(151), tmp_path / "log")


@pytest.mark.parametrize("to", [0, 3, 150, 399])
def test_a_truncation_is_no_loss(to: int, tmp_path: Path) -> None:
    _without_state(lambda log: log.truncate_to(to), tmp_path / "log")


def test_a_compacted_tail_is_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log(path, cleanup_policy=("compact",), segment_bytes=2000, index_interval_bytes=100) as log:
        for at in range(300):
            log.append(b"%d" % at, key=b"k%d" % (at % 3))
        log.roll()
        log.compact()
    (path / "kstore.state").unlink()
    assert verify_log(path).is_sound
    with Log(path) as log:
        assert (log.recovery.corrupt, log.recovery.skipped, log.end_offset) == ([], [], 300)


def test_a_topic_that_is_created_again_owes_nothing_to_the_deleted_one(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store") as store:
        for count in (500, 3):
            store.topic("t", partitions=1)
            with store.producer() as producer:
                for at in range(count):
                    producer.send("t", b"%d" % at)
            if count == 500:
                store.delete_topic("t")
    (tmp_path / "store" / "t-0" / "kstore.state").unlink()
    with kstore.open(tmp_path / "store") as store:
        log = store.log("t", 0)
        assert (log.recovery.corrupt, log.recovery.skipped, log.end_offset) == ([], [], 3)


@pytest.mark.parametrize("tree", ["clean", "crashed", "recovered", "old"])
@pytest.mark.parametrize("alone", [False, True])
def test_a_broker_s_logs_have_lost_nothing(tree: str, alone: bool, tmp_path: Path) -> None:
    for name in golden_partitions(tree):
        directory = copy_partition(tree, name, tmp_path) if alone else golden_root() / tree / name
        report = plan_recovery(directory)
        assert (report.corrupt, report.skipped) == ([], []), name


@pytest.mark.parametrize("with_producers", [True, False], ids=["snapshots", "indexes"])
def test_a_recovery_that_fails_on_the_way_forgets_nothing(with_producers: bool, tmp_path: Path) -> None:
    path = closed(tmp_path / "log", with_producers=with_producers)
    cut(path, FIRST, "emptied")
    for number in range(1, 400, 3):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(path, copy)
        fs = FailingFs(SYSTEM_FS, Fault(number, sticky=True))
        try:
            Log(copy, fs=fs).close()
        except kstore.KstoreError:
            pass
        else:
            assert number > 3
            break
        with Log(copy) as log:
            assert log.append(b"new") == (400 if with_producers else 398)  # its index names the last but one batch
            assert [gone.first for gone in log.recovery.corrupt] == [0] * with_producers
        shutil.rmtree(copy)
    else:
        raise AssertionError("never got to the end")


@pytest.mark.parametrize(("start", "is_tiered"), [(0, True), (437, True), (8894, False), (None, False)])
def test_a_start_below_the_first_segment_says_that_records_are_elsewhere(
    start: int | None, is_tiered: bool, tmp_path: Path
) -> None:
    path = tmp_path / "orders-0"
    with Log(path) as log:
        log.append_batches(transaction(7, 8894, 8895), assign_offsets=False)
    (path / "kstore.state").unlink()
    (path / FIRST).rename(path / f"{8894:020d}.log")
    for suffix in (".index", ".timeindex"):
        (path / f"{0:020d}{suffix}").unlink(missing_ok=True)
    if start is not None:
        points = {TopicPartition("orders", 0): start}
        write_offset_checkpoint(SYSTEM_FS, tmp_path / "log-start-offset-checkpoint", points)
    said = f"records from offset {start} to 8893 are elsewhere"
    notes = [note.reason for note in verify_log(path).notes if note.kind == "checkpoint"]
    assert [said in note for note in notes] == [True] * is_tiered
    stats = log_stats(path)
    assert (said in stats.elsewhere, stats.is_sound) == (is_tiered, True)
    with kstore.open(tmp_path, read_only=True) as store:
        (partition,) = store.describe_topic("orders").partitions
        assert (said in partition.elsewhere, partition.start_offset) == (is_tiered, 8894)
    runner = CliRunner()
    for command in ("stats", "describe"):
        for form in ((), ("--format", "json")):
            shown = " ".join(runner.invoke(cli, [command, *form, str(tmp_path)]).output.split())
            assert (said in shown) == is_tiered, (command, form)
    with site([tmp_path]) as pages:
        assert (said in pages.page("/logs/0/orders/0")) == is_tiered
    # kstore's own start counts once kstore has written here.
    with kstore.open(tmp_path) as store:
        (partition,) = store.describe_topic("orders").partitions
        assert (partition.start_offset, partition.elsewhere) == (8894, "")
    assert not log_stats(path).elsewhere
