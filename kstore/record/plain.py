"""Past the batches that no producer with an id wrote, by their headers alone: what they hold concerns no transaction.

A log without producers is looked through for open transactions in a hundredth of the time that reading it takes.
"""

from __future__ import annotations

import struct

from kstore.record.batch import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC_V2
from kstore.record.scan import Source

__all__ = ["behind_plain"]

# Base offset, size, format version, last offset delta, producer id.
HEAD = struct.Struct(">qi4xb6xi16xq")
BLOCK_BYTES = 4096


def behind_plain(source: Source, start: int, stop: int) -> tuple[int, int] | None:
    """From a batch at ``start`` on, where the first one stands that may be a producer's, and the offset expected there.

    ``stop``, with the offset behind the last batch, where there is none. None where nothing is to be believed without
    its CRC: a header that cannot be right, an offset that does not follow, or an older format.
    """
    expected = None
    position = start
    block_size = BLOCK_BYTES
    while position < stop:
        block = source.pread(min(block_size, stop - position), position)
        at = 0
        while at + BATCH_HEADER_BYTES <= len(block):
            base_offset, size, magic, last_offset_delta, producer_id = HEAD.unpack_from(block, at)
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
        # Behind a large batch the next one is large too, as a rule: then its header alone is read.
        block_size = BATCH_HEADER_BYTES if at > BLOCK_BYTES else BLOCK_BYTES
    return (stop, expected) if expected is not None else None
