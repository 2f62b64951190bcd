"""Appends the staged batches of one partition to its log: whole, and without decoding them.

A task has encoded them, and its message has a checksum of each. The driver compares it, checks the headers, and stamps
them with their producer. Batches are decoded only if the log has to change them, or may refuse a record: if it has a
codec or times of its own, for times outside its limits, and for missing keys in a compacted log. They are then appended
like any foreign batch, which names the record that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kstore.engine.over.foreign import EncodedElsewhere, append_encoded
from kstore.errors import CorruptFileError
from kstore.files.fs import File
from kstore.log import Log, writer_of
from kstore.record._codec import BatchBuffer, EncodedBatch
from kstore.record.batch import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CRC_START,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    BatchHeader,
    batch_crc,
    increment_sequence,
)
from kstore.record.compression import CODECS
from kstore.spark.staging import Span, StagedFile, read_span

__all__ = ["append_staged"]

# How much is read and appended at a time.
APPEND_BYTES = 8 << 20


def append_staged(log: Log, batches: Iterable[tuple[StagedFile, File, Span]], producer: tuple[int, int]) -> int:
    """Appends batches, at least one, as data of the open transaction of ``producer``; returns the first one's offset.

    Raises: CorruptFileError; what ``Log.append_batches`` raises; StorageError.
    """
    writer = writer_of(log)
    first_offset: int | None = None
    for chunk in _chunks(batches, producer):
        info = append_encoded(writer, chunk) or log.append_batches(chunk.buffer.view())
        first_offset = info.first_offset if first_offset is None else first_offset
    if not writer.syncs_appends:
        # The decision is on disk whatever the log's durability; the records must be there first.
        log.flush()
    assert first_offset is not None
    return first_offset


def _chunks(batches: Iterable[tuple[StagedFile, File, Span]], producer: tuple[int, int]) -> Iterator[EncodedElsewhere]:
    """Staged batches, stamped with their producer, as many at a time as are appended at once."""
    chunk = _Chunk(producer, 0)
    for staged, file, span in batches:
        data = read_span(file, span)
        if chunk.batches and chunk.buffer.size + len(data) > APPEND_BYTES:
            yield chunk.encoded()
            chunk = _Chunk(producer, chunk.next_sequence)
        chunk.add(staged, data, file.path, span)
    if chunk.batches:
        yield chunk.encoded()


class _Chunk:
    """Batches that are appended together."""

    def __init__(self, producer: tuple[int, int], sequence: int) -> None:
        self.buffer: BatchBuffer = BatchBuffer()
        self.batches: list[EncodedBatch] = []
        self.next_sequence: int = sequence
        self._producer = producer
        self._sequence = sequence
        self._codecs: list[str] = []
        self._files: dict[str, StagedFile] = {}

    def add(self, staged: StagedFile, data: bytes, path: str, span: Span) -> None:
        """Raises: CorruptFileError."""
        header = _checked(data, path, span)
        header = header._replace(
            attributes=header.attributes | ATTRIBUTE_TRANSACTIONAL,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=self.next_sequence,
        )
        body = memoryview(data)[BATCH_HEADER_BYTES:]
        covered = memoryview(BATCH_HEADER.pack(*header))[CRC_START:]
        header = header._replace(crc=batch_crc(body, batch_crc(covered)))
        count, position = header.record_count, self.buffer.size
        self.buffer.extend(BATCH_HEADER.pack(*header))
        self.buffer.extend(body)
        times = header.base_timestamp, header.max_timestamp
        self.batches.append(EncodedBatch(count, position, len(data), count, *times, span.max_timestamp_delta))
        self.next_sequence = increment_sequence(self.next_sequence, count)
        self._codecs.append(CODECS[header.attributes & ATTRIBUTE_CODEC].name)
        self._files[staged.name] = staged

    def encoded(self) -> EncodedElsewhere:
        files = self._files.values()
        return EncodedElsewhere(
            self.buffer,
            self.batches,
            self._codecs,
            (min(each.times[0] for each in files), max(each.times[1] for each in files)),
            all(each.has_every_key for each in files),
            (*self._producer, self._sequence, True),
        )


def _checked(data: bytes, path: str, span: Span) -> BatchHeader:
    """The header of a staged batch. Raises: CorruptFileError."""
    header = BatchHeader._make(BATCH_HEADER.unpack_from(data)) if len(data) > BATCH_HEADER_BYTES else None
    if (
        header is None
        or header.magic != MAGIC_V2
        or header.batch_length != len(data) - LOG_OVERHEAD_BYTES
        or not 0 <= header.attributes < len(CODECS)  # nothing but a codec
        or header.record_count != span.record_count
        or header.record_count != header.last_offset_delta + 1
        or header.record_count < 1
        or not 0 <= span.max_timestamp_delta < header.record_count
        or header.crc != batch_crc(memoryview(data)[CRC_START:])
    ):
        raise CorruptFileError("not a batch of records as a task stages it", path=path, position=span.position)
    return header
