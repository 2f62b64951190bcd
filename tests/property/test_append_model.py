"""Every way of an append against one plain model: random lives of a log, compiled and by the general path.

A log on the system's files takes compiled ways where nothing needs a decision; one whose every write a test sees takes
the general path alone. Both must leave what the model says: bytes, index entries, ends, producers, counts, results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kstore import Log
from kstore.engine.append._group import PendingSingle
from kstore.engine.append.pending import PendingAppend
from kstore.errors import KstoreError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.log import writer_of
from kstore.rules.validate import split_batches, validate
from kstore.segments.tail import SegmentTail
from kstore.types import AppendInfo
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import RecordingFs
from tests.support.harness.selection import tries
from tests.support.harness.size_limit import size_limit
from tests.support.oracles.append_model import (
    AppendModel,
    ModelAppend,
    ModelOutcome,
    ModelProducer,
    ModelRecord,
)
from tests.support.oracles.oracle_codec import OracleBatch, OracleRecord, encode, encode_record

NOW_MS = 1_700_000_000_000
HEADER_BYTES = 61
SEGMENT_MS = 5000
SETTINGS: dict[str, dict[str, Any]] = {
    "one segment": {"index_interval_bytes": 300},
    "an entry for each batch": {"index_interval_bytes": 1},
    "small segments": {"segment_bytes": 1500, "index_interval_bytes": 200},
    "small indexes": {"index_interval_bytes": 1, "segment_index_bytes": 120},
    "LogAppendTime": {"message_timestamp_type": "LogAppendTime", "index_interval_bytes": 100},
}
LOGS: dict[str, dict[str, Any]] = {
    "sync": {"durability": "sync"},
    "interval": {"durability": "interval"},
    "os": {"durability": "os"},
    "shared, sync": {"durability": "sync", "shared": True},
    "shared, os": {"durability": "os", "shared": True},
}


class Life:
    """A log, its model, and the random choices of what comes next."""

    def __init__(self, path: Path, chance: random.Random, settings: dict[str, Any], fs: FileSystem) -> None:
        self.chance = chance
        self.clock = ManualClock(NOW_MS)
        self.stamps = "message_timestamp_type" in settings
        self.is_sync = settings["durability"] == "sync"
        self.is_shared = settings.get("shared", False)
        self.size_max = chance.choice([250, 1000])
        given = {"segment_bytes": 1 << 20, "segment_index_bytes": 1 << 20, **settings}
        self.log = Log(
            path, clock=self.clock, fs=fs, segment_ms=SEGMENT_MS, max_message_bytes=self.size_max,
            flush_ms=10**9, **given,
        )  # fmt: skip
        self.model = AppendModel(
            now_ms=NOW_MS,
            segment_bytes=given["segment_bytes"],
            index_interval_bytes=given["index_interval_bytes"],
            segment_index_bytes=given["segment_index_bytes"],
            segment_ms=SEGMENT_MS,
            stamps=self.stamps,
        )
        self.ways: list[Callable[[], None]] = [self.one, self.one, self.many, self.kept, self.group, self.elsewhere]
        if not self.is_shared:
            self.ways += [self.produced, self.produced]
        self.sequences: dict[int, tuple[int, int]] = {}
        self.repeatable: list[ModelAppend] = []
        # The segments whose indexes were taken up again after a failure, which may add a time.
        self.resumed: set[int] = set()

    # --- what comes next ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One append, or a group of them, and what the log is then."""
        ms = self.chance.choice([0, 0, 1, 40, 40, SEGMENT_MS // 3, SEGMENT_MS + 1])
        self.clock.advance(ms)
        self.model.now_ms = self.clock.now_ms()
        self.chance.choice(self.ways)()
        self.compare()

    def record(self, *, is_timed: bool = False) -> ModelRecord:
        key = self.chance.choice([None, None, b"", b"key %d" % self.chance.randrange(9)])
        value = bytes([self.chance.randrange(256)]) * self.chance.choice([0, 1, 20, 63, 64, 90])
        ago = self.chance.choice([0, 0, 1, 900, 2 * SEGMENT_MS]) if is_timed else 0
        return ModelRecord(value, key, self.clock.now_ms() - ago)

    def records(self) -> list[ModelRecord]:
        is_timed = self.chance.random() < 0.4
        return [self.record(is_timed=is_timed) for _ in range(self.chance.choice([1, 1, 2, 5, 12]))]

    def split(self, records: list[ModelRecord]) -> tuple[tuple[ModelRecord, ...], ...]:
        """The records in as few batches as have at most ``size_max`` bytes each."""
        batches: list[list[ModelRecord]] = []
        size = 0
        for record in records:
            if batches:
                more = encoded_size(record, len(batches[-1]), batches[-1][0].timestamp)
                if size + more <= self.size_max:
                    batches[-1].append(record)
                    size += more
                    continue
            batches.append([record])
            size = HEADER_BYTES + encoded_size(record, 0, record.timestamp)
        return tuple(map(tuple, batches))

    # --- the ways -----------------------------------------------------------------------------------------------------

    def one(self) -> None:
        record = self.record()
        (expected,) = self.model.append([ModelAppend(((record,),))])
        assert self.log.append(record.value, key=record.key) == expected.first_offset

    def many(self) -> None:
        records = self.records()
        (expected,) = self.model.append([ModelAppend(self.split(records))])
        found = self.log.append_many(
            [record.value for record in records],
            keys=[record.key for record in records],
            timestamps=[record.timestamp for record in records],
        )
        same(found, expected)

    def elsewhere(self) -> None:
        """Batches that were built elsewhere, and get their offsets here."""
        append = ModelAppend(self.split(self.records()))
        (expected,) = self.model.append([append])
        same(self.log.append_batches(data_of(append)), expected)

    def kept(self) -> None:
        """Batches that keep their offsets: some gaps, and now and then one that is too low."""
        batches = self.split(self.records())
        offset = max(self.model.end + self.chance.choice([0, 0, 3, -1]), 0)
        epoch = (self.model.epoch or 0) + self.chance.choice([0, 0, 0, 1])
        kept = []
        for records in batches:
            kept.append((offset, epoch))
            offset += len(records) + self.chance.choice([0, 0, 2])
        append = ModelAppend(batches, kept=tuple(kept))
        (expected,) = self.model.append([append])
        if expected.refused:
            with pytest.raises(KstoreError) as raised:
                self.log.append_batches(data_of(append), assign_offsets=False)
            assert type(raised.value).__name__ == expected.refused
        else:
            same(self.log.append_batches(data_of(append), assign_offsets=False), expected)

    def next_of_a_producer(self, *, may_repeat: bool = True) -> ModelAppend:
        """What a producer writes next: mostly what follows, sometimes what it has written, or must not."""
        roll = self.chance.random()
        if self.repeatable and may_repeat and roll < 0.15:
            return self.chance.choice(self.repeatable[-4:])
        producer_id = self.chance.choice([7, 8])
        epoch, sequence = self.sequences.get(producer_id, (0, 0))
        if roll < 0.25:
            sequence = (sequence + self.chance.choice([1, 5])) % 2**31
        elif roll < 0.3:
            epoch -= 1
        elif roll < 0.4:
            epoch, sequence = epoch + 1, 0
        elif roll < 0.45 and producer_id not in self.sequences:
            sequence = 2**31 - 2
        batches = self.split(self.records()[:4])
        return ModelAppend(batches, ModelProducer(producer_id, max(epoch, 0), sequence))

    def produced(self) -> None:
        append = self.next_of_a_producer()
        if self.chance.random() < 0.5:
            self.commit([append])
            return
        (expected,) = self.model.append([append])
        if expected.refused:
            with pytest.raises(KstoreError) as raised:
                self.log.append_batches(data_of(append))
            assert type(raised.value).__name__ == expected.refused
        else:
            same(self.log.append_batches(data_of(append)), expected)
        self.note(append, expected)

    def group(self) -> None:
        """Appends of several threads, as their leader commits them; also records that are not encoded yet."""
        if self.is_sync and not self.is_shared and self.chance.random() < 0.5:
            self.lines()
            return
        appends = []
        for _ in range(self.chance.randrange(1, 5)):
            if self.is_shared or self.chance.random() < 0.6:
                appends.append(ModelAppend(self.split(self.records())))
            else:
                # What comes before it in the group may let the log forget what it would repeat.
                appends.append(self.next_of_a_producer(may_repeat=not appends))
        self.commit(appends)

    def lines(self) -> None:
        """Plain records of several threads, before they are encoded."""
        records = [self.record() for _ in range(self.chance.randrange(1, 9))]
        expected = self.model.append([ModelAppend(((record,),)) for record in records])
        singles = [PendingSingle(record.value or b"", record.key) for record in records]
        writer_of(self.log).appends._commit_group(list(singles))
        assert [(one.result, one.timestamp) for one in singles] == [
            (one.first_offset, self.clock.now_ms()) for one in expected
        ]

    def commit(self, appends: list[ModelAppend]) -> None:
        pending = [self.pending(append) for append in appends]
        expected = self.model.append(appends)
        writer_of(self.log).commit_many(pending)
        for append, found, outcome in zip(appends, pending, expected, strict=True):
            if outcome.refused:
                assert type(found.error).__name__ == outcome.refused
                assert found.result is None
            else:
                assert found.error is None
                assert found.result is not None
                same(found.result, outcome)
            self.note(append, outcome)

    def note(self, append: ModelAppend, outcome: ModelOutcome) -> None:
        """What a producer may write next, or again, after an append."""
        if append.producer is None or outcome.refused or outcome.is_duplicate:
            return
        producer_id, epoch, sequence = append.producer
        self.sequences[producer_id] = epoch, (sequence + sum(map(len, append.batches))) % 2**31
        self.repeatable = [one for one in [*self.repeatable, append] if self.is_remembered(one)]

    def is_remembered(self, append: ModelAppend) -> bool:
        """Whether the log still knows all batches of a producer's append."""
        assert append.producer is not None
        epoch, remembered = self.model.producers[append.producer.producer_id]
        known = {one.first_sequence for one in remembered}
        sequence = append.producer.sequence
        firsts = []
        for records in append.batches:
            firsts.append(sequence)
            sequence = (sequence + len(records)) % 2**31
        return epoch == append.producer.epoch and known.issuperset(firsts)

    def pending(self, append: ModelAppend) -> PendingAppend:
        config = writer_of(self.log).context.config
        made = validate(split_batches(data_of(append)), config, now_ms=self.clock.now_ms())
        stamp = None
        if append.producer is not None and self.chance.random() < 0.8:
            stamp = (append.producer.producer_id, append.producer.epoch, append.producer.sequence, False)
        return PendingAppend(
            made.buffer,
            made.batches,
            made.target_codec,
            append_time_ms=made.log_append_time,
            with_producers=append.producer is not None,
            stamp=stamp,
        )

    # --- failures -----------------------------------------------------------------------------------------------------

    def fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An append that fails at some step leaves the log as it was; the model does not hear of it."""
        self.one()  # at this time: whether the segment was idle is decided
        before, counts = self.model.extent, dict(self.model.counts)
        records = self.records()
        with monkeypatch.context() as patch:
            limit = self.model.extent[2] + self.chance.choice([0, 20])
            active = f"{self.model.extent[1]:020d}.log"
            others = [one.stat().st_size for one in Path(self.log.path).iterdir() if one.name != active]
            if limit > max(others) and self.chance.random() < 0.7:
                failing = size_limit(limit)
                expected: tuple[type[BaseException], ...] = (KstoreError,)
            else:
                failing = unnoted(patch, self.chance.randrange(1, 3))
                expected = (KeyboardInterrupt, MemoryError, KstoreError)
            has_failed = False
            with failing:
                try:
                    if self.chance.random() < 0.4:
                        record = records[0]._replace(timestamp=self.clock.now_ms())
                        batches: tuple[tuple[ModelRecord, ...], ...] = ((record,),)
                        self.log.append(record.value, key=record.key)
                    else:
                        batches = self.split(records)
                        self.log.append_many(
                            [record.value for record in records],
                            keys=[record.key for record in records],
                            timestamps=[record.timestamp for record in records],
                        )
                except expected:
                    has_failed = True
                else:
                    self.model.append([ModelAppend(batches)])
        if has_failed:
            self.resumed.add(before[1])
            assert (self.model.extent, self.model.counts) == (before, counts)
        self.compare()

    # --- what there is ------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        writer, model, active = writer_of(self.log), self.model, self.model.segments[-1]
        ends = writer.ends
        ends.check()
        assert ends.extent == model.extent
        assert ends.high_watermark == model.end
        if self.is_sync:
            assert ends.durable_end == model.end
        tail = writer.files.tail
        if tail is not None:
            numbers = tail.numbers
            assert (
                numbers.first_timestamp,
                numbers.max_timestamp,
                numbers.offset_of_max_timestamp,
                numbers.since_entry,
            ) == (active.first_timestamp, active.max_timestamp, active.offset_of_max, active.since_entry)
        metrics = self.log.metrics()
        assert {name: metrics[name] for name in model.counts} == model.counts
        assert metrics["append_duplicates"] == model.duplicates
        if model.producers:
            known = writer.files.producers.known(ends.end_offset, ends.position)
            assert {
                one.producer_id: (
                    one.producer_epoch,
                    [(each.last_sequence, each.last_offset, each.offset_delta, each.timestamp) for each in one.batches],
                )
                for one in known
            } == {
                producer_id: (
                    epoch,
                    [
                        (one.last_sequence, one.last_offset, one.last_offset - one.first_offset, one.timestamp)
                        for one in batches
                    ],
                )
                for producer_id, (epoch, batches) in model.producers.items()
            }

    def end(self) -> None:
        self.log.check()
        path = Path(self.log.path)
        self.log.close()
        expected = self.model.files()
        assert sorted(one.name for one in path.iterdir() if one.suffix in (".log", ".index", ".timeindex")) == sorted(
            expected
        )
        for name, data in expected.items():
            if not (name.endswith(".timeindex") and int(name[:20]) in self.resumed):
                assert (path / name).read_bytes() == data, name


def encoded_size(record: ModelRecord, number: int, base_timestamp: int) -> int:
    """The bytes of a record that is ``number`` in its batch."""
    return len(encode_record(OracleRecord(number, record.timestamp, record.key, record.value), 0, base_timestamp))


def same(found: AppendInfo, expected: ModelOutcome) -> None:
    assert (found.first_offset, found.last_offset, found.is_duplicate) == (
        expected.first_offset,
        expected.last_offset,
        expected.is_duplicate,
    )
    if not expected.is_duplicate:
        assert found[2:5] + found[7:10] == expected[2:8]


def data_of(append: ModelAppend) -> bytes:
    """The batches as another program has built them."""
    offset, made = 0, []
    sequence = append.producer.sequence if append.producer is not None else -1
    for number, records in enumerate(append.batches):
        epoch = -1
        if append.kept is not None:
            offset, epoch = append.kept[number]
        made.append(
            encode(
                OracleBatch(
                    offset,
                    tuple(
                        OracleRecord(offset + at, one.timestamp, one.key, one.value) for at, one in enumerate(records)
                    ),
                    epoch,
                    producer_id=append.producer.producer_id if append.producer is not None else -1,
                    producer_epoch=append.producer.epoch if append.producer is not None else -1,
                    base_sequence=sequence,
                )
            )
        )
        offset += len(records)
        if append.producer is not None:
            sequence = (sequence + len(records)) % 2**31
    return b"".join(made)


@contextmanager
def unnoted(patch: pytest.MonkeyPatch, count: int) -> Iterator[None]:
    """Inside, adding the ``count``th index entry raises."""
    add, left = SegmentTail._add_entry, [count]

    def interrupted(tail: SegmentTail, last_offset: int, position: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        add(tail, last_offset, position)

    patch.setattr(SegmentTail, "_add_entry", interrupted)
    yield


@pytest.mark.parametrize("way", ["compiled", "general"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("kind", LOGS.values(), ids=LOGS)
def test_a_log_holds_what_the_model_says(
    tmp_path: Path, kind: dict[str, Any], settings: dict[str, Any], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(tries(100, quick=2)):
        chance = random.Random(f"{kind} {settings} {way} {seed}")
        fs: FileSystem = SYSTEM_FS if way == "compiled" else RecordingFs(SYSTEM_FS)
        life = Life(tmp_path / str(seed), chance, {**kind, **settings}, fs)
        for _ in range(40):
            life.step()
            if chance.random() < 0.1:
                life.fail(monkeypatch)
        life.end()
