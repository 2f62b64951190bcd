"""Logs of idempotent and transactional producers, written through kstore, and what readers must find in them."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import kstore
from kstore.log import writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from tools.interop.records import Row

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEY_COUNT = 12
# A broker forgets producers that wrote nothing for a day: these wrote a minute ago.
AGE_MS = 60_000


class Sent(NamedTuple):
    """One batch in the log: its rows, its producer, and whether in a transaction."""

    producer_id: int
    is_transactional: bool
    rows: list[Row]


@dataclass
class Producers:
    """The producers of one open log, and ``sent``: what it must hold. ``end`` decides a transaction."""

    log: kstore.Log
    seed: int
    sent: list[Sent] = field(default_factory=list)
    # By producer: its epoch, the next sequence, and the numbers in ``sent`` of its open transaction.
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[int]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    end_offset: int = 0

    def __post_init__(self) -> None:
        self._generator = random.Random(self.seed)
        self._first_ms = int(time.time() * 1000) - AGE_MS

    def batch(self, producer_id: int, count: int, *, transactional: bool) -> tuple[bytes, list[Record]]:
        generator, when = self._generator, self._first_ms + len(self.sent)
        records = [
            Record(
                number,
                when,
                key=b"key-%d" % generator.randrange(KEY_COUNT),
                value=None if generator.random() < 0.1 else generator.randbytes(generator.randrange(60)),
                headers=(("p", b"%d" % producer_id),) if generator.random() < 0.3 else (),
            )
            for number in range(count)
        ]
        fields: dict[str, Any] = {
            "producer_id": producer_id,
            "producer_epoch": self.epochs.get(producer_id, 0),
            "base_sequence": self.sequences.get(producer_id, 0),
            "is_transactional": transactional,
            "codec": generator.choice(CODECS),
        }
        return build_batch(records, **fields), records

    def send(self, producer_id: int, count: int, *, transactional: bool = False) -> None:
        """Appends one batch as its producer sends it, and sometimes again, as a retry."""
        data, records = self.batch(producer_id, count, transactional=transactional)
        info = self.log.append_batches(data)
        assert not info.is_duplicate
        if self._generator.random() < 0.2:
            again = self.log.append_batches(data)
            assert (again.first_offset, again.last_offset, again.is_duplicate) == (*info[:2], True)
        self.sequences[producer_id] = (self.sequences.get(producer_id, 0) + count) % 2**31
        if transactional:
            self.open.setdefault(producer_id, []).append(len(self.sent))
        rows = [self.row(info.first_offset + number, one) for number, one in enumerate(records)]
        self.sent.append(Sent(producer_id, transactional, rows))

    def row(self, offset: int, record: Record) -> Row:
        epoch = writer_of(self.log).files.leader_epoch
        return Row(offset, record.timestamp, "CreateTime", epoch, record.key, record.value, tuple(record.headers))

    def plain(self, count: int) -> None:
        """Records without a producer, with keys."""
        keys = [b"key-%d" % self._generator.randrange(KEY_COUNT) for _ in range(count)]
        values = [b"plain %d" % number for number in range(count)]
        when = self._first_ms + len(self.sent)
        info = self.log.append_many(values, keys=keys, timestamps=[when] * count)
        rows = [
            self.row(info.first_offset + number, Record(0, when, key=key, value=value))
            for number, (key, value) in enumerate(zip(keys, values, strict=True))
        ]
        self.sent.append(Sent(-1, False, rows))

    def end(self, producer_id: int, *, commit: bool, bump: bool = False) -> None:
        """The end of a producer's transaction; ``bump``: with a new epoch, which fences the old one."""
        if bump:
            self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
            self.sequences[producer_id] = 0
        self.log.end_transaction(
            producer_id,
            self.epochs.get(producer_id, 0),
            commit=commit,
            coordinator_epoch=3,
            timestamp=self._first_ms + len(self.sent),
        )
        ended = self.open.pop(producer_id, [])
        if not commit:
            self.aborted.update(ended)

    def work(self, step_count: int) -> None:
        """Steps of every kind: producers 1 and 2 are idempotent, 3 to 5 transactional."""
        generator = self._generator
        # Its sequences begin just below the highest.
        self.sequences.setdefault(1, 2**31 - 20)
        for _ in range(step_count):
            kind = generator.random()
            if kind < 0.15:
                self.plain(generator.randrange(1, 4))
            elif kind < 0.45:
                self.send(generator.choice((1, 2)), generator.randrange(1, 6))
            elif kind < 0.8 or not self.open:
                self.send(generator.choice((3, 4, 5)), generator.randrange(1, 6), transactional=True)
            else:
                producer_id = generator.choice(sorted(self.open))
                self.end(producer_id, commit=generator.random() < 0.5, bump=generator.random() < 0.3)

    def repeat(self) -> None:
        """Every producer repeats its last batch; the log has it, and returns its offset."""
        for info in self.log.producers():
            last = next((each for each in reversed(self.sent) if each.producer_id == info.producer_id), None)
            if last is None or info.last_offset != last.rows[-1].offset:
                continue  # a new epoch has written nothing yet
            data = build_batch(
                [Record(number, row.timestamp, value=row.value) for number, row in enumerate(last.rows)],
                producer_id=info.producer_id,
                producer_epoch=info.producer_epoch,
                base_sequence=(info.last_sequence - len(last.rows) + 1) % 2**31,
                is_transactional=last.is_transactional,
            )
            again = self.log.append_batches(data)
            assert (again.first_offset, again.is_duplicate) == (last.rows[0].offset, True)

    def end_all(self) -> None:
        for number, producer_id in enumerate(sorted(self.open)):
            self.end(producer_id, commit=number % 2 == 0)

    def rows(self, start: int = 0) -> list[Row]:
        """What an uncommitted reader finds from ``start``."""
        return [row for each in self.sent for row in each.rows if row.offset >= start]

    def close(self) -> None:
        self.end_offset = self.log.end_offset
        self.log.close()

    @property
    def last_stable_offset(self) -> int:
        """For the closed log."""
        return min((self.sent[numbers[0]].rows[0].offset for numbers in self.open.values()), default=self.end_offset)

    def committed_rows(self, start: int = 0) -> list[Row]:
        """What a committed reader finds from ``start``."""
        stable = self.last_stable_offset
        return [
            row
            for number, each in enumerate(self.sent)
            if number not in self.aborted
            for row in each.rows
            if start <= row.offset < stable
        ]


def latest(rows: list[Row]) -> dict[bytes, bytes]:
    """The last value of each key, except deleted ones: what compaction must not change."""
    table: dict[bytes, bytes | None] = {}
    for row in rows:
        assert row.key is not None
        table[row.key] = row.value
    return {key: value for key, value in table.items() if value is not None}
