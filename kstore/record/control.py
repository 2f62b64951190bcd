"""Control records: the ends of transactions, and a controller's notes in its own log. No I/O here.

    key     int16 version | int16 type
    value   of ABORT and COMMIT: int16 version | int32 coordinator epoch

A control batch holds one such record for a transaction's end. A newer version is read as the known one.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from kstore.errors import CorruptBatchError, CorruptRecordError
from kstore.record.batch import BATCH_HEADER, BATCH_HEADER_BYTES, CRC_START, batch_crc, parse_v2

if TYPE_CHECKING:
    from typing_extensions import Buffer

KEY = struct.Struct(">hh")
END_TRANSACTION_VALUE = struct.Struct(">hi")
VERSION = 0


class ControlRecordType(IntEnum):
    """The types of control records; UNKNOWN is every other, to be ignored (ControlRecordType)."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTransactionMarker(NamedTuple):
    """The end of a transaction: ABORT or COMMIT, as the coordinator of this epoch decided."""

    type: ControlRecordType
    coordinator_epoch: int

    def encode(self) -> tuple[bytes, bytes]:
        """Key and value of the record."""
        return KEY.pack(VERSION, self.type), END_TRANSACTION_VALUE.pack(VERSION, self.coordinator_epoch)


def parse_control_type(key: bytes | None) -> ControlRecordType:
    """The type in a control record's key. Raises CorruptRecordError for a short key or a negative version."""
    if key is None or len(key) < KEY.size:
        raise CorruptRecordError(f"a control record key of {len(key or b'')} bytes, expected {KEY.size}")
    version, number = KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecordError(f"a control record of version {version}, expected 0 or more")
    return ControlRecordType(number) if number in ControlRecordType.__members__.values() else ControlRecordType.UNKNOWN


def parse_end_transaction_marker(key: bytes | None, value: bytes | None) -> EndTransactionMarker | None:
    """The marker, None for a control record of another type.

    Raises: CorruptRecordError for a value that is too short or has a negative version.
    """
    kind = parse_control_type(key)
    if kind not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        return None
    if value is None or len(value) < END_TRANSACTION_VALUE.size:
        found = len(value or b"")
        raise CorruptRecordError(f"an end marker of {found} bytes, expected {END_TRANSACTION_VALUE.size}")
    version, coordinator_epoch = END_TRANSACTION_VALUE.unpack_from(value)
    if version < 0:
        raise CorruptRecordError(f"an end marker of version {version}, expected 0 or more")
    return EndTransactionMarker(kind, coordinator_epoch)


def as_abort_marker(marker: Buffer) -> bytes:
    """The batch ``marker`` of a commit with ABORT in place of COMMIT.

    Raises: CorruptBatchError for a bad CRC, which must not become good, and for a key of another version.
    """
    batch = parse_v2(marker)
    batch.ensure_valid()
    data = bytearray(batch.data)
    # In the one record: the length of its key, and the key. 8 is the zigzag varint of 4.
    commit, abort = (b"\x08" + KEY.pack(VERSION, kind) for kind in (ControlRecordType.COMMIT, ControlRecordType.ABORT))
    at = data.find(commit, BATCH_HEADER_BYTES)
    if at < 0:
        raise CorruptBatchError("an end marker without a key of version 0")
    data[at : at + len(abort)] = abort
    BATCH_HEADER.pack_into(data, 0, *batch.header._replace(crc=batch_crc(memoryview(data)[CRC_START:])))
    return bytes(data)
