"""A backup of a shared store is complete or absent: after power cuts, kills of all processes, and failures in one."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest

from kstore.errors import KstoreError
from kstore.files.fs import FileSystem
from kstore.log import writer_of
from kstore.store import Store
from tests.crash.backup_life import (
    BACKUPS,
    SETTINGS,
    STEP_MS,
    STORE,
    BackupLife,
    append,
    contents_of,
    opened,
    prepared,
    sound_backups,
)
from tests.crash.power_cuts import ROOT, cut_power, kill_after
from tests.crash.test_backup_crashes import check_restore, typed
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, READS, FailingFs, Fault
from tests.support.fakes.memory_fs import Machine, MemoryFs, MemoryRecording, in_memory
from tests.support.harness.evidence import Lost, shuffled
from tests.support.harness.selection import tries

pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def machine() -> Iterator[Machine]:
    with in_memory() as machine:
        yield machine


def shared(fs: FileSystem, clock: ManualClock) -> Store:
    return Store(STORE, fs=fs, clock=clock, shared=True, **SETTINGS)


class SharedLife(BackupLife):
    """Two processes change the store, and make backups of it in turn; what is left is opened by one alone."""

    def live(self) -> None:
        self.clock.advance(STEP_MS)
        with shared(self.fs, self.clock) as one, shared(self.fs, self.clock) as two:
            self._held(one)
            self._backup(one)
            self._change(two, lambda: append(two, 6))
            self._change(one, lambda: append(one, 3))
            self._change(two, lambda: two.log("orders", 0).delete_records(6))
            self._change(one, lambda: one.run_task("retention"))
            self._change(two, lambda: two.run_task("removal"))
            self._backup(one)
            self._change(two, lambda: writer_of(two.log("orders", 1)).roll())
            self._change(two, lambda: append(two, 2))
            self._backup(two)
            self._change(one, lambda: append(one, 4))
            self._backup(one)


def lived() -> SharedLife:
    life = SharedLife(prepared())
    life.live()
    return life


def test_a_kill_of_all_processes_leaves_each_backup_whole_or_absent(
    machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    life = lived()
    changes = [number for number, one in enumerate(life.operations) if one.kind in CHANGES | {"store"}]
    tried("kills", kill_after(life, set(shuffled(changes, seed, tries(100, quick=4)))))


@pytest.mark.soak
def test_a_kill_of_all_processes_after_any_change_leaves_each_backup_whole_or_absent(
    machine: Machine, tried: Callable[[str, int], None]
) -> None:
    tried("kills", kill_after(lived()))


def test_a_power_cut_leaves_each_backup_of_a_shared_store_whole_or_absent(
    machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("states", cut_power(lived(), machine, count=tries(200, quick=4), seed=seed).states)


# --- failures in one process ------------------------------------------------------------------------------------------


def image_before() -> Image:
    memory, clock = MemoryFs(ROOT, prepared()), ManualClock()
    with shared(memory, clock) as store:
        store.backup(BACKUPS)
    return memory.image()


def fail(image: Image, fault: Fault | None, kinds: frozenset[str]) -> int:
    """A backup by one process fails, and the other one goes on; returns how many operations of ``kinds`` it had."""
    memory, clock = MemoryFs(ROOT, image), ManualClock()
    clock.advance(STEP_MS)
    recorded = MemoryRecording(memory)
    fs = FailingFs(recorded)
    one, two = shared(fs, clock), shared(memory, clock)
    append(two, 5)
    writer_of(two.log("orders", 1)).roll()
    append(two, 3)
    before = len(recorded.kinds(of=kinds))
    if fault is not None:
        fs.faults.append(fault)
    is_done = typed(lambda: one.backup(BACKUPS))
    count = len(recorded.kinds(of=kinds)) - before
    fs.faults.clear()
    times = sound_backups(memory)
    if not times or (is_done and len(times) < 2):
        raise Lost(f"found the backups {times}")
    # A failed sync has poisoned a log for both.
    typed(lambda: append(two, 2))
    now = contents_of(two)
    if typed(lambda: two.backup(BACKUPS)):
        check_restore(memory, clock, sound_backups(memory)[-1], now)
    for store in (one, two):
        typed(store.close)
    with opened(memory, clock) as store:
        if missing := {at for at, value in now.values.items() if contents_of(store).values.get(at) != value}:
            raise Lost(f"the store lacks {missing}")
        time_ms = store.backup(BACKUPS).time_ms
        check_restore(memory, clock, time_ms, contents_of(store))
    return count


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize(
    ("kinds", "code", "raising"),
    [
        pytest.param(CHANGES | READS, errno.EIO, None, id="EIO"),
        pytest.param(CHANGES, errno.ENOSPC, None, id="ENOSPC"),
        pytest.param(CHANGES | READS, 0, KeyboardInterrupt, id="interrupted"),
    ],
)
@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(tries(30, quick=1), id="some", marks=pytest.mark.sampled(2)),
        pytest.param(None, id="all", marks=pytest.mark.soak),
    ],
)
def test_a_backup_that_fails_in_one_process_harms_no_other(
    kinds: frozenset[str],
    code: int,
    raising: type[BaseException] | None,
    sticky: bool,
    sample: int | None,
    machine: Machine,
    seed: int,
    tried: Callable[[str, int], None],
) -> None:
    image = image_before()
    last = fail(image, None, kinds)
    for number in [last, *shuffled(range(1, last), seed, last if sample is None else sample)]:
        try:
            fail(image, Fault(number, code, sticky=sticky, kinds=kinds, raising=raising() if raising else None), kinds)
        except (AssertionError, KstoreError) as error:
            error.add_note(f"operation {number}")
            raise
        tried("faults", 1)
