"""Logs to compact, and a plain, slow second opinion on what compaction keeps of them.

The oracle knows nothing of segments, maps or blocks. It reads a log's batches before a pass, decides by the rules of
Kafka's LogCleaner what each of them should become, and is compared with the result.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kstore.files.local import SYSTEM_FS
from kstore.record._codec import Record
from kstore.record.batch import RecordBatch
from kstore.record.builder import build_batch
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.record.walk import Damage, walk
from tests.support.lives.log_helpers import TIME

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Kept(NamedTuple):
    """One batch, as far as compaction may change it."""

    base_offset: int
    last_offset: int
    delete_horizon_ms: int | None
    records: tuple[tuple[int, int, bytes | None, bytes | None], ...]
    producer: tuple[int, int, int]
    is_control: bool
    is_transactional: bool
    max_timestamp: int


@dataclass
class Batches:
    """Batches under construction, with their own offsets, and the open transactions."""

    generator: random.Random
    time_ms: int = TIME
    next_offset: int = 0
    data: list[bytes] = field(default_factory=list)
    _open: dict[int, int] = field(default_factory=dict)
    _sequences: dict[int, int] = field(default_factory=dict)

    def records(self, count: int, keys: int) -> list[Record]:
        generator, made = self.generator, []
        offset = self.next_offset
        for _ in range(count):
            key = None if generator.random() < 0.03 else b"key-%d" % generator.randrange(keys)
            value = None if generator.random() < 0.2 else b"%d" % offset + b"." * generator.randrange(30)
            headers = (("h", b"1"),) if generator.random() < 0.1 else ()
            made.append(
                Record(
                    offset, self.time_ms + offset * 3 - generator.randrange(9), key=key, value=value, headers=headers
                )
            )
            offset += generator.choice((1, 1, 1, 2))
        return made

    def add(self, keys: int) -> None:
        """One more batch of any kind."""
        generator = self.generator
        kind = generator.random()
        if kind < 0.2 and self._open:
            self.end(generator.choice(sorted(self._open)), commit=generator.random() < 0.5)
            return
        fields: dict[str, Any] = {"codec": generator.choice(CODECS)}
        if generator.random() < 0.1:
            fields["log_append_time"] = self.time_ms + self.next_offset * 3
        records = self.records(generator.randrange(1, 9), keys)
        if kind < 0.6:
            producer_id = generator.randrange(1, 5)
            if kind < 0.4 or producer_id in self._open:
                self._open.setdefault(producer_id, records[0].offset)
                fields["is_transactional"] = True
            sequence = self._sequences.get(producer_id, 0)
            self._sequences[producer_id] = sequence + records[-1].offset - records[0].offset + 1
            fields |= {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        self.data.append(build_batch(records, leader_epoch=0, **fields))
        self.next_offset = records[-1].offset + 1

    def end(self, producer_id: int, *, commit: bool) -> None:
        del self._open[producer_id]
        kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
        key, value = EndTransactionMarker(kind, 0).encode()
        self.data.append(
            build_batch(
                [Record(self.next_offset, self.time_ms + self.next_offset * 3, key=key, value=value)],
                producer_id=producer_id,
                producer_epoch=0,
                is_transactional=True,
                is_control=True,
                leader_epoch=0,
            )
        )
        self.next_offset += 1

    def end_all(self) -> None:
        for producer_id in sorted(self._open):
            self.end(producer_id, commit=self.generator.random() < 0.5)


def random_batches(seed: int, count: int, keys: int, *, leave_open: bool = False) -> list[bytes]:
    batches = Batches(random.Random(seed))
    for _ in range(count):
        batches.add(keys)
    if not leave_open:
        batches.end_all()
    return batches.data


def batches_in(path: Path) -> list[Kept]:
    """Every batch of a log's files, in order."""
    found = []
    for log in sorted(path.glob("*.log")):
        file = SYSTEM_FS.open(log)
        for item in walk(file, 0, file.size(), next_offset=int(log.stem)):
            assert not isinstance(item, Damage), item
            batch = item[1]
            assert isinstance(batch, RecordBatch)
            batch.check()
            records = tuple((one.offset, one.timestamp, one.key, one.value) for one in batch.records())
            producer = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
            found.append(
                Kept(
                    batch.base_offset,
                    batch.last_offset,
                    batch.delete_horizon_ms,
                    records,
                    producer,
                    batch.is_control,
                    batch.is_transactional,
                    batch.max_timestamp,
                )
            )
    return found


class Oracle:
    """The result of one pass over ``before``: all that is sealed ends below ``stop``, dirty from ``first_dirty``."""

    def __init__(self, before: list[Kept], *, first_dirty: int, stop: int, now_ms: int, retention_ms: int) -> None:
        self.before = before
        self.first_dirty = first_dirty
        self.stop = stop
        self.now_ms = now_ms
        self.retention_ms = retention_ms
        self.aborted = self._data_of(ControlRecordType.ABORT)

    def _ends(self) -> dict[int, tuple[int, int]]:
        """By the index of a marker with a record: its producer and type."""
        ends = {}
        for at, batch in enumerate(self.before):
            if batch.is_control and batch.records:
                key = batch.records[0][2]
                assert key is not None
                ends[at] = (batch.producer[0], int.from_bytes(key[2:4], "big"))
        return ends

    def _data_of(self, kind: int) -> set[int]:
        """The indexes of batches that a marker of this type ends: since that producer's previous marker."""
        found: set[int] = set()
        last: dict[int, int] = {}
        for at, (producer_id, ended) in sorted(self._ends().items()):
            if ended == kind:
                found |= {
                    number
                    for number in range(last.get(producer_id, 0), at)
                    if self.before[number].producer[0] == producer_id
                    and not self.before[number].is_control
                    and self.before[number].is_transactional
                }
            last[producer_id] = at
        return found

    def after(self, last_records: dict[int, int]) -> list[Kept]:
        """``last_records``: by producer, the last offset of its last data, -1 if it ended with a marker."""
        latest: dict[bytes, int] = {}
        for number, batch in enumerate(self.before):
            if batch.is_control or number in self.aborted or batch.last_offset >= self.stop:
                continue
            for offset, _, key, _ in batch.records:
                if key is not None and self.first_dirty <= offset < self.stop:
                    latest[key] = offset
        result = []
        for number, batch in enumerate(self.before):
            if batch.base_offset >= self.stop:
                result.append(batch)
                continue
            kept = self._batch(number, batch, latest)
            if kept is None and (batch.last_offset + 1 == self.stop or self._is_last(batch, last_records)):
                kept = batch._replace(records=(), delete_horizon_ms=None)
            if kept is not None:
                result.append(kept)
        return result

    def _is_last(self, batch: Kept, last_records: dict[int, int]) -> bool:
        last = last_records.get(batch.producer[0])
        if last is None:
            return False
        return batch.is_control if last < 0 else batch.last_offset == last

    def _batch(self, number: int, batch: Kept, latest: dict[bytes, int]) -> Kept | None:
        horizon = batch.delete_horizon_ms
        expired = horizon is not None and horizon <= self.now_ms
        if batch.is_control:
            data_left = self._data_left(number)
            if not batch.records or (not data_left and expired):
                return None
            if data_left or horizon is not None:
                return batch
            return batch._replace(delete_horizon_ms=self.now_ms + self.retention_ms)
        if number in self.aborted:
            return None
        kept = tuple(
            record
            for record in batch.records
            if record[2] is not None and record[0] >= latest.get(record[2], -1) and not (record[3] is None and expired)
        )
        if not kept:
            return None
        if any(record[3] is None for record in kept) and horizon is None:
            horizon = self.now_ms + self.retention_ms
        changed = len(kept) != len(batch.records) or horizon != batch.delete_horizon_ms
        largest = max(record[1] for record in kept) if changed else batch.max_timestamp
        return batch._replace(records=kept, delete_horizon_ms=horizon, max_timestamp=largest)

    def _data_left(self, marker: int) -> bool:
        """Whether a pass still meets data that this marker ends."""
        producer_id = self.before[marker].producer[0]
        for number in range(marker - 1, -1, -1):
            batch = self.before[number]
            if batch.producer[0] == producer_id:
                if batch.is_control and batch.records:
                    return False
                if not batch.is_control and batch.is_transactional:
                    return True
        return False
