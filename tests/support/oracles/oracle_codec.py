"""A second, plain and slow implementation of record batch version 2, for comparison with the compiled one.

It shares no code with kstore and follows only the format's description. It checks only what it needs: a damaged batch
raises whatever error Python has for it, all of them ``OracleError``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

MASK_64 = 2**64 - 1


class OracleError(Exception):
    """The bytes are not a batch."""


class OracleRecord(NamedTuple):
    """One record, offsets and timestamps absolute."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str | bytes, bytes | None], ...] = ()


class OracleBatch(NamedTuple):
    """A batch whose records are not compressed."""

    base_offset: int
    records: tuple[OracleRecord, ...]
    leader_epoch: int = -1
    attributes: int = 0
    last_offset_delta: int | None = None
    base_timestamp: int | None = None
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


# --- writing ----------------------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """Zigzag by its definition: 0, -1, 1, -2 become 0, 1, 2, 3. The same for 32 and 64 bits."""
    unsigned = 2 * number if number >= 0 else -2 * number - 1
    groups = []
    while True:
        groups.append(unsigned % 128)
        unsigned //= 128
        if not unsigned:
            break
    return bytes([group + 128 for group in groups[:-1]] + groups[-1:])


def nullable(field: bytes | None) -> bytes:
    return varint(-1) if field is None else varint(len(field)) + field


def wrapped(number: int) -> int:
    """``number`` as a signed integer of 64 bits."""
    return (number + 2**63 & MASK_64) - 2**63


def encode_record(record: OracleRecord, base_offset: int, base_timestamp: int) -> bytes:
    body = b"\0"
    body += varint(wrapped(record.timestamp - base_timestamp))
    body += varint(record.offset - base_offset)
    body += nullable(record.key)
    body += nullable(record.value)
    body += varint(len(record.headers))
    for key, value in record.headers:
        body += nullable(key if isinstance(key, bytes) else key.encode())
        body += nullable(value)
    return varint(len(body)) + body


def encode(batch: OracleBatch, *, payload: bytes | None = None, count: int | None = None) -> bytes:
    """The bytes of ``batch``; fields that are None are taken from the records.

    ``payload`` and ``count`` take the place of the records' bytes and number.
    """
    timestamps = [record.timestamp for record in batch.records]
    base_timestamp = batch.base_timestamp
    if base_timestamp is None:
        base_timestamp = timestamps[0] if timestamps else -1
    max_timestamp = batch.max_timestamp
    if max_timestamp is None:
        max_timestamp = max(timestamps, default=-1)
    last_offset_delta = batch.last_offset_delta
    if last_offset_delta is None:
        last_offset_delta = batch.records[-1].offset - batch.base_offset
    records = payload
    if records is None:
        records = b"".join([encode_record(record, batch.base_offset, base_timestamp) for record in batch.records])
    covered = struct.pack(
        ">hiqqqhii",
        batch.attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(batch.records) if count is None else count,
    )
    covered += records
    size = 4 + 1 + 4 + len(covered)
    return struct.pack(">qiibI", batch.base_offset, size, batch.leader_epoch, 2, crc32c(covered)) + covered


# --- reading ----------------------------------------------------------------------------------------------------------


def text_or_bytes(data: bytes) -> str | bytes:
    """A header's key: text, or its bytes if they are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


class Reader:
    """Takes fields from the start of bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.position:
            raise OracleError(f"{size} bytes of {len(self.data) - self.position}")
        self.position += size
        return self.data[self.position - size : self.position]

    def varint(self, bits: int) -> int:
        unsigned = 0
        for group in range(-(-bits // 7)):
            byte = self.take(1)[0]
            unsigned += byte % 128 * (1 << 7 * group)
            if byte < 128:
                unsigned %= 1 << bits
                return -(unsigned + 1) // 2 if unsigned % 2 else unsigned // 2
        raise OracleError("a varint without an end")

    def nullable(self) -> bytes | None:
        size = self.varint(32)
        return None if size < 0 else self.take(size)

    def text(self) -> str | bytes:
        return text_or_bytes(self.take(self.varint(32)))

    def end(self) -> None:
        if self.position != len(self.data):
            raise OracleError(f"{len(self.data) - self.position} bytes left")


def decode_record(data: bytes, base_offset: int, base_timestamp: int) -> OracleRecord:
    reader = Reader(data)
    reader.take(1)
    timestamp = wrapped(base_timestamp + reader.varint(64))
    offset = base_offset + reader.varint(32)
    key, value = reader.nullable(), reader.nullable()
    header_count = reader.varint(32)
    if not 0 <= header_count <= len(data):
        raise OracleError(f"{header_count} headers")
    headers = tuple([(reader.text(), reader.nullable()) for _ in range(header_count)])
    reader.end()
    return OracleRecord(offset, timestamp, key, value, headers)


def decode_records(data: bytes, count: int, base_offset: int, base_timestamp: int) -> tuple[OracleRecord, ...]:
    reader = Reader(data)
    if not 0 <= count <= len(data):
        raise OracleError(f"{count} records")
    records = [decode_record(reader.take(reader.varint(32)), base_offset, base_timestamp) for _ in range(count)]
    reader.end()
    return tuple(records)


def decode(data: bytes) -> OracleBatch:
    """The batch in ``data``, its CRC checked; LogAppendTime is applied to the records."""
    if len(data) < 61:
        raise OracleError("no header")
    base_offset, size, leader_epoch, magic, crc = struct.unpack(">qiibI", data[:21])
    if magic != 2 or size != len(data) - 12 or crc != crc32c(data[21:]):
        raise OracleError("magic, size or crc")
    attributes, last_offset_delta, base_timestamp, max_timestamp, producer_id, epoch, sequence, count = struct.unpack(
        ">hiqqqhii", data[21:61]
    )
    if attributes & 7:
        raise OracleError("compressed")
    # Without records Kafka does not look at the rest.
    records = decode_records(data[61:], count, base_offset, base_timestamp) if count else ()
    if attributes & 8:
        records = tuple([record._replace(timestamp=max_timestamp) for record in records])
    return OracleBatch(
        base_offset,
        records,
        leader_epoch,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        epoch,
        sequence,
    )


def records_of(rows: Sequence[tuple[int, bytes | None, bytes | None]]) -> tuple[OracleRecord, ...]:
    """Records with offsets from 0 of (timestamp, key, value) rows."""
    return tuple([OracleRecord(offset, *row) for offset, row in enumerate(rows)])
