"""A log verified piece by piece gives what ``verify_log`` gives."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.engine.writer import LogWriter
from kstore.files.paths import SNAPSHOT_SUFFIX, segment_name
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.state.producer_snapshot import decode_snapshot, encode_snapshot
from kstore.upkeep.verify import Finding, LogVerification, find_logs, verify_log
from kstore.upkeep.verify.partition import verify_head
from kstore.upkeep.verify.pieces import join, pieces_of, verify_piece
from tests.support.harness.golden_data import copy_partition, golden_partitions, golden_root
from tests.support.lives.log_cases import fenced, lost_in_the_middle, tail_lost

TRANSACTIONAL: dict[str, Any] = {"producer_epoch": 0, "base_sequence": 0, "is_transactional": True}


def in_pieces(directory: Path) -> LogVerification:
    head = verify_head(directory)
    return join(head, [verify_piece(piece) for piece in pieces_of(head)])


def assert_same(directory: Path) -> None:
    whole, joined = verify_log(directory), in_pieces(directory)
    assert sorted(joined.findings) == sorted(whole.findings)
    for name in ("start_offset", "end_offset", "last_stable_offset", "segment_count", "batch_count", "size"):
        assert getattr(joined, name) == getattr(whole, name), name


@pytest.mark.parametrize("tree", ["clean", "crashed", "recovered", "old", "started"])
def test_the_pieces_of_what_a_broker_wrote_say_what_the_whole_says(tree: str) -> None:
    for name in golden_partitions(tree):
        assert_same(golden_root() / tree / name)


def test_damage_is_found_in_its_piece() -> None:
    found: list[Finding] = []
    for log in find_logs(golden_root() / "damaged"):
        assert_same(log)
        found += in_pieces(log).damages
    assert len(found) > 5


def filled(tmp_path: Path) -> Path:
    with kstore.open(tmp_path / "store", segment_bytes=2000) as store:
        store.create_topic("orders")
        with store.producer(transactional_id="one", linger_ms=0) as producer:
            for number in range(40):
                try:
                    with producer.transaction():
                        producer.send("orders", b"v%d" % number * 20, key=b"k")
                        if number % 4 == 0:
                            producer.flush()  # unwritten batches need no abort
                            raise KeyError
                except KeyError:
                    pass
    return tmp_path / "store" / "orders-0"


def test_transactions_are_followed_across_pieces_by_snapshots(tmp_path: Path) -> None:
    directory = filled(tmp_path)
    head = verify_head(directory)
    assert len(head.bases) > 3
    assert in_pieces(directory).is_sound
    assert_same(directory)


def test_a_transaction_index_that_lacks_an_entry_is_found_in_any_piece(tmp_path: Path) -> None:
    directory = filled(tmp_path)
    indexes = sorted(directory.glob("*.txnindex"))
    assert len(indexes) > 2
    indexes[-1].write_bytes(b"")
    assert {damage.kind for damage in in_pieces(directory).damages} == {"txnindex"}
    assert_same(directory)


def crossing(tmp_path: Path, *, commit: bool) -> kstore.Log:
    """A log with a transaction from offset 0 to its marker at 6, in the second segment; two records come after it."""
    log = kstore.Log(tmp_path / "t-0", durability="os", cleanup_policy="compact,delete", delete_retention_ms=0)
    log.append_batches(build_batch([Record(0, 1000, key=b"k", value=b"v")], producer_id=7, **TRANSACTIONAL))
    log.roll()
    log.append_many([b"a"] * 5, keys=[b"a"] * 5)
    log.end_transaction(7, 0, commit=commit)
    for key in (b"y", b"z"):
        log.roll()
        log.append(b"v", key=key)
    return log


def test_an_aborted_transaction_without_records_need_not_be_in_the_index(tmp_path: Path) -> None:
    """Compaction removes its records, then its entry, then its marker; the log stays sound at each step."""
    with crossing(tmp_path, commit=False) as log:
        log.delete_records(2)
        for number in range(3):
            log.compact(whole=True)
            found = verify_log(tmp_path / "t-0")
            assert (found.damages, found.last_stable_offset) == ([], log.end_offset), number
            assert_same(tmp_path / "t-0")
            log.append(b"v", key=b"%d" % number)
            log.roll()
    assert_same(tmp_path / "t-0")


def test_an_emptied_batch_is_no_record_of_an_aborted_transaction(tmp_path: Path) -> None:
    """The empty batch that compaction keeps for a producer's sequence has no record that an entry could hide."""
    path = tmp_path / "t-0"
    with kstore.Log(path, durability="os", cleanup_policy="compact") as log:
        for sequence in range(2):
            stamp = TRANSACTIONAL | {"producer_id": 7, "base_sequence": sequence}
            log.append_batches(build_batch([Record(0, 1000, key=b"k", value=b"v")], **stamp))
            log.roll()
        log.end_transaction(7, 0, commit=False)
        log.roll()
        log.append(b"a", key=b"a")
        log.compact(whole=True)
        assert [batch.record_count for batch in log.fetch(1).batches()] == [0, 1]
        assert verify_log(path).damages == []
        assert_same(path)


def test_a_marker_that_compaction_removed_leaves_no_transaction_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's cleaner removes it; kstore keeps that marker."""
    monkeypatch.setattr(LogWriter, "open_at_start", lambda writer: frozenset())
    with crossing(tmp_path, commit=True) as log:
        log.delete_records(2)
        for number in range(3):
            log.compact(whole=True)
            found = verify_log(tmp_path / "t-0")
            assert (found.damages, found.last_stable_offset) == ([], log.end_offset), number
            assert_same(tmp_path / "t-0")
            log.append(b"v", key=b"%d" % number)
            log.roll()


def test_an_entry_that_hides_records_of_an_earlier_segment_is_missed(tmp_path: Path) -> None:
    crossing(tmp_path, commit=False).close()
    (index,) = [path for path in (tmp_path / "t-0").glob("*.txnindex") if path.stat().st_size]
    index.write_bytes(b"")
    (damage,) = verify_log(tmp_path / "t-0").damages
    assert (damage.kind, damage.first, damage.last) == ("txnindex", 0, 6)
    assert "producer 7 is not in the index" in damage.reason
    assert_same(tmp_path / "t-0")


def test_a_snapshot_that_ends_a_transaction_whose_offsets_are_all_there_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with kstore.Log(path, durability="os") as log:
        log.append_batches(build_batch([Record(0, 1000, value=b"v")], producer_id=7, **TRANSACTIONAL))
        log.roll()
        log.append(b"a")
    snapshot = path / segment_name(2, SNAPSHOT_SUFFIX)
    (entry,) = decode_snapshot(snapshot.read_bytes())
    snapshot.write_bytes(encode_snapshot([entry._replace(current_txn_first_offset=-1)]))
    (damage,) = verify_log(path).damages
    assert damage.kind == "snapshot"
    assert_same(path)


def test_a_segment_that_cannot_be_read_is_damage_of_its_piece_alone(tmp_path: Path) -> None:
    directory = filled(tmp_path)
    head = verify_head(directory)
    pieces = pieces_of(head)
    Path(directory, f"{pieces[1].base_offset:020d}.log").unlink()
    results = [verify_piece(piece) for piece in pieces]
    assert [result.log.is_sound for result in results] == [True, False] + [True] * (len(pieces) - 2)
    assert "cannot be read" in results[1].log.damages[-1].reason


def test_epochs_that_fall_from_one_piece_to_the_next_are_a_note(tmp_path: Path) -> None:
    name = next(
        each for each in golden_partitions("clean") if len(verify_head(golden_root() / "clean" / each).bases) > 1
    )
    directory = copy_partition("clean", name, tmp_path)
    head = verify_head(directory)
    results = [verify_piece(piece) for piece in pieces_of(head)]
    results[0].epochs = (*results[0].epochs[:2], 99)
    assert [note.kind for note in join(head, results).notes].count("epochs") == 1
    shutil.rmtree(directory)


@pytest.mark.parametrize("accept", [False, True], ids=["told", "accepted"])
@pytest.mark.parametrize("make", [lost_in_the_middle, tail_lost, fenced])
def test_losses_are_those_of_the_whole(make: Callable[[Path], Path], accept: bool, tmp_path: Path) -> None:
    path = make(tmp_path / "log")
    with kstore.Log(path) as log:
        (gone,) = log.verify().corrupt
        if accept:
            log.accept_loss(gone.first, gone.last)
    assert_same(path)
    assert in_pieces(path).is_sound == accept
