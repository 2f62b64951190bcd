"""What a log knows of transactions and producers: where committed reads stop, what they omit, and what it still knows
after a kill, a truncation, a deletion, or a lost file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kstore.errors import PoisonedError
from kstore.files.fs import read_file
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, reads_of, writer_of
from kstore.record.builder import build_batch
from kstore.state.producer_snapshot import decode_snapshot, encode_snapshot
from kstore.types import AbortedTransaction, Durability
from tests.support.fakes.fake_fs import WRITES, FailingFs, Fault, RecordingFs
from tests.support.lives.log_cases import data, edit, files, killed, marker, offsets, segment_bases, transaction

pytestmark = pytest.mark.usefixtures("unflushed")

TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")


def append(log: Log, *batches: bytes) -> None:
    for batch in batches:
        log.append_batches(batch, assign_offsets=False)


def committed(log: Log) -> list[int]:
    return offsets(log, isolation_level="read_committed")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "log", durability="os") as opened:
        yield opened


def interleaved(log: Log) -> None:
    """Producer 1 aborts 0-1 and 5, 2 commits 2-3, 4 has none; 3 is still open at 9; in segments at 0, 4 and 8."""
    append(log, transaction(1, 0, 1), transaction(2, 2, 3))
    log.roll()
    append(log, data(4), transaction(1, 5, sequence=2), marker(2, 6, commit=True), marker(1, 7, commit=False))
    log.roll()
    append(log, data(8), transaction(3, 9), data(10))


# --- where committed reads stop ---------------------------------------------------------------------------------------


def test_the_last_stable_offset_is_the_oldest_open_transaction_s_first(log: Log) -> None:
    assert log.last_stable_offset == 0
    append(log, data(0), transaction(1, 1, 2))
    assert log.last_stable_offset == 1
    append(log, transaction(2, 3), data(4))
    assert (log.last_stable_offset, committed(log)) == (1, [0])
    append(log, marker(1, 5, commit=True))
    assert (log.last_stable_offset, committed(log)) == (3, [0, 1, 2])
    append(log, marker(2, 6, commit=False))
    assert (log.last_stable_offset, log.high_watermark) == (7, 7)
    assert committed(log) == [0, 1, 2, 4]
    assert offsets(log) == [0, 1, 2, 3, 4]


def test_a_transaction_goes_on_over_segments(log: Log) -> None:
    interleaved(log)
    assert segment_bases(log.path) == [0, 4, 8]
    assert log.last_stable_offset == 9
    assert committed(log) == [2, 3, 4, 8]
    assert offsets(log) == [0, 1, 2, 3, 4, 5, 8, 9, 10]


def test_a_committed_slice_names_what_was_aborted_in_it(log: Log) -> None:
    interleaved(log)
    aborted = [AbortedTransaction(1, 0, 7, 8)]
    for offset in range(8):
        part = log.fetch(offset, isolation_level="read_committed")
        assert (part.aborted, part.stop_offset) == (aborted, 9)
    last = log.fetch(8, isolation_level="read_committed")
    assert ([record.offset for record in last.records()], last.aborted) == ([8], [])
    assert log.fetch(9, isolation_level="read_committed").size == 0
    assert log.fetch(0).aborted is None


def test_every_aborted_transaction_is_an_entry_of_the_segment_of_its_marker(log: Log) -> None:
    append(log, transaction(1, 0), marker(1, 1, commit=False), transaction(2, 2), transaction(1, 3, sequence=1))
    log.roll()
    append(log, marker(1, 4, commit=False), marker(2, 5, commit=True))
    assert {name: len(content) // 34 for name, content in files(log.path, TXN_INDEX).items()} == {
        f"{0:020d}{TXN_INDEX}": 1,
        f"{4:020d}{TXN_INDEX}": 1,
    }
    assert reads_of(log).aborted_transactions(0, 6) == [AbortedTransaction(1, 0, 1, 2), AbortedTransaction(1, 3, 4, 2)]
    assert committed(log) == [2]


def test_a_marker_without_a_transaction_ends_nothing(log: Log) -> None:
    append(log, marker(1, 0, commit=False), data(1), marker(2, 2, commit=True))
    assert (log.last_stable_offset, committed(log), files(log.path, TXN_INDEX)) == (3, [1], {})


def test_an_empty_control_batch_ends_nothing(log: Log) -> None:
    empty = build_batch(
        [],
        base_offset=2,
        last_offset=2,
        producer_id=1,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
    )
    append(log, transaction(1, 0, 1), empty, data(3))
    assert (log.last_stable_offset, committed(log)) == (0, [])
    assert offsets(log) == [0, 1, 3]


def test_a_new_epoch_ends_the_transaction_of_the_one_before(log: Log) -> None:
    append(log, transaction(1, 0, 1), marker(1, 2, commit=False, epoch=1), transaction(1, 3, epoch=1))
    assert (log.last_stable_offset, committed(log)) == (3, [])
    append(log, marker(1, 4, commit=True, epoch=1))
    assert committed(log) == [3]


def test_a_reader_that_waits_for_commits_gets_them_with_the_marker(log: Log) -> None:
    append(log, transaction(1, 0, 1))
    follower = log.read(isolation_level="read_committed", follow=True, timeout=0)
    append(log, marker(1, 2, commit=True))
    assert [record.offset for record in follower] == [0, 1]


def test_the_last_stable_offset_is_never_below_the_log_s_start(log: Log) -> None:
    append(log, transaction(1, 0, 1), data(2), data(3))
    log.delete_records(3)
    assert log.last_stable_offset == 3
    assert log.fetch(3, isolation_level="read_committed").size == 0
    with Log(log.path, read_only=True) as view:
        assert view.last_stable_offset == 3
    append(log, marker(1, 4, commit=True))
    assert (log.last_stable_offset, committed(log)) == (5, [3])


# --- after a restart --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closed", "killed", "read-only", "killed and read-only"])
def test_a_log_opened_again_knows_its_transactions(how: str, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        interleaved(log)
        copy = killed(log, tmp_path / "killed")
    with Log(copy if "killed" in how else log.path, read_only="read-only" in how) as again:
        assert (again.last_stable_offset, committed(again)) == (9, [2, 3, 4, 8])
        if not again.read_only:
            append(again, marker(3, 11, commit=True))
            assert (again.last_stable_offset, committed(again)) == (12, [2, 3, 4, 8, 9, 10])


@pytest.mark.parametrize("content", [None, b"", b"\x00\x01" * 17, bytes(20)], ids=["lost", "empty", "version", "half"])
def test_recovery_rebuilds_the_transaction_indexes(content: bytes | None, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        interleaved(log)
        append(log, marker(3, 11, commit=False))
        before = files(log.path, TXN_INDEX)
        copy = killed(log, tmp_path / "killed")
    for path in copy.glob(f"*{TXN_INDEX}"):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
    with Log(copy) as again:
        assert files(copy, TXN_INDEX) == before
        assert committed(again) == [2, 3, 4, 8, 10]


def test_recovery_rebuilds_an_index_of_the_last_segment_from_earlier_ones(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="sync") as log:
        interleaved(log)
        append(log, marker(3, 11, commit=False))
        before = files(log.path, TXN_INDEX)
        copy = killed(log, tmp_path / "killed")
    (copy / f"{8:020d}{TXN_INDEX}").unlink()
    with Log(copy) as again:
        assert again.recovery.segments_scanned == 1
        assert files(copy, TXN_INDEX) == before


def test_recovery_syncs_a_transaction_index_that_it_keeps(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        append(log, data(0), transaction(1, 1, 2), marker(1, 3, commit=False))
        copy = killed(log, tmp_path / "killed")
    # Its writer was killed before a sync, so a power cut may still take what a clean close would rely on.
    fs = RecordingFs()
    Log(copy, fs=fs).close()
    kinds = [(operation.kind, Path(operation.path).suffix or Path(operation.path).name) for operation in fs.operations]
    done = kinds[: kinds.index(("fdatasync", ".state"))]
    assert ("sync_dir", "") in [(kind, "") for kind, _ in done[done.index(("fdatasync", TXN_INDEX)) :]]


def test_a_torn_marker_is_cut_and_its_transaction_open_again(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        append(log, data(0), transaction(1, 1, 2), marker(1, 3, commit=False))
        copy = killed(log, tmp_path / "killed")
    edit(copy / f"{0:020d}.log", lambda content: content.__delitem__(slice(-5, None)))
    with Log(copy) as again:
        assert (again.end_offset, again.last_stable_offset, committed(again)) == (3, 1, [0])
        assert reads_of(again).aborted_transactions(0, 3) == []
        append(again, marker(1, 3, commit=True))
        assert committed(again) == [0, 1, 2]


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_an_abort_that_cannot_be_indexed_is_not_served(durability: Durability, tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS, Fault(1, suffix=TXN_INDEX))
    with Log(tmp_path / "log", durability=durability, fs=fs) as log:
        append(log, data(0), transaction(1, 1, 2))
        log.flush()
        append(log, marker(1, 3, commit=False))
        assert (log.end_offset, log.last_stable_offset, committed(log)) == (4, 1, [0])
        with pytest.raises(PoisonedError):
            append(log, data(4))
    with Log(tmp_path / "log", durability=durability) as again:
        assert (again.recovery.clean, again.last_stable_offset, committed(again)) == (False, 4, [0])
        assert reads_of(again).aborted_transactions(0, 4) == [AbortedTransaction(1, 1, 3, 4)]


def test_half_an_index_entry_that_cannot_be_cut_off_hides_nothing_before_it(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS, Fault(1, written=1, suffix=TXN_INDEX, sticky=True, kinds=WRITES | {"truncate"}))
    with Log(tmp_path / "log", durability="os", fs=fs) as log:
        append(log, data(0), transaction(1, 1, 2))
        log.flush()
        append(log, marker(1, 3, commit=False))
        assert len(fs.failures) == 2
        assert (log.last_stable_offset, committed(log)) == (1, [0])
        fs.faults.clear()
    with Log(tmp_path / "log") as again:
        assert (again.last_stable_offset, committed(again)) == (4, [0])


# --- snapshots --------------------------------------------------------------------------------------------------------


def snapshot_offsets(path: Path) -> list[int]:
    return sorted(int(each.stem) for each in path.glob(f"*{SNAPSHOT}"))


def test_a_snapshot_is_written_at_each_roll_and_at_close(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        append(log, transaction(1, 0, 1))
        assert snapshot_offsets(log.path) == []
        log.roll()
        assert snapshot_offsets(log.path) == [2]
        append(log, marker(1, 2, commit=True), transaction(2, 3, sequence=5))
    assert snapshot_offsets(log.path) == [2, 4]
    first, second = (
        {entry.producer_id: entry for entry in decode_snapshot(read_file(SYSTEM_FS, path))}
        for path in sorted(log.path.glob(f"*{SNAPSHOT}"))
    )
    assert (first[1].last_sequence, first[1].last_offset, first[1].current_txn_first_offset) == (1, 1, 0)
    assert (second[1].coordinator_epoch, second[1].current_txn_first_offset) == (0, -1)
    assert (second[2].last_sequence, second[2].last_offset, second[2].current_txn_first_offset) == (5, 3, 3)


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_roll_within_an_append_forgets_no_transaction(durability: Durability, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability=durability, segment_bytes=1024) as log:
        append(log, transaction(1, 0))
        append(log, transaction(2, 1, size=600) + transaction(2, 2, size=600, sequence=1))
        assert segment_bases(log.path) == [0, 2]
        append(log, marker(1, 3, commit=True))
        copy = killed(log, tmp_path / "killed")
    for path in (copy, log.path):
        with Log(path) as again:
            assert (again.last_stable_offset, committed(again)) == (1, [0])
            append(again, marker(2, 4, commit=False))
            assert committed(again) == [0]


def test_a_log_without_producers_has_no_snapshot(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append(b"x")
        log.roll()
        log.append(b"y")
    assert snapshot_offsets(log.path) == []


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("change", ["lost", "newest-lost", "corrupt", "newest-corrupt", "truncated", "empty"])
def test_a_lost_or_damaged_snapshot_costs_nothing(change: str, clean: bool, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        interleaved(log)
        copy = killed(log, tmp_path / "killed")
    path = log.path if clean else copy
    snapshots = sorted(path.glob(f"*{SNAPSHOT}"))
    for snapshot in snapshots[-1:] if "newest" in change else snapshots:
        if "lost" in change:
            snapshot.unlink()
        else:
            content = bytearray(snapshot.read_bytes())
            content[-1] ^= 1
            whole = bytes(content)
            snapshot.write_bytes({"truncated": whole[:-9], "empty": b""}.get(change, whole))
    for read_only in (True, False):
        with Log(path, read_only=read_only) as again:
            assert (again.last_stable_offset, committed(again)) == (9, [2, 3, 4, 8])


def test_a_snapshot_beyond_the_end_is_not_believed(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        interleaved(log)
        copy = killed(log, tmp_path / "killed")
    (copy / f"{500:020d}{SNAPSHOT}").write_bytes(encode_snapshot([]))
    with Log(copy, read_only=True) as view:
        assert view.last_stable_offset == 9
    with Log(copy) as again:
        assert again.last_stable_offset == 9
        assert snapshot_offsets(copy) == [4, 8]


# --- truncation and deletion ------------------------------------------------------------------------------------------


def test_a_truncated_marker_leaves_its_transaction_open(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        interleaved(log)
        log.truncate_to(7)
        assert (log.last_stable_offset, committed(log)) == (0, [])
        assert reads_of(log).aborted_transactions(0, 7) == []
        assert snapshot_offsets(log.path) == [4]
        append(log, marker(1, 7, commit=True))
        assert (log.last_stable_offset, committed(log)) == (8, [0, 1, 2, 3, 4, 5])
    with Log(log.path) as again:
        assert committed(again) == [0, 1, 2, 3, 4, 5]


def test_a_truncated_transaction_is_forgotten(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        interleaved(log)
        log.truncate_to(9)
        assert (log.last_stable_offset, committed(log)) == (9, [2, 3, 4, 8])
        log.truncate_to(0)
        assert log.last_stable_offset == 0
        append(log, data(0))
        assert (log.last_stable_offset, committed(log), snapshot_offsets(log.path)) == (1, [0], [])


def test_a_restarted_log_has_no_producers(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        interleaved(log)
        writer_of(log).truncate_fully_and_start_at(20)
        assert (log.last_stable_offset, files(log.path, TXN_INDEX, SNAPSHOT)) == (20, {})
        append(log, data(20))
        assert committed(log) == [20]


def test_producers_are_known_where_the_records_they_began_with_are_deleted(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        append(log, transaction(1, 0, 1))
        log.roll()
        append(log, transaction(1, 2, sequence=2))
        log.roll()
        append(log, data(3))
        log.delete_records(2)
        copy = killed(log, tmp_path / "killed")
    for path in (log.path, copy):
        with Log(path) as again:
            assert (again.start_offset, again.last_stable_offset, committed(again)) == (2, 2, [])
            append(again, marker(1, 4, commit=False))
            assert committed(again) == [3]


def test_snapshots_go_with_their_segments(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        for offset in range(5):
            append(log, transaction(1, offset, sequence=offset))
            log.roll()
        assert snapshot_offsets(log.path) == [1, 2, 3, 4, 5]
        log.delete_records(3)
        assert snapshot_offsets(log.path) == [3, 4, 5]


def test_snapshots_of_earlier_closes_do_not_pile_up(tmp_path: Path) -> None:
    for offset in range(5):
        with Log(tmp_path / "log", durability="os") as log:
            append(log, transaction(1, offset, sequence=offset))
            if offset == 2:
                log.roll()
    assert snapshot_offsets(log.path) == [3, 4, 5]
    with Log(log.path) as log:
        assert log.last_stable_offset == 0
    assert snapshot_offsets(log.path) == [3, 5]


def test_a_snapshot_beyond_the_end_of_a_closed_log_never_counts(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        append(log, transaction(1, 0))
    (log.path / f"{3:020d}{SNAPSHOT}").write_bytes(encode_snapshot([]))
    with Log(log.path) as log:
        append(log, data(1), data(2), data(3))
        assert log.last_stable_offset == 0
    with Log(log.path) as log:
        assert log.last_stable_offset == 0


@pytest.mark.parametrize("durability", ["sync", "os"])
@pytest.mark.parametrize("harm", ["lost", "cut"])
@pytest.mark.promise("rebuilt")
def test_a_transaction_index_that_is_lost_after_a_clean_close_is_missed(
    harm: str, durability: Durability, tmp_path: Path
) -> None:
    with Log(tmp_path / "log", durability=durability) as log:
        interleaved(log)
        before = committed(log)
    index = tmp_path / "log" / next(iter(files(tmp_path / "log", TXN_INDEX)))
    content = index.read_bytes()
    if harm == "lost":
        index.unlink()
    else:
        index.write_bytes(content[:-34])
    with Log(tmp_path / "log", durability=durability) as log:
        assert not log.recovery.clean
        assert log.recovery.notes
        assert committed(log) == before
    assert index.read_bytes() == content
    with Log(tmp_path / "log", durability=durability) as log:
        assert log.recovery.clean


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
@pytest.mark.promise("rebuilt")
def test_a_transaction_index_that_is_lost_after_a_kill_is_missed(
    shared: bool, durability: Durability, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Log(tmp_path / "log", durability=durability) as log:
        interleaved(log)
        log.flush()
        before = committed(log)
        path = killed(log, tmp_path / "killed")
    index = path / f"{4:020d}{TXN_INDEX}"
    content = index.read_bytes()
    index.unlink()
    with Log(path, durability=durability, shared=shared) as log:
        assert committed(log) == before
        assert "expected 34" in log.recovery.notes[0]
        assert str(index) in log.recovery.rebuilt
        assert "a transaction index is lost or damaged" in caplog.text
    assert index.read_bytes() == content


@pytest.mark.promise("rebuilt")
def test_a_damaged_marker_does_not_take_its_entry_out_of_a_rebuilt_index(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        append(log, transaction(1, 0, 1), marker(1, 2, commit=False), transaction(1, 3, sequence=2))
        append(log, marker(1, 4, commit=True))
        log.flush()
        assert committed(log) == [3]
        path = killed(log, tmp_path / "killed")
    size = len(transaction(1, 0, 1))
    edit(path / f"{0:020d}.log", lambda content: content.__setitem__(size + 30, content[size + 30] ^ 1))
    with Log(path) as log:
        assert [(lost.first, lost.last) for lost in log.recovery.corrupt] == [(2, 2)]
        assert offsets(log, isolation_level="read_committed", on_corrupt="skip") == [3]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_writers_that_share_a_log_agree_on_the_size_of_its_transaction_indexes(
    durability: Durability, tmp_path: Path
) -> None:
    with Log(tmp_path / "log", durability=durability) as log:
        for first in range(0, 40, 4):
            append(log, transaction(1, first, sequence=first), marker(1, first + 1, commit=False), data(first + 2))
            log.roll()
    one = Log(tmp_path / "log", durability=durability, shared=True)
    two = Log(tmp_path / "log", durability=durability, shared=True)
    changes: list[Callable[[Log], object]] = [
        lambda log: log.append(b"next"),
        lambda log: log.delete_records(9),
        lambda log: log.flush(),
        lambda log: log.roll(),
        lambda log: log.truncate_to(30),
        lambda log: log.append(b"other"),
        lambda log: log.roll(),
        lambda log: log.flush(),
        lambda log: log.delete_records(17),
    ]
    for number, change in enumerate(changes):
        change((one, two)[number % 2])
        with Log(killed(one, tmp_path / str(number)), durability=durability) as again:
            assert again.recovery.notes == []
            assert committed(again) == committed(one) == committed(two)
    one.close()
    two.close()
    with Log(tmp_path / "log", durability=durability) as log:
        assert log.recovery.clean
