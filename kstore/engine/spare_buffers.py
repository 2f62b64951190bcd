"""The encode buffers that appends reuse: fresh memory costs a page fault for each 4 KiB, more than the encoding.

They belong to the process, so that what is kept does not grow with the number of its logs.
"""

from __future__ import annotations

from collections import deque

from kstore.record._codec import BatchBuffer

__all__ = ["LARGE_BYTES_MAX", "SPARE_BYTES_MAX", "SPARE_COUNT_MAX", "keep_buffer", "spare_buffer"]

# More concurrent appends make their own.
SPARE_COUNT_MAX = 16
# A larger buffer is kept only where no other is: threads that take turns in long calls need but one.
SPARE_BYTES_MAX = 4 << 20
LARGE_BYTES_MAX = 16 << 20

_spare: deque[BatchBuffer] = deque(maxlen=SPARE_COUNT_MAX)


def spare_buffer() -> BatchBuffer:
    """An empty buffer, for one append."""
    try:
        return _spare.pop()
    except IndexError:
        return BatchBuffer()


def keep_buffer(buffer: BatchBuffer) -> None:
    """Takes back a buffer that nothing reads any more."""
    if buffer.capacity <= (SPARE_BYTES_MAX if _spare else LARGE_BYTES_MAX):
        buffer.clear()
        _spare.append(buffer)
