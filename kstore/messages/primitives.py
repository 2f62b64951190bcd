"""What the values of Kafka's messages are made of: numbers, the limits of strings, UUIDs. No I/O here."""

from __future__ import annotations

import struct
from base64 import urlsafe_b64encode
from contextlib import suppress

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


class Uuid(bytes):
    """16 bytes that print as Kafka prints them: URL-safe base64 without padding."""

    def __str__(self) -> str:
        return urlsafe_b64encode(self).decode().rstrip("=")


class MessageError(CorruptRecordError):
    """Bytes that are not the expected message."""


class TooManyElementsError(MessageError):
    """A message with more elements than its reader takes."""


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
