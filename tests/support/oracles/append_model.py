"""What appends leave in a log, as a plain model: bytes, index entries, ends, producers and counts.

It shares no code with kstore but the names of its results; its batches are those of ``oracle_codec``. It knows the
rules of Kafka's LogSegment and ProducerAppendInfo as far as the appends of a test need them, and decides nothing that a
test could not read off: no file, no lock, no path.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.oracles.oracle_codec import OracleBatch, OracleRecord, encode

LOG_APPEND_TIME_BIT = 8
SEQUENCE_COUNT = 2**31
REMEMBERED_MAX = 5


class ModelRecord(NamedTuple):
    """One record; ``timestamp`` in ms."""

    value: bytes | None
    key: bytes | None
    timestamp: int


class ModelProducer(NamedTuple):
    """The producer of an append: ``sequence`` is that of its first record."""

    producer_id: int
    epoch: int
    sequence: int


class ModelAppend(NamedTuple):
    """Records in batches, as one append; ``kept``: the first offset and the epoch of each batch that keeps them."""

    batches: tuple[tuple[ModelRecord, ...], ...]
    producer: ModelProducer | None = None
    kept: tuple[tuple[int, int], ...] | None = None


class Remembered(NamedTuple):
    """One of a producer's last batches."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ModelOutcome(NamedTuple):
    """What an append returns; ``refused`` names the error of one that is refused."""

    first_offset: int = -1
    last_offset: int = -1
    max_timestamp: int = -1
    offset_of_max_timestamp: int = -1
    log_append_time: int = -1
    batch_count: int = 0
    record_count: int = 0
    size: int = 0
    is_duplicate: bool = False
    refused: str = ""


@dataclass
class ModelSegment:
    """One segment. The entries are those of the index files, times with the offset of the record's batch's end."""

    base_offset: int
    data: bytearray = field(default_factory=bytearray)
    offsets: list[tuple[int, int]] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)
    first_timestamp: int = -1
    max_timestamp: int = -1
    offset_of_max: int = -1
    since_entry: int = 0

    def note(self, data: bytes, last_offset: int, timestamp: int, interval: int) -> None:
        """Adds a batch, and an entry of it if one is due (Kafka: LogSegment.append)."""
        if not self.data:
            self.first_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max = timestamp, last_offset
        if self.since_entry > interval:
            self.offsets.append((last_offset, len(self.data)))
            self.note_time()
            self.since_entry = 0
        self.since_entry += len(data)
        self.data += data

    def note_time(self) -> None:
        """Adds the greatest timestamp, if that is new (Kafka: TimeIndex.maybeAppend)."""
        if self.max_timestamp > (self.times[-1][0] if self.times else -1):
            self.times.append((self.max_timestamp, self.offset_of_max))

    def files(self) -> dict[str, bytes]:
        """The bytes of each file of the closed segment."""
        base, name = self.base_offset, f"{self.base_offset:020d}"
        return {
            f"{name}.log": bytes(self.data),
            f"{name}.index": b"".join(struct.pack(">ii", offset - base, at) for offset, at in self.offsets),
            f"{name}.timeindex": b"".join(struct.pack(">qi", time, offset - base) for time, offset in self.times),
        }


class AppendModel:
    """A log that is only appended to. ``now_ms`` is the clock's time; a test moves it."""

    def __init__(
        self,
        *,
        now_ms: int,
        segment_bytes: int,
        index_interval_bytes: int,
        segment_index_bytes: int,
        segment_ms: int,
        stamps: bool,
    ) -> None:
        """``stamps``: the log sets the records' time ("LogAppendTime")."""
        self.now_ms, self.last_append_ms = now_ms, now_ms
        self.segment_bytes, self.interval = segment_bytes, index_interval_bytes
        self.offset_slots, self.time_slots = segment_index_bytes // 8, segment_index_bytes // 12
        self.segment_ms, self.stamps = segment_ms, stamps
        self.segments = [ModelSegment(0)]
        self.end = 0
        self.epoch: int | None = None
        self.producers: dict[int, tuple[int, list[Remembered]]] = {}
        self.counts = dict.fromkeys(("appends", "append_batches", "append_records", "append_bytes"), 0)
        self.duplicates = 0

    @property
    def extent(self) -> tuple[int, int, int]:
        """The end offset, the base offset of the active segment, and the bytes in it."""
        return self.end, self.segments[-1].base_offset, len(self.segments[-1].data)

    def append(self, appends: Sequence[ModelAppend]) -> list[ModelOutcome]:
        """Appends of one write, in their order; a refused one does not affect the others."""
        active = self.segments[-1]
        if active.data and self.now_ms - self.last_append_ms > self.segment_ms:
            self._roll(self.end)
        self.last_append_ms = self.now_ms
        return [self._append(append) for append in appends]

    def _append(self, append: ModelAppend) -> ModelOutcome:
        if append.kept is not None and append.kept[0][0] < self.end:
            return ModelOutcome(refused="InvalidOffsetError")
        if append.producer is not None:
            found = self._check(append, append.producer)
            if found is not None:
                return found
        stamps = self.stamps and append.kept is None
        first, size, count = -1, 0, 0
        greatest, offset_of_greatest = -1, -1
        sequence = append.producer.sequence if append.producer is not None else -1
        for number, records in enumerate(append.batches):
            base, epoch = self.end, self.epoch or 0
            if append.kept is not None:
                base, epoch = append.kept[number]
                if self.epoch is None or epoch > self.epoch:
                    self.epoch = epoch
            data = encode(
                OracleBatch(
                    base,
                    tuple(
                        OracleRecord(base + at, record.timestamp, record.key, record.value)
                        for at, record in enumerate(records)
                    ),
                    epoch,
                    LOG_APPEND_TIME_BIT if stamps else 0,
                    max_timestamp=self.now_ms if stamps else None,
                    producer_id=append.producer.producer_id if append.producer is not None else -1,
                    producer_epoch=append.producer.epoch if append.producer is not None else -1,
                    base_sequence=sequence,
                )
            )
            last = base + len(records) - 1
            times = [self.now_ms if stamps else record.timestamp for record in records]
            greatest_here = max(times)
            if greatest_here > greatest:
                greatest, offset_of_greatest = greatest_here, base + times.index(greatest_here)
            self._place(data, base, last, greatest_here)
            if append.producer is not None:
                end = (sequence + len(records) - 1) % SEQUENCE_COUNT
                self._remember(append.producer, Remembered(sequence, end, base, last, greatest_here))
                sequence = (end + 1) % SEQUENCE_COUNT
            first = base if first < 0 else first
            size, count = size + len(data), count + len(records)
            self.end = last + 1
        for name, more in zip(self.counts, (1, len(append.batches), count, size), strict=True):
            self.counts[name] += more
        if stamps:
            offset_of_greatest = self.end - 1
        stamp = self.now_ms if stamps else -1
        return ModelOutcome(first, self.end - 1, greatest, offset_of_greatest, stamp, len(append.batches), count, size)

    def _place(self, data: bytes, base: int, last: int, timestamp: int) -> None:
        active = self.segments[-1]
        if active.data and (
            len(active.data) + len(data) > self.segment_bytes
            or timestamp - active.first_timestamp > self.segment_ms
            or len(active.offsets) >= self.offset_slots
            or len(active.times) >= self.time_slots - 1
        ):
            self._roll(base)
        self.segments[-1].note(data, last, timestamp, self.interval)

    def _roll(self, base: int) -> None:
        self.segments[-1].note_time()
        self.segments.append(ModelSegment(base))

    def _check(self, append: ModelAppend, producer: ModelProducer) -> ModelOutcome | None:
        """The outcome of an append that its producer repeats or may not make (Kafka: ProducerAppendInfo)."""
        known = self.producers.get(producer.producer_id)
        if known is None:
            return None
        epoch, remembered = known
        if producer.epoch < epoch:
            return ModelOutcome(refused="InvalidProducerEpochError")
        if producer.epoch > epoch:
            return None if producer.sequence == 0 else ModelOutcome(refused="OutOfOrderSequenceError")
        repeated: list[Remembered] = []
        first, last = producer.sequence, remembered[-1].last_sequence
        for records in append.batches:
            end = (first + len(records) - 1) % SEQUENCE_COUNT
            again = [one for one in remembered if (one.first_sequence, one.last_sequence) == (first, end)]
            if not again and first != (last + 1) % SEQUENCE_COUNT:
                is_behind = (last - end) % SEQUENCE_COUNT < SEQUENCE_COUNT // 2
                return ModelOutcome(refused="DuplicateSequenceError" if is_behind else "OutOfOrderSequenceError")
            repeated += again
            last = last if again else end
            first = (end + 1) % SEQUENCE_COUNT
        if not repeated:
            return None
        if len(repeated) < len(append.batches):
            return ModelOutcome(refused="DuplicateSequenceError")  # half of it would be new
        self.duplicates += 1
        return ModelOutcome(repeated[0].first_offset, repeated[-1].last_offset, is_duplicate=True)

    def _remember(self, producer: ModelProducer, batch: Remembered) -> None:
        epoch, remembered = self.producers.get(producer.producer_id, (producer.epoch, []))
        remembered = [] if epoch != producer.epoch else remembered
        self.producers[producer.producer_id] = (producer.epoch, [*remembered, batch][-REMEMBERED_MAX:])

    def files(self) -> dict[str, bytes]:
        """The files of the log once it is closed."""
        self.segments[-1].note_time()
        return {name: data for segment in self.segments for name, data in segment.files().items()}
