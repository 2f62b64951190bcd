"""Compaction of what producers and transactions wrote: what must outlive the records, and for how long."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore.errors import OutOfOrderSequenceError, StorageError
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import READS, FailingFs, Fault
from tests.support.lives.log_cases import marker
from tests.support.lives.log_helpers import TIME
from tests.support.oracles.compaction_model import batches_in

RETENTION_MS = 1000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(TIME + 86_400_000)


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with Log(
        tmp_path / "log",
        durability="os",
        clock=clock,
        delete_retention_ms=RETENTION_MS,
        cleanup_policy="compact",
        producer_id_expiration_ms="365d",
    ) as opened:
        yield opened


def batch(
    offset: int, *keys: str, producer: int = -1, epoch: int = 0, sequence: int = 0, transactional: bool = False
) -> bytes:
    records = [Record(offset + at, TIME, key=key.encode(), value=b"v%d" % (offset + at)) for at, key in enumerate(keys)]
    if producer < 0:
        return build_batch(records)
    return build_batch(
        records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, is_transactional=transactional
    )


def put(log: Log, *batches: bytes) -> None:
    """Appends batches at their own offsets, and seals them."""
    for one in batches:
        log.append_batches(one, assign_offsets=False)
    log.roll()


def shape(log: Log) -> list[tuple[int, int]]:
    """The batches in the files: base offset, and number of records."""
    return [(one.base_offset, len(one.records)) for one in batches_in(log.path)]


def keys(log: Log, isolation_level: str = "read_uncommitted") -> list[tuple[int, bytes | None]]:
    return [(one.offset, one.key) for one in log.read(isolation_level=isolation_level)]  # type: ignore[arg-type]


# --- sequences --------------------------------------------------------------------------------------------------------


def test_duplicates_are_known_and_sequences_go_on_though_the_records_are_gone(log: Log, clock: ManualClock) -> None:
    first = log.append_batches(batch(0, "a", "b", producer=1))
    log.append_batches(batch(0, "a", "b"))
    log.roll()
    log.compact()
    assert shape(log)[0] == (0, 0), "the last batch of the producer, for its sequence"
    path = log.path
    log.close()
    (path / "kstore.state").unlink()
    for snapshot in path.glob("*.snapshot"):
        snapshot.unlink()
    # Now only the log knows the producer.
    with Log(path, durability="os", clock=clock, producer_id_expiration_ms="365d") as again:
        repeated = again.append_batches(batch(0, "a", "b", producer=1))
        assert (repeated.is_duplicate, repeated.first_offset) == (True, first.first_offset)
        with pytest.raises(OutOfOrderSequenceError):
            again.append_batches(batch(0, "a", producer=1, sequence=3))
        assert again.append_batches(batch(0, "a", producer=1, sequence=2)).first_offset == 4


def test_only_the_last_batch_of_each_producer_stays_when_it_is_empty(log: Log) -> None:
    put(
        log,
        batch(0, "a", producer=1),
        batch(1, "a", producer=2),
        batch(2, "a", producer=1, sequence=1),
        batch(3, "a", producer=3),
    )
    put(log, batch(4, "a"))
    log.compact()
    assert shape(log) == [(1, 0), (2, 0), (3, 0), (4, 1)]


def test_an_empty_batch_goes_when_its_producer_goes_on(log: Log) -> None:
    put(log, batch(0, "a", producer=1), batch(1, "a"))
    log.compact()
    assert shape(log) == [(0, 0), (1, 1)]
    put(log, batch(2, "b", producer=1, sequence=1))
    log.compact()
    assert shape(log) == [(1, 1), (2, 1)]


def test_a_sequence_that_starts_again_with_an_epoch_keeps_the_later_batch(log: Log) -> None:
    put(log, batch(0, "a", producer=1, epoch=0), batch(1, "b", producer=1, epoch=1), batch(2, "a", "b"))
    log.compact()
    assert shape(log) == [(1, 0), (2, 2)]


def test_the_last_batch_of_a_pass_stays_when_it_is_empty(log: Log) -> None:
    """It marks the end of the sealed part; the next pass removes it."""
    put(log, batch(0, "a"), build_batch([Record(1, TIME, value=b"without a key")]))
    log.compact()
    assert shape(log) == [(0, 1), (1, 0)]
    put(log, batch(2, "b"))
    log.compact()
    assert shape(log) == [(0, 1), (2, 1)]


def test_a_producer_s_last_sequence_stays_though_its_transaction_was_aborted(log: Log) -> None:
    put(log, batch(0, "a", "b", producer=1, transactional=True), marker(1, 2, commit=False), batch(3, "c"))
    log.compact()
    assert shape(log) == [(0, 0), (2, 1), (3, 1)]
    assert log.append_batches(batch(0, "a", "b", producer=1, transactional=True)).is_duplicate


# --- markers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_marker_goes_after_the_data_it_ends(commit: bool, log: Log, clock: ManualClock) -> None:
    put(log, batch(0, "a", producer=1, transactional=True), marker(1, 1, commit=commit))
    put(log, batch(2, "a"), batch(3, "b", producer=1, sequence=1))
    log.compact()
    # This pass met the data, which is gone; the next one sets how long the marker stays.
    assert shape(log) == [(1, 1), (2, 1), (3, 1)]
    assert batches_in(log.path)[0].delete_horizon_ms is None
    log.compact(whole=True)
    assert batches_in(log.path)[0].delete_horizon_ms == clock.now_ms() + RETENTION_MS
    clock.advance(RETENTION_MS - 1)
    log.compact(whole=True)
    assert shape(log) == [(1, 1), (2, 1), (3, 1)]
    clock.advance(1)
    log.compact(whole=True)
    assert shape(log) == [(2, 1), (3, 1)]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_marker_stays_while_an_empty_batch_of_its_transaction_does(
    commit: bool, log: Log, clock: ManualClock
) -> None:
    put(log, batch(0, "a", producer=1, transactional=True), marker(1, 1, commit=commit), batch(2, "a"))
    for _ in range(4):
        log.compact(whole=True)
        clock.advance(RETENTION_MS)
        assert shape(log) == [(0, 0), (1, 1), (2, 1)]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_that_spans_segments_is_one(commit: bool, log: Log) -> None:
    put(log, batch(0, "a"), batch(1, "a", producer=1, transactional=True))
    put(log, batch(2, "b", producer=1, sequence=1, transactional=True))
    put(log, batch(3, "b"), batch(4, "c", producer=1, sequence=2, transactional=True))
    assert log.compact().stop_offset == 1, "it is open"
    put(log, marker(1, 5, commit=commit))
    log.compact()
    wanted = [(1, b"a"), (3, b"b"), (4, b"c")] if commit else [(0, b"a"), (3, b"b")]
    assert keys(log) == keys(log, "read_committed") == wanted


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_an_aborted_record_before_damage_hides_no_committed_one(
    log: Log, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    """The keys before the damage are read twice; the second time, the end of the transaction was known already."""
    monkeypatch.setattr("kstore.compaction.cleaner.BLOCK_BYTES", block_bytes)
    put(log, batch(0, "a"))
    put(
        log,
        batch(1, "a", producer=1, transactional=True),
        marker(1, 2, commit=False),
        batch(3, "b"),
        batch(4, "c"),
    )
    put(log, batch(5, "d"))
    log.close()
    damaged = log.path / f"{1:020d}.log"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with Log(log.path, durability="os", clock=clock, cleanup_policy="compact") as again:
        report = again.compact()
        assert [(lost.first, lost.last) for lost in report.corrupt] == [(4, 4)]
        readable = again.read(isolation_level="read_committed", on_corrupt="skip")
        assert [(record.offset, record.key) for record in readable] == [(0, b"a"), (3, b"b"), (5, b"d")]


@pytest.mark.parametrize("raising", [None, KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_read_of_transactions_that_failed_costs_no_committed_record(
    raising: BaseException | None, log: Log, clock: ManualClock, tmp_path: Path
) -> None:
    """The second time, batches that were known were applied again: a later transaction counted as aborted."""
    put(
        log,
        batch(0, "a", producer=1, transactional=True),
        marker(1, 1, commit=False),
        batch(2, "b", producer=1, sequence=1, transactional=True),
    )
    put(log, marker(1, 3, commit=True))
    put(log, batch(4, "c"))
    log.close()
    for snapshot in log.path.glob("*.snapshot"):
        snapshot.unlink()
    failures = 0
    for at in range(1, 50):
        fs = FailingFs(SYSTEM_FS)
        shutil.copytree(log.path, tmp_path / str(at))
        with Log(tmp_path / str(at), durability="os", cleanup_policy="compact", clock=clock, fs=fs) as again:
            fs.faults.append(Fault(at, kinds=READS, raising=raising))
            try:
                stable = again.last_stable_offset
            except (StorageError, KeyboardInterrupt):
                failures += 1
                stable = again.last_stable_offset
            fs.faults.clear()
            again.compact()
            assert (stable, keys(again, "read_committed")) == (5, [(2, b"b"), (4, b"c")]), f"read {at} failed"
        if not fs.failures:
            break
    assert failures >= 10


def test_an_emptied_marker_is_one_without_data(log: Log, clock: ManualClock) -> None:
    """A marker that is the producer's last batch stays as an empty one; reading and a restart skip it."""
    path = log.path
    put(log, batch(0, "a", producer=1, transactional=True), marker(1, 1, commit=True), batch(2, "a"))
    # A new epoch, which only the marker shows.
    put(log, marker(1, 3, commit=False, epoch=1), batch(4, "b"))
    for _ in range(4):
        log.compact(whole=True)
        clock.advance(RETENTION_MS)
    assert (3, 0) in shape(log)
    assert keys(log, "read_committed") == [(2, b"a"), (4, b"b")]
    log.close()
    with Log(path, durability="os") as again:
        assert again.last_stable_offset == again.end_offset == 5
        again.compact(whole=True)
        assert keys(again, "read_committed") == [(2, b"a"), (4, b"b")]


def test_a_key_like_a_marker_s_is_a_key(log: Log) -> None:
    like_commit, like_abort = b"\x00\x00\x00\x01", b"\x00\x00\x00\x00"
    records = [Record(at, TIME, key=key, value=b"v") for at, key in enumerate((like_abort, like_commit, like_abort))]
    put(log, build_batch(records), batch(3, "a", producer=1, transactional=True), marker(1, 4, commit=True))
    put(log, build_batch([Record(5, TIME, key=like_commit, value=b"w")]), batch(6, "z"))
    log.compact()
    assert keys(log) == [(2, like_abort), (3, b"a"), (5, like_commit), (6, b"z")]


def test_aborted_data_of_several_producers_is_told_apart(log: Log) -> None:
    put(
        log,
        batch(0, "a", producer=1, transactional=True),
        batch(1, "b", producer=2, transactional=True),
        marker(1, 2, commit=False),
        batch(3, "a", producer=1, sequence=1, transactional=True),
        marker(2, 4, commit=True),
        marker(1, 5, commit=True),
        batch(6, "c"),
    )
    log.compact()
    assert keys(log) == keys(log, "read_committed") == [(1, b"b"), (3, b"a"), (6, b"c")]


# --- gaps -------------------------------------------------------------------------------------------------------------


def test_missing_offsets_are_no_end(log: Log) -> None:
    put(log, batch(0, "a"), batch(10, "b"))
    put(log, batch(500, "a"), batch(1_000_000, "c"))
    report = log.compact()
    assert report.stop_offset == 1_000_001
    assert keys(log) == [(10, b"b"), (500, b"a"), (1_000_000, b"c")]
    assert log.compact().first_dirty == 1_000_001


def test_batches_after_the_cleanable_part_are_copied_and_hide_nothing(log: Log) -> None:
    put(log, batch(0, "a"), batch(1, "a"), batch(2, "b"))
    put(log, batch(3, "x", producer=1, transactional=True), batch(4, "b"))
    report = log.compact()
    assert report.stop_offset == 3
    assert keys(log) == [(1, b"a"), (2, b"b"), (3, b"x"), (4, b"b")]


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_stays_as_long_as_the_snapshot_at_the_start_has_its_transaction_open(
    commit: bool, log: Log, clock: ManualClock
) -> None:
    """Its data is deleted. Without the marker, a reader without the later snapshots would wait for it forever."""
    put(log, batch(0, "a", producer=7, transactional=True))
    put(log, batch(1, "b", "b"), marker(7, 3, commit=commit))
    put(log, batch(4, "c"))
    log.append(b"end", key=b"d")
    log.delete_records(1)
    for _ in range(3):
        log.compact(whole=True)
        clock.advance(RETENTION_MS + 1)
        log.append(b"end", key=b"d")
        log.roll()
    assert 3 in [base for base, _ in shape(log)]
    path, end = log.path, log.end_offset
    log.close()
    (path / "kstore.state").unlink()
    for snapshot in sorted(path.glob("*.snapshot"))[1:]:
        snapshot.unlink()
    with Log(path, durability="os", clock=clock, producer_id_expiration_ms="365d") as again:
        assert again.last_stable_offset == again.end_offset == end
