"""The primitives of Kafka's messages, from and to bytes. No I/O here.

fixed       string: int16 length, UTF-8      bytes, array: int32 length or count      -1: null
flexible    lengths and counts are unsigned varints of one more than their value, 0: null
            a structure ends with its tagged fields: count, then tag, size, bytes of each, by increasing tags
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Literal

from kstore.errors import ConfigError, CorruptRecordError

NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}
INT8, INT16, INT32 = NUMBERS["int8"], NUMBERS["int16"], NUMBERS["int32"]
UUID_SIZE = 16
# Kafka writes no longer string, though the length of a flexible one could be larger.
STRING_BYTES_MAX = 2**15 - 1


class MessageError(CorruptRecordError):
    """Bytes that are not the expected message."""


def check_string(name: str, value: object) -> None:
    """Checks a value for a string of a message, before any other work.

    Raises: ConfigError, which names it ``name``.
    """
    data = b""
    if isinstance(value, str):
        with suppress(UnicodeEncodeError):
            data = value.encode("utf-8")
    if not 0 < len(data) <= STRING_BYTES_MAX:
        raise ConfigError(f"{name} is {value!r:.80}, expected text of 1 to {STRING_BYTES_MAX} bytes")


class MessageReader:
    """A position in untrusted bytes: whatever does not fit is a MessageError.

    ``text_errors`` decides about a string that is not UTF-8: "strict" raises, "replace" shows it as Java does.
    ``elements_max`` limits the elements of all arrays, and the tagged fields, together: each costs memory and time.
    """

    def __init__(
        self,
        data: bytes | memoryview,
        *,
        text_errors: Literal["strict", "replace"] = "strict",
        elements_max: int | None = None,
    ) -> None:
        self._data = data
        self._position = 0
        self._text_errors = text_errors
        self._elements_left = elements_max

    @property
    def remaining(self) -> int:
        """The number of remaining bytes."""
        return len(self._data) - self._position

    @property
    def elements_left(self) -> int | None:
        """How many elements the rest may have; None without a limit."""
        return self._elements_left

    def take(self, size: int) -> bytes | memoryview:
        """The next ``size`` bytes, as a slice of what the reader was given."""
        start = self._position
        if not 0 <= size <= len(self._data) - start:
            raise MessageError(f"a length of {size}, expected at most the {self.remaining} bytes that remain")
        self._position = start + size
        return self._data[start : self._position]

    def section(self, size: int) -> MessageReader:
        """A reader of the next ``size`` bytes. ``joined`` takes over what it has counted."""
        return MessageReader(self.take(size), text_errors=self._text_errors, elements_max=self._elements_left)

    def joined(self, section: MessageReader) -> None:
        """Counts the elements of ``section`` here too."""
        self._elements_left = section._elements_left

    def count_elements(self, count: int) -> None:
        """Raises: MessageError if that is more than are left."""
        if self._elements_left is not None:
            if count > self._elements_left:
                raise MessageError(f"{count} elements, expected at most {self._elements_left} more in this message")
            self._elements_left -= max(count, 0)

    def number(self, form: struct.Struct) -> int | float:
        """The next number of a one-field ``form``."""
        start = self._position
        stop = start + form.size
        if stop > len(self._data):
            raise MessageError(f"a length of {form.size}, expected at most the {self.remaining} bytes that remain")
        self._position = stop
        value: int | float = form.unpack_from(self._data, start)[0]
        return value

    def int16(self) -> int:
        return int(self.number(INT16))

    def uvarint(self) -> int:
        """The next unsigned varint of 32 bits."""
        data, at = self._data, self._position
        value = 0
        for shift in range(0, 35, 7):
            if at >= len(data):
                raise MessageError("a length of 1, expected at most the 0 bytes that remain")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._position = at
                return value & 0xFFFFFFFF
        raise MessageError("a varint of more than 5 bytes")

    def length(self, *, is_flexible: bool, form: struct.Struct) -> int:
        """The next length or count, below 0 for null."""
        return self.uvarint() - 1 if is_flexible else int(self.number(form))

    def string(self, *, is_flexible: bool) -> str | None:
        size = self.length(is_flexible=is_flexible, form=INT16)
        if size < 0:
            return None
        try:
            return str(self.take(size), "utf-8", self._text_errors)
        except UnicodeDecodeError as error:
            raise MessageError("a string that is not UTF-8") from error

    def binary(self, *, is_flexible: bool) -> bytes | None:
        size = self.length(is_flexible=is_flexible, form=INT32)
        return None if size < 0 else bytes(self.take(size))

    def records(self, *, is_flexible: bool) -> bytes | memoryview | None:
        """Like ``binary``, without a copy if the reader was given a memoryview."""
        size = self.length(is_flexible=is_flexible, form=INT32)
        return None if size < 0 else self.take(size)


class MessageWriter:
    """Appends primitives to ``data``."""

    def __init__(self) -> None:
        self.data: bytearray = bytearray()

    def number(self, form: struct.Struct, value: object) -> None:
        """Raises: struct.error for a value that ``form`` does not hold."""
        self.data += form.pack(value)

    def uvarint(self, value: int) -> None:
        while value >= 0x80:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def length(self, length: int, *, is_flexible: bool, form: struct.Struct) -> None:
        """A length or count, -1 for null."""
        if is_flexible:
            self.uvarint(length + 1)
        else:
            self.data += form.pack(length)

    def string(self, text: object, *, is_flexible: bool) -> None:
        """Text, or None for null. Raises: ValueError for text that no message can hold."""
        if text is None:
            self.length(-1, is_flexible=is_flexible, form=INT16)
            return
        if not isinstance(text, str):
            raise ValueError(f"{text!r:.80}, expected a str")
        data = text.encode("utf-8")
        if len(data) > STRING_BYTES_MAX:
            raise ValueError(f"a string of {len(data)} bytes, expected at most {STRING_BYTES_MAX}")
        self.length(len(data), is_flexible=is_flexible, form=INT16)
        self.data += data

    def binary(self, data: object, *, is_flexible: bool) -> None:
        """Bytes, or None for null."""
        if data is None:
            self.length(-1, is_flexible=is_flexible, form=INT32)
            return
        if not isinstance(data, bytes | memoryview):
            raise ValueError(f"{data!r:.80}, expected bytes")
        self.length(len(data), is_flexible=is_flexible, form=INT32)
        self.data += data

    def boolean(self, value: object) -> None:
        self.data.append(1 if value else 0)

    def uuid(self, value: object) -> None:
        if not isinstance(value, bytes) or len(value) != UUID_SIZE:
            raise ValueError(f"{value!r:.80}, expected the {UUID_SIZE} bytes of a UUID")
        self.data += value
