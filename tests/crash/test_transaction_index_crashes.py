"""Lost transaction indexes are noticed after any stop, and no crash of kstore makes one look lost.

A log with aborted transactions in every segment is truncated, compacted, deleted from, rolled, flushed and closed. It
is killed, and its power is cut, at each file operation. What is left opens without rebuilding a transaction index below
the recovery point; if one of them is then deleted, committed readers still get no aborted record.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kstore.files.fs import FileSystem
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.types import Durability
from tests.crash.power_cuts import ROOT
from tests.support.fakes.crash_states import Choice, Disk, Image, everything, nothing, some
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording, in_memory
from tests.support.harness.evidence import Lost, Wrong, shuffled
from tests.support.harness.selection import tries

DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")
SETTINGS: dict[str, Any] = {
    "segment_bytes": 1024,
    "index_interval_bytes": 64,
    "flush_ms": 10**9,
    "delete_retention_ms": 0,
}
PATH = ROOT / "log"
ABORTS, COMMITS = 1, 2
KEYS = 5
NOTE = "a transaction index is lost or damaged"
# How many of a life's many random states ``make test`` tries, for each kind of disk.
SAMPLE = tries(60, quick=2)
# At how many moments the process is killed, which takes nothing from the files.
KILLED = tries(100_000, quick=100)


class Life:
    """The life; what it recorded is in ``fs``."""

    def __init__(self, durability: Durability) -> None:
        self.durability = durability
        self.fs = MemoryRecording(MemoryFs(ROOT))
        self.clock = ManualClock()
        self.log = self.open(self.fs)
        self._serial = 0

    def open(self, fs: FileSystem) -> Log:
        return Log(PATH, fs=fs, clock=self.clock, durability=self.durability, **SETTINGS)

    def live(self) -> None:
        self.fill(8)
        self.log.flush()
        self.fill(3)
        self.log.truncate_to(self.log.end_offset - 5)
        self.fill(4)
        self.log.flush()
        self.log.delete_records(self.log.start_offset + 20)
        self.log.roll()
        self.fill(2)
        self.log.flush()
        self.log.roll()
        self.log.compact()
        self.fill(3)
        self.reopen()
        self.fill(2)
        self.log.roll()
        self.log.flush()
        self.log.compact(whole=True)
        bases = sorted(int(name[:20]) for name in self.fs.list(PATH) if name.endswith(".log"))
        self.log.truncate_to(bases[len(bases) // 2])
        self.fill(4)
        self.reopen()
        writer_of(self.log).truncate_fully_and_start_at(self.log.end_offset + 7)
        self.fill(4)
        self.log.close()

    def reopen(self) -> None:
        self.log.close()
        self.log = self.open(self.fs)

    def fill(self, count: int) -> None:
        for _ in range(count):
            for producer_id, kind in ((ABORTS, ControlRecordType.ABORT), (COMMITS, ControlRecordType.COMMIT)):
                self.append(producer_id)
                self.end(producer_id, kind)
            self.clock.advance(7)

    def append(self, producer_id: int) -> None:
        first = self.log.end_offset
        records = []
        for number in range(3):
            self._serial += 1
            value = b"%s %d" % (b"aborted" if producer_id == ABORTS else b"committed", self._serial)
            key = b"key-%d" % (self._serial % KEYS)
            records.append(Record(first + number, self.clock.now_ms(), key=key, value=value))
        data = build_batch(
            records, producer_id=producer_id, producer_epoch=0, base_sequence=first, is_transactional=True
        )
        self.log.append_batches(data, assign_offsets=False)

    def end(self, producer_id: int, kind: ControlRecordType) -> None:
        key, value = EndTransactionMarker(kind, 0).encode()
        marker = Record(self.log.end_offset, self.clock.now_ms(), key=key, value=value)
        data = build_batch([marker], producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=True)
        self.log.append_batches(data, assign_offsets=False)

    def moments(self, choose: Choice | None, seed: int) -> Iterator[tuple[int, Image]]:
        """The disk after each operation; random disks without ``choose``."""
        generator = random.Random(seed)
        disk = Disk(ROOT)
        for number, operation in enumerate(self.fs.operations):
            disk.apply(operation)
            if operation.kind in CHANGES | {"store"} - {"allocate"}:
                yield number, disk.image(some(generator) if choose is None else choose)


def look(log: Log) -> None:
    """Committed readers get no aborted record, and all others."""
    stable = log.last_stable_offset
    found = [record.value for record in log.read(stop=stable)]
    committed = [record.value for record in log.read(isolation_level="read_committed")]
    if wrong := [value for value in committed if value is not None and value.startswith(b"aborted")]:
        raise Wrong(f"served as committed: {wrong}")
    if committed != [value for value in found if value is not None and value.startswith(b"committed")]:
        raise Lost(f"committed readers get {committed} of {found}")


def hold(life: Life, image: Image) -> None:
    """Opens it unchanged: nothing is rebuilt that recovery does not scan anyway."""
    with life.open(MemoryFs(ROOT, image)) as log:
        if wrong := [note for note in log.recovery.notes if "transaction index" in note]:
            raise Wrong(f"rebuilt after a crash: {wrong}")
        look(log)


def hold_without(life: Life, image: Image, generator: random.Random) -> bool:
    """Opens it without one of its transaction indexes; returns whether the loss had to be noticed."""
    fs = MemoryFs(ROOT, image)
    if not fs.exists(PATH):
        return False
    indexes = [PATH / name for name in fs.list(PATH) if name.endswith(".txnindex") and fs.stat(PATH / name).size]
    if not indexes:
        return False
    fs.unlink(generator.choice(indexes))
    with life.open(fs) as log:
        look(log)
        was_noticed = any(NOTE in note for note in log.recovery.notes)
    with life.open(fs) as log:
        # A log whose records are all deleted and which ends below its start is scanned until the next append.
        if not log.recovery.clean and log.start_offset < log.end_offset:
            raise Wrong(f"after a close: {log.recovery}")
        look(log)
    return was_noticed


def hold_again(life: Life, image: Image, generator: random.Random) -> int:
    """Opens it where a crash interrupted a swap, and kills that open too; returns how many states this gave."""
    if not any(str(path).endswith(".log.swap") for path in image):
        return 0
    fs = MemoryRecording(MemoryFs(ROOT, image))
    life.open(fs).close()
    disk = Disk(ROOT, image=image)
    states = 0
    for operation in fs.operations:
        disk.apply(operation)
        if operation.kind in CHANGES - {"allocate"} and generator.random() < 0.2:
            hold(life, disk.image(everything))
            states += 1
    return states


def lived(durability: Durability) -> Life:
    life = Life(durability)
    life.live()
    return life


def crash(durability: Durability, seed: int, sample: int | None) -> tuple[int, int]:
    """Ends one life by kills and power cuts; returns how many states were opened, and how many losses noticed."""
    states = noticed = 0
    generator = random.Random(seed)
    with in_memory() as machine:
        life = lived(durability)
        for choose in (everything, nothing, None):
            if choose is nothing:
                machine.restart()
            moments = list(life.moments(choose, seed))
            count = len(moments) if sample is None else KILLED if choose is everything else sample
            chosen = shuffled(range(len(moments)), seed, count)
            without = set(shuffled(chosen, seed + 1, sample or len(moments)))
            for at in chosen:
                number, image = moments[at]
                try:
                    hold(life, image)
                    states += hold_again(life, image, generator)
                    if at in without:
                        noticed += hold_without(life, image, generator)
                except Exception as error:
                    name = getattr(choose, "__name__", "some")
                    error.add_note(f"{name} after operation {number}: {life.fs.operations[number]}"[:300])
                    raise
                states += 1
    return states, noticed


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.promise("rebuilt", "killed: sync", "killed: interval", "killed: os")
@pytest.mark.sampled(1)
def test_a_crash_rebuilds_no_transaction_index_and_a_lost_one_is_noticed(
    durability: Durability, seed: int, tried: Callable[[str, int], None]
) -> None:
    states, noticed = crash(durability, seed, SAMPLE)
    assert noticed > tries(5, quick=0)
    tried("states", states)


@pytest.mark.soak
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("number", range(5))
@pytest.mark.promise("rebuilt", "killed: sync", "killed: interval", "killed: os")
def test_many_crashes_rebuild_no_transaction_index_and_every_lost_one_is_noticed(
    durability: Durability, number: int, seed: int, tried: Callable[[str, int], None]
) -> None:
    states, _ = crash(durability, seed + number, None)
    tried("states", states)
