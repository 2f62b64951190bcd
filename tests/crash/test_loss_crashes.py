"""A log with lost records, accepted or not, is killed, or its power fails, at each step of a change.

No read passes over a loss that was not accepted, and no record appended since counts as an accepted loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kstore.errors import CorruptBatchError
from kstore.log import Log, reads_of, writer_of
from kstore.types import CorruptRange, Durability
from tests.crash.power_cuts import ROOT
from tests.support.fakes.crash_states import Choice, Disk, everything, nothing
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording, in_memory
from tests.support.harness.evidence import Lost, Wrong

DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")
SETTINGS: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64, "flush_ms": 10**9}
PATH = ROOT / "log"
# Batches of one record; the disk loses LOST at the end of a segment, and damages SPOILT in it.
WHOLE, LOST, SPOILT, MORE = range(6), range(6, 8), range(2, 3), range(8, 14)
OLD, NEW = b"old", b"new"


def accepted(log: Log) -> None:
    log.accept_loss(LOST[0], LOST[-1])
    log.accept_loss(SPOILT[0], SPOILT[-1])


def cut(log: Log, offset: int) -> None:
    log.truncate_to(offset)
    while log.end_offset < MORE[-1]:
        log.append(NEW)
    log.flush()


def begin_again(log: Log, offset: int) -> None:
    writer_of(log).truncate_fully_and_start_at(offset)
    cut(log, log.end_offset)


STEPS: dict[str, Callable[[Log], Any]] = {
    "accept": accepted,
    "cut before the loss": lambda log: cut(log, 5),
    "cut in the damage": lambda log: cut(log, 2),
    "cut where the loss begins": lambda log: cut(log, 6),
    "cut in the loss": lambda log: cut(log, 7),
    "cut after the loss": lambda log: cut(log, 8),
    "begin again": lambda log: begin_again(log, 3),
    "delete": lambda log: log.delete_records(7),
    "delete all of it": lambda log: log.delete_records(8),
    "roll": Log.roll,
    "close": Log.close,
}


def with_losses(fs: MemoryRecording, durability: Durability) -> Log:
    """A log that has and knows these losses."""
    settings = {**SETTINGS, "durability": durability}
    with Log(PATH, fs=fs, clock=ManualClock(), **settings) as log:
        for _ in (*WHOLE, *LOST):
            log.append(OLD)
        log.flush()
        file = fs.open(PATH / f"{0:020d}.log", write=True)
        size = file.size() // (len(WHOLE) + len(LOST))
    file.truncate(len(WHOLE) * size)
    data = file.pread(1, SPOILT[0] * size + 65)
    file.write_all([bytes([data[0] ^ 1])], SPOILT[0] * size + 65)
    file.fsync()
    log = Log(PATH, fs=fs, clock=ManualClock(), **settings)
    for _ in MORE:
        log.append(OLD)
    log.flush()
    return log


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("is_accepted", [False, True], ids=["told", "accepted"])
@pytest.mark.promise("damage below", "killed: sync", "killed: interval", "killed: os")
@pytest.mark.sampled(12)
def test_a_crash_neither_hides_a_loss_nor_a_record(
    is_accepted: bool, name: str, durability: Durability, tried: Callable[[str, int], None]
) -> None:
    step = STEPS[name]
    with in_memory() as machine:
        fs = MemoryRecording(MemoryFs(ROOT))
        log = with_losses(fs, durability)
        if is_accepted:
            accepted(log)
        begun = len(fs.operations)
        step(log)
        end = len(fs.operations)
        log.close()
        del fs.operations[end:]
        may_skip = is_accepted or name == "accept"
        settings = {**SETTINGS, "durability": durability}
        states = crash(fs, begun, everything, settings, may_skip=may_skip)
        machine.restart()
        states += crash(fs, begun, nothing, settings, may_skip=may_skip)
    tried("states", states)


def crash(fs: MemoryRecording, begun: int, choose: Choice, settings: dict[str, Any], *, may_skip: bool) -> int:
    """Opens what ``choose`` leaves after each change from the operation ``begun`` on; returns how many it opened."""
    disk = Disk(ROOT)
    states = 0
    for number, operation in enumerate(fs.operations):
        disk.apply(operation)
        if number >= begun and operation.kind in CHANGES:
            with Log(PATH, fs=MemoryFs(ROOT, disk.image(choose)), clock=ManualClock(), **settings) as found:
                hold(found, may_skip=may_skip)
            states += 1
    return states


def hold(log: Log, *, may_skip: bool) -> None:
    log.check()
    found: dict[int, bytes | None] = {}
    told: set[int] = set()
    for item in log.read(on_corrupt="yield"):
        if isinstance(item, CorruptRange):
            told.update(range(item.first, item.last + 1))
        else:
            found[item.offset] = item.value
    for offset in range(log.start_offset, log.end_offset):
        if offset in found or offset in told:
            continue
        if not (may_skip and offset in {*LOST, *SPOILT}):
            raise Lost(f"offset {offset} is skipped silently")
    for offset in {*LOST, *SPOILT} & found.keys():
        if found[offset] != NEW:
            raise Wrong(f"offset {offset} was lost, but is served")
    if told - {*LOST, *SPOILT}:
        raise Lost(f"offsets {sorted(told)} are not served")
    if told:
        with pytest.raises(CorruptBatchError):
            list(log.read())
    # Only lost records are accepted as lost, none that was appended since.
    for first, last in reads_of(log).losses.accepted:
        for offset in range(first, last + 1):
            if offset in found:
                raise Lost(f"offset {offset} is accepted as lost, but holds {found[offset]!r}")
