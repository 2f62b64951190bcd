"""The log against a plain list: random steps of a whole life, while threads and another process read.

A kill leaves the directory as it is at that moment; a power cut leaves what was synced, and any part of the rest.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from kstore.errors import CorruptBatchError
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.types import CorruptRange, Durability
from tests.support.fakes.crash_states import Disk, another_boot, everything, some
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import RecordingFs
from tests.support.fakes.without_flusher import log_without_flusher
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries
from tests.support.lives.telling_values import telling_value
from tests.support.lives.watching_reader import ReadingProcess, watched_by_threads

SETTINGS: dict[str, Any] = {"segment_bytes": 2048, "index_interval_bytes": 100, "flush_ms": 10**9}
CODECS = st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"])
COUNTS = st.integers(1, 6)
PRODUCERS = st.integers(1, 3)
NO_PRODUCER = -1
HEADER_SIZE = 61
DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")


@dataclass(slots=True)
class Batch:
    """A batch in the model: its offsets are ``first`` to ``last``; a marker has one, and no values."""

    first: int
    values: list[bytes]
    producer_id: int = NO_PRODUCER
    is_marker: bool = False
    is_aborted: bool = False
    is_open: bool = False
    is_damaged: bool = False

    @property
    def last(self) -> int:
        return self.first + max(len(self.values), 1) - 1

    def pairs(self) -> Iterator[tuple[int, bytes]]:
        return enumerate(self.values, start=self.first)


class Model:
    """A plain list of batches, and two offsets."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.start = 0
        self.end = 0
        self.durable = 0
        # After the last batch: the files show an end that a truncation set higher only once a batch is there.
        self.end_in_files = 0

    def add(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.end = self.end_in_files = batch.last + 1

    def end_transaction(self, producer_id: int, *, aborts: bool) -> None:
        for batch in self.batches:
            if batch.producer_id == producer_id and batch.is_open:
                batch.is_open = False
                batch.is_aborted = aborts

    def truncate_to(self, offset: int, base_offset: int, *, is_first: bool) -> None:
        """``base_offset`` is that of the segment that holds ``offset``; ``is_first`` if no segment begins below it."""
        self.batches = [batch for batch in self.batches if batch.last < offset]
        end_of_batches = self.batches[-1].last + 1 if self.batches else 0
        # Earlier truncations may leave offsets missing below ``offset``: no batch shows that they were assigned.
        self.end_in_files = min(offset, self.end_in_files, max(end_of_batches, base_offset))
        self.end = offset
        self.start = min(self.start, offset)
        if offset > base_offset and end_of_batches <= base_offset:
            # The emptied segment goes, and the next one's name shows the log's end.
            self.end_in_files = offset
            if is_first:
                self.start = offset

    def expected(self, start: int, stop: int, *, committed: bool = False) -> list[tuple[int, bytes]]:
        if committed:
            stop = min(stop, self.stable_end)
        return [
            pair
            for batch in self.batches
            if not (committed and batch.is_aborted)
            for pair in batch.pairs()
            if max(start, self.start) <= pair[0] < stop and not batch.is_damaged
        ]

    @property
    def stable_end(self) -> int:
        return max(self.start, min((batch.first for batch in self.batches if batch.is_open), default=self.end))

    def damaged(self, start: int, stop: int) -> list[Batch]:
        return [
            batch for batch in self.batches if batch.is_damaged and batch.last >= start and batch.first < stop > start
        ]


class LogMachine(RuleBasedStateMachine):
    """Steps of a log's life; after each of them the log equals the list."""

    reader: ReadingProcess
    states = 0
    reads = 0

    def __init__(self) -> None:
        super().__init__()
        shared_memory = Path("/dev/shm")
        parent = shared_memory if shared_memory.is_dir() else None
        self.root = Path(tempfile.mkdtemp(prefix="kstore-model-", dir=parent))
        self.model = Model()
        self.clock = ManualClock()
        self.serial = 0
        self.number = 0
        self.durability: Durability = "sync"
        self.has_damage = False
        self.stack = contextlib.ExitStack()
        self.watch = contextlib.ExitStack()
        self.log: Log

    # --- open and close ---------------------------------------------------------------------------------------------

    @initialize(durability=st.sampled_from(DURABILITIES))
    def begin(self, durability: Durability) -> None:
        self.durability = durability
        self.path = self.root / "log-0" / "log"
        self.path.parent.mkdir()
        self.disk = Disk(self.path.parent)
        self._open()

    def _open(self) -> None:
        self.fs = RecordingFs(SYSTEM_FS)
        self.log = log_without_flusher(self.path, fs=self.fs, clock=self.clock, durability=self.durability, **SETTINGS)
        counts = self.watch.enter_context(watched_by_threads(self.log, 2, corrupt=self.has_damage))
        type(self).reads += self.reader.watch(self.path, corrupt=self.has_damage)
        self.counts = counts

    def _stop_watching(self) -> None:
        type(self).reads += self.reader.watch(None) + sum(self.counts)
        self.watch.close()

    def _note_operations(self) -> None:
        for operation in self.fs.operations:
            self.disk.apply(operation)
        self.fs.operations.clear()

    @rule()
    def close_and_reopen(self) -> None:
        self._stop_watching()
        self.log.close()
        self._note_operations()
        self.model.durable = self.model.end_in_files = self.model.end
        self._open()
        # A log whose records are all deleted and whose tail a power cut took is scanned until the next append.
        is_at_start = self.model.start == self.model.end
        if not self.has_damage and not self.log.recovery.clean and not is_at_start:
            raise Wrong(f"not clean after a close: {self.log.recovery}")

    @rule()
    def kill(self) -> None:
        """The process dies: nothing that was acknowledged is lost, whatever the durability."""
        last = self.model.batches[-1] if self.model.batches else None
        if last is not None and last.is_damaged and self.model.durable <= last.first:
            return  # a truncation made a damaged, unflushed batch the last one: recovery takes it for a torn write
        self._leave_for(lambda target: self.disk.write_to(target, everything))
        self._open()
        self._assert_same_end()

    @rule(seed=st.integers(0, 2**32))
    def cut_power(self, seed: int) -> None:
        """The machine dies: in "sync" nothing is lost, otherwise a suffix of the unflushed part."""
        if self.has_damage and self.durability != "sync":
            return  # records that damage hides look like ones never written
        self._leave_for(lambda target: self.disk.write_to(target, some(random.Random(seed))))
        with another_boot(self.root):
            self._open()
        if self.durability == "sync":
            self._assert_same_end()
            return
        end = self.log.end_offset
        if not self.model.durable <= end <= self.model.end:
            raise Lost(f"the log ends at {end}; {self.model.durable} offsets were durable, {self.model.end} written")
        self._lose_from(end)
        # A transaction whose records are all below the start needs nothing on disk.
        open_ids = {transaction.producer_id for transaction in self.log.transactions()}
        for batch in self.model.batches:
            if batch.last < self.model.start and batch.producer_id not in open_ids:
                batch.is_open = False

    def _leave_for(self, write_to: Callable[[Path], None]) -> None:
        """Continues in a copy of what the disk kept."""
        self._stop_watching()
        self._note_operations()
        self.number += 1
        target = self.root / f"log-{self.number}"
        write_to(target)
        old = self.log
        self.path = target / "log"
        old.close()
        shutil.rmtree(old.path.parent)
        self.disk = Disk(target)

    def _lose_from(self, end: int) -> None:
        lost = [batch for batch in self.model.batches if batch.last >= end]
        if any(batch.first < end for batch in lost) and end != self.model.start:
            raise Wrong(f"the log ends at {end}, within a batch")
        # Transactions that the lost markers ended are open again.
        for marker in reversed([batch for batch in lost if batch.is_marker]):
            begun = [batch for batch in self.model.batches if batch.producer_id == marker.producer_id]
            for batch in reversed(begun[: begun.index(marker)]):
                if batch.is_marker:
                    break
                batch.is_open, batch.is_aborted = True, False
        self.model.batches = [batch for batch in self.model.batches if batch.last < end]
        self.model.end = end

    def _assert_same_end(self) -> None:
        if self.log.end_offset == self.model.end_in_files:
            self.model.end = self.model.end_in_files
        if self.log.end_offset != self.model.end:
            raise Lost(f"the log ends at {self.log.end_offset}, expected {self.model.end}")

    # --- append -----------------------------------------------------------------------------------------------------

    def _values(self, count: int) -> list[bytes]:
        self.serial += 1
        return [telling_value(self.model.end + number, self.serial, 40) for number in range(count)]

    def _appended(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self.model.add(batch)
        if self.durability == "sync":
            self.model.durable = self.model.end
        self.clock.advance(7)

    @rule()
    def append(self) -> None:
        (value,) = self._values(1)
        if self.log.append(value) != self.model.end:
            raise Wrong("an offset other than the next one")
        self._appended([Batch(self.model.end, [value])])

    @rule(count=COUNTS)
    def append_many(self, count: int) -> None:
        values = self._values(count)
        info = self.log.append_many(values)
        if (info.first_offset, info.last_offset) != (self.model.end, self.model.end + count - 1):
            raise Wrong(f"{info}, expected offset {self.model.end} and {count} records")
        self._appended([Batch(self.model.end, values)])

    @rule(counts=st.lists(COUNTS, min_size=1, max_size=3), codec=CODECS)
    def append_batches(self, counts: list[int], codec: str) -> None:
        first, data, batches = self.model.end, b"", []
        for count in counts:
            values = [telling_value(first + number, self.serial, 40) for number in range(count)]
            records = [Record(number, self.clock.now_ms(), value=value) for number, value in enumerate(values)]
            data += build_batch(records, codec=codec)
            batches.append(Batch(first, values))
            first += count
        self.log.append_batches(data)
        self._appended(batches)

    @rule(producer_id=PRODUCERS, count=COUNTS)
    def append_to_transaction(self, producer_id: int, count: int) -> None:
        first, values = self.model.end, self._values(count)
        records = [Record(first + number, self.clock.now_ms(), value=value) for number, value in enumerate(values)]
        data = build_batch(
            records, producer_id=producer_id, producer_epoch=0, base_sequence=first, is_transactional=True
        )
        self.log.append_batches(data, assign_offsets=False)
        self._appended([Batch(first, values, producer_id, is_open=True)])

    @rule(producer_id=PRODUCERS, aborts=st.booleans())
    def end_transaction(self, producer_id: int, aborts: bool) -> None:
        kind = ControlRecordType.ABORT if aborts else ControlRecordType.COMMIT
        key, value = EndTransactionMarker(kind, 0).encode()
        marker = build_batch(
            [Record(self.model.end, self.clock.now_ms(), key=key, value=value)],
            producer_id=producer_id,
            producer_epoch=0,
            is_transactional=True,
            is_control=True,
        )
        self.log.append_batches(marker, assign_offsets=False)
        self.model.end_transaction(producer_id, aborts=aborts)
        self._appended([Batch(self.model.end, [], producer_id, is_marker=True)])

    # --- change -----------------------------------------------------------------------------------------------------

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.model.durable = self.model.end

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        before = self.model.start + int(share * (self.model.end - self.model.start))
        self.log.delete_records(before)
        self.model.start = max(self.model.start, before)

    @rule(back=st.integers(0, 12))
    def truncate_to(self, back: int) -> None:
        offset = max(self.model.end - back, 0)
        if self.model.damaged(offset, self.model.end) or offset < self.model.start:
            return  # offsets alone do not show where damage begins and ends
        self._lose_transactions_from(offset)
        bases = sorted(int(path.stem) for path in self.path.glob("*.log"))
        base_offset = max(base for base in bases if base <= offset)
        self.log.truncate_to(offset)
        self.model.truncate_to(offset, base_offset, is_first=base_offset == bases[0])
        self.model.durable = min(self.model.durable, self.model.end_in_files)

    def _lose_transactions_from(self, offset: int) -> None:
        kept = [batch for batch in self.model.batches if batch.last < offset]
        for marker in [batch for batch in self.model.batches if batch.is_marker and batch.last >= offset]:
            for batch in reversed([batch for batch in kept if batch.producer_id == marker.producer_id]):
                if batch.is_marker:
                    break
                batch.is_open, batch.is_aborted = True, False

    @rule(offset=st.integers(0, 50))
    def truncate_fully_and_start_at(self, offset: int) -> None:
        writer_of(self.log).truncate_fully_and_start_at(offset)
        self.model = Model()
        self.model.start = self.model.end = self.model.end_in_files = self.model.durable = offset
        self.has_damage = False

    @rule(choice=st.randoms(use_true_random=False))
    def damage(self, choice: random.Random) -> None:
        """A bit rots in a batch that is on disk, while no process has the log open."""
        candidates = [
            batch
            for batch in self.model.batches[:-1]
            if batch.first >= self.model.start and batch.producer_id == NO_PRODUCER and not batch.is_damaged
        ]
        if not candidates or self.has_damage:
            return
        batch = choice.choice(candidates)
        self._stop_watching()
        self.log.close()
        self._note_operations()
        for segment in self.path.glob("*.log"):
            data = bytearray(segment.read_bytes())
            at = 0
            while at < len(data) and int.from_bytes(data[at : at + 8], "big") != batch.first:
                at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            if at < len(data):
                data[at + HEADER_SIZE] ^= 1 << choice.randrange(8)
                segment.write_bytes(data)
                batch.is_damaged = self.has_damage = True
                break
        self.disk = Disk(self.path.parent)
        self.model.durable = self.model.end
        self._open()

    # --- read -------------------------------------------------------------------------------------------------------

    @rule(first=st.floats(0, 1), length=st.integers(0, 30), committed=st.booleans())
    def read(self, first: float, length: int, committed: bool) -> None:
        start = self.model.start + int(first * (self.model.end - self.model.start))
        stop = min(start + length, self.model.end)
        isolation: Any = "read_committed" if committed else "read_uncommitted"
        expected = self.model.expected(start, stop, committed=committed)
        seen_stop = min(stop, self.model.stable_end) if committed else stop
        damaged = self.model.damaged(start, seen_stop)
        skipped = list(self.log.read(start, stop, isolation_level=isolation, on_corrupt="skip"))
        self._compare(expected, skipped)
        yielded: list[object] = list(self.log.read(start, stop, isolation_level=isolation, on_corrupt="yield"))
        ranges = [item for item in yielded if isinstance(item, CorruptRange)]
        if len(ranges) != len(damaged) or not all(
            self._is_told(batch, lost, start, stop) for batch, lost in zip(damaged, ranges, strict=True)
        ):
            raise Wrong(f"{ranges}, expected {damaged}")
        try:
            self._compare(expected, list(self.log.read(start, stop, isolation_level=isolation)))
            if damaged:
                raise Wrong(f"damage was skipped silently: {damaged}")
        except CorruptBatchError as error:
            if not damaged:
                raise Wrong(f"damage in a sound log: {error!r}") from error

    def _is_told(self, batch: Batch, lost: CorruptRange, start: int, stop: int) -> bool:
        """Whether ``lost`` is ``batch``, with any offsets after it that a truncation took: damage hides them too."""
        following = min((other.first for other in self.model.batches if other.first > batch.last), default=stop)
        last_min, last_max = min(batch.last, stop - 1), min(max(following - 1, batch.last), stop - 1)
        return lost.first == max(batch.first, start) and last_min <= lost.last <= last_max

    def _compare(self, expected: list[tuple[int, bytes]], records: list[Record]) -> None:
        found = [(record.offset, record.value) for record in records]
        if found != expected:
            missing = [pair for pair in expected if pair not in found]
            kind = Lost if missing else Wrong
            raise kind(f"missing {missing}; not expected {[pair for pair in found if pair not in expected]}")

    @invariant()
    def is_what_the_list_says(self) -> None:
        if not hasattr(self, "log"):
            return
        type(self).states += 1
        self.log.check()
        ends = self.log.start_offset, self.log.end_offset, self.log.high_watermark
        if ends != (self.model.start, self.model.end, self.model.end):
            raise Wrong(f"start, end, high watermark {ends}, expected {self.model.start}, {self.model.end}")
        if self.log.last_stable_offset != self.model.stable_end:
            raise Wrong(f"last stable offset {self.log.last_stable_offset}, expected {self.model.stable_end}")
        self._compare(self.model.expected(self.model.start, self.model.end), list(self.log.read(on_corrupt="skip")))

    def teardown(self) -> None:
        try:
            if hasattr(self, "log"):
                self._stop_watching()
                self.log.close()
        finally:
            shutil.rmtree(self.root, ignore_errors=True)


@contextlib.contextmanager
def machine_type(tried: Callable[[str, int], None]) -> Iterator[type[LogMachine]]:
    """The machine with another process that reads what it writes; the attempts are counted at the end."""
    reader = ReadingProcess()
    machine: Any = type("LogMachine", (LogMachine,), {"reader": reader, "states": 0, "reads": 0})
    try:
        yield machine
    finally:
        reader.close()
        tried("states", machine.states)
        tried("reads", machine.reads)


def run(examples: int, steps: int, tried: Callable[[str, int], None]) -> None:
    with machine_type(tried) as machine:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=True,
                # Readers run beside it, so a failure may not repeat: shrinking would be slow and futile.
                phases=[Phase.generate],
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


PROMISED = pytest.mark.promise(
    "killed: sync",
    "killed: interval",
    "killed: os",
    "power cut: sync",
    "power cut: interval",
    "power cut: os",
    "high watermark",
    "damage below",
    "bytes",
)


@PROMISED
@pytest.mark.parametrize("count_before", [0, 4])
@pytest.mark.sampled(1)
def test_a_truncation_to_offsets_that_are_missing_loses_nothing(
    count_before: int, tried: Callable[[str, int], None]
) -> None:
    with machine_type(tried) as machine:
        for durability in DURABILITIES:
            state = machine()
            try:
                state.begin(durability=durability)
                if count_before:
                    state.append_many(count=count_before)
                state.append_many(count=4)
                state.truncate_to(back=1)
                state.close_and_reopen()
                state.append_many(count=5)
                state.close_and_reopen()
                # Within the offsets that went with the second batch.
                state.truncate_to(back=7)
                state.is_what_the_list_says()
                state.cut_power(seed=0)
                state.is_what_the_list_says()
            finally:
                state.teardown()


@PROMISED
def test_a_transaction_that_was_deleted_may_be_gone_after_a_power_cut(tried: Callable[[str, int], None]) -> None:
    with machine_type(tried) as machine:
        state = machine()
        try:
            state.begin(durability="interval")
            state.append_batches(codec="snappy", counts=[4])
            state.append_to_transaction(count=5, producer_id=3)
            state.append_batches(codec="lz4", counts=[6])
            state.delete_records(share=0.81)
            state.is_what_the_list_says()
            state.cut_power(seed=195795)
            state.append()
            state.is_what_the_list_says()
        finally:
            state.teardown()


@PROMISED
def test_the_log_is_a_list(tried: Callable[[str, int], None]) -> None:
    run(tries(30, quick=5), 25, tried)


@PROMISED
@pytest.mark.soak
def test_the_log_is_a_list_for_long(tried: Callable[[str, int], None]) -> None:
    run(1200, 40, tried)
