"""One append in progress: the buffer that it encodes into, its batches, and their result once they are published."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from kstore.engine.append._group import PendingBatches
from kstore.errors import InvalidOffsetError
from kstore.record._codec import BatchBuffer
from kstore.rules.sequence import SequencedBatch, run_of
from kstore.types import NO_OFFSET, NO_TIMESTAMP, RECORD_OFFSET_MAX, AppendInfo

# The encode buffers are used again: fresh memory costs a page fault for each 4 KiB, more than the encoding. They belong
# to the process, so that what is kept does not grow with the number of its logs.
# More concurrent appends make their own, and so do those for which these bytes are not enough.
SPARE_COUNT_MAX = 16
SPARE_BYTES_MAX = 16 << 20

_spare: deque[BatchBuffer] = deque(maxlen=SPARE_COUNT_MAX)


class PendingAppend(PendingBatches):
    """One append: encoded batches in ``buffer``; their offsets are assigned when it is committed.

    Each batch of a producer has a buffer of its own: ``buffers``, of which ``buffer`` is the first.
    ``spans`` gives the first and last offset of each batch if they keep their offsets. ``stamp`` is the input of
    ``rules.sequence.run_of``, if they are one run of data batches.
    ``append_time_ms`` is NO_TIMESTAMP unless the log stamps; ``with_producers``: a batch has a producer id.
    ``repeated`` are the batches that these repeat, if the log has them already.
    """

    __slots__ = ()

    def views(self) -> list[memoryview]:
        """The bytes of each batch."""
        buffers = self.buffers or [self.buffer] * len(self.batches)
        return [
            buffer.view(batch.position, batch.position + batch.size)
            for buffer, batch in zip(buffers, self.batches, strict=True)
        ]

    def spans_from(self, offset: int) -> Iterator[tuple[int, int]]:
        """The first and last offset that each batch keeps, or gets if the first one gets ``offset``."""
        if self.spans is not None:
            yield from self.spans
            return
        for batch in self.batches:
            yield offset, offset + batch.record_count - 1
            offset += batch.record_count

    def misplaced_at(self, offset: int) -> InvalidOffsetError | None:
        """Why the batches cannot follow a log that ends at ``offset``, or None."""
        if self.spans is not None:
            first_offset = self.spans[0][0]
            if first_offset < offset:
                return InvalidOffsetError(f"the first offset is {first_offset}, expected at least {offset}")
            return None
        last_offset = offset - 1 + sum([batch.record_count for batch in self.batches])
        if last_offset > RECORD_OFFSET_MAX:
            return InvalidOffsetError(f"the last offset is {last_offset}, expected at most {RECORD_OFFSET_MAX}")
        return None

    def run_from(self, offset: int) -> SequencedBatch | None:
        """The batches as one run of their producer, starting at ``offset``, or None."""
        if self.stamp is None:
            return None
        return run_of(self.stamp, [(batch.record_count, batch.max_timestamp) for batch in self.batches], offset)

    def info(self, first_offset: int, last_offset: int) -> AppendInfo:
        """The result once the append is published; for a repetition, that of the original."""
        if self.repeated:
            first_offset, last_offset = self.repeated[0].first_offset, self.repeated[-1].last_offset
        base_offset = first_offset
        record_count = size = 0
        max_timestamp, offset_of_max = NO_TIMESTAMP, NO_OFFSET
        for number, batch in enumerate(self.batches):
            _, _, batch_size, count, _, timestamp, delta = batch
            if self.repeated:
                base_offset = self.repeated[number].first_offset
            elif self.spans is not None:
                base_offset = self.spans[number][0]
            if timestamp > max_timestamp:
                max_timestamp, offset_of_max = timestamp, base_offset + delta
            record_count += count
            size += batch_size
            base_offset += count
        append_time_ms = self.append_time_ms
        if append_time_ms != NO_TIMESTAMP:
            offset_of_max = last_offset  # all have the same time; Kafka reports the last
            if self.repeated:
                append_time_ms = max_timestamp = self.repeated[-1].timestamp
        return AppendInfo(
            first_offset,
            last_offset,
            max_timestamp,
            offset_of_max,
            append_time_ms,
            self.source_codec,
            self.target_codec,
            len(self.batches),
            record_count,
            size,
            self.offsets_monotonic,
            bool(self.repeated),
        )


def nothing_appended(end_offset: int) -> AppendInfo:
    """The result of an append of no records to a log that ends at ``end_offset``."""
    return AppendInfo(end_offset, end_offset - 1, NO_TIMESTAMP, NO_OFFSET, NO_TIMESTAMP, "none", "none", 0, 0, 0, True)


def spare_buffer() -> BatchBuffer:
    """An empty buffer, for one append."""
    try:
        return _spare.pop()
    except IndexError:
        return BatchBuffer()


def keep_buffer(buffer: BatchBuffer) -> None:
    """Takes back a buffer that nothing reads any more."""
    if buffer.capacity + sum([one.capacity for one in tuple(_spare)]) <= SPARE_BYTES_MAX:
        buffer.clear()
        _spare.append(buffer)
