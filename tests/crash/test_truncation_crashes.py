"""A truncation makes a damaged batch the last one; the process is killed, or the power fails, at each of its steps.

What was flushed and not truncated never counts as a torn write: its offsets are not assigned again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.types import Durability
from tests.crash.power_cuts import ROOT
from tests.support.fakes.crash_states import Choice, Disk, everything, nothing
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording, in_memory
from tests.support.harness.evidence import Lost, Wrong

DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")
SETTINGS: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64, "flush_ms": 10**9}
PATH = ROOT / "log"
BATCH_COUNT = 3
BATCHES = 10


class Case(NamedTuple):
    """Which of the batches of three records (at 0, 3, 6, ...) are damaged, and the offset to truncate to.

    ``end`` is the offset below which nothing may be assigned again.
    """

    damaged: tuple[int, ...]
    offset: int
    end: int
    rolls: bool = False


CASES = {
    "the last": Case((21,), 24, 24),
    "the last two": Case((18, 21), 24, 24),
    "before a batch that goes as a whole": Case((21,), 25, 24),
    "the first of all": Case((0,), 3, 3),
    "in a sealed segment": Case((6,), 9, 9),
    "after a roll": Case((27,), 30, 30, rolls=True),
}


def damage(fs: MemoryRecording, batches: tuple[int, ...]) -> None:
    """Flips a bit in each batch, and syncs it to the disk."""
    for path in [PATH / name for name in fs.list(PATH) if name.endswith(".log")]:
        file = fs.open(path, write=True)
        data, at = file.pread(file.size(), 0), 0
        while at < len(data):
            size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            if int.from_bytes(data[at : at + 8], "big") in batches:
                file.write_all([bytes([data[at + 65] ^ 1])], at + 65)
                file.fdatasync()
            at += size


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.promise("damage below", "killed: sync", "killed: interval", "killed: os")
@pytest.mark.sampled(4)
def test_flushed_offsets_below_a_truncation_are_not_given_out_again(
    case: Case, durability: Durability, tried: Callable[[str, int], None]
) -> None:
    with in_memory() as machine:
        fs = MemoryRecording(MemoryFs(ROOT))
        settings = {**SETTINGS, "durability": durability}
        log = Log(PATH, fs=fs, clock=ManualClock(), **settings)
        for _ in range(BATCHES):
            log.append_many([b"x" * 60] * BATCH_COUNT)
        log.flush()
        damage(fs, case.damaged)
        if case.rolls:
            log.roll()
            log.append(b"unflushed")
        begun = len(fs.operations)
        log.truncate_to(case.offset)
        end = len(fs.operations)
        log.close()
        del fs.operations[end:]
        states = kill(fs, begun, lambda found: hold(found, case), everything, settings)
        machine.restart()
        states += kill(fs, begun, lambda found: hold(found, case), nothing, settings)
    assert states > 4
    tried("states", states)


def kill(fs: MemoryRecording, begun: int, look: Callable[[Log], None], choose: Choice, settings: dict[str, Any]) -> int:
    """Opens what ``choose`` leaves after each change from the operation ``begun`` on; returns how many it opened."""
    disk = Disk(ROOT)
    states = 0
    for number, operation in enumerate(fs.operations):
        disk.apply(operation)
        if number >= begun and operation.kind in CHANGES:
            with Log(PATH, fs=MemoryFs(ROOT, disk.image(choose)), clock=ManualClock(), **settings) as found:
                look(found)
            states += 1
    return states


def hold(log: Log, case: Case) -> None:
    if log.recovery.cut and any(cut.saved_as for cut in log.recovery.cut):
        raise Lost(f"cut: {log.recovery.cut}")
    if log.append(b"next") < case.end:
        raise Wrong(f"an offset below {case.end} was assigned again")
    served = [record.offset for record in log.read(stop=case.end, on_corrupt="skip")]
    spoilt = {first + at for first in case.damaged for at in range(BATCH_COUNT)}
    if served != [offset for offset in range(case.end) if offset not in spoilt]:
        raise Lost(f"only offsets {served} are served")


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("offset", [1, 10], ids=["the first segment", "a later segment"])
@pytest.mark.promise("killed: sync", "killed: os", "power cut: sync", "power cut: os")
def test_an_emptied_segment_goes_after_the_next_offset_is_durable(offset: int, durability: Durability) -> None:
    with in_memory() as machine:
        fs = MemoryRecording(MemoryFs(ROOT))
        settings = {**SETTINGS, "durability": durability}
        with Log(PATH, fs=fs, clock=ManualClock(), **settings) as log:
            for _ in range(BATCHES):
                log.append_many([b"x" * 60] * BATCH_COUNT)
            log.flush()
            begun = len(fs.operations)
            log.truncate_to(offset)
            end = len(fs.operations)
        del fs.operations[end:]
        killed = nexts_after(fs, begun, offset, everything, settings)
        machine.restart()
        for found in (killed, nexts_after(fs, begun, offset, nothing, settings)):
            emptied = offset // 9 * 9
            # Until then the log ends at the emptied segment, or the truncation is not that far.
            assert {after for is_there, after in found if is_there} <= {emptied, offset, 9, 18, 27, 30}
            assert {after for is_there, after in found if not is_there} == {offset}
            assert found[-1] == (False, offset)


def nexts_after(
    fs: MemoryRecording, begun: int, offset: int, choose: Choice, settings: dict[str, Any]
) -> list[tuple[bool, int]]:
    """After each change: whether the emptied segment is there, and which offset the next record gets."""
    disk, found = Disk(ROOT), []
    kept = list(range(offset - offset % BATCH_COUNT))
    for number, operation in enumerate(fs.operations):
        disk.apply(operation)
        if number >= begun and operation.kind in CHANGES:
            image = disk.image(choose)
            name = f"{offset // 9 * 9:020d}.log"
            is_there = any(str(path).endswith(name) for path in image)
            with Log(PATH, fs=MemoryFs(ROOT, image), clock=ManualClock(), **settings) as log:
                if log.recovery.cut or log.recovery.corrupt:
                    raise Lost(f"{log.recovery}")
                if [record.offset for record in log.read(stop=offset)][: len(kept)] != kept:
                    raise Lost(f"a record below {offset} is missing")
                found.append((is_there, log.append(b"next")))
    return found


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os")
def test_transactions_aborted_before_a_truncation_are_on_disk_after_the_next_flush(durability: Durability) -> None:
    with in_memory():
        fs = MemoryRecording(MemoryFs(ROOT))
        log = Log(PATH, fs=fs, clock=ManualClock(), durability=durability, **SETTINGS)
        for _ in range(2):
            abort(log)
            log.roll()
            abort(log)
            log.append(b"truncated")
            log.truncate_to(log.end_offset - 1)
        log.roll()
        log.flush()
        disk = Disk(ROOT)
        for operation in fs.operations:
            disk.apply(operation)
        log.close()
        kept = disk.image(nothing)
    indexes = [stored for path, stored in kept.items() if str(path).endswith(".txnindex")]
    assert [len(stored.data) // 34 for stored in indexes if stored is not None] == [1, 2, 1]


def abort(log: Log) -> None:
    """A transaction of one record, and its abort."""
    first, time_ms = log.end_offset, ManualClock().now_ms()
    key, value = EndTransactionMarker(ControlRecordType.ABORT, 0).encode()
    for records, sequence in (
        ([Record(first, time_ms, value=b"aborted")], first),
        ([Record(first + 1, time_ms, key=key, value=value)], -1),
    ):
        data = build_batch(
            records,
            producer_id=1,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
            is_control=sequence < 0,
        )
        log.append_batches(data, assign_offsets=False)
