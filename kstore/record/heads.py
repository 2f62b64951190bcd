"""Steps over batches by the first fields of their headers, without records or CRCs. No I/O but a Source's.

A step believes a header only if it is plausible: a size that fits, and an offset that follows the one before it.
``HeadWalk``, which finds the batches that matter to transactions, also waits until the header at the end of a batch is
plausible, or the bytes end there. It reads markers whole, and checks their CRCs. A caller that depends on a data batch
checks that one itself.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

from kstore.errors import CorruptDataError
from kstore.record.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER_BYTES,
    CRC_START,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    Batch,
)
from kstore.record.legacy import SIZE_MIN
from kstore.record.parse import MAGIC_POSITION, parse_batch
from kstore.record.scan import Source
from kstore.types import INT64_MAX

# Base offset, size, leader epoch or CRC, magic and CRC, which distinguish batches; old messages have other fields
# there, but as many bytes. One batch in ten thousand million looks like another.
HEAD_BYTES = CRC_START
# Offset, size and magic, which all formats share; then the last offset delta of version 2.
HEAD = struct.Struct(">qi4xb6xi")
# ``HEAD`` with the attributes, and the producer id.
PRODUCER_HEAD = struct.Struct(">qi4xb4xhi16xq")
# By magic: the least that an entry can take.
ENTRY_SIZE_MIN = dict(enumerate((*SIZE_MIN, BATCH_HEADER_BYTES)))
# Leader epoch and magic of version 2.
EPOCH_POSITION = 12
EPOCH_AND_MAGIC = struct.Struct(">ib")
assert EPOCH_POSITION + EPOCH_AND_MAGIC.size == MAGIC_POSITION + 1
BLOCK_BYTES = 4096
# A header, and all of a marker.
HEAD_READ_BYTES = 128
# Real markers have 78 bytes.
MARKER_BYTES_MAX = 4096


class StopReason(enum.Enum):
    """Why ``pass_heads`` stopped."""

    BLOCK_END = "fewer bytes of the block are left than a header has"
    FOUND = "a batch reaches the target"
    DAMAGED = "a header cannot be right"


class HeadStop(NamedTuple):
    """Where ``pass_heads`` stopped: byte ``at`` of the block, where no batch can begin below offset ``expected``.

    ``size`` is that of the batch found there, 0 if its offset does not follow; at a block's end, that of the last one.
    """

    reason: StopReason
    at: int
    size: int
    expected: int


def leader_epoch_of(batch: memoryview) -> int:
    """The leader epoch of a whole batch, -1 if it has none: the older formats have no such field."""
    epoch: int
    epoch, magic = EPOCH_AND_MAGIC.unpack_from(batch, EPOCH_POSITION)
    return epoch if magic >= MAGIC_V2 else -1


def pass_heads(block: bytes, size_left: int, *, expected: int, target: int, indexed: int | None = None) -> HeadStop:
    """Passes the batches in ``block`` that end below offset ``target``; a batch begins at its first byte.

    Args:
        size_left: bytes from there to the end of the last batch, which may be beyond the block.
        expected: no batch may begin below this offset.
        indexed: the last offset of the first batch, according to its index entry; the batch then must not begin above
            ``target``. If its header agrees, both are believed, and its base offset is where offsets begin.
    """
    at = size = 0
    while at + BATCH_HEADER_BYTES <= len(block):
        base_offset, size, magic, last_offset_delta = HEAD.unpack_from(block, at)
        size += LOG_OVERHEAD_BYTES
        if magic == MAGIC_V2:
            last_offset = base_offset + last_offset_delta
            size_min = BATCH_HEADER_BYTES
        else:
            last_offset = base_offset
            size_min = ENTRY_SIZE_MIN.get(magic, INT64_MAX)
        if not (size_min <= size <= size_left - at and expected <= base_offset <= last_offset):
            return HeadStop(StopReason.DAMAGED, at, 0, expected)
        if indexed is not None:
            if base_offset > target:
                return HeadStop(StopReason.DAMAGED, at, 0, expected)
            if last_offset == indexed:
                expected = base_offset
            indexed = None
        if last_offset >= target:
            return HeadStop(StopReason.FOUND, at, size if base_offset == expected else 0, expected)
        expected = last_offset + 1
        at += size
    return HeadStop(StopReason.BLOCK_END, at, size, expected)


def skip_plain(source: Source, start: int, stop: int) -> tuple[int, int] | None:
    """Skips the batches that no producer with an id wrote: they belong to no transaction.

    Starts at a batch at ``start``. Returns the position of the first batch that may be a producer's, and the offset
    expected there; or ``stop``, and the offset after the last batch. Returns None if nothing can be believed without
    its CRC: an implausible header, an offset that does not follow, or an older format.

    A log without producers is searched in a hundredth of the time that reading takes.
    """
    expected = None
    position = start
    block_size = BLOCK_BYTES
    while position < stop:
        block = source.pread(min(block_size, stop - position), position)
        at = 0
        while at + BATCH_HEADER_BYTES <= len(block):
            base_offset, size, magic, _, last_offset_delta, producer_id = PRODUCER_HEAD.unpack_from(block, at)
            size += LOG_OVERHEAD_BYTES
            follows = expected is None or base_offset == expected
            if not (magic == MAGIC_V2 and follows and last_offset_delta >= 0 and base_offset >= 0):
                return None
            if not BATCH_HEADER_BYTES <= size <= stop - position - at:
                return None
            if producer_id != -1:
                return position + at, base_offset
            expected = base_offset + last_offset_delta + 1
            at += size
        if at == 0:
            return None  # fewer bytes than a header
        position += at
        # After a large batch the next one is usually large too: then only its header is read.
        block_size = BATCH_HEADER_BYTES if at > BLOCK_BYTES else BLOCK_BYTES
    return (stop, expected) if expected is not None else None


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
                head = PRODUCER_HEAD.unpack_from(block, at)
                base_offset, size, magic, attributes, last_offset_delta, producer_id = head
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
