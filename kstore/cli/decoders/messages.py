"""Decodes the messages that Kafka generates its serializers for, from schemas that are data. No I/O but the schemas.

A schema file holds messages, each with its fields below it, those of a structure indented once more:

    message OffsetCommitValue key=1 versions=0-4 flexible=4+
        offset int64
        leaderEpoch int32 versions=3+
        metadata string
        topicId uuid versions=4+ tag=0

``versions`` says in which versions a field is there (default all), ``nullable`` in which it may be null, ``tag`` its
number among the tagged fields of a flexible version (KIP-482), ``default`` the value that a tagged one has when absent.
A type may have ``[]`` in front; ``struct`` has its fields below it.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple, TypeAlias

from kstore.errors import CorruptDataError
from kstore.record._codec import decode_varint

__all__ = ["Message", "MessageError", "Reader", "Value", "load_messages"]

Value: TypeAlias = "bool | int | float | str | bytes | Uuid | list[Value] | dict[str, Value] | None"

FOREVER = 2**15 - 1
INDENT = 4


class MessageError(CorruptDataError):
    """Bytes that are not the message they should be."""


class Uuid(bytes):
    """16 bytes that print as Kafka prints them: URL-safe base64 without padding."""

    def __str__(self) -> str:
        return urlsafe_b64encode(self).decode().rstrip("=")


class Versions(NamedTuple):
    """A range of versions, both inclusive."""

    lowest: int
    highest: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.lowest <= version <= self.highest


ALL = Versions(0, FOREVER)
NONE = Versions(1, 0)


class Field(NamedTuple):
    """One field of a message; ``tag`` is None for one that is not tagged, ``fields`` are those of a structure."""

    name: str
    type: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    default: Value
    fields: tuple[Field, ...]


class Message(NamedTuple):
    """The schema of one message; ``key`` is Kafka's number for it, -1 where it has none."""

    name: str
    key: int
    versions: Versions
    flexible: Versions
    fields: tuple[Field, ...]

    def read(self, reader: Reader, version: int) -> dict[str, Value]:
        """The fields of ``version``, in the schema's order, those tagged ones left out that have their default.

        Raises MessageError.
        """
        if version not in self.versions:
            lowest, highest = self.versions
            raise MessageError(f"{self.name} version {version}, expected {lowest} to {highest}")
        return _read_struct(self.fields, reader, version, is_flexible=version in self.flexible)


class Reader:
    """A position in bytes that are not to be trusted: whatever does not fit is a MessageError."""

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
            raise MessageError(f"a length of {size}, expected at most the {self.remaining} bytes that remain")
        start = self._position
        self._position += size
        return self._data[start : self._position]

    def number(self, form: struct.Struct) -> int | float:
        """The next number of a one-field ``form``."""
        value: int | float = form.unpack(self.take(form.size))[0]
        return value

    def int16(self) -> int:
        return int(self.number(NUMBERS["int16"]))

    def uvarint(self) -> int:
        """The next unsigned varint of 32 bits."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFF
        raise MessageError("a varint of more than 5 bytes")

    def varint(self) -> int:
        """The next signed (zigzag) varint."""
        value, self._position = decode_varint(self._data, self._position)
        return value

    def length(self, *, is_flexible: bool, form: struct.Struct) -> int:
        """The next length or count, -1 for null."""
        return self.uvarint() - 1 if is_flexible else int(self.number(form))


@cache
def load_messages(name: str) -> dict[str, Message]:
    """The messages of the schema file ``name``, by their names."""
    text = resources.files(__package__).joinpath("schemas", f"{name}.schema").read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    messages = {}
    at = 0
    while at < len(lines):
        _, message_name, *words = lines[at].split()
        options = dict(word.split("=") for word in words)
        fields, at = _parse_fields(lines, at + 1, INDENT)
        messages[message_name] = Message(
            message_name,
            int(options.get("key", "-1")),
            _parse_versions(options["versions"]),
            _parse_versions(options["flexible"]) if "flexible" in options else NONE,
            fields,
        )
    return messages


NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}


def _read_struct(fields: Sequence[Field], reader: Reader, version: int, *, is_flexible: bool) -> dict[str, Value]:
    there = [field for field in fields if version in field.versions]
    read = {
        field.name: _read_field(field, reader, version, is_flexible=is_flexible) for field in there if field.tag is None
    }
    tagged = dict(_read_tagged(there, reader, version)) if is_flexible else {}
    values: dict[str, Value] = {}
    for field in there:
        if field.tag is None:
            values[field.name] = read[field.name]
        elif field.name in tagged and tagged[field.name] != field.default:
            values[field.name] = tagged[field.name]
    return values


def _read_tagged(fields: Sequence[Field], reader: Reader, version: int) -> Iterator[tuple[str, Value]]:
    by_tag = {field.tag: field for field in fields if field.tag is not None}
    for _ in range(reader.uvarint()):
        tag = reader.uvarint()
        section = reader.take(reader.uvarint())
        if tag in by_tag:
            yield by_tag[tag].name, _read_field(by_tag[tag], Reader(section), version, is_flexible=True)


def _read_field(field: Field, reader: Reader, version: int, *, is_flexible: bool) -> Value:
    if not field.is_array:
        return _read_value(field, reader, version, is_flexible=is_flexible)
    count = reader.length(is_flexible=is_flexible, form=NUMBERS["int32"])
    if count < 0:
        return _null(field, version)
    # Each element takes a byte at least: a hostile count fails before anything is made for it.
    if count > reader.remaining:
        raise MessageError(f"{field.name}: {count} elements, expected at most the {reader.remaining} bytes that remain")
    return [_read_value(field, reader, version, is_flexible=is_flexible, is_element=True) for _ in range(count)]


def _read_value(field: Field, reader: Reader, version: int, *, is_flexible: bool, is_element: bool = False) -> Value:
    if field.type in NUMBERS:
        return reader.number(NUMBERS[field.type])
    if field.type == "struct":
        # A structure that may be null has a byte in front that says whether it is there.
        if not is_element and version in field.nullable and reader.number(NUMBERS["int8"]) < 0:
            return None
        return _read_struct(field.fields, reader, version, is_flexible=is_flexible)
    return READERS[field.type](field, reader, version, is_flexible)


def _read_bool(field: Field, reader: Reader, version: int, is_flexible: bool) -> Value:
    return reader.take(1) != b"\0"


def _read_uuid(field: Field, reader: Reader, version: int, is_flexible: bool) -> Value:
    return Uuid(reader.take(16))


def _read_string(field: Field, reader: Reader, version: int, is_flexible: bool) -> Value:
    size = reader.length(is_flexible=is_flexible, form=NUMBERS["int16"])
    if size < 0:
        return _null(field, version)
    # Kafka's own writers make nothing else than UTF-8.
    return reader.take(size).decode("utf-8", "replace")


def _read_bytes(field: Field, reader: Reader, version: int, is_flexible: bool) -> Value:
    size = reader.length(is_flexible=is_flexible, form=NUMBERS["int32"])
    return _null(field, version) if size < 0 else reader.take(size)


READERS: dict[str, Callable[[Field, Reader, int, bool], Value]] = {
    "bool": _read_bool,
    "uuid": _read_uuid,
    "string": _read_string,
    "bytes": _read_bytes,
}

# What a tagged field has when it is absent and its schema names nothing else.
DEFAULTS: dict[str, Value] = {"bool": False, "uuid": Uuid(16), "string": "", "bytes": b""}


def _null(field: Field, version: int) -> Value:
    if version not in field.nullable:
        raise MessageError(f"{field.name}: null, expected a value")
    return None


def _parse_fields(lines: Sequence[str], at: int, indent: int) -> tuple[tuple[Field, ...], int]:
    fields = []
    while at < len(lines) and lines[at].startswith(" " * indent):
        name, kind, *words = lines[at].split()
        options = dict(word.split("=") for word in words)
        inner, at = _parse_fields(lines, at + 1, indent + INDENT)
        is_array = kind.startswith("[]")
        kind = kind.removeprefix("[]")
        fields.append(
            Field(
                name,
                kind,
                is_array,
                _parse_versions(options.get("versions", "0+")),
                _parse_versions(options["nullable"]) if "nullable" in options else NONE,
                int(options["tag"]) if "tag" in options else None,
                _parse_default(kind, is_array, options.get("default"), inner),
                inner,
            )
        )
    return tuple(fields), at


def _parse_default(kind: str, is_array: bool, text: str | None, fields: Sequence[Field]) -> Value:
    if text == "null":
        return None
    if is_array:
        return []
    if kind == "struct":
        return {field.name: field.default for field in fields if field.tag is None}
    if text is not None:
        return int(text)
    return DEFAULTS.get(kind, 0)


def _parse_versions(text: str) -> Versions:
    if text.endswith("+"):
        return Versions(int(text[:-1]), FOREVER)
    lowest, _, highest = text.partition("-")
    return Versions(int(lowest), int(highest or lowest))
