"""Power cuts in the life of a log of idempotent and transactional producers.

After each of them the producers' state follows from their batches in the log, repetitions of their last five batches
get the old offsets, sequences go on, no aborted record is served as committed, and nothing durable is lost.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import InvalidProducerEpochError, KstoreError, OutOfOrderSequenceError
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.batch import Batch
from kstore.record.builder import build_batch
from kstore.record.control import ControlRecordType, parse_end_transaction_marker
from kstore.record.scan import parse_batches
from kstore.rules.validate import split_batches
from kstore.types import Durability
from tests.crash.power_cuts import choices_for, fast_directory
from tests.support.fakes.crash_states import Disk, another_boot, write_state
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import Operation, RecordingFs
from tests.support.fakes.without_flusher import log_without_flusher
from tests.support.harness.evidence import Lost, Untyped, Wrong, shuffled
from tests.support.harness.selection import tries

SETTINGS: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64, "flush_ms": 10**9}
DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")
STOPS = tries(60, quick=10)
IDEMPOTENT, ABORTING, COMMITTING = 1, 2, 3
EPOCH_OF_KEPT = 4


@dataclass(slots=True)
class Known:
    """A producer in the plain model: the batches of its epoch, and where its transaction begins."""

    epoch: int
    batches: list[Batch] = field(default_factory=list)
    open_from: int | None = None


def replayed(batches: Iterable[Batch]) -> tuple[dict[int, Known], set[int]]:
    """The producers of a log of these batches, and the offsets of aborted records."""
    producers: dict[int, Known] = {}
    aborted: set[int] = set()
    open_offsets: dict[int, list[int]] = {}
    for batch in batches:
        if batch.producer_id < 0:
            continue
        known = producers.setdefault(batch.producer_id, Known(batch.producer_epoch))
        if known.epoch != batch.producer_epoch:
            known.epoch, known.batches = batch.producer_epoch, []
        if batch.is_control:
            (marker,) = batch.records()
            end = parse_end_transaction_marker(marker.key, marker.value)
            assert end is not None
            ended = open_offsets.pop(batch.producer_id, [])
            if end.type == ControlRecordType.ABORT:
                aborted.update(ended)
            known.open_from = None
            continue
        known.batches.append(batch)
        if batch.is_transactional:
            if known.open_from is None:
                known.open_from = batch.base_offset
            open_offsets.setdefault(batch.producer_id, []).extend(range(batch.base_offset, batch.last_offset + 1))
    return producers, aborted


class Life:
    """The recorded life. ``tried`` has every batch that was ever written, with the number of operations before it."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self.fs = RecordingFs(SYSTEM_FS)
        self.path = path
        self.durability = durability
        self.clock = ManualClock()
        self.tried: list[tuple[int, int, bytes]] = []
        self.gone: list[tuple[int, int]] = []
        self.below: list[bytes] = []
        self.durable = 0
        self._sequences: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._serial = 0

    def open(self) -> Log:
        return log_without_flusher(self.path, fs=self.fs, clock=self.clock, durability=self.durability, **SETTINGS)

    # --- the parts of steps -----------------------------------------------------------------------------------------

    def records(self, count: int, first: int = 0) -> list[Record]:
        self._serial += 1
        value = b"%d-" % self._serial + b"x" * 50
        return [Record(first + number, self.clock.now_ms(), value=value) for number in range(count)]

    def batch(self, producer_id: int, count: int, first: int = 0, **fields: Any) -> bytes:
        sequence = self._sequences.get(producer_id, 2**31 - 4)
        self._sequences[producer_id] = (sequence + count) % 2**31
        return build_batch(
            self.records(count, first),
            producer_id=producer_id,
            producer_epoch=self._epochs.get(producer_id, 0),
            base_sequence=sequence,
            is_transactional=producer_id != IDEMPOTENT,
            **fields,
        )

    def send(self, log: Log, producer_id: int, *counts: int) -> None:
        data = b"".join(self.batch(producer_id, count) for count in counts)
        self._append(log, data, lambda: log.append_batches(data))

    def send_kept(self, log: Log, producer_id: int, count: int) -> None:
        data = self.batch(producer_id, count, log.end_offset, leader_epoch=EPOCH_OF_KEPT)
        self._append(log, data, lambda: log.append_batches(data, assign_offsets=False))

    def plain(self, log: Log) -> None:
        data = build_batch(self.records(2))
        self._append(log, data, lambda: log.append_batches(data))

    def end(self, log: Log, producer_id: int, *, bump: int = 0) -> None:
        self._epochs[producer_id] = epoch = self._epochs.get(producer_id, 0) + bump
        if bump:
            self._sequences[producer_id] = 0
        number, first = len(self.fs.operations), log.end_offset
        log.end_transaction(producer_id, epoch, commit=producer_id == COMMITTING)
        (marker,) = (data for at, data in contents(self.path) if at == first)
        self.tried.append((number, first, marker))
        self._appended(log)

    def repeat(self, log: Log) -> None:
        """Sends a batch of the log again: the log does not change."""
        _, _, data = next(
            each for each in reversed(self.tried) if next(parse_batches(each[2])).producer_id == IDEMPOTENT
        )
        before = len(self.fs.operations), log.end_offset
        assert log.append_batches(rebased(data)).is_duplicate
        assert (len(self.fs.operations), log.end_offset) == before

    def _append(self, log: Log, data: bytes, act: Callable[[], object]) -> None:
        number, offset = len(self.fs.operations), log.end_offset
        for batch in split_batches(data):
            self.tried.append((number, offset, bytes(batch.data)))
            offset += batch.record_count
        act()
        self._appended(log)

    def _appended(self, log: Log) -> None:
        self.clock.advance(3)
        if self.durability == "sync":
            self._durable(log.end_offset)

    def _durable(self, offset: int) -> None:
        self.durable = offset
        self.fs.mark("durable", offset)

    def flush(self, log: Log) -> None:
        log.flush()
        self._durable(log.end_offset)

    def truncate(self, log: Log, back: int) -> None:
        """Removes the last ``back`` batches; their producers write the same sequences again."""
        there = contents(self.path)
        offset = there[-back][0]
        for _, data in reversed(there[-back:]):
            (batch,) = parse_batches(data)
            if not batch.is_control and batch.producer_id >= 0:
                self._sequences[batch.producer_id] = batch.base_sequence
                self._epochs[batch.producer_id] = batch.producer_epoch
        self._durable(min(self.durable, offset))
        log.truncate_to(offset)
        self.gone.append((len(self.fs.operations), offset))

    def delete(self, log: Log, before: int) -> None:
        self.below = [data for at, data in contents(self.path) if at < before]
        self.fs.mark("deleted", before)
        log.delete_records(before)

    def live(self) -> None:
        self._durable(0)
        self.fs.mark("deleted", 0)
        with self.open() as log:
            self.send(log, IDEMPOTENT, 2)
            self.send(log, ABORTING, 2)
            self.plain(log)
            for _ in range(3):
                self.send(log, IDEMPOTENT, 1, 2)
            self.send(log, COMMITTING, 2)
            self.repeat(log)
            self.end(log, ABORTING)
            log.roll()
            self.send(log, IDEMPOTENT, 3)
            self.send(log, COMMITTING, 1)
            self.flush(log)
            self.end(log, COMMITTING)
            self.send(log, ABORTING, 1, 1, 1)
            log.roll()
            self.end(log, ABORTING, bump=1)
            self.truncate(log, 2)
            # The snapshot of the roll is no longer true.
            self.send(log, IDEMPOTENT, 1)
            self.send(log, ABORTING, 1)
            self.send_kept(log, IDEMPOTENT, 2)
            self.repeat(log)
            end = log.end_offset
        self._durable(end)
        with self.open() as log:
            self.send(log, COMMITTING, 2)
            self.repeat(log)
            self.end(log, ABORTING)
            self.send(log, IDEMPOTENT, 2)
            log.roll()
            self.delete(log, 8)
            self.plain(log)
            self.end(log, COMMITTING, bump=1)
            self.send(log, COMMITTING, 2)
            end = log.end_offset
        self._durable(end)


def contents(path: Path) -> list[tuple[int, bytes]]:
    """The whole batches in a log's files, with their base offsets."""
    data = b"".join(each.read_bytes() for each in sorted(path.glob("*.log")))
    return [(batch.base_offset, bytes(batch.data)) for batch in parse_batches(data)]


def rebased(data: bytes) -> bytes:
    """The batch as its producer sent it, without offset and leader epoch."""
    return bytes(8) + data[8:12] + b"\xff" * 4 + data[16:]


def crashes(operations: list[Operation], root: Path) -> Iterator[tuple[int, Disk, dict[str, int]]]:
    disk = Disk(root, is_empty=True)
    promised: dict[str, int] = {}
    for number, operation in enumerate(operations):
        if operation.kind.startswith("mark "):
            promised[operation.kind.removeprefix("mark ")] = operation.position
        else:
            disk.apply(operation)
            yield number, disk, promised


def survive(path: Path, life: Life, number: int, promised: dict[str, int]) -> None:
    try:
        with Log(path, durability=life.durability, clock=life.clock, **SETTINGS) as log:
            there = hold_batches(log, life, number, promised)
            hold_producers(log, there)
            go_on(log, there, life.clock.now_ms())
        with Log(path, durability=life.durability, clock=life.clock, **SETTINGS) as log:
            if not log.recovery.clean:
                raise Wrong(f"after a close: {log.recovery}")
            hold_producers(log, [*there, *parsed(log.path, there[-1].last_offset + 1 if there else 0)])
        with Log(path, read_only=True, clock=life.clock) as view:
            view.producers()
    except KstoreError as error:
        raise Lost(f"cannot be opened, read or appended to: {error!r}") from error
    except (OSError, LookupError, ValueError) as error:
        raise Untyped(repr(error)) from error


def parsed(path: Path, first: int = 0) -> list[Batch]:
    return [batch for at, data in contents(path) for batch in parse_batches(data) if at >= first]


def hold_batches(log: Log, life: Life, number: int, promised: dict[str, int]) -> list[Batch]:
    """Every existing batch was written, and no durable one is missing; returns all, deleted ones too."""
    ever = {
        (offset, rebased(data))
        for at, offset, data in life.tried
        if at <= number and not any(at < done <= number and offset >= first for done, first in life.gone)
    }
    batches = parsed(log.path)
    for batch in batches:
        if (batch.base_offset, rebased(bytes(batch.data))) not in ever:
            raise Wrong(f"never written, or gone: {batch}")
    end = batches[-1].last_offset + 1 if batches else log.start_offset
    if end != log.end_offset:
        raise Wrong(f"the log ends at {log.end_offset}, its batches at {end}")
    if end < promised["durable"]:
        raise Lost(f"the log ends at {end}, but everything below {promised['durable']} is durable")
    first = batches[0].base_offset if batches else end
    below = [batch for data in life.below for batch in parse_batches(data) if batch.base_offset < first]
    if [batch.base_offset for batch in batches] != offsets_in_order(batches, first):
        raise Lost(f"offsets are missing: {batches}")
    return below + batches


def offsets_in_order(batches: list[Batch], first: int) -> list[int]:
    found = []
    for batch in batches:
        found.append(first)
        first += batch.record_count
    return found


def hold_producers(log: Log, batches: list[Batch]) -> None:
    """Compares what the log knows with its batches."""
    producers, aborted = replayed(batches)
    for info in log.producers():
        known = producers.pop(info.producer_id)
        last = known.batches[-1] if known.batches else None
        expected = (
            known.epoch,
            last.last_sequence if last else -1,
            last.last_offset if last else -1,
            known.open_from,
        )
        found = (info.producer_epoch, info.last_sequence, info.last_offset, info.transaction_start)
        if found != expected:
            raise Wrong(f"producer {info.producer_id}: {found}, expected {expected}")
    if producers:
        raise Lost(f"forgotten: {producers}")
    producers, aborted = replayed(batches)
    unstable = min((known.open_from for known in producers.values() if known.open_from is not None), default=None)
    stable = log.end_offset if unstable is None else max(unstable, log.start_offset)
    if log.last_stable_offset != stable:
        raise Wrong(f"the last stable offset is {log.last_stable_offset}, expected {stable}")
    committed = [record.offset for record in log.read(isolation_level="read_committed")]
    everything = [record.offset for record in log.read()]
    if committed != [offset for offset in everything if offset < stable and offset not in aborted]:
        raise Wrong(f"committed readers get {committed} of {everything}; below {stable}, without {aborted}")


def go_on(log: Log, batches: list[Batch], now_ms: int) -> None:
    """Producers repeat their last batches, and then send the next ones."""
    producers, _ = replayed(batches)
    first = min(log.start_offset, *(int(path.stem) for path in log.path.glob("*.log")))
    for producer_id, known in producers.items():
        for batch in known.batches[-5:]:
            if batch.base_offset < first:
                continue
            info = log.append_batches(rebased(bytes(batch.data)))
            if (info.first_offset, info.last_offset) != (batch.base_offset, batch.last_offset) or not info.is_duplicate:
                raise Wrong(f"{batch} again: {info}")
        following = (known.batches[-1].last_sequence + 1) % 2**31 if known.batches else 0
        fields: dict[str, Any] = {"producer_id": producer_id, "is_transactional": known.open_from is not None}
        records = [Record(0, now_ms, value=b"next")]
        with pytest.raises(OutOfOrderSequenceError):
            log.append_batches(
                build_batch(records, producer_epoch=known.epoch, base_sequence=(following + 1) % 2**31, **fields)
            )
        if known.epoch:
            with pytest.raises(InvalidProducerEpochError):
                log.append_batches(build_batch(records, producer_epoch=0, base_sequence=following, **fields))
        end = log.end_offset
        info = log.append_batches(build_batch(records, producer_epoch=known.epoch, base_sequence=following, **fields))
        if (info.first_offset, info.is_duplicate) != (end, False):
            raise Wrong(f"the next sequence: {info}, expected offset {end}")


def cut_power(tmp_path: Path, durability: Durability, states_per_stop: int, stops: int, seed: int) -> int:
    """Lives a life and cuts the power at ``stops`` of its operations; returns how many different states it survived."""
    root = fast_directory(tmp_path)
    life = Life(root / "log", durability)
    try:
        life.live()
        chosen = set(shuffled(range(len(life.fs.operations)), seed, stops))
        generator = random.Random(seed)
        seen: set[int] = set()
        shutil.rmtree(root / "log")
        with another_boot(root):
            for number, disk, promised in crashes(life.fs.operations, root):
                for choose in choices_for(disk, generator, states_per_stop) if number in chosen else ():
                    state = disk.state(choose)
                    known = hash((tuple(state.items()), tuple(promised.values())))
                    if known not in seen:
                        seen.add(known)
                        write_state(state, root / "state")
                        survive(root / "state" / "log", life, number, promised)
                        shutil.rmtree(root / "state")
    finally:
        shutil.rmtree(root)
    return len(seen)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os", "rebuilt")
@pytest.mark.sampled(1)
def test_a_power_cut_leaves_every_producer_where_it_was(
    durability: Durability, tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    states = cut_power(tmp_path, durability, 8, STOPS, seed)
    assert states > STOPS
    tried("states", states)


@pytest.mark.soak
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os", "rebuilt")
def test_a_power_cut_leaves_every_producer_where_it_was_many_times(
    durability: Durability, tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("states", cut_power(tmp_path, durability, 150, 10**9, seed))
