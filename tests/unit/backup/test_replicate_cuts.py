"""A replicator copies again what a cut has changed in place, however it learns of the cut, and follows logs that are
closed and opened again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore.backup.take import Copier
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.unit.backup.test_backup import SETTINGS, contents, restored

pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def tmp_path(directory: Path) -> Path:
    return directory


def append(log: Log, count: int, kind: bytes) -> None:
    for number in range(count):
        log.append(kind + b" %4d" % number + b"x" * 200)


def test_a_cut_of_a_log_that_the_last_round_saw_first_at_its_moment(tmp_path: Path) -> None:
    """The topic was made while the round copied the sealed segments of others."""
    copy_sealed = Copier._copy_sealed

    def copy_then_make(copier: Copier, **options: Any) -> int:
        count = copy_sealed(copier, **options)
        if "orders" not in store.topics():
            store.create_topic("orders")
            append(store.log("orders"), 30, b"old")
        return count

    with Store(tmp_path / "store", clock=ManualClock(), **SETTINGS) as store:
        store.create_topic("rest")
        with store.replicator(tmp_path / "target") as replicator:
            with mock.patch.object(Copier, "_copy_sealed", copy_then_make):
                replicator.flush()
            store.log("orders").truncate_to(3)
            append(store.log("orders"), 30, b"new")
            replicator.flush()
        expected = contents(store)
    with restored(tmp_path / "target", tmp_path / "new") as new:
        assert contents(new) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")
@pytest.mark.parametrize("segment_bytes", [4096, 1 << 20])
def test_a_cut_by_another_process_of_a_log_that_was_closed_meanwhile(tmp_path: Path, segment_bytes: int) -> None:
    """The writer of a log that is opened again does not know of earlier cuts."""
    options: dict[str, Any] = {**SETTINGS, "shared": True, "clock": ManualClock()}
    with Store(tmp_path / "store", **options) as one, Store(tmp_path / "store", **options) as two:
        one.create_topic("orders", segment_bytes=segment_bytes)
        append(one.log("orders"), 25, b"old")
        with one.replicator(tmp_path / "target") as replicator:
            replicator.flush()
            one.log("orders").close()
            two.log("orders").truncate_to(1)
            append(two.log("orders"), 40, b"new")
            replicator.flush()
        expected = contents(two)
    with restored(tmp_path / "target", tmp_path / "new") as new:
        assert contents(new) == expected


def test_a_log_that_is_opened_again_and_again_is_in_use_once(tmp_path: Path) -> None:
    owner = TopicPartition("orders", 0)
    with Store(tmp_path / "store", clock=ManualClock(), **SETTINGS) as store:
        store.create_topic("orders")
        with store.replicator(tmp_path / "target") as replicator:
            replicator.flush()
            entry = store._topics.logs._entries[owner]
            for _ in range(5):
                store.log("orders").append(b"x")
                store.log("orders").close()
                replicator.flush()
                assert entry.user_count == 1
            store.delete_topic("orders")
            store.create_topic("orders")
            replicator.flush()
            assert not entry.user_count
            assert store._topics.logs._entries[owner].user_count == 1
        assert not store._topics.logs._entries[owner].user_count
