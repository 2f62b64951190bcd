"""Appends the staged batches of one partition to its log: whole, and without decoding them.

``_staged`` reads them, compares each with its row of the staged table, and stamps it with its producer. Batches are
decoded only if the log has to change them, or may refuse a record: if it has a codec or times of its own, for times
outside its limits, and for missing keys in a compacted log. They are then appended like any foreign batch, which names
the record that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kstore.engine.over.foreign import EncodedElsewhere, append_encoded
from kstore.files.fs import File
from kstore.log import Log, writer_of
from kstore.record._codec import BatchBuffer, EncodedBatch
from kstore.record.compression import CODECS
from kstore.spark._staged import ROW_BYTES, take
from kstore.spark.staging import StagedFile

# How much is read and appended at a time. What stays in the processor's cache between the read and the write takes half
# the time of 8 MiB, although each append is synced; with less, the appends themselves take more.
APPEND_BYTES = 2 << 20


class StagedRows(NamedTuple):
    """The ``rows`` of one partition in an open staged file."""

    staged: StagedFile
    file: File
    rows: bytes


def append_staged(log: Log, parts: Iterable[StagedRows], producer: tuple[int, int]) -> int:
    """Appends batches, at least one, as data of the open transaction of ``producer``; returns the first one's offset.

    Raises: CorruptFileError; what ``Log.append_batches`` raises; StorageError.
    """
    writer = writer_of(log)
    first_offset: int | None = None
    for chunk in _chunks(parts, producer):
        info = append_encoded(writer, chunk) or log.append_batches(chunk.buffer.view())
        first_offset = info.first_offset if first_offset is None else first_offset
    if not writer.syncs_appends:
        # The decision is on disk whatever the log's durability; the records must be there first.
        log.flush()
    assert first_offset is not None
    return first_offset


def _chunks(parts: Iterable[StagedRows], producer: tuple[int, int]) -> Iterator[EncodedElsewhere]:
    """Staged batches, stamped with their producer, as many at a time as are appended at once.

    All chunks share one buffer: each is valid until the next is asked for.
    """
    buffer, next_sequence = BatchBuffer(APPEND_BYTES), 0
    chunk = _Chunk(buffer, producer, next_sequence)
    for staged, file, rows in parts:
        index = 0
        while index < len(rows) // ROW_BYTES:
            taken, next_sequence = take(
                file, rows, index, APPEND_BYTES, buffer, chunk.batches, chunk.codecs, *producer, next_sequence
            )
            if taken > index:
                chunk.files[staged.name] = staged
                index = taken
            else:
                yield chunk.encoded()
                buffer.clear()
                chunk = _Chunk(buffer, producer, next_sequence)
    if chunk.batches:
        yield chunk.encoded()


class _Chunk:
    """Batches that are appended together."""

    def __init__(self, buffer: BatchBuffer, producer: tuple[int, int], sequence: int) -> None:
        self.batches: list[EncodedBatch] = []
        self.codecs: set[int] = set()
        self.files: dict[str, StagedFile] = {}
        self._buffer = buffer
        self._stamp = (*producer, sequence, True)

    def encoded(self) -> EncodedElsewhere:
        files = self.files.values()
        return EncodedElsewhere(
            self._buffer,
            self.batches,
            [CODECS[number].name for number in sorted(self.codecs)],
            (min(each.times[0] for each in files), max(each.times[1] for each in files)),
            all(each.has_every_key for each in files),
            self._stamp,
        )
