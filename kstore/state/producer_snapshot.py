"""Producer snapshot, the content of ``<offset>.snapshot``: bytes to entries and back. No I/O here.

at  size  field                           meaning
 0     2  version                  int16  1
 2     4  crc                     uint32  CRC-32C of byte 6 to the end
 6     4  count                    int32  entries that follow, in no order
10     -  entries                         46 bytes each:
       8    producer_id            int64
       2    producer_epoch         int16
       4    last_sequence          int32  of the producer's last batch; -1 none
       8    last_offset            int64  of the producer's last batch; -1 none
       4    offset_delta           int32  last offset - first offset of that batch
       8    timestamp              int64  ms; of that batch, or of the marker that came after it
       4    coordinator_epoch      int32  of the last marker; -1 none
       8    current_txn_first_offset int64  where the open transaction starts; -1 none open
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from kstore.errors import CorruptFileError, UnsupportedFormatError
from kstore.record.crc import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

SNAPSHOT_HEADER = struct.Struct(">hIi")
SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
VERSION = 1
# The CRC does not cover version and CRC.
CRC_START = 6
assert SNAPSHOT_HEADER.size == 10
assert SNAPSHOT_ENTRY.size == 46
assert struct.calcsize(">hI") == CRC_START


class ProducerEntry(NamedTuple):
    """What a log knows of one producer (Kafka: ProducerStateEntry). Times in ms; -1 means none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


class SnapshotCrcError(CorruptFileError):
    """A snapshot whose bytes are not as they were written."""

    def __init__(self, stored: int, computed: int) -> None:
        self.stored = stored
        self.computed = computed
        super().__init__(f"bad crc of a producer snapshot: stored {stored:#010x}, computed {computed:#010x}")


def decode_snapshot(data: Buffer) -> list[ProducerEntry]:
    """The entries of a whole snapshot file, in its order.

    Raises:
        CorruptFileError: ``data`` is too short, or its length does not match its count.
        SnapshotCrcError: the CRC differs; it has both of them.
        CorruptFileError: another version
    """
    view = memoryview(data)
    if len(view) < SNAPSHOT_HEADER.size:
        raise CorruptFileError(f"{len(view)} bytes, expected the {SNAPSHOT_HEADER.size} of a snapshot's header")
    version, stored, count = SNAPSHOT_HEADER.unpack_from(view)
    if version != VERSION:
        raise UnsupportedFormatError(f"snapshot version {version}, expected {VERSION}", position=0)
    computed = crc32c(view[CRC_START:])
    if computed != stored:
        raise SnapshotCrcError(stored, computed)
    entries = view[SNAPSHOT_HEADER.size :]
    if len(entries) != count * SNAPSHOT_ENTRY.size:
        raise CorruptFileError(
            f"{len(entries)} bytes of entries, expected {count} x {SNAPSHOT_ENTRY.size}", position=SNAPSHOT_HEADER.size
        )
    return [ProducerEntry._make(fields) for fields in SNAPSHOT_ENTRY.iter_unpack(entries)]


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """The bytes of a whole snapshot file with ``entries`` in their order."""
    packed = [SNAPSHOT_ENTRY.pack(*entry) for entry in entries]
    covered = len(packed).to_bytes(4, "big") + b"".join(packed)
    return struct.pack(">hI", VERSION, crc32c(covered)) + covered
