"""Steps over batches by the first fields of their headers, without records or CRCs. No I/O but a Source's.

A step believes a header only if it is plausible: a size that fits, and an offset that follows the one before it.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from kstore.record.batch import BATCH_HEADER_BYTES, CRC_START, LOG_OVERHEAD_BYTES, MAGIC_V2
from kstore.record.legacy import SIZE_MIN
from kstore.record.parse import MAGIC_POSITION
from kstore.record.scan import Source
from kstore.types import INT64_MAX

# Base offset, size, leader epoch or CRC, magic and CRC, which distinguish batches; old messages have other fields
# there, but as many bytes. One batch in ten thousand million looks like another.
HEAD_BYTES = CRC_START
# Offset, size and magic, which all formats share; then the last offset delta of version 2.
HEAD = struct.Struct(">qi4xb6xi")
# ``HEAD``, and the producer id.
PRODUCER_HEAD = struct.Struct(">qi4xb6xi16xq")
# By magic: the least that an entry can take.
ENTRY_SIZE_MIN = dict(enumerate((*SIZE_MIN, BATCH_HEADER_BYTES)))
# Leader epoch and magic of version 2.
EPOCH_POSITION = 12
EPOCH_AND_MAGIC = struct.Struct(">ib")
assert EPOCH_POSITION + EPOCH_AND_MAGIC.size == MAGIC_POSITION + 1
BLOCK_BYTES = 4096


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
            base_offset, size, magic, last_offset_delta, producer_id = PRODUCER_HEAD.unpack_from(block, at)
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
