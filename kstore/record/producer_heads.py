"""Finds the batches that matter to transactions by their headers: records are neither read nor checked. No I/O but a
Source's.

A header is believed once the header at the end of its batch is plausible too, or once its batch ends where the bytes
end. Markers are read whole, and their CRCs checked. A caller that depends on a data batch checks that one itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kstore.errors import CorruptDataError
from kstore.record.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    Batch,
)
from kstore.record.legacy import SIZE_MIN
from kstore.record.parse import parse_batch
from kstore.record.scan import Source
from kstore.types import INT64_MAX

# Offset, size, magic, attributes and the last offset delta of version 2; then the producer id.
HEAD = struct.Struct(">qi4xb4xhi16xq")
# By magic: the least that an entry can take.
ENTRY_SIZE_MIN = dict(enumerate((*SIZE_MIN, BATCH_HEADER_BYTES)))
BLOCK_BYTES = 4096
# A header, and all of a marker.
HEAD_READ_BYTES = 128
# Real markers have 78 bytes.
MARKER_BYTES_MAX = 4096


class HeadWalk:
    """The transactional batches and the markers of one segment, in order; for one use by one thread.

    Data batches are headers only: whatever reads their records fails. After the iteration ``stopped`` is the position
    from which nothing can be believed by headers alone, and the offset expected there; None if all could.
    """

    def __init__(self, source: Source, start: int, stop: int, *, next_offset: int) -> None:
        """A batch begins at position ``start``, at or after ``next_offset``, and one ends at ``stop``.

        ``source`` may give fewer bytes than are asked for, but at least a header's if there are as many.
        """
        self._source = source
        self._start = start
        self._stop = stop
        self._next_offset = next_offset
        self.stopped: tuple[int, int] | None = None

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        source, stop = self._source, self._stop
        position, expected = self._start, self._next_offset
        # The last header, which the next one has to confirm, and its batch if it matters.
        self.stopped = before = (position, expected)
        held: tuple[int, Batch] | None = None
        block_bytes = BLOCK_BYTES
        while position < stop:
            block = source.pread(min(block_bytes, stop - position), position)
            at = 0
            while at + BATCH_HEADER_BYTES <= len(block):
                base_offset, size, magic, attributes, last_offset_delta, producer_id = HEAD.unpack_from(block, at)
                size += LOG_OVERHEAD_BYTES
                delta = last_offset_delta if magic == MAGIC_V2 else 0
                size_min = ENTRY_SIZE_MIN.get(magic, INT64_MAX)
                if not (size_min <= size <= stop - position - at and base_offset >= expected and delta >= 0):
                    self.stopped = before
                    return
                if held is not None:
                    yield held
                    held = None
                self.stopped = before = (position + at, expected)
                if magic == MAGIC_V2 and producer_id >= 0:
                    if attributes & ATTRIBUTE_CONTROL:
                        marker = self._marker(block, at, position + at, size)
                        if marker is None:
                            return
                        held = position + at, marker
                    elif attributes & ATTRIBUTE_TRANSACTIONAL:
                        try:
                            held = position + at, parse_batch(block, at, header_only=True)
                        except CorruptDataError:
                            return
                expected = base_offset + delta + 1
                at += size
            if at == 0:
                return  # fewer bytes than a header has
            position += at
            # After a large batch the next one is usually large too: then only its header is read.
            block_bytes = HEAD_READ_BYTES if at > BLOCK_BYTES else BLOCK_BYTES
        if held is not None:
            yield held
        self.stopped = None

    def _marker(self, block: bytes, at: int, position: int, size: int) -> Batch | None:
        """The control batch at ``position``, which the block has from ``at`` on; None if it is damaged."""
        if size > MARKER_BYTES_MAX:
            return None
        data = block[at : at + size]
        while len(data) < size:
            more = self._source.pread(size - len(data), position + len(data))
            if not more:
                return None
            data += more
        try:
            batch = parse_batch(data)
            batch.ensure_valid()
        except CorruptDataError:
            return None
        return batch
