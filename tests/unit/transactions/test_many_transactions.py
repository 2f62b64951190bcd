"""Logs with more transactions than any producers have: their number must not multiply the work for each of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.record._runs import walk_run
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.state.producer_snapshot import ProducerEntry
from kstore.state.producer_state import OpenTransactions, ProducerState
from kstore.types import OFFSET_MAX
from kstore.upkeep.verify.directory import verify
from tests.support.harness.cpu_limit import cpu_limit
from tests.support.harness.selection import tries
from tests.support.lives.run_helpers import marker, small_batch

pytestmark = pytest.mark.promise("hostile file")

COUNT = tries(10_000, quick=4000)
SECONDS_MAX = tries(5, quick=2)
ABORT, COMMIT = EndTransactionMarker(ControlRecordType.ABORT, 0), EndTransactionMarker(ControlRecordType.COMMIT, 0)


def batches(first_offset: int, count: int, producer_id: int = 1) -> list[bytes]:
    """One transactional batch each of many producers."""
    fields: dict[str, Any] = {"producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    return [
        small_batch(first_offset + number, 1, producer_id=producer_id + number, **fields) for number in range(count)
    ]


def ends(first_offset: int, producer_ids: range) -> list[bytes]:
    return [marker(first_offset + number, one, 0, ABORT) for number, one in enumerate(producer_ids)]


def written(directory: Path, *parts: list[bytes]) -> Path:
    directory.mkdir()
    (directory / f"{0:020}.log").write_bytes(b"".join(each for part in parts for each in part))
    return directory


@pytest.mark.parametrize("order", [1, -1], ids=["the oldest first", "the newest first"])
def test_many_open_transactions_do_not_make_a_log_slow(tmp_path: Path, order: int) -> None:
    path = written(tmp_path / "log", batches(0, COUNT), ends(COUNT, range(1, COUNT + 1)[::order]))
    with cpu_limit(SECONDS_MAX), kstore.Log(path, durability="os") as log:
        assert log.end_offset == 2 * COUNT
        assert log.last_stable_offset == 2 * COUNT
    with cpu_limit(SECONDS_MAX):
        assert [found.findings for found in verify(path)] == [[]]


def test_many_open_transactions_before_a_gap_do_not_make_a_verification_slow(tmp_path: Path) -> None:
    path = written(tmp_path / "log", batches(0, COUNT), ends(COUNT + 1, range(1, COUNT + 1)))
    with kstore.Log(path, durability="os") as log:
        assert log.end_offset == 2 * COUNT + 1
    with cpu_limit(SECONDS_MAX):
        assert [found.findings for found in verify(path)] == [[]]


def test_many_aborted_transactions_around_an_old_one_do_not_make_a_committed_read_slow(tmp_path: Path) -> None:
    count = 3 * COUNT
    old, stop = batches(0, 1, producer_id=10**6), 2 * count + 1
    others = [batches(1, count), ends(1 + count, range(1, count + 1))]
    path = written(tmp_path / "log", old, *others, [marker(stop, 10**6, 0, COMMIT)])
    kstore.Log(path, durability="os").close()
    for snapshot in path.glob("*.snapshot"):
        snapshot.unlink()  # without one, a reader learns of the transactions from the batches too
    with kstore.Log(path, read_only=True) as log, cpu_limit(SECONDS_MAX):
        assert [record.offset for record in log.read(isolation_level="read_committed")] == [0]


def test_the_oldest_open_transaction_is_known_whatever_begins_and_ends(seed: int) -> None:
    chance = random.Random(seed)
    # A snapshot may say anything.
    expected = {(chance.randrange(50), one) for one in range(20)}
    found = OpenTransactions(expected)
    for offset in range(20, 400):
        if chance.random() < 0.02:
            found = found.copy()
        if chance.random() < 0.5:
            # Segments may overlap.
            begun = (offset - 30 if chance.random() < 0.1 else offset, offset)
            found.begin(begun)
            expected.add(begun)
        elif expected:
            gone = chance.choice(sorted(expected))
            found.end(gone)
            found.end(gone)
            expected.remove(gone)
            assert gone not in found
        assert found.first_offset == min(expected, default=(None,))[0]
        assert list(found) == sorted(expected)
        assert len(found) == len(expected)
        assert all(each in found for each in expected)


def test_a_run_ends_the_transactions_that_its_batches_end_whatever_a_snapshot_says(seed: int) -> None:
    chance = random.Random(seed)
    fields: dict[str, Any] = {"producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    ended_count = 0
    for _ in range(100):
        # Also transactions that begin after everything here, or before the first offset.
        entries = [
            ProducerEntry(one, 0, -1, -1, 0, 0, -1, chance.choice([-1, -7, chance.randrange(60), 10**9]))
            for one in range(4)
        ]
        parts = [
            small_batch(offset, 1, producer_id=chance.randrange(6), **fields)
            if chance.random() < 0.6
            else marker(offset, chance.randrange(6), 0, chance.choice([ABORT, COMMIT]))
            for offset in range(20, 60)
        ]
        data = b"".join(parts)
        run = walk_run(data, 0, len(data), 0, 20, len(data), OFFSET_MAX, 0, OFFSET_MAX)
        assert run.batch_count == 40
        one_by_one, together = ProducerState(entries), ProducerState(entries)
        ended = [aborted for _, batch in run.batches() if (aborted := one_by_one.update(batch)) is not None]
        assert together.update_run(run) == (ended, [])
        assert together.producers == one_by_one.producers
        assert list(together.open_transactions) == list(one_by_one.open_transactions)
        ended_count += len(ended)
    assert ended_count > 100
