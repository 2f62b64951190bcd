"""Reads the entries of a .log as batches of any version, with everything the dump shows of them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from kstore.cli.dump.entries import RECORD_OVERHEAD_V0, Entry
from kstore.errors import CorruptBatchError, CorruptRecordError, UnsupportedCodecError, UnsupportedFormatError
from kstore.files.fs import File
from kstore.record._codec import Record, decode_varint, decode_varlong
from kstore.record.batch import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CODEC_NAMES,
    CRC_START,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    MAX_BYTES_UNCOMPRESSED,
    BatchHeader,
    RecordBatch,
    batch_crc,
)
from kstore.record.crc import crc32c
from kstore.types import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP, NO_TIMESTAMP_TYPE, TimestampType

# offset, size, crc, magic, attributes
LEGACY_PREFIX = struct.Struct(">qiIbb")
LEGACY_OFFSET_AND_SIZE = struct.Struct(">qi")
# The checksum covers all from the magic on.
LEGACY_CRC_START = LEGACY_MAGIC_POSITION = 16
LEGACY_ATTRIBUTES_POSITION = 17
INT64 = struct.Struct(">q")
INT32 = struct.Struct(">i")
RECORD_OVERHEAD_V1 = 22
CRC_CHUNK_BYTES = 1 << 20
SEQUENCE_MAX = (1 << 31) - 1


class Message(NamedTuple):
    """A record of an old format with its own checksum, and the stored sizes of its fields.

    ``problem`` says why a field is impossible; the record has None in its place.
    """

    record: Record
    key_size: int
    value_size: int
    is_valid: bool
    crc: int
    problem: str | None


class V2DumpBatch:
    """A batch of version 2, or of a later one, which Kafka's tools treat as version 2."""

    __slots__ = ("_file", "entry", "header", "last_offset")

    def __init__(self, entry: Entry, file: File) -> None:
        if entry.size < BATCH_HEADER_BYTES:
            raise CorruptBatchError(
                f"a batch of {entry.size} bytes, expected at least the {BATCH_HEADER_BYTES} of its header",
                position=entry.position,
            )
        self.entry = entry
        self._file = file
        self.header = BatchHeader._make(BATCH_HEADER.unpack_from(entry.data, entry.at))
        self.last_offset = entry.offset + self.header.last_offset_delta

    @property
    def base_offset(self) -> int:
        return self.entry.offset

    @property
    def timestamp_type(self) -> TimestampType:
        return LOG_APPEND_TIME if self.header.attributes & ATTRIBUTE_LOG_APPEND_TIME else CREATE_TIME

    @property
    def max_timestamp(self) -> int:
        return self.header.max_timestamp

    @property
    def codec(self) -> str:
        """Raises UnsupportedCodecError."""
        return _codec_name(self.header.attributes, self.entry.position)

    @property
    def crc(self) -> int:
        return self.header.crc

    @property
    def is_control(self) -> bool:
        return bool(self.header.attributes & ATTRIBUTE_CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.header.attributes & ATTRIBUTE_TRANSACTIONAL)

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.header.base_timestamp if self.header.attributes & ATTRIBUTE_DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        base_sequence = self.header.base_sequence
        return -1 if base_sequence == -1 else increment(base_sequence, self.header.last_offset_delta)

    def sequence(self, offset: int) -> int:
        """The sequence number of the record at ``offset``, -1 in a batch without sequences."""
        base_sequence = self.header.base_sequence
        return -1 if base_sequence < 0 else increment(base_sequence, offset - self.entry.offset)

    def computed_crc(self) -> int:
        entry = self.entry
        if entry.is_whole:
            return batch_crc(memoryview(entry.data)[entry.at + CRC_START : entry.at + entry.size])
        crc = 0
        for chunk in _chunks(self._file, entry.position + CRC_START, entry.position + entry.size):
            crc = crc32c(chunk, crc)
        return crc

    def records(self) -> Iterator[Record]:
        """The records; all of them are checked before the first is yielded.

        Raises CorruptDataError; ``salvaged_records`` then yields those before the damage.
        """
        _ensure_whole(self.entry)
        return RecordBatch(self.entry.data, self.entry.at, self.header).records()

    def salvaged_records(self) -> Iterator[Record]:
        """The records one by one, up to one that cannot be read: then raises CorruptDataError.

        Checks only their structure: Kafka's tool shows any offset and any header name.
        """
        entry, header = self.entry, self.header
        _ensure_whole(entry)
        if header.record_count < 0:
            raise CorruptRecordError(f"{header.record_count} records, expected 0 or more")
        if header.record_count == 0:
            return
        data, position = entry.data, entry.at + BATCH_HEADER_BYTES
        stop = entry.at + entry.size
        if header.attributes & ATTRIBUTE_CODEC:
            data, position = _decompressed(self.codec, memoryview(data)[position:stop], MAGIC_V2), 0
            stop = len(data)
        for index in range(header.record_count):
            if position >= stop:
                raise CorruptRecordError(f"{index} records, expected {header.record_count}")
            try:
                record, position = self._salvage(data, position, stop)
            except (ValueError, IndexError) as error:
                raise CorruptRecordError(f"record {index} cannot be read: {error}") from error
            yield record
        if position < stop:
            raise CorruptRecordError(f"{stop - position} bytes after the last of {header.record_count} records")

    def _salvage(self, data: bytes, position: int, stop: int) -> tuple[Record, int]:
        size, position = decode_varint(data, position)
        end = position + size
        if not position < end <= stop:
            raise ValueError(f"a length of {size}, expected 1 to {stop - position}")
        timestamp_delta, position = decode_varlong(data, position + 1)
        offset_delta, position = decode_varint(data, position)
        key, position = _field(data, position, end)
        value, position = _field(data, position, end)
        count, position = decode_varint(data, position)
        if not 0 <= count <= end - position:
            raise ValueError(f"{count} headers, expected 0 to {end - position}")
        headers = []
        for _ in range(count):
            name, position = _field(data, position, end)
            header_value, position = _field(data, position, end)
            if name is None:
                raise ValueError("a header without a name")
            headers.append((name, header_value))
        if position != end:
            raise ValueError(f"{end - position} bytes more than its fields need")
        header = self.header
        append_time = header.attributes & ATTRIBUTE_LOG_APPEND_TIME
        record = Record(
            header.base_offset + offset_delta,
            header.max_timestamp if append_time else header.base_timestamp + timestamp_delta,
            self.timestamp_type,
            key,
            value,
            tuple(headers),
            header.leader_epoch,
        )
        return record, end


class LegacyDumpBatch:
    """A message of version 0 or 1, plain or around a compressed set of others.

    A magic of 128 or more counts as one too: Kafka's tools read it as a negative number.
    """

    __slots__ = ("_file", "attributes", "crc", "entry")

    # Control batches came with version 2.
    is_control = False

    def __init__(self, entry: Entry, file: File) -> None:
        overhead = LOG_OVERHEAD_BYTES + _overhead(entry.magic)
        if entry.size < overhead:
            raise CorruptBatchError(
                f"a message of {entry.size} bytes, expected at least {overhead}", position=entry.position
            )
        self.entry = entry
        self._file = file
        _, _, self.crc, _, self.attributes = LEGACY_PREFIX.unpack_from(entry.data, entry.at)

    @property
    def last_offset(self) -> int:
        return self.entry.offset

    @property
    def timestamp_type(self) -> TimestampType:
        """Raises UnsupportedFormatError for an unknown magic."""
        if self.entry.magic < 0:
            found = self.entry.magic & 0xFF
            raise UnsupportedFormatError(f"magic {found}, expected 0 to {MAGIC_V2}", position=self.entry.position)
        if self.entry.magic == 0:
            return NO_TIMESTAMP_TYPE
        return LOG_APPEND_TIME if self.attributes & ATTRIBUTE_LOG_APPEND_TIME else CREATE_TIME

    @property
    def max_timestamp(self) -> int:
        entry = self.entry
        if entry.magic == 0:
            return NO_TIMESTAMP
        timestamp: int = INT64.unpack_from(entry.data, entry.at + LEGACY_PREFIX.size)[0]
        return timestamp

    @property
    def codec(self) -> str:
        """Raises UnsupportedCodecError."""
        return _codec_name(self.attributes, self.entry.position)

    def computed_crc(self) -> int:
        entry = self.entry
        if entry.is_whole:
            return zlib.crc32(memoryview(entry.data)[entry.at + LEGACY_CRC_START : entry.at + entry.size])
        crc = 0
        for chunk in _chunks(self._file, entry.position + LEGACY_CRC_START, entry.position + entry.size):
            crc = zlib.crc32(chunk, crc)
        return crc

    def messages(self) -> Iterator[Message]:
        """The message itself, or the messages in it. Raises CorruptDataError after yielding those before the damage."""
        entry = self.entry
        _ensure_whole(entry)
        data = entry.data[entry.at : entry.at + entry.size]
        if not self.attributes & ATTRIBUTE_CODEC:
            yield _message(data, 0, entry.size, entry.offset, self)
            return
        wrapper = _message(data, 0, entry.size, entry.offset, self)
        if not wrapper.record.value:
            raise CorruptRecordError(wrapper.problem or "a compressed message without a value")
        inner = _decompressed(self.codec, memoryview(wrapper.record.value), entry.magic)
        entries = _inner_entries(inner)
        if not entries:
            raise CorruptRecordError("a compressed message with nothing in it")
        # Version 0 has absolute offsets inside, version 1 relative ones, of which the last is the wrapper's offset.
        # Old clients wrote a wrapper offset of 0 (KAFKA-3189), which stands for a base offset of 0.
        base_offset = 0
        if entry.magic > 0 and entry.offset:
            base_offset = entry.offset - entries[-1][2]
            if base_offset < 0:
                raise CorruptRecordError(f"a message of offset {entry.offset}, expected at least {entries[-1][2]}")
        for position, size, offset in entries:
            if inner[position + LEGACY_ATTRIBUTES_POSITION] & ATTRIBUTE_CODEC:
                raise CorruptRecordError("a compressed message within a compressed one")
            yield _message(inner, position, size, base_offset + offset, self)


DumpBatch = V2DumpBatch | LegacyDumpBatch


def read_batch(entry: Entry, file: File) -> DumpBatch:
    """The batch at an entry. Raises CorruptBatchError if its header is impossible."""
    if entry.magic >= MAGIC_V2:
        return V2DumpBatch(entry, file)
    return LegacyDumpBatch(entry, file)


def increment(sequence: int, by: int) -> int:
    """``sequence`` + ``by``, wrapping from 2^31 - 1 to 0; damaged ones follow Java's 32-bit arithmetic."""
    if sequence > _int32(SEQUENCE_MAX - by):
        return _int32(by - _int32(SEQUENCE_MAX - sequence) - 1)
    return _int32(sequence + by)


def _int32(number: int) -> int:
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _overhead(magic: int) -> int:
    return RECORD_OVERHEAD_V1 if magic == 1 else RECORD_OVERHEAD_V0


def _codec_name(attributes: int, position: int) -> str:
    codec_id = attributes & ATTRIBUTE_CODEC
    if codec_id >= len(CODEC_NAMES):
        raise UnsupportedCodecError(f"codec {codec_id}, expected 0 to {len(CODEC_NAMES) - 1}", position=position)
    return CODEC_NAMES[codec_id]


def _ensure_whole(entry: Entry) -> None:
    if not entry.is_whole:
        raise CorruptBatchError(
            f"a batch of {entry.size} bytes, expected at most {MAX_BYTES_UNCOMPRESSED}: its records are not read",
            position=entry.position,
        )


def _decompressed(codec: str, data: memoryview, magic: int) -> bytes:
    # Not at the top: only a dump that meets a compressed batch loads the libraries.
    from kstore.record.compression import CODECS_BY_NAME

    return CODECS_BY_NAME[codec].decompress(data, MAX_BYTES_UNCOMPRESSED, magic)


def _chunks(file: File, position: int, stop: int) -> Iterator[bytes]:
    while position < stop:
        chunk = file.pread(min(CRC_CHUNK_BYTES, stop - position), position)
        if not chunk:
            return
        yield chunk
        position += len(chunk)


def _field(data: bytes, position: int, stop: int) -> tuple[bytes | None, int]:
    """A field after its varint length; any negative length is null."""
    size, position = decode_varint(data, position)
    if size < 0:
        return None, position
    if size > stop - position:
        raise ValueError(f"a field of {size} bytes, expected at most {stop - position}")
    return data[position : position + size], position + size


def _inner_entries(data: bytes) -> list[tuple[int, int, int]]:
    """Position, size and offset of the messages in an uncompressed set; an incomplete rest is ignored."""
    entries = []
    position = 0
    while len(data) - position >= LOG_OVERHEAD_BYTES:
        offset, size = LEGACY_OFFSET_AND_SIZE.unpack_from(data, position)
        is_whole = size <= len(data) - position - LOG_OVERHEAD_BYTES
        # Its own version decides: a wrapper of version 1 may hold messages of version 0 (KAFKA-4298).
        magic = data[position + LEGACY_MAGIC_POSITION] if is_whole and size >= RECORD_OVERHEAD_V0 else 0
        if size < _overhead(magic) or magic >= MAGIC_V2:
            raise CorruptRecordError(f"a message of magic {magic} with {size} bytes within a compressed one")
        if not is_whole:
            break
        size += LOG_OVERHEAD_BYTES
        entries.append((position, size, offset))
        position += size
    return entries


def _message(data: bytes, position: int, size: int, offset: int, batch: LegacyDumpBatch) -> Message:
    """The message in ``size`` bytes from ``position``, with the timestamp that ``batch`` gives it."""
    _, _, crc, magic, _ = LEGACY_PREFIX.unpack_from(data, position)
    stop = position + size
    at = position + LEGACY_PREFIX.size
    timestamp, timestamp_type = NO_TIMESTAMP, NO_TIMESTAMP_TYPE
    if magic:
        timestamp, timestamp_type = INT64.unpack_from(data, at)[0], batch.timestamp_type
        at += INT64.size
        if timestamp_type == LOG_APPEND_TIME:
            timestamp = batch.max_timestamp
    key_size, key, key_problem = _sized(data, at, stop)
    at += INT32.size + max(key_size, 0)
    value_size, value, value_problem = _sized(data, at, stop)
    computed = zlib.crc32(memoryview(data)[position + LEGACY_CRC_START : stop])
    return Message(
        Record(offset, timestamp, timestamp_type, key, value),
        key_size,
        value_size,
        computed == crc,
        crc,
        key_problem or value_problem,
    )


def _sized(data: bytes, position: int, stop: int) -> tuple[int, bytes | None, str | None]:
    """The size, content and problem of a field after its int32 length; any negative length is null."""
    if stop - position < INT32.size:
        return -1, None, f"a message that ends {INT32.size - (stop - position)} bytes early"
    size: int = INT32.unpack_from(data, position)[0]
    position += INT32.size
    if size > stop - position:
        return size, None, f"a field of {size} bytes, expected at most {stop - position}"
    return size, None if size < 0 else data[position : position + size], None
