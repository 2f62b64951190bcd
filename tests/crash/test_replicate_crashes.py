"""A replicator's target holds a whole store, of the last round that returned or a later one, after kills, power cuts
and disk failures at any operation of a round."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from kstore.archive.target import BackupTarget
from kstore.backup.replicate import Replicator
from kstore.errors import KstoreError
from kstore.files.fs import FileSystem
from kstore.store import Store
from tests.crash.backup_life import (
    BACKUPS,
    STEP_MS,
    Backup,
    BackupLife,
    append,
    contents_of,
    opened,
    prepared,
    sound_backups,
)
from tests.crash.power_cuts import ROOT, cut_power, kill_after
from tests.crash.test_backup_crashes import BackedUp, check_restore, numbers_of, typed
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, READS, FailingFs, Fault
from tests.support.fakes.memory_fs import Machine, MemoryFs, in_memory
from tests.support.harness.evidence import Lost, shuffled
from tests.support.harness.selection import tries

pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]

KEEP = 2
HOUR_MS = 3_600_000


@pytest.fixture
def machine() -> Iterator[Machine]:
    with in_memory() as machine:
        yield machine


class ReplicatedLife(BackupLife):
    """A life with a replicator, which at the end removes what is an hour old."""

    _replicator: Replicator | None = None

    def _live(self) -> None:
        self.clock.advance(STEP_MS)
        if self.killed_at:
            self._kill_a_backup()
            self._replicator = None
        with opened(self.fs, self.clock) as store:
            self._held(store)
            self._backup(store)
            for number in range(6):
                self._change(store, lambda: append(store, 3))
                if number == 1:
                    self._change(store, lambda: store.log("orders", 0).delete_records(6))
                if number == 2:
                    self._change(store, lambda: self._transact(store))
                if number == 4:
                    self.clock.advance(HOUR_MS)
                self._backup(store)
            assert self._replicator is not None
            # Nothing is new, so only the removal itself has put the removal of manifests on disk.
            self.clock.advance(HOUR_MS)
            self._replicator.flush()
            self._replicator.close()
            self._replicator = None

    def _kill_a_backup(self) -> None:
        with opened(MemoryFs(ROOT, self.before), self.clock) as store:
            contents = contents_of(store)
        super()._kill_a_backup()
        for time_ms in BackupTarget(BACKUPS, fs=self.fs).names():
            # It was complete, but had not returned.
            self.backups.append(Backup(0, sys.maxsize, time_ms, contents))

    def _back_up(self, store: Store) -> int:
        if self._replicator is None:
            self._replicator = store.replicator(BACKUPS, keep=KEEP)
        return self._replicator.flush()

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        self._replicator = None
        super().survive(fs, begun, done)

    def _kept(self, backups: list[Backup]) -> list[Backup]:
        # The next round may have dropped one without having returned.
        return backups[1 - KEEP :]


def lived(*, killed_at: int = 0) -> ReplicatedLife:
    life = ReplicatedLife(prepared(), killed_at=killed_at)
    life.live()
    return life


def changes_of(life: ReplicatedLife) -> list[int]:
    return [number for number, one in enumerate(life.operations) if one.kind in CHANGES | {"store"}]


def test_a_kill_leaves_the_last_round_whole(machine: Machine, seed: int, tried: Callable[[str, int], None]) -> None:
    life = lived()
    tried("kills", kill_after(life, set(shuffled(changes_of(life), seed, tries(100, quick=4)))))


@pytest.mark.soak
def test_a_kill_after_any_change_leaves_the_last_round_whole(
    machine: Machine, tried: Callable[[str, int], None]
) -> None:
    life = lived()
    kills = kill_after(life)
    first = life.backups[0]
    count = sum(first.began <= number < first.ended for number in changes_of(life))
    for number in range(1, count + 1, 8):
        kills += kill_after(lived(killed_at=number))
    assert kills >= 1000
    tried("kills", kills)


def test_a_power_cut_leaves_the_last_round_whole(
    machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("states", cut_power(lived(), machine, count=tries(200, quick=4), seed=seed).states)


# --- failures of the disk ---------------------------------------------------------------------------------------------


def replicated() -> BackedUp:
    """A store with two rounds and later records."""
    memory, clock = MemoryFs(ROOT, prepared()), ManualClock()
    with opened(memory, clock) as store:
        with store.replicator(BACKUPS, keep=1) as replicator:
            replicator.flush()
            append(store, 2)
            first, first_time = contents_of(store), replicator.flush()
        append(store, 5)
        now = contents_of(store)
    return BackedUp(memory.image(), first_time, first, now)


def fail_rounds(kinds: frozenset[str], code: int, raising: type[BaseException] | None, sticky: bool, seed: int) -> int:
    """Fails operations of two rounds; returns how many."""
    before, clock = replicated(), ManualClock()
    clock.advance(STEP_MS)

    def replicate(fs: FileSystem) -> None:
        with opened(fs, clock) as store:
            rounds(store, clock)

    numbers = numbers_of(replicate, before.image, kinds, seed, tries(40, quick=1))
    for number in numbers:
        fault = Fault(number, code, sticky=sticky, kinds=kinds, raising=raising() if raising else None)
        try:
            survive_rounds(before, clock, fault)
        except AssertionError as error:
            error.add_note(f"operation {number}")
            raise
    return len(numbers)


def rounds(store: Store, clock: ManualClock) -> None:
    """Two rounds; what was replaced or dropped before the second is removed."""
    with store.replicator(BACKUPS, keep=1) as replicator:
        replicator.flush()
        clock.advance(HOUR_MS)
        replicator.flush()


def survive_rounds(before: BackedUp, clock: ManualClock, fault: Fault) -> None:
    memory = MemoryFs(ROOT, before.image)
    fs = FailingFs(memory)
    store = opened(fs, clock)
    fs.faults.append(fault)
    is_done = typed(lambda: rounds(store, clock))
    fs.faults.clear()
    times = sound_backups(memory)
    if is_done:
        check_restore(memory, clock, times[-1], before.now)
    elif times[-1] == before.first_time:
        check_restore(memory, clock, before.first_time, before.first)
    # The same process continues, unless a log is poisoned.
    if typed(lambda: rounds(store, clock)):
        check_restore(memory, clock, sound_backups(memory)[-1], before.now)
    with suppress(KstoreError):
        store.close()
    with opened(memory, clock) as store:
        if (found := contents_of(store)) != before.now:
            raise Lost(f"the store has {found}, expected {before.now}")
        rounds(store, clock)
    check_restore(memory, clock, sound_backups(memory)[-1], before.now)


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize(
    ("kinds", "code", "raising"),
    [
        pytest.param(CHANGES | READS, errno.EIO, None, id="EIO"),
        pytest.param(CHANGES, errno.ENOSPC, None, id="ENOSPC"),
        pytest.param(CHANGES | READS, 0, KeyboardInterrupt, id="interrupted"),
    ],
)
@pytest.mark.sampled(2)
def test_a_round_that_fails_leaves_the_last_one_whole_and_the_next_one_is(
    kinds: frozenset[str],
    code: int,
    raising: type[BaseException] | None,
    sticky: bool,
    machine: Machine,
    seed: int,
    tried: Callable[[str, int], None],
) -> None:
    tried("faults", fail_rounds(kinds, code, raising, sticky, seed))
