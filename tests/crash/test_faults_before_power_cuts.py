"""One operation fails, the log goes on, and the power fails: what was acknowledged after the failure is there too."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from kstore.errors import StorageError
from kstore.log import Log
from kstore.types import Durability
from tests.crash.power_cuts import ROOT, choices_for
from tests.support.fakes.crash_states import Disk
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording, in_memory
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries

PATH = ROOT / "log"
RECORDS = 24
# A segment holds two large records, or many small ones: after a roll that failed a small one still fits.
SIZES = (400, 400, 400, 10, 10)
STATES_EACH = tries(24, quick=6)
# Each change fails in its turn, or every fourth.
STEP = tries(1, quick=4)

pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


def value_of(number: int) -> bytes:
    return b"%d:" % number + b"x" * SIZES[number % len(SIZES)]


def opened(fs: FailingFs | MemoryFs, durability: Durability) -> Log:
    clock = ManualClock()
    return Log(PATH, fs=fs, clock=clock, durability=durability, segment_bytes=1024, flush_ms=10**9)


def live(fs: FailingFs, durability: Durability, more: int) -> dict[int, bytes]:
    """Appends over ``fs``, up to ``more`` records after the first failure.

    Returns what must then survive a power cut, by offset.
    """
    kept: dict[int, bytes] = {}
    try:
        for numbers in (range(4), range(4, RECORDS)):
            log = opened(fs, durability)
            for number in numbers:
                try:
                    kept[log.append(value_of(number))] = value_of(number)
                    more -= bool(fs.failures)
                except StorageError:
                    pass
                if not more:
                    break
            if durability != "sync":
                log.flush()
            if not more:
                return kept
            if numbers.start == 0:
                log.close()
    except StorageError:
        # A log that cannot be opened or flushed has promised nothing without syncs.
        return kept if durability == "sync" else {}
    return kept


def hold(fs: MemoryFs, durability: Durability, kept: dict[int, bytes]) -> None:
    with opened(fs, durability) as log:
        found = {record.offset: record.value for record in log.read()}
    if lost := {offset for offset, value in kept.items() if found.get(offset) != value}:
        raise Lost(f"offsets {sorted(lost)} of {sorted(kept)} were acknowledged, found {sorted(found)}")
    if not set(found.values()) <= set(map(value_of, range(RECORDS))):
        raise Wrong(f"{found}")


WRITTEN: dict[str, Callable[[int], int] | None] = {
    "nothing": lambda size: 0,
    "half": lambda size: size // 2,
    "its sync": None,
}


@pytest.mark.parametrize(
    "durability", ["sync", *(pytest.param(one, marks=pytest.mark.long) for one in ("interval", "os"))]
)
@pytest.mark.parametrize(
    "written", ["nothing", *(pytest.param(one, marks=pytest.mark.long) for one in ("half", "its sync"))]
)
@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os", "disk full")
def test_what_is_acknowledged_after_a_failure_survives_a_power_cut(
    durability: Durability, written: str, seed: int, tried: Callable[[str, int], None]
) -> None:
    states = faults = 0
    with in_memory() as machine:
        at = 1
        while True:
            recording = MemoryRecording(MemoryFs(ROOT))
            fs = FailingFs(recording, Fault(at, errno=errno.ENOSPC, written=WRITTEN[written]))
            kept = live(fs, durability, more=1 + at % 3)
            if not fs.failures:
                assert len(kept) == RECORDS
                break
            disk = Disk(ROOT)
            for operation in recording.operations:
                disk.apply(operation)
            machine.restart()
            for choose in choices_for(disk, random.Random(f"{seed}/{at}"), STATES_EACH):
                try:
                    hold(MemoryFs(ROOT, disk.image(choose)), durability, kept)
                except AssertionError as error:
                    error.add_note(f"the {at}-th change had failed: {fs.failures[0].kind} of {fs.failures[0].path}")
                    raise
                states += 1
            faults += 1
            at += STEP
    assert faults > 100 // STEP
    tried("states", states)
    tried("faults", faults)
