"""What another codec, or a larger linger, would save: measured on a sample of a log's own batches.

A few places of the log are read. The records of each batch there are compressed again with every codec: alone, as the
batch is now, and together with those of the following batches, as a producer with a larger linger would have sent them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from kstore.errors import KstoreError
from kstore.log import Log
from kstore.record.batch import BATCH_HEADER_BYTES, MAGIC_V2, Batch, RecordBatch
from kstore.record.compression import CODECS_BY_NAME

# How many places of a log are read, and how many bytes and batches at each.
PLACES = 4
PLACE_BYTES = 128 << 10
PLACE_BATCHES = 100
# A larger linger is one that puts this many batches into one, as long as the brokers' default limit allows it.
LARGER_FACTOR = 10
BATCH_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class Savings:
    """Sampled batches of ``size`` bytes in the log, and their bytes by codec: as they are, and in larger batches."""

    batch_count: int = 0
    record_count: int = 0
    size: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    larger_sizes: dict[str, int] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """For the document."""
        return {
            "batches": self.batch_count,
            "records": self.record_count,
            "bytes": self.size,
            "codecs": {
                codec: {"bytes": self.sizes[codec], "larger_bytes": self.larger_sizes[codec]} for codec in self.sizes
            },
        }


def savings_of(log: Log) -> Savings | None:
    """Measures a sample of ``log``; None if it has no batch that can be measured. Damaged places are left out."""
    start, end = log.start_offset, log.high_watermark
    step = max((end - start) // PLACES, 1)
    found = Savings()
    following = start
    for offset in range(start, end, step):
        batches = _neighbours(log, max(offset, following), end)
        if batches:
            following = batches[-1].last_offset + 1
            measured(found, batches)
    return found if found.batch_count else None


def _neighbours(log: Log, offset: int, end: int) -> list[Batch]:
    """The batches of a place, over the ends of small segments; none after damage."""
    batches: list[Batch] = []
    size = 0
    with suppress(KstoreError):
        for _ in range(LARGER_FACTOR):
            if offset >= end or size >= PLACE_BYTES or len(batches) >= PLACE_BATCHES:
                break
            for batch in islice(log.fetch(offset, PLACE_BYTES).batches(), PLACE_BATCHES - len(batches)):
                batches.append(batch)
                size += batch.size
                offset = batch.last_offset + 1
    return batches


def measured(found: Savings, batches: Iterable[Batch]) -> None:
    """Adds neighbouring batches to ``found``."""
    group: list[bytes] = []
    for batch, payload in _payloads(batches):
        found.batch_count += 1
        found.record_count += batch.record_count
        found.size += batch.size
        for codec, row in CODECS_BY_NAME.items():
            found.sizes[codec] = found.sizes.get(codec, 0) + BATCH_HEADER_BYTES + len(row.compress(payload, None))
        if group and (len(group) == LARGER_FACTOR or sum(map(len, group)) + len(payload) > BATCH_BYTES_MAX):
            _measure_larger(found, group)
            group = []
        group.append(payload)
    if group:
        _measure_larger(found, group)


def _measure_larger(found: Savings, group: list[bytes]) -> None:
    # The few bytes by which larger deltas of offsets and times may be longer are left out.
    payload = b"".join(group)
    for codec, row in CODECS_BY_NAME.items():
        size = BATCH_HEADER_BYTES + len(row.compress(payload, None))
        found.larger_sizes[codec] = found.larger_sizes.get(codec, 0) + size


def _payloads(batches: Iterable[Batch]) -> Iterator[tuple[RecordBatch, bytes]]:
    """The records of batches of version 2, before compression; without markers, and what cannot be decompressed."""
    for batch in batches:
        if isinstance(batch, RecordBatch) and not batch.is_control and batch.record_count:
            stored = batch.data[BATCH_HEADER_BYTES:]
            with suppress(KstoreError):
                yield batch, bytes(CODECS_BY_NAME[batch.codec].decompress(stored, PLACE_BYTES * 64, MAGIC_V2))
