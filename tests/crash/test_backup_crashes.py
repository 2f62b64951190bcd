"""A backup is complete or absent, and so is a restore: after power cuts, kills, and failures of the disk."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from kstore.backup.restore import restore
from kstore.errors import KstoreError
from kstore.files.fs import FileSystem
from kstore.files.paths import TopicPartition
from tests.crash.backup_life import (
    BACKUPS,
    STEP_MS,
    Backup,
    BackupLife,
    Contents,
    append,
    change_kinds,
    contents_of,
    opened,
    prepared,
    restored,
    sound_backups,
    whole,
)
from tests.crash.power_cuts import ROOT, cut_power, kill_after
from tests.support.fakes.crash_states import Disk, Image, all_but, nothing
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, READS, FailingFs, Fault
from tests.support.fakes.memory_fs import Machine, MemoryFs, MemoryRecording, in_memory
from tests.support.harness.evidence import Lost, Untyped, Wrong, shuffled
from tests.support.harness.selection import tries

pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def machine() -> Iterator[Machine]:
    with in_memory() as machine:
        yield machine


def lived(*, killed_at: int = 0) -> BackupLife:
    life = BackupLife(prepared(), killed_at=killed_at)
    life.live()
    return life


def test_a_kill_leaves_each_backup_and_each_restore_whole_or_absent(
    machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    life = lived()
    changes = [number for number, one in enumerate(life.operations) if one.kind in CHANGES | {"store"}]
    tried("kills", kill_after(life, set(shuffled(changes, seed, tries(100, quick=4)))))


@pytest.mark.soak
def test_a_kill_after_any_change_leaves_each_backup_and_each_restore_whole_or_absent(
    machine: Machine, tried: Callable[[str, int], None]
) -> None:
    kills = kill_after(lived())
    for number in range(1, len(change_kinds(prepared())) + 1, 60):
        kills += kill_after(lived(killed_at=number))
    assert kills >= 1000
    tried("kills", kills)


def test_a_power_cut_leaves_each_backup_and_each_restore_whole_or_absent(
    machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("states", cut_power(lived(), machine, count=tries(200, quick=4), seed=seed).states)


def test_a_power_cut_after_a_backup_that_follows_a_killed_one_leaves_it_whole(
    machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    """The next backup relies on what the killed one left in the page cache."""
    kinds = change_kinds(prepared())
    # Killed between the change of a name and its sync.
    numbers = [number for number, kind in enumerate(kinds, 1) if kind == "sync_dir"]
    for number in [*numbers[:2], *shuffled(numbers[2:], seed, tries(40, quick=1))]:
        life = lived(killed_at=number)
        try:
            tried("states", cut_at_the_end_of(life.backups[0], life))
        except AssertionError as error:
            error.add_note(f"the first process was killed at change {number}")
            raise


def cut_at_the_end_of(backup: Backup, life: BackupLife) -> int:
    """The harshest power cut right after a backup, and one that loses a single change."""
    disk = Disk(ROOT, image=life.before)
    for operation in life.operations[: backup.ended]:
        disk.apply(operation)
    choices = [nothing, *(all_but(number) for number in range(disk.unit_count()))]
    for choose in choices:
        life.survive(MemoryFs(ROOT, disk.image(choose)), backup.ended, backup.ended)
    return len(choices)


# --- failures of the disk ---------------------------------------------------------------------------------------------

FAILURES = pytest.mark.parametrize(
    ("kinds", "code", "raising"),
    [
        pytest.param(CHANGES | READS, errno.EIO, None, id="EIO"),
        pytest.param(CHANGES, errno.ENOSPC, None, id="ENOSPC"),
        pytest.param(CHANGES | READS, 0, KeyboardInterrupt, id="interrupted"),
    ],
)
STICKY = pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-good"])
Raising = type[BaseException] | None
NEW = ROOT / "new"


class BackedUp(NamedTuple):
    """A store with one backup and later records, and what both hold."""

    image: Image
    first_time: int
    first: Contents
    now: Contents


def backed_up() -> BackedUp:
    memory, clock = MemoryFs(ROOT, prepared()), ManualClock()
    with opened(memory, clock) as store:
        first, first_time = contents_of(store), store.backup(BACKUPS).time_ms
        append(store, 5)
        now = contents_of(store)
    return BackedUp(memory.image(), first_time, first, now)


def typed(action: Callable[[], object]) -> bool:
    """Whether it succeeded. Raises: Untyped."""
    try:
        action()
    except (KstoreError, KeyboardInterrupt):
        return False
    except Exception as error:
        raise Untyped(repr(error)) from error
    return True


def numbers_of(
    action: Callable[[FileSystem], object], image: Image, kinds: frozenset[str], seed: int, count: int | None
) -> list[int]:
    """Which operations of ``action`` fail, each in its own run: the last one and ``count`` others (None: all)."""
    fs = MemoryRecording(MemoryFs(ROOT, image))
    action(fs)
    last = len(fs.kinds(of=kinds))
    return [last, *shuffled(range(1, last), seed, last if count is None else count)]


def fail_backups(kinds: frozenset[str], code: int, raising: Raising, sticky: bool, seed: int, count: int | None) -> int:
    """Lets this many operations of a backup fail; returns how many did."""
    before, clock = backed_up(), ManualClock()
    clock.advance(STEP_MS)

    def back_up(fs: FileSystem) -> None:
        with opened(fs, clock) as store:
            store.backup(BACKUPS)

    numbers = numbers_of(back_up, before.image, kinds, seed, count)
    for number in numbers:
        fault = Fault(number, code, sticky=sticky, kinds=kinds, raising=raising() if raising else None)
        try:
            survive_backup(before, clock, fault)
        except AssertionError as error:
            error.add_note(f"operation {number}")
            raise
    return len(numbers)


def survive_backup(before: BackedUp, clock: ManualClock, fault: Fault) -> None:
    memory = MemoryFs(ROOT, before.image)
    fs = FailingFs(memory)
    store = opened(fs, clock)
    fs.faults.append(fault)
    is_done = typed(lambda: store.backup(BACKUPS))
    fs.faults.clear()
    times = sound_backups(memory)
    if times[0] != before.first_time or (is_done and len(times) < 2):
        raise Lost(f"found the backups {times}")
    # The same process continues, unless a log is poisoned.
    if typed(lambda: store.backup(BACKUPS)):
        check_restore(memory, clock, sound_backups(memory)[-1], before.now)
    typed(store.close)
    with opened(memory, clock) as store:
        if (found := contents_of(store)) != before.now:
            raise Lost(f"the store has {found}, expected {before.now}")
        time_ms = store.backup(BACKUPS).time_ms
    check_restore(memory, clock, time_ms, before.now)
    check_restore(memory, clock, before.first_time, before.first)


def check_restore(fs: FileSystem, clock: ManualClock, time_ms: int, expected: Contents) -> None:
    if (found := restored(fs, clock, time_ms)) != expected:
        raise Wrong(f"the backup {time_ms} has {found}, expected {expected}")


def fail_restores(
    kinds: frozenset[str], code: int, raising: Raising, sticky: bool, seed: int, count: int | None
) -> int:
    """Lets this many operations of a restore to an offset fail; returns how many did."""
    before, clock = backed_up(), ManualClock()
    memory = MemoryFs(ROOT, before.image)
    restore_part(memory, clock)
    expected = whole(memory, clock, NEW)
    assert len(expected.values) == len(before.first.values) - 2
    numbers = numbers_of(lambda fs: restore_part(fs, clock), before.image, kinds, seed, count)
    for number in numbers:
        fault = Fault(number, code, sticky=sticky, kinds=kinds, raising=raising() if raising else None)
        try:
            survive_restore(before.image, expected, clock, fault)
        except AssertionError as error:
            error.add_note(f"operation {number}")
            raise
    return len(numbers)


def restore_part(fs: FileSystem, clock: ManualClock) -> None:
    """The offset cuts off the end of a transaction, which is aborted in both partitions."""
    restore(BACKUPS, NEW, at_offsets={TopicPartition("orders", 0): 9}, fs=fs, clock=clock)


def survive_restore(image: Image, expected: Contents, clock: ManualClock, fault: Fault) -> None:
    memory = MemoryFs(ROOT, image)
    fs = FailingFs(memory, fault)
    is_done = typed(lambda: restore_part(fs, clock))
    left = set(memory.list(ROOT)) - {"store", "disk"}
    if is_done:
        if NEW.name not in left:
            raise Lost("the restore returned, but its directory is not there")
    elif NEW.name in left:
        # Undoing the rename fails too, or the interrupt came after the last operation.
        if not fault.sticky and fault.raising is None:
            raise Wrong("the restore failed, but its directory is there")
    else:
        if left and not fault.sticky:
            raise Wrong(f"{left} is left")
        restore_part(memory, clock)
    if (found := whole(memory, clock, NEW)) != expected:
        raise Wrong(f"{NEW} has {found}, expected {expected}")


HOW_MANY = pytest.mark.parametrize(
    "sample",
    [
        pytest.param(tries(30, quick=1), id="some", marks=pytest.mark.sampled(2)),
        pytest.param(None, id="all", marks=pytest.mark.soak),
    ],
)


@STICKY
@FAILURES
@HOW_MANY
def test_a_backup_that_fails_is_no_backup_and_the_next_one_is(
    kinds: frozenset[str],
    code: int,
    raising: Raising,
    sticky: bool,
    sample: int | None,
    machine: Machine,
    seed: int,
    tried: Callable[[str, int], None],
) -> None:
    tried("faults", fail_backups(kinds, code, raising, sticky, seed, sample))


@STICKY
@FAILURES
@HOW_MANY
def test_a_restore_that_fails_leaves_nothing_and_the_next_one_is_whole(
    kinds: frozenset[str],
    code: int,
    raising: Raising,
    sticky: bool,
    sample: int | None,
    machine: Machine,
    seed: int,
    tried: Callable[[str, int], None],
) -> None:
    tried("faults", fail_restores(kinds, code, raising, sticky, seed, sample))
