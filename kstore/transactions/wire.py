"""The primitives of Kafka's messages, to and from bytes. No I/O here.

fixed       string: int16 length, UTF-8      array: int32 count      -1: null
flexible    lengths and counts are unsigned varints of one more than they say, 0: null
            a structure ends with its tagged fields: count, then tag, size, bytes of each, by rising tags
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress

from kstore.errors import ConfigError, CorruptRecordError

__all__ = ["Reader", "check_string", "compact_length", "compact_string", "string", "tagged_fields", "uvarint"]

INT8, INT16, INT32, INT64 = (struct.Struct(form) for form in (">b", ">h", ">i", ">q"))
STRING_BYTES_MAX = 2**15 - 1


def check_string(name: str, value: object) -> None:
    """Checks a value that ends up in a field of ``string``, before anything is done with it.

    Raises: ConfigError, which calls it ``name``.
    """
    data = b""
    if isinstance(value, str):
        with suppress(UnicodeEncodeError):
            data = value.encode("utf-8")
    if not 0 < len(data) <= STRING_BYTES_MAX:
        raise ConfigError(f"{name} is {value!r:.80}, expected text of 1 to {STRING_BYTES_MAX} bytes")


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str) -> bytes:
    """A string of a message that is not flexible. Raises: ValueError for one that has no such bytes."""
    data = text.encode("utf-8")
    if len(data) > STRING_BYTES_MAX:
        raise ValueError(f"a string of {len(data)} bytes, expected at most {STRING_BYTES_MAX}")
    return INT16.pack(len(data)) + data


def compact_length(count: int) -> bytes:
    """The length of a string, or the count of an array, of a flexible message."""
    return uvarint(count + 1)


def compact_string(text: str) -> bytes:
    data = text.encode("utf-8")
    return compact_length(len(data)) + data


def tagged_fields(fields: Mapping[int, bytes]) -> bytes:
    """The end of a flexible structure: its tagged fields that have another value than their default."""
    sections = [uvarint(tag) + uvarint(len(data)) + data for tag, data in sorted(fields.items())]
    return uvarint(len(sections)) + b"".join(sections)


class Reader:
    """A position in bytes that are not to be trusted: whatever does not fit is a CorruptRecordError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def remaining(self) -> int:
        """Bytes that are left."""
        return len(self._data) - self._position

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        if not 0 <= size <= self.remaining:
            raise CorruptRecordError(f"a length of {size}, expected at most the {self.remaining} bytes that remain")
        start = self._position
        self._position += size
        return self._data[start : self._position]

    def _number(self, form: struct.Struct) -> int:
        value: int = form.unpack(self.take(form.size))[0]
        return value

    def int8(self) -> int:
        return self._number(INT8)

    def int16(self) -> int:
        return self._number(INT16)

    def int32(self) -> int:
        return self._number(INT32)

    def int64(self) -> int:
        return self._number(INT64)

    def uvarint(self) -> int:
        """The next unsigned varint of 32 bits."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFF
        raise CorruptRecordError("a varint of more than 5 bytes")

    def count(self, *, is_flexible: bool) -> int:
        """The next count of an array, -1 for null; each element takes a byte at least."""
        count = self.uvarint() - 1 if is_flexible else self.int32()
        if not -1 <= count <= self.remaining:
            raise CorruptRecordError(f"{count} elements, expected at most the {self.remaining} bytes that remain")
        return count

    def string(self, *, is_flexible: bool = False) -> str:
        """The next string, which must not be null."""
        data = self.take(self.uvarint() - 1 if is_flexible else self.int16())
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorruptRecordError("a string that is not UTF-8") from error

    def tagged(self) -> dict[int, bytes]:
        """The tagged fields, by tag."""
        fields = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            fields[tag] = self.take(self.uvarint())
        return fields
