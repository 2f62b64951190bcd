"""Producer ids: each is assigned once, whatever is lost, and above all ids in logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kstore.errors import DiskFullError, PoisonedError, SyncFailedError, UnsupportedFormatError
from kstore.files.local import SYSTEM_FS
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.store import Store, coordinator_of
from kstore.transactions.producer_ids import BLOCK_SIZE, FIRST_PRODUCER_ID, GAP_AFTER_DAMAGE
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault


def opened(path: Path, **settings: Any) -> Store:
    return Store(path, background=False, clock=ManualClock(), recovery_threads=1, **settings)


def test_ids_rise_and_begin_above_a_clusters(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        taken = [coordinator_of(store).init_producer_id(None) for _ in range(BLOCK_SIZE + 2)]
    assert taken == [(FIRST_PRODUCER_ID + number, 0) for number in range(BLOCK_SIZE + 2)]


def test_an_id_that_was_given_out_is_never_given_again(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        last, _ = coordinator_of(store).init_producer_id(None)
    with opened(tmp_path / "s") as store:
        again, _ = coordinator_of(store).init_producer_id(None)
    assert again == last + BLOCK_SIZE


def test_ids_are_above_those_in_snapshots_and_open_logs(tmp_path: Path) -> None:
    far = FIRST_PRODUCER_ID + 10**6
    with opened(tmp_path / "s") as store:
        store.create_topic("orders")
        record = Record(0, 1_700_000_000_000, value=b"from elsewhere")
        fields: dict[str, Any] = {"producer_id": far, "producer_epoch": 0, "base_sequence": 0}
        store.log("orders").append_batches(build_batch([record], **fields))
        assert coordinator_of(store).init_producer_id(None)[0] == far + 1
    (tmp_path / "s/kstore.producer-ids").unlink()
    with opened(tmp_path / "s") as store:
        assert coordinator_of(store).init_producer_id(None)[0] == far + 1


def test_ids_are_above_those_of_transactional_ids(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        producer_id, _ = coordinator_of(store).init_producer_id("x")
    (tmp_path / "s/kstore.producer-ids").unlink()
    with opened(tmp_path / "s") as store:
        assert coordinator_of(store).init_producer_id(None)[0] == producer_id + 1


def test_a_damaged_file_of_ids_costs_a_gap(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        coordinator_of(store).init_producer_id(None)
    path = tmp_path / "s/kstore.producer-ids"
    for damage in (b"", b"garbage", path.read_bytes().replace(b"1", b"2"), path.read_bytes()[:-1]):
        path.write_bytes(damage)
        with opened(tmp_path / "s") as store:
            assert store.ignored == []
            assert coordinator_of(store).init_producer_id(None)[0] >= FIRST_PRODUCER_ID + GAP_AFTER_DAMAGE


def test_a_file_of_ids_of_a_later_version_is_not_touched(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        coordinator_of(store).init_producer_id(None)
    path = tmp_path / "s/kstore.producer-ids"
    later = path.read_bytes().replace(b"ids 1 ", b"ids 2 ")
    path.write_bytes(later)
    with opened(tmp_path / "s") as store, pytest.raises(UnsupportedFormatError, match="version 2, expected 1"):
        coordinator_of(store).init_producer_id(None)
    assert path.read_bytes() == later


def test_no_room_for_a_block_gives_no_id_and_room_does(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    with opened(tmp_path / "s", fs=fs) as store:
        fs.faults.append(Fault(1, 28, suffix="producer-ids.tmp"))
        with pytest.raises(DiskFullError):
            coordinator_of(store).init_producer_id(None)
        assert coordinator_of(store).init_producer_id(None) == (FIRST_PRODUCER_ID, 0)


def test_ids_that_may_not_be_on_disk_are_not_given_out(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    store = opened(tmp_path / "s", fs=fs)
    fs.faults.append(Fault(1, kinds=frozenset({"sync_dir"})))
    with pytest.raises(SyncFailedError):
        coordinator_of(store).init_producer_id(None)
    with pytest.raises(PoisonedError):
        coordinator_of(store).init_producer_id(None)
    with pytest.raises(PoisonedError):
        store.close()
