"""Writes message sets of versions 0 and 1, plainly and slowly: an oracle, since kstore only reads them."""

from __future__ import annotations

import struct
import zlib

from kstore.record.compression import CODECS_BY_NAME

LZ4_CHECKSUM_POSITION = 6
# The header checksum that KAFKA-3160 made part of version 0: over the frame's magic too.
LZ4_QUIRK = 0x1A


def _field(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def message(
    offset: int,
    value: bytes | None,
    key: bytes | None = None,
    *,
    magic: int = 1,
    timestamp: int = -1,
    attributes: int = 0,
) -> bytes:
    """One entry: the prefix, and a message with its CRC."""
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    body += _field(key) + _field(value)
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(
    messages: list[bytes],
    *,
    offset: int,
    codec: str,
    magic: int = 1,
    timestamp: int = -1,
    append_time: bool = False,
) -> bytes:
    """A compressed message over whole entries; ``offset`` is the last one's."""
    row = CODECS_BY_NAME[codec]
    value = bytearray(row.compress(b"".join(messages), None))
    if codec == "lz4" and magic == 0:
        value[LZ4_CHECKSUM_POSITION] = LZ4_QUIRK
    attributes = row.id | (0x08 if append_time else 0)
    return message(offset, bytes(value), magic=magic, timestamp=timestamp, attributes=attributes)
