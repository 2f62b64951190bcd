"""Values that identify their place, so that a reader without the writer's knowledge detects a wrong record."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from kstore.record._codec import Record
from tests.support.harness.evidence import Wrong


def telling_value(offset: int, serial: int, size: int = 0) -> bytes:
    """The value for ``offset``: it contains it, a serial number, and a checksum over both and its padding."""
    body = b"%d:%d:" % (offset, serial)
    body += b"x" * (size - len(body))
    return b"%08x:" % crc32(body) + body


def hold_against(records: Iterable[Record], start: int) -> int:
    """Checks records of a read from ``start`` against their own values; returns their number.

    Raises: Wrong.
    """
    previous, count = start - 1, 0
    for record in records:
        assert record.value is not None
        checksum, _, body = record.value.partition(b":")
        if int(checksum, 16) != crc32(body) or int(body.partition(b":")[0]) != record.offset:
            raise Wrong(f"offset {record.offset} has {record.value[:40]!r}")
        if record.offset <= previous:
            raise Wrong(f"offset {record.offset} after {previous}")
        previous = record.offset
        count += 1
    return count
