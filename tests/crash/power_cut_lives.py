"""Lives of a log to be ended by power cuts, with what was promised at each moment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from kstore.errors import CorruptBatchError, KstoreError
from kstore.files.fs import FileSystem
from kstore.indexes import entry_index
from kstore.log import Log, reads_of, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.types import Durability
from tests.crash.power_cuts import ROOT
from tests.crash.repeated import failure_count
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import Operation
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording
from tests.support.harness.evidence import Lost, Untyped, Wrong
from tests.support.harness.replaced import replaced

DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")
# The log has no thread: the operations of a life are the same each time.
SETTINGS: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64, "flush_ms": 10**9}
PATH = ROOT / "log"
BATCH_COUNT = 3
DAY_MS = 86_400_000


@contextmanager
def indexes_that_grow_early() -> Iterator[None]:
    """Inside, the mapping of an index grows every few entries; normally it grows by pages."""
    with replaced(entry_index, "GROWTH_BYTES_MIN", 32):
        yield


class Promise(NamedTuple):
    """What was promised: all offsets below ``durable`` except those below ``deleted`` exist, none below ``start``."""

    durable: int = 0
    deleted: int = 0
    start: int = 0


class LogLife:
    """A log's life, recorded (``RecordedLife``), from the opening of ``before``."""

    def __init__(self, durability: Durability, variant: int = 0) -> None:
        """Another ``variant`` has values of other sizes, which moves everything in the files."""
        self.variant = variant
        self.memory = MemoryFs(ROOT)
        self.fs = MemoryRecording(self.memory)
        self.before: Image = {}
        self.durability = durability
        self.settings = dict(SETTINGS)
        self.clock = ManualClock()
        # Each with the number of preceding operations: what was tried at which offset; what held from then on.
        self.tried: list[tuple[int, int, bytes]] = []
        self.promises: list[tuple[int, Promise]] = [(0, Promise())]
        # A truncation into a batch removes all of it, and offsets are not assigned twice.
        self.holes: dict[int, int] = {}
        # Truncations that had returned: where they started.
        self.gone: list[tuple[int, int]] = []
        # Whether one write may hold several batches: then the middle of an unacknowledged write may be missing.
        self.has_groups = False

    @property
    def operations(self) -> Sequence[Operation]:
        return self.fs.operations

    @property
    def now(self) -> int:
        return len(self.fs.operations)

    def open(self) -> Log:
        return Log(PATH, fs=self.fs, clock=self.clock, durability=self.durability, **self.settings)

    # --- the parts of lives -------------------------------------------------------------------------------------

    def promises_now(self, **changes: int) -> None:
        self.promises.append((self.now, self.promises[-1][1]._replace(**changes)))

    def append(self, log: Log, count: int = BATCH_COUNT, size: int = 60) -> None:
        number, first = self.now, log.end_offset
        values = [b"%d-%d-" % (offset, number) + b"x" * (size + self.variant) for offset in range(first, first + count)]
        self.tried += [(number, offset, value) for offset, value in enumerate(values, start=first)]
        log.append_many(values)
        self.clock.advance(1000)
        if self.durability == "sync":
            self.promises_now(durable=log.end_offset)

    def group(self, log: Log, *counts: int, size: int = 60) -> None:
        """Batches of ``count`` records each, in one append."""
        self.has_groups = True
        number, first = self.now, log.end_offset
        values = [
            b"%d-%d-" % (offset, number) + b"x" * (size + self.variant) for offset in range(first, first + sum(counts))
        ]
        self.tried += [(number, offset, value) for offset, value in enumerate(values, start=first)]
        rest = iter(values)
        log.append_batches(
            b"".join(build_batch([Record(at, 0, value=next(rest)) for at in range(count)]) for count in counts)
        )
        self.clock.advance(1000)
        if self.durability == "sync":
            self.promises_now(durable=log.end_offset)

    def flush(self, log: Log) -> None:
        log.flush()
        self.promises_now(durable=log.end_offset)

    def close(self, log: Log) -> None:
        # A log that a failed sync has poisoned is closed as it is, without an error.
        is_sound = writer_of(log).files.poisoned is None
        end = log.end_offset
        log.close()
        if is_sound:
            self.promises_now(durable=end)

    def reopened(self, log: Log) -> Log:
        self.close(log)
        return self.open()

    def delete(self, log: Log, before: int) -> None:
        self.promises_now(deleted=before)
        log.delete_records(before)
        self.promises_now(start=before)

    def retain(self, log: Log, before: int) -> None:
        """Retention deletes everything below ``before``."""
        self.promises_now(deleted=before)
        result = log.apply_retention()
        assert log.start_offset == before, f"{result}, expected a start at {before}"
        self.promises_now(start=before)

    def truncate(self, log: Log, offset: int) -> None:
        """To ``offset``, in the middle of a batch or at its start: batches start at multiples of three."""
        batch = offset - offset % BATCH_COUNT
        self.promises_now(durable=min(batch, self.promises[-1][1].durable))
        self.holes.update(dict.fromkeys(range(batch, offset), self.now))
        log.truncate_to(offset)
        # What was truncated stays gone.
        self.gone.append((self.now, batch))

    def start_at(self, log: Log, offset: int) -> None:
        end = log.end_offset
        self.promises_now(durable=0, deleted=offset)
        self.holes.update(dict.fromkeys(range(end, offset), self.now))
        writer_of(log).truncate_fully_and_start_at(offset)
        self.gone.append((self.now, 0))
        self.promises_now(durable=offset, start=offset)

    # --- after the crash -----------------------------------------------------------------------------------------

    def promise(self, done: int) -> Promise:
        return self.promises[bisect_right(self.promises, done, key=lambda item: item[0]) - 1][1]

    def reopen(self, fs: FileSystem) -> None:
        self._open(fs).close()

    def _open(self, fs: FileSystem) -> Log:
        return Log(PATH, fs=fs, clock=self.clock, durability=self.durability, **SETTINGS)

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        promised = self.promise(done)
        try:
            with self._open(fs) as log:
                self._go_on_after_torn_groups(log, promised)
                end = self._hold(log, promised, begun, done)
                log.check()
                if log.append(b"goes on") != end:
                    raise Wrong("the next offset")
            with self._open(fs) as log:
                if not log.recovery.clean or log.end_offset != end + 1:
                    raise Wrong(f"after a close: {log.recovery}")
                if [record.value for record in log.read(end)] != [b"goes on"]:
                    raise Lost("what was appended after the recovery")
        except KstoreError as error:
            raise Lost(f"cannot be opened or read: {error!r}") from error
        except (OSError, LookupError, ValueError) as error:
            raise Untyped(repr(error)) from error

    def _go_on_after_torn_groups(self, log: Log, promised: Promise) -> None:
        """Accepts the fenced ranges if they may be fenced: each belongs to an unacknowledged write of several batches,
        and both the report and a read's error say so."""
        # An earlier recovery may have closed the log cleanly.
        found = log.verify().corrupt if self.has_groups and log.recovery.clean else log.recovery.corrupt
        for fenced in found:
            if not self.has_groups or fenced.first < promised.durable or not fenced.is_unconfirmed:
                raise Lost(f"fenced: {found}")
        if found:
            try:
                list(log.read())
            except CorruptBatchError as error:
                if not error.is_unconfirmed:
                    raise Lost(f"it is taken for acknowledged: {error}") from error
            else:
                raise Wrong(f"reads pass over {found}")
        for fenced in found:
            log.accept_loss(fenced.first, fenced.last)

    def _hold(self, log: Log, promised: Promise, begun: int, done: int) -> int:
        """Compares what can be read with the promise and with everything that was ever tried; returns the end."""
        found = {record.offset: record.value for record in log.read()}
        start, end = log.start_offset, log.end_offset
        holes = {offset for offset, at in self.holes.items() if at < begun}
        if start < promised.start:
            raise Wrong(f"deleted records are back: the log starts at {start}, expected {promised.start}")
        if start > promised.deleted:
            raise Lost(f"the log starts at {start}, but nothing was deleted from {promised.deleted} on")
        missing = set(range(start, promised.durable)) - set(found) - holes
        # The fenced part of an unacknowledged write was just accepted.
        holes |= {offset for first, last in reads_of(log).losses.accepted for offset in range(first, last + 1)}
        if missing:
            raise Lost(f"offsets {sorted(missing)} of {promised}; the log has {sorted(found)}")
        for offset, value in found.items():
            if value not in self._values_at(offset, begun, done):
                raise Wrong(f"never written, or gone: {value!r} at offset {offset}")
        if list(found) != sorted(found) or not set(range(start, end)) - set(found) <= holes:
            raise Wrong(f"offsets {list(found)} in a log from {start} to {end}")
        return end

    def _values_at(self, offset: int, begun: int, done: int) -> list[bytes]:
        gone = max((at for at, first in self.gone if at <= done and offset >= first), default=0)
        return [value for at, tried, value in self.tried if tried == offset and gone <= at < begun]


def appends(life: LogLife) -> None:
    """Appends of every size, rolls and growing indexes in between, a roll after a flush, a close, and more appends."""
    log = life.open()
    for _ in range(6):
        life.append(log)
    life.flush(log)
    log.roll()
    for size in (1, 250, 120, 20):
        life.append(log, size=size)
    log = life.reopened(log)
    life.append(log)
    log.roll()
    life.append(log, 1)
    life.close(log)


def deletions(life: LogLife) -> None:
    """Records are deleted: in the middle of a segment, a whole segment, and all of them."""
    log = life.open()
    for _ in range(9):
        life.append(log)
    life.delete(log, 5)
    life.append(log)
    life.delete(log, 20)
    log = life.reopened(log)
    life.append(log)
    life.delete(log, log.end_offset)
    life.append(log)
    life.close(log)


def truncations(life: LogLife) -> None:
    """The end is cut off: in a segment, over several, and all of it; new records differ from the old ones."""
    log = life.open()
    for _ in range(4):
        life.append(log)
    life.truncate(log, 6)
    for _ in range(6):
        life.append(log)
    life.truncate(log, 7)
    life.append(log)
    log = life.reopened(log)
    life.append(log)
    life.start_at(log, 300)
    for _ in range(2):
        life.append(log)
    life.close(log)


def retained(life: LogLife) -> None:
    """Retention by size deletes several segments at once, then one more after a roll; finally, by time, everything."""
    log = life.open()
    for _ in range(12):
        life.append(log)
    life.close(log)
    life.settings["retention_bytes"] = 1700
    log = life.open()
    life.retain(log, 18)
    life.append(log)
    life.promises_now(deleted=27)
    for _ in range(3):
        life.append(log)
    # A retention that fails at a roll is repeated later.
    life.promises_now(start=log.start_offset)
    assert log.start_offset == 27 or life.fs.inner is not life.memory
    life.close(log)
    life.settings["retention_ms"] = DAY_MS
    life.clock.advance(2 * DAY_MS)
    log = life.open()
    life.retain(log, log.end_offset)
    life.append(log)
    life.close(log)


def groups(life: LogLife) -> None:
    """Writes of several batches, by a producer and by one call that rolls in between, and what follows them."""
    life.settings["max_message_bytes"] = 600
    log = life.open()
    life.group(log, 3, 2, 1)
    life.group(log, 1, 1, 1, size=250)
    life.append(log, 12)
    life.flush(log)
    life.group(log, 2, 2)
    life.append(log, 9, size=100)
    log = life.reopened(log)
    life.group(log, 1, 4, 2, size=90)
    life.group(log, 3, 3, size=1)
    life.append(log, 20)
    life.close(log)


def torn_groups(life: LogLife) -> None:
    """Mostly writes of many batches over many sectors, so that most power cuts hit one."""
    life.settings["segment_bytes"] = 8192
    log = life.open()
    life.append(log)
    for size in (40, 150, 250):
        life.group(log, *[1] * 8, size=size)
    life.group(log, 1, 2, 1, size=400)
    life.close(log)


def parked(life: LogLife) -> None:
    """The tail is closed for others between appends, and reopened; then a roll, a truncation and a close."""
    log = life.open()
    for size in (60, 20, 120, 250, 60):
        life.append(log, size=size)
        # A disk that fails may keep it open.
        assert writer_of(log).files.park() or failure_count(life.fs)
    life.append(log)
    life.append(log)
    assert writer_of(log).files.park()
    life.truncate(log, log.end_offset - 1)
    life.append(log)
    assert writer_of(log).files.park()
    log.roll()
    assert writer_of(log).files.park()
    life.append(log)
    assert writer_of(log).files.park()
    life.close(log)


LIVES: dict[str, Callable[[LogLife], None]] = {
    "appends": appends,
    "deletions": deletions,
    "truncations": truncations,
    "retention": retained,
    "groups": groups,
    "torn groups": torn_groups,
    "parks": parked,
}


def lived(name: str, durability: Durability, variant: int = 0) -> LogLife:
    """The life of this name, to its end."""
    life = LogLife(durability, variant)
    LIVES[name](life)
    return life
