"""A log's life in steps, and a model of what must be there after each of them, whatever went wrong.

    life = Life(path, fs, "sync")
    life.open()
    for step in STEPS:
        step.begin(life)      # from here on, what the step touches is "doubtful"
        step.act(life)
        step.done(life)       # the step has returned: its promises hold

A batch is certain (it must be there), doubtful (there as a whole, or not at all) or gone (it must not come back).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.without_flusher import log_without_flusher
from tests.support.harness.evidence import Lost, Wrong
from tests.support.lives.telling_values import telling_value

# The log has no thread of its own: the operations of a life are the same each time.
SETTINGS: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64, "flush_ms": 10**9}
DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")
VALUE_SIZE = 60
NO_PRODUCER = -1


@dataclass(slots=True)
class Batch:
    """A batch in the model; a marker has one offset and no values."""

    first: int
    values: list[bytes]
    producer_id: int = NO_PRODUCER
    aborts: bool = False  # it belongs to a transaction that is, or will be, aborted

    @property
    def last(self) -> int:
        return self.first + max(len(self.values), 1) - 1


@dataclass(slots=True)
class Model:
    """What must, what may and what must not be in a log."""

    certain: list[Batch] = field(default_factory=list)
    doubtful: list[Batch] = field(default_factory=list)
    gone: set[bytes] = field(default_factory=set)
    aborted: set[bytes] = field(default_factory=set)
    # Offsets that need no record: those of markers, and of batches that a truncation removed as a whole.
    holes: set[int] = field(default_factory=set)
    start_min: int = 0
    start_max: int = 0
    # The offset that the next append must get, and the offset below which the log promised durability.
    end: int = 0
    durable: int = 0

    def doubt_from(self, offset: int) -> None:
        """A truncation to ``offset`` was requested: batches that end at or above it may be gone, each as a whole."""
        removed = [batch for batch in self.certain if batch.last >= offset]
        self.certain = [batch for batch in self.certain if batch.last < offset]
        self.doubtful += removed
        self.holes.update(number for batch in removed for number in range(batch.first, batch.last + 1))
        self.durable = min([self.durable, offset, *(batch.first for batch in removed)])

    def accept(self) -> None:
        """What was doubtful is certain."""
        self.certain += self.doubtful
        self.doubtful = []
        self.end = max([self.end, *(batch.last + 1 for batch in self.certain)])

    def drop(self) -> None:
        """What was doubtful is gone."""
        self.gone.update(value for batch in self.doubtful for value in batch.values)
        self.doubtful = []

    def settle(self, found: dict[int, bytes], end: int) -> None:
        """The log was examined without faults: what exists stays, what does not exist never comes back."""
        there = [
            batch
            for batch in self.doubtful
            if any(found.get(offset) == value for offset, value in enumerate(batch.values, start=batch.first))
        ]
        self.doubtful = [batch for batch in self.doubtful if batch not in there and batch.values]
        self.drop()
        self.certain = sorted([*self.certain, *there], key=lambda batch: batch.first)
        self.end = end

    def hold_against(self, found: dict[int, bytes], start: int, end: int, *, stop: int | None = None) -> None:
        """Compares a log from ``start`` to ``end`` with the model; with ``stop`` only the offsets below it were read.

        Raises: Lost, Wrong.
        """
        stop = end if stop is None else stop
        if not self.start_min <= start <= self.start_max:
            raise Wrong(f"the log starts at {start}, expected {self.start_min} to {self.start_max}")
        known: dict[int, set[bytes]] = {}
        for batch in self.certain:
            for offset, value in enumerate(batch.values, start=batch.first):
                known.setdefault(offset, set()).add(value)
                if start <= offset < stop and found.get(offset) != value:
                    raise Lost(f"offset {offset}: {found.get(offset)!r}, expected {value!r}")
            if batch.last >= end:
                raise Lost(f"the log ends at {end}, and offset {batch.last} was acknowledged")
        for batch in self.doubtful:
            pairs = list(enumerate(batch.values, start=batch.first))
            for offset, value in pairs:
                known.setdefault(offset, set()).add(value)
            there = [found.get(offset) == value for offset, value in pairs if start <= offset < stop]
            if any(there) and not all(there):
                raise Wrong(f"part of the batch at offset {batch.first}: {there}")
        for offset, value in found.items():
            if value in self.gone:
                raise Wrong(f"offset {offset} has a value that was gone: {value!r}")
            if value not in known.get(offset, ()):
                raise Wrong(f"offset {offset} has {value!r}, expected one of {known.get(offset)}")
        if missing := [offset for offset in range(start, stop) if offset not in found and offset not in self.holes]:
            raise Lost(f"no records at offsets {missing} of {start} to {stop}")


class Life:
    """One log and its model; ``log`` is None while it is closed."""

    def __init__(self, path: Path, fs: FileSystem, durability: Durability, model: Model | None = None) -> None:
        self.path = path
        self.fs = fs
        self.durability = durability
        self.model = model or Model()
        self.clock = ManualClock()
        self.log: Log | None = None
        self._serial = 0
        self._pending: list[Batch] = []

    @property
    def opened(self) -> Log:
        assert self.log is not None
        return self.log

    def open(self) -> Log:
        self.log = log_without_flusher(self.path, fs=self.fs, clock=self.clock, durability=self.durability, **SETTINGS)
        return self.log

    def close(self) -> None:
        """Closes the log, which is closed even if this fails."""
        log, self.log = self.opened, None
        log.close()

    # --- the parts of steps -------------------------------------------------------------------------------------

    def batch(self, first: int, count: int, producer_id: int = NO_PRODUCER, *, aborts: bool = False) -> Batch:
        """A batch to append, with values of its own; a marker if ``count`` is 0."""
        self._serial += 1
        values = [telling_value(first + number, self._serial, VALUE_SIZE) for number in range(count)]
        batch = Batch(first, values, producer_id, aborts)
        if aborts:
            self.model.aborted.update(values)
        if not values:
            self.model.holes.add(first)
        return batch

    def begin_append(self, batches: Sequence[Batch]) -> None:
        self._pending = list(batches)
        self.model.doubtful += batches

    def done_append(self) -> None:
        self.model.accept()
        self.clock.advance(7)
        if self.durability == "sync":
            self.model.durable = self.model.end

    @property
    def pending(self) -> list[Batch]:
        return self._pending

    def append(self, count: int = 3) -> None:
        """One whole append, outside of the steps."""
        self.begin_append([self.batch(self.model.end, count)])
        act_append(self)
        self.done_append()

    # --- inspection ----------------------------------------------------------------------------------------------

    def found(self) -> dict[int, bytes]:
        """What readers get. Raises the errors of reading, and Wrong for offsets that decrease."""
        found: dict[int, bytes] = {}
        previous = -1
        for record in self.opened.read(on_corrupt="skip"):
            if record.offset <= previous:
                raise Wrong(f"offset {record.offset} after {previous}")
            assert record.value is not None
            found[record.offset] = record.value
            previous = record.offset
        return found

    def look(self) -> dict[int, bytes]:
        """Compares the open log with the model: all readers, committed ones too. Returns its records."""
        log, model = self.opened, self.model
        found = self.found()
        mark = log.high_watermark
        if mark < model.durable:
            raise Lost(f"reads end at {mark}, but everything below {model.durable} is durable")
        model.hold_against(found, log.start_offset, log.end_offset, stop=mark)
        stable = log.last_stable_offset
        committed = {
            record.offset: record.value for record in log.read(isolation_level="read_committed", on_corrupt="skip")
        }
        if bad := [offset for offset, value in committed.items() if value in model.aborted]:
            raise Wrong(f"committed readers get aborted records: {bad}")
        expected = {offset: value for offset, value in found.items() if offset < stable and value not in model.aborted}
        if committed != expected:
            raise Lost(f"committed readers get offsets {list(committed)}, expected {list(expected)}")
        return found

    def assert_survived(self) -> None:
        """Reopened without faults: everything certain exists, in order, and nothing that was never written."""
        self.fs = SYSTEM_FS
        log = self.open()
        found = self.look()
        self.model.settle(found, log.end_offset)
        log.check()
        self.append(1)
        self.close()
        with Log(self.path, read_only=True) as view:
            assert view.recovery.clean
            end = self.model.end
            assert [record.offset for record in view.read(end - 1)] == [end - 1]


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on a log; see the head of the file."""

    name: str
    begin: Callable[[Life], None]
    act: Callable[[Life], None]
    done: Callable[[Life], None]


def run(life: Life, step: Step) -> None:
    """A whole step; an exception leaves it begun."""
    step.begin(life)
    step.act(life)
    step.done(life)


def nothing(life: Life) -> None:
    """Nothing is doubtful, and nothing is promised."""


# --- appends ----------------------------------------------------------------------------------------------------------


def act_append(life: Life) -> None:
    (batch,) = life.pending
    if len(batch.values) == 1:
        offset = life.opened.append(batch.values[0])
        if offset != batch.first:
            raise Wrong(f"offset {offset}, expected {batch.first}")
        return
    info = life.opened.append_many(batch.values)
    if (info.first_offset, info.last_offset) != (batch.first, batch.last):
        raise Wrong(f"{info}, expected offsets {batch.first} to {batch.last}")


def append(count: int = 3) -> Step:
    return Step(
        f"append {count}",
        lambda life: life.begin_append([life.batch(life.model.end, count)]),
        act_append,
        Life.done_append,
    )


def act_batches(life: Life) -> None:
    data = b"".join(
        build_batch([Record(number, life.clock.now_ms(), value=value) for number, value in enumerate(batch.values)])
        for batch in life.pending
    )
    info = life.opened.append_batches(data)
    if info.first_offset != life.pending[0].first:
        raise Wrong(f"{info}, expected offset {life.pending[0].first}")


def append_batches(count: int) -> Step:
    """Foreign batches of two records each, in one append."""
    return Step(
        f"append {count} batches",
        lambda life: life.begin_append([life.batch(life.model.end + 2 * number, 2) for number in range(count)]),
        act_batches,
        Life.done_append,
    )


def act_transaction(life: Life) -> None:
    (batch,) = life.pending
    records = [
        Record(number, life.clock.now_ms(), value=value) for number, value in enumerate(batch.values, batch.first)
    ]
    if not records:
        kind = ControlRecordType.ABORT if batch.aborts else ControlRecordType.COMMIT
        key, value = EndTransactionMarker(kind, 0).encode()
        records = [Record(batch.first, life.clock.now_ms(), key=key, value=value)]
    data = build_batch(
        records,
        producer_id=batch.producer_id,
        producer_epoch=0,
        base_sequence=batch.first if batch.values else -1,
        is_transactional=True,
        is_control=not batch.values,
    )
    life.opened.append_batches(data, assign_offsets=False)


def transaction(producer_id: int, count: int, *, aborts: bool) -> Step:
    """A batch of a transaction; its marker if ``count`` is 0. A producer ends all its transactions the same way."""
    return Step(
        f"transaction {producer_id}, {count}",
        lambda life: life.begin_append([life.batch(life.model.end, count, producer_id, aborts=aborts)]),
        act_transaction,
        Life.done_append,
    )


# --- changes ----------------------------------------------------------------------------------------------------------


def flushed(life: Life) -> None:
    life.model.durable = life.model.end


def act_roll(life: Life) -> None:
    life.opened.roll()


def begin_delete(life: Life) -> None:
    life.model.start_max = max(life.model.start_max, min(life.model.end, life.model.start_max + 6))


def act_delete(life: Life) -> None:
    life.opened.delete_records(life.model.start_max)


def done_delete(life: Life) -> None:
    life.model.start_min = life.model.start_max


def begin_truncate(life: Life) -> None:
    life.model.doubt_from(life.model.end - 4)


def act_truncate(life: Life) -> None:
    life.opened.truncate_to(life.model.end - 4)


def done_truncate(life: Life) -> None:
    """Kept records are as durable as before: without syncs a truncation puts no record on disk."""
    model = life.model
    model.end -= 4
    model.drop()
    if life.durability == "sync":
        model.durable = model.end


def begin_start_at(life: Life) -> None:
    model = life.model
    model.doubt_from(0)
    model.holes.update(range(model.end, model.end + 10))
    model.start_max = model.end + 10


def act_start_at(life: Life) -> None:
    writer_of(life.opened).truncate_fully_and_start_at(life.model.start_max)


def done_start_at(life: Life) -> None:
    model = life.model
    model.drop()
    model.start_min = model.end = model.durable = model.start_max


def act_reopen(life: Life) -> None:
    life.close()
    life.open()


FLUSH = Step("flush", nothing, lambda life: life.opened.flush(), flushed)
ROLL = Step("roll", nothing, act_roll, nothing)
DELETE = Step("delete_records", begin_delete, act_delete, done_delete)
TRUNCATE = Step("truncate_to", begin_truncate, act_truncate, done_truncate)
START_AT = Step("truncate_fully_and_start_at", begin_start_at, act_start_at, done_start_at)
REOPEN = Step("reopen", nothing, act_reopen, flushed)

ABORTED, COMMITTED = 1, 2

STEPS: tuple[Step, ...] = (
    append(),
    append(1),
    append_batches(2),
    transaction(ABORTED, 2, aborts=True),
    append(),
    transaction(COMMITTED, 2, aborts=False),
    transaction(ABORTED, 0, aborts=True),
    ROLL,
    append(),
    FLUSH,
    transaction(COMMITTED, 0, aborts=False),
    append_batches(5),
    DELETE,
    transaction(ABORTED, 1, aborts=True),
    append(),
    TRUNCATE,
    append(),
    REOPEN,
    append(2),
    transaction(ABORTED, 0, aborts=True),
    ROLL,
    append(1),
    DELETE,
    REOPEN,
    START_AT,
    append(),
    append(1),
    REOPEN,
)
