"""What is counted of codecs, and of records one by one. No I/O here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from kstore.record._codec import Record
from kstore.record._runs import RunCounts
from kstore.upkeep.distribution import Distribution

RECORDS_AT_A_TIME = 4096

# The fields of a distribution (``RunCounts.spreads``).
Spread = tuple[int, int, int, int, dict[int, int]]


@dataclass(slots=True)
class CodecStats:
    """The batches of one codec. The sizes of their records are 0 if unknown (without ``deep``; formats 0, 1).

    ``size``: bytes of whole batches; ``records_size``: of their records as stored; ``uncompressed_size``: before
    compression.
    """

    batch_count: int = 0
    size: int = 0
    records_size: int = 0
    uncompressed_size: int = 0

    @property
    def ratio(self) -> float | None:
        """How many times smaller compression made the records; None if unknown."""
        return self.uncompressed_size / self.records_size if self.records_size else None

    def merge(self, other: CodecStats) -> None:
        self.batch_count += other.batch_count
        self.size += other.size
        self.records_size += other.records_size
        self.uncompressed_size += other.uncompressed_size


@dataclass(slots=True)
class RecordStats:
    """Records counted one by one, except those of control batches. A tombstone has a key, and no value."""

    record_count: int = 0
    keyed_count: int = 0
    tombstone_count: int = 0
    header_count: int = 0
    key_sizes: Distribution = field(default_factory=Distribution)
    value_sizes: Distribution = field(default_factory=Distribution)

    def note(self, records: Iterable[Record]) -> None:
        """Counts records, some thousands at a time: a batch may have millions."""
        rest = iter(records)
        while some := list(islice(rest, RECORDS_AT_A_TIME)):
            keys = [record.key for record in some]
            values = [record.value for record in some]
            self.record_count += len(some)
            self.keyed_count += len(some) - keys.count(None)
            self.tombstone_count += [
                (key is None, value is None) for key, value in zip(keys, values, strict=True)
            ].count((False, True))
            self.header_count += sum([len(record.headers) for record in some])
            for sizes, parts in ((self.key_sizes, keys), (self.value_sizes, values)):
                for size, count in Counter([len(part) for part in parts if part is not None]).items():
                    sizes.add(size, count)

    def take(self, counts: RunCounts, key_sizes: Spread, value_sizes: Spread) -> None:
        """Adds what was counted, with its distributions."""
        self.record_count += counts.counted_count
        self.keyed_count += counts.keyed_count
        self.tombstone_count += counts.tombstone_count
        self.header_count += counts.header_count
        self.key_sizes.merge_counts(*key_sizes)
        self.value_sizes.merge_counts(*value_sizes)

    def merge(self, other: RecordStats) -> None:
        self.record_count += other.record_count
        self.keyed_count += other.keyed_count
        self.tombstone_count += other.tombstone_count
        self.header_count += other.header_count
        self.key_sizes.merge(other.key_sizes)
        self.value_sizes.merge(other.value_sizes)
