"""Batches for the tests of runs."""

from __future__ import annotations

from array import array
from typing import Any

from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.control import EndTransactionMarker

TIME = 1_700_000_000_000


def small_batch(base_offset: int, count: int = 2, size: int = 3, codec: str = "none", **fields: Any) -> bytes:
    records = [
        Record(
            base_offset + number,
            TIME + number,
            key=b"k" if number % 2 else None,
            value=bytes([number % 256]) * size,
            headers=[("h", b"x")] if number % 3 == 1 else (),
        )
        for number in range(count)
    ]
    return build_batch(records, codec=codec, **fields)


def tally() -> array[int]:
    return array("q", [0, 0, 0])


def marker(offset: int, producer_id: int, epoch: int, end: EndTransactionMarker) -> bytes:
    """The control batch that ends a transaction."""
    key, value = end.encode()
    record = Record(offset, TIME + offset % 10**6, key=key, value=value)
    return build_batch([record], producer_id=producer_id, producer_epoch=epoch, is_transactional=True, is_control=True)
