"""Message sets of versions 0 and 1: a read-only view over one entry. No I/O here.

    at  size  field                   of the entry
     0     8  offset          int64   of the message; of a wrapper: of its last inner message
     8     4  size            int32   bytes that follow this field
    12     4  crc            uint32   CRC-32 (zlib) of byte 16 to the end
    16     1  magic            int8   0 or 1
    17     1  attributes       int8   bits 0-2 codec; version 1: bit 3 timestamp type
   (18     8  timestamp       int64   version 1 only; ms, -1 none)
     .     4  key length      int32   -1 null; then the key
     .     4  value length    int32   -1 null; then the value

A message whose attributes name a codec is a *wrapper*: its value is a compressed sequence of uncompressed entries. In a
wrapper of version 0 they carry absolute offsets; in version 1 they are relative to a base that gives the last one the
wrapper's offset (0 from an old producer: the base is then 0). An entry that is cut off ends the sequence, as in Kafka.

The wrapper's version decides about offsets, each entry's own about its fields: brokers of 0.10 put messages of version
0 into wrappers of version 1 when they compacted older topics (KAFKA-4298). Those have no timestamp in any wrapper.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from kstore.errors import CorruptBatchError, CorruptDataError, CorruptRecordError, UnsupportedCodecError
from kstore.record._codec import Record, RecordsSummary
from kstore.record.batch import CODEC_NAMES, LOG_OVERHEAD_BYTES, MAX_BYTES_UNCOMPRESSED, OFFSET_MIN, ensure_crc
from kstore.types import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP, NO_TIMESTAMP_TYPE, OFFSET_MAX, TimestampType

if TYPE_CHECKING:
    from typing_extensions import Buffer

PREFIX = struct.Struct(">qiIbb")
PREFIX_BYTES = 18
CRC_START = 16
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")
# By version: the entry without key and value.
SIZE_MIN = (LOG_OVERHEAD_BYTES + 14, LOG_OVERHEAD_BYTES + 22)
KEY_POSITION = (18, 26)
CODEC_MASK = 0x07
LOG_APPEND_TIME_MASK = 0x08
assert PREFIX.size == PREFIX_BYTES


class LegacyMessage(NamedTuple):
    """One message: a plain entry's, or one in a wrapper. ``offset`` is absolute, ``timestamp`` ms."""

    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    magic: int


class LegacyBatch:
    """One entry of version 0 or 1, with the interface of ``Batch``; created by ``parse_legacy``.

    A wrapper is decompressed each time its records or its ``base_offset`` are needed.
    """

    __slots__ = ("_buffer", "_position", "attributes", "crc", "last_offset", "magic", "size")

    producer_id = -1
    producer_epoch = -1
    base_sequence = -1
    last_sequence = -1
    leader_epoch = -1
    is_transactional = False
    is_control = False
    delete_horizon_ms: int | None = None

    def __init__(self, buffer: Buffer, position: int, offset: int, size: int, crc: int, magic: int, attributes: int):
        self._buffer = buffer
        self._position = position
        self.last_offset: int = offset
        self.size: int = size
        self.crc: int = crc
        self.magic: int = magic
        self.attributes: int = attributes

    def __repr__(self) -> str:
        return f"LegacyBatch(magic {self.magic}, last offset {self.last_offset}, {self.size} bytes)"

    @property
    def is_wrapper(self) -> bool:
        return bool(self.attributes & CODEC_MASK)

    @property
    def base_offset(self) -> int:
        """The first message's offset; for a wrapper that cannot be decompressed, the last, the only known one."""
        if not self.is_wrapper:
            return self.last_offset
        try:
            # A wrapper of offset 0 takes its messages' offsets; still, none of them can start after its end.
            return min(self._messages(MAX_BYTES_UNCOMPRESSED)[0].offset, self.last_offset)
        except CorruptDataError:
            return self.last_offset

    @property
    def codec(self) -> str:
        codec_id = self.attributes & CODEC_MASK
        if codec_id >= len(CODEC_NAMES) - 1:
            raise UnsupportedCodecError(
                f"codec {codec_id} in version {self.magic}, expected 0 to 3", position=self._position
            )
        return CODEC_NAMES[codec_id]

    @property
    def timestamp_type(self) -> TimestampType:
        if self.magic == 0:
            return NO_TIMESTAMP_TYPE
        return LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_MASK else CREATE_TIME

    @property
    def max_timestamp(self) -> int:
        """The message's timestamp; a wrapper has the greatest of its messages'."""
        if self.magic == 0:
            return NO_TIMESTAMP
        return int(INT64.unpack_from(memoryview(self._buffer), self._position + PREFIX_BYTES)[0])

    @property
    def record_count(self) -> int:
        """The number of messages; 0 in a wrapper that cannot be decompressed."""
        try:
            return len(self._messages(MAX_BYTES_UNCOMPRESSED)) if self.is_wrapper else 1
        except CorruptDataError:
            return 0

    @property
    def data(self) -> memoryview:
        return memoryview(self._buffer)[self._position : self._position + self.size]

    def computed_crc(self) -> int:
        """The CRC-32 of the bytes, to be compared with ``crc``."""
        return zlib.crc32(self.data[CRC_START:])

    def is_valid(self) -> bool:
        return self.computed_crc() == self.crc

    def ensure_valid(self) -> None:
        """Raises CorruptBatchError unless the stored CRC matches the bytes."""
        ensure_crc(self.computed_crc(), self, self._position, self.last_offset)

    def records(
        self,
        first_offset: int = OFFSET_MIN,
        stop_offset: int = OFFSET_MAX,
        max_bytes_uncompressed: int = MAX_BYTES_UNCOMPRESSED,
    ) -> Iterator[Record]:
        """The records with offsets in [first_offset, stop_offset), all checked before the iterator exists."""
        return iter(
            [
                Record(*message[:-1])
                for message in self._messages(max_bytes_uncompressed)
                if first_offset <= message.offset < stop_offset
            ]
        )

    def values(
        self,
        first_offset: int = OFFSET_MIN,
        stop_offset: int = OFFSET_MAX,
        max_bytes_uncompressed: int = MAX_BYTES_UNCOMPRESSED,
    ) -> list[bytes | None]:
        messages = self._messages(max_bytes_uncompressed)
        return [message.value for message in messages if first_offset <= message.offset < stop_offset]

    def offsets_and_timestamps(
        self,
        first_offset: int = OFFSET_MIN,
        stop_offset: int = OFFSET_MAX,
        max_bytes_uncompressed: int = MAX_BYTES_UNCOMPRESSED,
    ) -> tuple[array[int], array[int]]:
        found = [m for m in self._messages(max_bytes_uncompressed) if first_offset <= m.offset < stop_offset]
        return array("q", [m.offset for m in found]), array("q", [m.timestamp for m in found])

    def check(self, max_bytes_uncompressed: int = MAX_BYTES_UNCOMPRESSED) -> RecordsSummary:
        """Checks the structure of every message, and the CRCs of inner ones."""
        messages = self._messages(max_bytes_uncompressed)
        base = messages[0].offset
        latest = max(messages, key=lambda message: message.timestamp)
        return RecordsSummary(
            0,
            messages[-1].offset - base,
            latest.timestamp,
            latest.offset - base,
            min(message.timestamp for message in messages),
            sum(message.key is None for message in messages),
        )

    def ensure_one_version(self, max_bytes_uncompressed: int) -> None:
        """Raises: CorruptRecordError if a wrapper has a message of another version, which a broker refuses."""
        for message in self._messages(max_bytes_uncompressed):
            if message.magic != self.magic:
                raise CorruptRecordError(
                    f"inner message of version {message.magic} in a wrapper of version {self.magic}",
                    position=self._position,
                )

    def _messages(self, size_max: int) -> list[LegacyMessage]:
        key, value = _fields(self.data, self.magic, self._position)
        if not self.is_wrapper:
            return [LegacyMessage(self.last_offset, self.max_timestamp, self.timestamp_type, key, value, self.magic)]
        if not value:
            raise CorruptRecordError("a compressed message without a value", position=self._position)
        # Not at the top: only a wrapper needs the codecs' libraries.
        from kstore.record.compression import CODECS_BY_NAME

        inner = CODECS_BY_NAME[self.codec].decompress(value, size_max, self.magic)
        return self._absolute(self._inner(memoryview(inner)))

    def _inner(self, data: memoryview) -> list[LegacyMessage]:
        messages: list[LegacyMessage] = []
        at = 0
        while not _is_cut(data, at):
            try:
                entry = parse_legacy(data, at)
                entry.ensure_valid()
            except CorruptBatchError as error:
                raise CorruptRecordError(f"inner message {len(messages)}: {error.reason}", position=at) from None
            if entry.is_wrapper:
                raise CorruptRecordError("a compressed message within a compressed one", position=at)
            key, value = _fields(entry.data, entry.magic, at)
            timestamp, timestamp_type = entry.max_timestamp, entry.timestamp_type
            if entry.magic:
                # The type is the wrapper's, and so is the time if the log set it.
                timestamp_type = self.timestamp_type
                if timestamp_type == LOG_APPEND_TIME:
                    timestamp = self.max_timestamp
            messages.append(LegacyMessage(entry.last_offset, timestamp, timestamp_type, key, value, entry.magic))
            at += entry.size
        if not messages:
            raise CorruptRecordError("a compressed message without messages", position=self._position)
        if any(one.offset >= other.offset for one, other in pairwise(messages)):
            raise CorruptRecordError("inner offsets that do not increase", position=self._position)
        return messages

    def _absolute(self, messages: list[LegacyMessage]) -> list[LegacyMessage]:
        last = messages[-1].offset
        if self.last_offset < last and self.last_offset != 0:
            raise CorruptRecordError(
                f"a wrapper offset of {self.last_offset}, expected at least the last inner one, {last}",
                position=self._position,
            )
        if self.magic == 0:
            if self.last_offset not in (0, last):
                raise CorruptRecordError(
                    f"a wrapper offset of {self.last_offset}, expected the last inner one, {last}",
                    position=self._position,
                )
            return messages
        base = self.last_offset - last if self.last_offset else 0
        return [message._replace(offset=base + message.offset) for message in messages]


def _is_cut(data: memoryview, at: int) -> bool:
    """Whether the inner entry at ``at`` does not end in ``data``: Kafka ends there too (DataLogInputStream)."""
    if data.nbytes - at < LOG_OVERHEAD_BYTES:
        return True
    (size,) = INT32.unpack_from(data, at + 8)
    return bool(size >= SIZE_MIN[0] - LOG_OVERHEAD_BYTES and size > data.nbytes - at - LOG_OVERHEAD_BYTES)


def _fields(entry: memoryview, magic: int, position: int) -> tuple[bytes | None, bytes | None]:
    """Key and value of a whole entry."""
    fields: list[bytes | None] = []
    at = KEY_POSITION[magic]
    for name in ("key", "value"):
        left = entry.nbytes - at - INT32.size
        if left < 0:
            raise CorruptRecordError(f"{left + INT32.size} bytes, expected the 4 of a {name} length", position=position)
        (size,) = INT32.unpack_from(entry, at)
        at += INT32.size
        if size > left:
            raise CorruptRecordError(
                f"a {name} of {size} bytes, expected at most the {left} that remain", position=position
            )
        fields.append(None if size < 0 else bytes(entry[at : at + size]))
        at += max(size, 0)
    if at != entry.nbytes:
        raise CorruptRecordError(f"{entry.nbytes - at} bytes after the value", position=position)
    return fields[0], fields[1]


def parse_legacy(data: Buffer, position: int = 0, *, header_only: bool = False) -> LegacyBatch:
    """The entry of version 0 or 1 that starts at byte ``position`` of ``data``.

    Only its header is read; with ``header_only`` the bytes after it need not be there. Raises CorruptBatchError.
    """
    view = memoryview(data)
    left = view.nbytes - position
    if left < PREFIX_BYTES:
        raise CorruptBatchError(f"{left} bytes, expected the {PREFIX_BYTES} of a message's header", position=position)
    offset, size, crc, magic, attributes = PREFIX.unpack_from(view, position)
    size += LOG_OVERHEAD_BYTES
    if magic not in (0, 1):
        raise CorruptBatchError(f"magic {magic}, expected 0 or 1", position=position)
    if size < SIZE_MIN[magic]:
        raise CorruptBatchError(f"a message of {size} bytes, expected at least {SIZE_MIN[magic]}", position=position)
    if offset < 0 or offset >= OFFSET_MAX:
        raise CorruptBatchError(f"offset {offset}, expected 0 to 2^63 - 2", position=position)
    if size > left and not header_only:
        raise CorruptBatchError(
            f"a message of {size} bytes, expected at most the {left} that remain", position=position
        )
    if header_only and left < SIZE_MIN[magic]:
        raise CorruptBatchError(
            f"{left} bytes, expected the {SIZE_MIN[magic]} of a message's fields", position=position
        )
    return LegacyBatch(data, position, offset, size, crc, magic, attributes)


def has_size_of_fields(read: Callable[[int, int], Buffer], position: int, *, magic: int, size: int) -> bool:
    """Whether an entry of ``size`` bytes matches its key and value, whose lengths ``read`` finds in the file.

    ``read`` takes a size and a position. This checks an entry without reading its bytes, however large it is.
    """
    at, stop = position + KEY_POSITION[magic], position + size
    for _ in range(2):
        field = read(INT32.size, at) if at + INT32.size <= stop else b""
        if len(memoryview(field)) != INT32.size:
            return False
        (length,) = INT32.unpack(field)
        if length < -1:
            return False
        at += INT32.size + max(length, 0)
    return at == stop
