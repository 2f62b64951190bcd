"""The measured logs: their contents, and how they are made.

Values of 100 bytes, 1,000 distinct ones, in batches of 1,000 records unless a line says otherwise; in the page cache.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kstore
from kstore.record._codec import Record
from kstore.record.builder import build_batch

VALUE_SIZE = 100
BATCH_COUNT = 1_000
RECORDS = 1_000_000
# The bytes of 1,000 such records on disk in one batch, header included.
BATCH_BYTES = 109_061
RECORD_BYTES = BATCH_BYTES / BATCH_COUNT


def values(count: int = BATCH_COUNT, size: int = VALUE_SIZE) -> list[bytes]:
    generator = random.Random(7)
    return [generator.randbytes(size) for _ in range(count)]


@contextmanager
def fresh(root: Path, name: str) -> Iterator[Path]:
    """A path at which nothing exists, before and after."""
    path = root / name
    shutil.rmtree(path, ignore_errors=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def fill(path: Path, records: int, batch_count: int = BATCH_COUNT, **settings: Any) -> None:
    batch = values(batch_count)
    with kstore.Log(path, durability="os", **settings) as log:
        for _ in range(records // batch_count):
            log.append_many(batch)


def fill_as_producer(path: Path, records: int, batch_count: int, *, transaction_batches: int = 0) -> None:
    """The same records by one idempotent producer; ``transaction_batches``: in committed transactions of this many
    batches."""
    batch = values(batch_count)
    with kstore.Log(path, durability="os") as log:
        for number in range(records // batch_count):
            first = log.end_offset
            made = [Record(first + at, number, value=value) for at, value in enumerate(batch)]
            fields: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "base_sequence": number * batch_count}
            log.append_batches(
                build_batch(made, is_transactional=transaction_batches > 0, **fields), assign_offsets=False
            )
            if transaction_batches and (number + 1) % transaction_batches == 0:
                log.end_transaction(1, 0, commit=True)


def many_segments(path: Path, count: int) -> None:
    """A log of ``count`` segments, each with one small batch, closed cleanly."""
    fill(path, 10 * count, 10, segment_bytes=1200)
