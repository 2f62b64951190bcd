"""Record batch, version 2 ("magic 2"): a read-only view over a buffer. No I/O here.

at  size  field                      meaning
 0     8  base_offset        int64   offset of the first record, as it was when the batch was written
 8     4  batch_length       int32   bytes that follow this field
12     4  leader_epoch       int32   -1 none
16     1  magic               int8   2
17     4  crc               uint32   CRC-32C of byte 21 to the end: the fields above may change without it
21     2  attributes         int16   bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
23     4  last_offset_delta  int32   last offset = base offset + it; compaction keeps it
27     8  base_timestamp     int64   ms; the delete horizon if bit 6 is set; deltas are relative to it
35     8  max_timestamp      int64   ms; with LogAppendTime every record's timestamp
43     8  producer_id        int64   -1 none
51     2  producer_epoch     int16   -1 none
53     4  base_sequence      int32   -1 none
57     4  record_count       int32   0 after compaction emptied the batch
61     -  records                    back to back, or one compressed stream of them
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kstore.errors import CorruptBatchError, UnsupportedCodecError
from kstore.record._codec import (
    Record,
    RecordCursor,
    RecordsSummary,
    check_records,
    decode_offsets_timestamps,
    decode_values,
)
from kstore.record.compression import CODECS, Codec
from kstore.record.crc import crc32c
from kstore.types import CREATE_TIME, LOG_APPEND_TIME, OFFSET_MAX, TIMESTAMP_TYPES, TimestampType

if TYPE_CHECKING:
    from typing_extensions import Buffer

BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
BATCH_HEADER_BYTES = 61
# Base offset and size: the part of every entry that its size field leaves out.
LOG_OVERHEAD_BYTES = 12
MAGIC_V2 = 2
CRC_START = 21
assert BATCH_HEADER.size == BATCH_HEADER_BYTES
# The fields up to where the CRC begins: base offset, size, leader epoch, magic, CRC.
BATCH_HEAD = struct.Struct(">qiibI")
assert BATCH_HEAD.size == CRC_START

ATTRIBUTE_CODEC = 0x07
ATTRIBUTE_LOG_APPEND_TIME = 0x08
ATTRIBUTE_TRANSACTIONAL = 0x10
ATTRIBUTE_CONTROL = 0x20
ATTRIBUTE_DELETE_HORIZON = 0x40
# The bit is the codec's index of the type.
assert TIMESTAMP_TYPES[:2] == (CREATE_TIME, LOG_APPEND_TIME)
# By the id in the attributes; 5 to 7 are unused.
CODEC_NAMES = tuple([codec.name for codec in CODECS])

OFFSET_MIN = -(2**63)
SEQUENCE_COUNT = 2**31
MAX_BYTES_UNCOMPRESSED = 64 << 20
# A CRC runs at 20 GB/s, so this much takes 50 us; releasing the GIL can cost 5 ms when another thread is busy.
CRC_BYTES_WITHOUT_GIL = 1 << 20


class BatchHeader(NamedTuple):
    """The 61 bytes before a batch's records, in order."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


class Batch(Protocol):
    """The interface of every version of a batch: ``RecordBatch`` (version 2) and ``LegacyBatch`` (0 and 1).

    ``size`` is in bytes, including the 12 of the log overhead; ``codec`` a name of CODEC_NAMES; ``crc`` the stored one.
    Offsets are absolute, times ms, and -1 means none, except for ``delete_horizon_ms``, which is then None. Immutable,
    and so thread-safe as long as the underlying buffer does not change.
    """

    @property
    def magic(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> TimestampType: ...
    @property
    def codec(self) -> str: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def delete_horizon_ms(self) -> int | None: ...
    @property
    def record_count(self) -> int: ...
    @property
    def crc(self) -> int: ...
    @property
    def data(self) -> memoryview: ...

    def computed_crc(self) -> int: ...
    def is_valid(self) -> bool: ...
    def ensure_valid(self) -> None: ...
    def records(
        self,
        first_offset: int = OFFSET_MIN,
        stop_offset: int = OFFSET_MAX,
        max_bytes_uncompressed: int = MAX_BYTES_UNCOMPRESSED,
    ) -> Iterator[Record]: ...
    def values(
        self,
        first_offset: int = OFFSET_MIN,
        stop_offset: int = OFFSET_MAX,
        max_bytes_uncompressed: int = MAX_BYTES_UNCOMPRESSED,
    ) -> list[bytes | None]: ...
    def offsets_and_timestamps(
        self,
        first_offset: int = OFFSET_MIN,
        stop_offset: int = OFFSET_MAX,
        max_bytes_uncompressed: int = MAX_BYTES_UNCOMPRESSED,
    ) -> tuple[array[int], array[int]]: ...
    def check(self, max_bytes_uncompressed: int = MAX_BYTES_UNCOMPRESSED) -> RecordsSummary: ...


class RecordBatch:
    """A batch of version 2 in a buffer; created by ``parse_v2``, which checks only the header.

    The bytes under the CRC can be trusted only after ``ensure_valid``. The methods that read records first check all
    records of the batch, whatever window of offsets is requested.
    """

    __slots__ = ("_buffer", "_position", "base_offset", "header", "last_offset", "size")

    magic = MAGIC_V2

    def __init__(self, buffer: Buffer, position: int, header: BatchHeader) -> None:
        self._buffer = buffer
        self._position = position
        self.header: BatchHeader = header
        self.base_offset: int = header[0]
        self.last_offset: int = header[0] + header[6]
        self.size: int = header[1] + LOG_OVERHEAD_BYTES

    def __repr__(self) -> str:
        return f"RecordBatch({self.base_offset}-{self.last_offset}, {self.size} bytes, {self.record_count} records)"

    @property
    def leader_epoch(self) -> int:
        return self.header.leader_epoch

    @property
    def crc(self) -> int:
        return self.header.crc

    @property
    def attributes(self) -> int:
        return self.header.attributes

    @property
    def codec_id(self) -> int:
        return self.header.attributes & ATTRIBUTE_CODEC

    @property
    def codec(self) -> str:
        """The codec's name. Raises UnsupportedCodecError for an unknown id."""
        return self._codec().name

    @property
    def timestamp_type(self) -> TimestampType:
        return LOG_APPEND_TIME if self.header.attributes & ATTRIBUTE_LOG_APPEND_TIME else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.header.attributes & ATTRIBUTE_TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.header.attributes & ATTRIBUTE_CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones and markers in it may be removed (KIP-534), or None."""
        return self.header.base_timestamp if self.header.attributes & ATTRIBUTE_DELETE_HORIZON else None

    @property
    def last_offset_delta(self) -> int:
        return self.header.last_offset_delta

    @property
    def base_timestamp(self) -> int:
        return self.header.base_timestamp

    @property
    def max_timestamp(self) -> int:
        return self.header.max_timestamp

    @property
    def producer_id(self) -> int:
        return self.header.producer_id

    @property
    def producer_epoch(self) -> int:
        return self.header.producer_epoch

    @property
    def base_sequence(self) -> int:
        return self.header.base_sequence

    @property
    def last_sequence(self) -> int:
        """The last record's sequence number, wrapping from 2^31 - 1 to 0; -1 without sequences."""
        base_sequence = self.header.base_sequence
        if base_sequence < 0:
            return base_sequence
        return increment_sequence(base_sequence, self.header.last_offset_delta)

    @property
    def record_count(self) -> int:
        return self.header.record_count

    @property
    def data(self) -> memoryview:
        """The whole batch; shorter than ``size`` if only the header was available to parse."""
        return memoryview(self._buffer)[self._position : self._position + self.size]

    def computed_crc(self) -> int:
        """The CRC-32C of the bytes, to be compared with ``crc``."""
        return batch_crc(memoryview(self._buffer)[self._position + CRC_START : self._position + self.size])

    def is_valid(self) -> bool:
        return self.computed_crc() == self.header.crc

    def ensure_valid(self) -> None:
        """Raises CorruptBatchError unless the stored CRC matches the bytes."""
        ensure_crc(self.computed_crc(), self, self._position, self.base_offset)

    def records(
        self,
        first_offset: int = OFFSET_MIN,
        stop_offset: int = OFFSET_MAX,
        max_bytes_uncompressed: int = MAX_BYTES_UNCOMPRESSED,
    ) -> Iterator[Record]:
        """The records with offsets in [first_offset, stop_offset), also those of a control batch.

        Raises CorruptRecordError, or another CorruptDataError if the batch cannot be decompressed within
        ``max_bytes_uncompressed``, before the iterator exists.
        """
        header = self.header
        return RecordCursor(
            *self.payload(max_bytes_uncompressed),
            header.record_count,
            header.base_offset,
            header.base_timestamp,
            header.last_offset_delta,
            bool(header.attributes & ATTRIBUTE_LOG_APPEND_TIME),
            header.max_timestamp,
            header.leader_epoch,
            first_offset,
            stop_offset,
        )

    def values(
        self,
        first_offset: int = OFFSET_MIN,
        stop_offset: int = OFFSET_MAX,
        max_bytes_uncompressed: int = MAX_BYTES_UNCOMPRESSED,
    ) -> list[bytes | None]:
        """The values of the records with offsets in [first_offset, stop_offset); errors as in ``records``."""
        header = self.header
        return decode_values(
            *self.payload(max_bytes_uncompressed),
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            first_offset,
            stop_offset,
        )

    def offsets_and_timestamps(
        self,
        first_offset: int = OFFSET_MIN,
        stop_offset: int = OFFSET_MAX,
        max_bytes_uncompressed: int = MAX_BYTES_UNCOMPRESSED,
    ) -> tuple[array[int], array[int]]:
        """Two ``array('q')`` over the records with offsets in [first_offset, stop_offset); errors as in ``records``."""
        header = self.header
        return decode_offsets_timestamps(
            *self.payload(max_bytes_uncompressed),
            header.record_count,
            header.base_offset,
            header.base_timestamp,
            header.last_offset_delta,
            bool(header.attributes & ATTRIBUTE_LOG_APPEND_TIME),
            header.max_timestamp,
            first_offset,
            stop_offset,
        )

    def check(self, max_bytes_uncompressed: int = MAX_BYTES_UNCOMPRESSED) -> RecordsSummary:
        """Checks the structure of every record without making objects; errors as in ``records``. Not the CRC.

        The summary's timestamps are the stored ones, even if the timestamp type is LogAppendTime.
        """
        header = self.header
        return check_records(
            *self.payload(max_bytes_uncompressed), header.record_count, header.last_offset_delta, header.base_timestamp
        )

    def _codec(self) -> Codec:
        codec_id = self.header.attributes & ATTRIBUTE_CODEC
        if codec_id >= len(CODECS):
            raise UnsupportedCodecError(f"codec {codec_id}, expected 0 to {len(CODECS) - 1}", position=self._position)
        return CODECS[codec_id]

    def payload(self, max_bytes_uncompressed: int) -> tuple[Buffer, int, int]:
        """The uncompressed records: a buffer, and the positions between which they are in it.

        A batch that counts no records has none, whatever its codec and its bytes: Kafka does not look at them.
        """
        if not self.header.record_count:
            return b"", 0, 0
        start = self._position + BATCH_HEADER_BYTES
        stop = self._position + self.size
        if not self.header.attributes & ATTRIBUTE_CODEC:
            return self._buffer, start, stop
        records = self._codec().decompress(memoryview(self._buffer)[start:stop], max_bytes_uncompressed, MAGIC_V2)
        return records, 0, len(records)


def parse_v2(data: Buffer, position: int = 0, *, header_only: bool = False) -> RecordBatch:
    """The batch of version 2 that starts at byte ``position`` of ``data`` (bytes-like, items of one byte).

    Only the header is read, and checked for values that no writer produces. With ``header_only`` the records need not
    be there. Raises CorruptBatchError, with the position in ``data``.
    """
    size_left = len(data) - position  # type: ignore[arg-type]  # a Buffer of bytes has a length
    if position < 0 or size_left < BATCH_HEADER_BYTES:
        raise CorruptBatchError(
            f"{size_left} bytes, expected the {BATCH_HEADER_BYTES} of a batch header", position=position
        )
    header = BatchHeader._make(BATCH_HEADER.unpack_from(data, position))
    base_offset, last_offset_delta = header[0], header[6]
    size = header[1] + LOG_OVERHEAD_BYTES
    if (
        size < BATCH_HEADER_BYTES
        or base_offset < 0
        or last_offset_delta < 0
        or base_offset + last_offset_delta >= OFFSET_MAX
        or not 0 <= header[12] <= last_offset_delta + 1
        or (size > size_left and not header_only)
    ):
        raise CorruptBatchError(_problem(header, size_left), position=position)
    return RecordBatch(data, position, header)


def _problem(header: BatchHeader, size_left: int) -> str:
    """The check of ``parse_v2`` that a header fails, in words."""
    size = header.batch_length + LOG_OVERHEAD_BYTES
    if size < BATCH_HEADER_BYTES:
        return f"a batch of {size} bytes, expected at least the {BATCH_HEADER_BYTES} of its header"
    if header.base_offset < 0 or header.last_offset_delta < 0:
        return f"base offset {header.base_offset} and last offset delta {header.last_offset_delta}, expected 0 or more"
    if header.base_offset + header.last_offset_delta >= OFFSET_MAX:
        return f"base offset {header.base_offset} + {header.last_offset_delta}, expected less than 2^63 - 1"
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        return f"a record count of {header.record_count}, expected 0 to {header.last_offset_delta + 1}"
    return f"a batch of {size} bytes, expected at most the {size_left} that remain"


def batch_crc(data: memoryview, crc: int = 0) -> int:
    """CRC-32C of ``data``, a batch from its attributes (byte 21); ``crc`` covers the bytes before ``data``."""
    return crc32c(data, crc, 1 if data.nbytes >= CRC_BYTES_WITHOUT_GIL else 0)


def ensure_crc(computed: int, batch: Batch, position: int, first_offset: int) -> None:
    """Raises: CorruptBatchError unless ``computed`` is what the batch stores."""
    if computed != batch.crc:
        raise CorruptBatchError(
            f"bad crc: stored {batch.crc:#010x}, computed {computed:#010x}",
            position=position,
            first_offset=first_offset,
            last_offset=batch.last_offset,
        )


def increment_sequence(sequence: int, by: int) -> int:
    """``sequence`` + ``by``, wrapping from 2^31 - 1 to 0."""
    return (sequence + by) % SEQUENCE_COUNT


def decrement_sequence(sequence: int, by: int) -> int:
    """``sequence`` - ``by``, wrapping from 0 to 2^31 - 1."""
    return (sequence - by) % SEQUENCE_COUNT
