"""Walks over the entries of a .log as Kafka's dump tool does: by their size fields, trusting nothing else.

Unlike a scan it also shows what no log serves: batches with a bad CRC, an unknown magic, impossible counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from kstore.errors import CorruptBatchError
from kstore.files.fs import File
from kstore.record.batch import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, MAX_BYTES_UNCOMPRESSED
from kstore.record.parse import MAGIC_POSITION
from kstore.record.scan import Source

PREFIX = struct.Struct(">qi4xb")
assert PREFIX.size == MAGIC_POSITION + 1
# The smallest size field that any version can have (Kafka: LegacyRecord).
RECORD_OVERHEAD_V0 = 14
CHUNK_BYTES = 1 << 20
# A larger entry's bytes are not held in memory: its CRC is computed in pieces, and its records are not read.
ENTRY_BYTES_MAX = MAX_BYTES_UNCOMPRESSED


class Entry(NamedTuple):
    """One entry: ``size`` bytes from ``position`` of the file; ``data`` holds the first of them, from ``at``.

    ``offset`` is the base offset of a v2 batch, the (last) offset of an older message. All of the entry is in ``data``
    unless it has more than ENTRY_BYTES_MAX.
    """

    position: int
    size: int
    offset: int
    magic: int
    data: bytes
    at: int

    @property
    def is_whole(self) -> bool:
        return len(self.data) - self.at >= self.size


class EntryWalk:
    """Yields the entries of ``file`` between byte ``position`` and byte ``stop``; then ``position`` is where it ended.

    A rest without a whole entry ends the walk. Raises CorruptBatchError for a size field that no writer produces.
    Memory: at most two entries, or a chunk.
    """

    def __init__(self, file: File, position: int, stop: int) -> None:
        self._file = file
        self._stop = stop
        self.position = position

    def __iter__(self) -> Iterator[Entry]:
        data, start = b"", self.position
        while True:
            position = self.position
            left = self._stop - position
            if left <= PREFIX.size:
                return
            at = position - start
            if len(data) - at < PREFIX.size:
                data, start, at = self._file.pread(min(CHUNK_BYTES, left), position), position, 0
                if len(data) < PREFIX.size:
                    return  # the file has shrunk
            offset, size, magic = PREFIX.unpack_from(data, at)
            check_size(size, position)
            size += LOG_OVERHEAD_BYTES
            if size > left:
                return
            if size > len(data) - at and (size <= ENTRY_BYTES_MAX or at):
                wanted = size if size <= ENTRY_BYTES_MAX else 0
                data, start, at = self._file.pread(min(max(CHUNK_BYTES, wanted), left), position), position, 0
                if len(data) < min(size, CHUNK_BYTES):
                    return
            yield Entry(position, size, offset, magic, data, at)
            if self.position == position:
                self.position = position + size

    def skip_to(self, position: int) -> None:
        """Continues at ``position``, where an entry of the same chunk ends."""
        self.position = position


def entry_at(data: bytes, at: int, position: int) -> Entry:
    """The entry that begins at ``data[at]``, where a whole one is known to be, and at byte ``position`` of its file."""
    offset, size, magic = PREFIX.unpack_from(data, at)
    return Entry(position, size + LOG_OVERHEAD_BYTES, offset, magic, data, at)


def read_entry(source: Source, position: int, stop: int) -> Entry | None:
    """The entry at byte ``position``, None if no whole one precedes ``stop``. Errors as of EntryWalk.

    Reads only its first bytes, enough for any header.
    """
    data = source.pread(max(0, min(BATCH_HEADER_BYTES, stop - position)), position)
    if len(data) <= MAGIC_POSITION:
        return None
    offset, size, magic = PREFIX.unpack_from(data)
    check_size(size, position)
    size += LOG_OVERHEAD_BYTES
    return Entry(position, size, offset, magic, data, 0) if position + size <= stop else None


def check_size(size: int, position: int) -> None:
    """Raises CorruptBatchError for a size field that no writer produces."""
    if size < RECORD_OVERHEAD_V0:
        raise CorruptBatchError(
            f"a batch whose size field is {size}, expected at least {RECORD_OVERHEAD_V0}", position=position
        )
