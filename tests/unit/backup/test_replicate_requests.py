"""A replicator to an object store: a failed request costs one round, and an idle store sends no request."""

from __future__ import annotations

import errno
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore.backup.check import check_backups
from kstore.errors import LockedError, StorageError
from kstore.files.remote_stores import limited
from kstore.log import writer_of
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries
from tests.unit.backup.test_backup import SETTINGS, contents, fill, restored
from tests.unit.backup.test_replicate import clock as clock
from tests.unit.backup.test_replicate import store as store
from tests.unit.backup.test_replicate import tmp_path as tmp_path

# Every request to an object store goes through these.
LIMITED = "kstore.files.remote.limited"

pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def memory() -> Iterator[str]:
    store = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    yield "memory://bucket/target"
    store.store.clear()


class Requests:
    """Counts the requests to an object store; one of them fails, before or after it was served."""

    def __init__(self) -> None:
        self.count = 0
        self.failing = 0
        self.is_served = False
        self._lock = threading.Lock()

    def __call__(self, action: Callable[[], Any], *arguments: Any, **options: Any) -> Any:
        with self._lock:
            self.count += 1
            is_failing = self.count == self.failing
        if not is_failing:
            return limited(action, *arguments, **options)
        if self.is_served:
            limited(action, *arguments, **options)
        raise StorageError(errno.EIO, "the answer was lost")


def replicated_to(target: str, store: Store, clock: ManualClock) -> int:
    """Runs rounds until one is complete; returns how many failed."""
    failed = 0
    replicator = store.replicator(target, keep=1)
    for number in range(4):
        store.log("orders").append(b"%d" % number)
        if number == 2:
            writer_of(store.log("orders")).roll()
        clock.advance(3_600_000)
        try:
            replicator.flush()
        except StorageError:
            failed += 1
    for _ in range(2):
        try:
            replicator.close()
        except StorageError:
            failed += 1
    return failed


@pytest.mark.parametrize("is_served", [False, True], ids=["not served", "served"])
def test_a_request_that_fails_costs_a_round_and_nothing_else(
    is_served: bool, memory: str, tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    counts: list[int] = []
    draw = random.Random(f"requests {seed}")
    for number in [0, *(draw.randrange(1, 60) for _ in range(tries(60, quick=3)))]:
        path, clock, requests = tmp_path / "life", ManualClock(), Requests()
        requests.failing, requests.is_served = number, is_served
        target = f"{memory}-{number}-{len(counts)}"
        with Store(path / "store", clock=clock, **SETTINGS) as store, mock.patch(LIMITED, requests):
            store.create_topic("orders")
            try:
                failed = replicated_to(target, store, clock)
            except StorageError:  # the first look at the target
                failed = replicated_to(target, store, clock)
            counts.append(requests.count)
            requests.failing = 0
            if failed > 1:
                raise Wrong(f"request {number} failed {failed} rounds")
            with store.replicator(target) as replicator:
                replicator.flush()
            before = contents(store)
        if bad := [one for one in check_backups(target) if not one.ok]:
            raise Lost(f"after request {number}: {bad}")
        with restored(target, path / "new") as new:
            if contents(new) != before:
                raise Lost(f"after request {number}: {contents(new)!r:.2000}, expected {before!r:.2000}")
        shutil.rmtree(path)
        tried("faults", 1)
    assert counts[0] >= 40


def test_an_idle_replicator_sends_no_request(store: Store, memory: str, clock: ManualClock) -> None:
    fill(store)
    requests = Requests()
    with mock.patch(LIMITED, requests), store.replicator(memory) as replicator:
        replicator.flush()
        before = requests.count
        for _ in range(10):
            clock.advance(60_000)
            store.run_due_tasks()
        assert requests.count == before > 0


def test_one_replicator_or_backup_of_a_process_at_a_time_is_at_work_in_an_object_store(
    store: Store, memory: str
) -> None:
    with store.replicator(memory):
        with pytest.raises(LockedError, match="this process"):
            store.backup(f"{memory}/")
        with pytest.raises(LockedError, match="this process"):
            store.backup(memory)
    store.backup(memory)
    with store.replicator(memory):
        pass
