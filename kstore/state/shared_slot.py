"""Where a log ends, for the processes that share it: one record in memory that all of them map.

It is in ``kstore.state`` at 1536, after the live slot. It is stored under the short lock, so a process with that lock
finds it whole, unless its writer died while storing it. Nothing in it is ever synced, and the first process that opens
the log ignores it.

 at  size  field
  0     4  magic                    bytes   "KSS1"
  4     2  version                  uint16  2; kstore.state version 1 has 0 here. In another version all but these two
                                            fields are unknown: a process that finds one must not touch the log
  6     2  flags                    uint16  bit 0: being changed; 1: poisoned; 2: nothing follows the last segment;
                                            3: the fields of the active segment are known
  8     8  change_count             int64   increases when segments come or go
 16     8  cut_count                int64   increases when the end is cut
 24     8  generation               int64   of the record of ``kstore.state``
 32     8  epoch                    int64   the latest leader epoch, -1 for none
 40     8  end_offset, base_offset, position, durable_end: as published
 72     8  first_timestamp, max_timestamp, offset_of_max_timestamp, since_entry: of the active segment
104     8  offset_entry_count, time_entry_count: of its indexes
120     8  last_append_ms
128     4  crc                      uint32  CRC-32C of bytes 0 to 127
"""

from __future__ import annotations

import errno
import os
import struct
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kstore.errors import LockedError
from kstore.files.fs import FileSystem, Mapping
from kstore.record.crc import crc32c
from kstore.state.log_state import FILE_SIZE
from kstore.types import NO_OFFSET, NO_TIMESTAMP

POSITION = 1536
MAGIC = b"KSS1"
VERSION = 2
SLOT = struct.Struct(">4sHH15q")
HEAD = struct.Struct(">4sH")
CRC = struct.Struct(">I")
SIZE = SLOT.size + CRC.size
assert SLOT.size == 128

CHANGING, POISONED, SEALED, TAIL_KNOWN = 1, 2, 4, 8


class SharedState(NamedTuple):
    """The record; the module's table describes the fields."""

    flags: int = 0
    change_count: int = 0
    cut_count: int = 0
    generation: int = 0
    epoch: int = -1
    end_offset: int = 0
    base_offset: int = 0
    position: int = 0
    durable_end: int = 0
    first_timestamp: int = NO_TIMESTAMP
    max_timestamp: int = NO_TIMESTAMP
    offset_of_max_timestamp: int = NO_OFFSET
    since_entry: int = 0
    offset_entry_count: int = 0
    time_entry_count: int = 0
    last_append_ms: int = 0

    @property
    def known(self) -> tuple[int, int, int, int, int, int]:
        """What ``SegmentTail.take_in`` takes, besides the position."""
        return self[9:15]

    def encode(self) -> bytes:
        data = SLOT.pack(MAGIC, VERSION, *self)
        return data + CRC.pack(crc32c(data))

    @staticmethod
    def decode(data: bytes) -> SharedState | None:
        """The record, None if it is not whole, or of another version."""
        if len(data) < SIZE or CRC.unpack_from(data, SLOT.size)[0] != crc32c(data[:-4]):
            return None
        magic, version, *fields = SLOT.unpack_from(data)
        return SharedState(*fields) if (magic, version) == (MAGIC, VERSION) else None


# One made from a whole tuple of its fields, in a third of the time.
shared_state = partial(tuple.__new__, SharedState)


def in_use_by_others(version: int, path: Path) -> LockedError:
    """The error for a log that processes with another ``version`` of the format have open."""
    return LockedError(
        errno.EAGAIN,
        f"the processes that share the log use version {version} of its state, expected {VERSION}: all of them must"
        " close it first",
        os.fspath(path.parent),
    )


class SharedSlot:
    """The mapped record. Storing it cannot fail."""

    def __init__(self, fs: FileSystem, path: Path) -> None:
        """Maps the record in ``path``, an existing ``kstore.state``. Raises: StorageError."""
        self._path = path
        self._file = fs.open(path, write=True)
        self.mapping: Mapping = self._file.map(FILE_SIZE)

    def read(self) -> bytes:
        """The present record; without the short lock it may be half stored."""
        return self.mapping.read(POSITION, SIZE)

    def load(self, data: bytes) -> SharedState | None:
        """The record in ``data``, which was read in a turn; None if the writer died while storing it.

        Raises: LockedError if processes with another version of the format use the log.
        """
        seen = SharedState.decode(data)
        if seen is None and len(data) >= HEAD.size:
            # Each record of those processes has it, even a half-stored one.
            magic, version = HEAD.unpack_from(data)
            if magic == MAGIC and version != VERSION:
                raise in_use_by_others(max(version, 1), self._path)
        return seen

    def store(self, data: bytes) -> None:
        self.mapping.store(POSITION, data)

    def close(self) -> None:
        self.mapping.close()
        self._file.close()
