"""Reads and writes the messages for which Kafka generates serializers, from schemas. No I/O but the schemas.

A schema file holds messages with their fields below them; a structure's fields are indented once more:

    message OffsetCommitValue key=1 versions=0-4 flexible=4+
        offset int64
        leaderEpoch int32 versions=3+
        metadata string
        topicId uuid versions=4+ tag=0

``versions`` lists the versions that have the field (default all), ``nullable`` those in which it may be null, ``tag``
its number among the tagged fields of a flexible version (KIP-482), ``default`` the value of an absent field. A type may
start with ``[]``; ``struct`` has its fields below it; ``records`` are bytes that are not copied when they are read.

A ``message`` is stored: to write it, all fields of its version must be there. A ``request`` or a ``response`` goes over
a connection, in whatever version the other side speaks, so one dict serves all versions: every field is there when it
is read, and one that is missing when it is written takes its default.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple, TypeAlias

from kstore.messages.primitives import INT8, INT32, NUMBERS, UUID_SIZE, MessageError, MessageReader, MessageWriter

Value: TypeAlias = "bool | int | float | str | bytes | memoryview | Uuid | list[Value] | dict[str, Value] | None"
Read: TypeAlias = Callable[[MessageReader], Value]
Write: TypeAlias = Callable[[MessageWriter, object], None]

FOREVER = 2**15 - 1
INDENT = 4


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


NONE = Versions(1, 0)


class Field(NamedTuple):
    """One field of a message; ``tag`` is None for an untagged one, ``fields`` are those of a structure."""

    name: str
    type: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    default: Value
    fields: tuple[Field, ...]


class Form(NamedTuple):
    """How structures are read and written: in which version, and whether absent fields take their defaults."""

    version: int
    is_flexible: bool
    fills_in: bool


class Message:
    """The schema of one message; ``key`` is Kafka's number for it, -1 if it has none. Thread-safe.

    ``fills_in``: it is a request or a response.
    """

    def __init__(
        self,
        name: str,
        key: int,
        versions: Versions,
        flexible: Versions,
        fields: tuple[Field, ...],
        *,
        fills_in: bool = False,
    ) -> None:
        self.name = name
        self.key = key
        self.versions = versions
        self.flexible = flexible
        self.fields = fields
        self.fills_in = fills_in
        # By version, each created on first use.
        self._readers: dict[int, Read] = {}
        self._writers: dict[int, Write] = {}

    def read(self, reader: MessageReader, version: int) -> dict[str, Value]:
        """The fields of ``version``, in the schema's order, without tagged ones that have their default; of a request
        or a response, all fields of all versions.

        Raises MessageError.
        """
        read = self._readers.get(version)
        if read is None:
            if version not in self.versions:
                lowest, highest = self.versions
                raise MessageError(f"{self.name} version {version}, expected {lowest} to {highest}")
            read = self._readers[version] = _struct_reader(self.fields, self._form(version))
        values = read(reader)
        assert isinstance(values, dict)
        return values

    def write(self, values: Mapping[str, object], version: int) -> bytes:
        """The bytes of a message of ``version`` with these fields; a tagged one may be omitted, for its default, and
        any one of a request or a response.

        Raises ValueError, or struct.error, for a value that its field cannot hold.
        """
        write = self._writers.get(version)
        if write is None:
            assert version in self.versions, f"{self.name} version {version}"
            write = self._writers[version] = _struct_writer(self.fields, self._form(version))
        writer = MessageWriter()
        write(writer, values)
        return bytes(writer.data)

    def _form(self, version: int) -> Form:
        return Form(version, is_flexible=version in self.flexible, fills_in=self.fills_in)


@cache
def load_messages(name: str) -> dict[str, Message]:
    """The messages of the schema file ``name``, by their names."""
    # Late, because it brings as many modules as a small program needs for all else, and most programs read no schema.
    from importlib import resources

    text = resources.files(__package__).joinpath("schemas", f"{name}.schema").read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    messages = {}
    at = 0
    while at < len(lines):
        kind, message_name, *words = lines[at].split()
        options = dict(word.split("=") for word in words)
        fills_in = kind != "message"
        fields, at = _parse_fields(lines, at + 1, INDENT, fills_in=fills_in)
        messages[message_name] = Message(
            message_name,
            int(options.get("key", "-1")),
            _parse_versions(options["versions"]),
            _parse_versions(options["flexible"]) if "flexible" in options else NONE,
            fields,
            fills_in=fills_in,
        )
    return messages


def _struct_reader(fields: Sequence[Field], form: Form) -> Read:
    read = _present_reader(fields, form)
    if not form.fills_in:
        return read
    absent = [field for field in fields if form.version not in field.versions or field.tag is not None]

    def read_all(reader: MessageReader) -> Value:
        values = read(reader)
        assert isinstance(values, dict)
        for field in absent:
            if field.name not in values:
                values[field.name] = _copied(field.default)
        return values

    return read_all if absent else read


def _copied(default: Value) -> Value:
    """A default that the caller may change."""
    if isinstance(default, dict):
        return {name: _copied(value) for name, value in default.items()}
    return [] if default == [] else default


def _present_reader(fields: Sequence[Field], form: Form) -> Read:
    """Reads the fields that the bytes have, without tagged ones that have their default."""
    version, is_flexible, _ = form
    there = [field for field in fields if version in field.versions]
    plain = [(field.name, _field_reader(field, form)) for field in there if field.tag is None]
    tagged = {field.tag: (field, _field_reader(field, form)) for field in there if field.tag is not None}
    names = [field.name for field in there]

    def read(reader: MessageReader) -> Value:
        values = {name: read_field(reader) for name, read_field in plain}
        if not is_flexible:
            return values
        section_count = reader.uvarint()
        reader.count_elements(section_count)
        for _ in range(section_count):
            tag = reader.uvarint()
            section = reader.section(reader.uvarint())
            if tag not in tagged:
                continue
            field, read_field = tagged[tag]
            value = read_field(section)
            reader.joined(section)
            if section.remaining:
                raise MessageError(f"{field.name}: {section.remaining} bytes more than the field takes")
            if value != field.default:
                values[field.name] = value
        return {name: values[name] for name in names if name in values} if section_count else values

    return read


def _field_reader(field: Field, form: Form) -> Read:
    read_value = _value_reader(field, form)
    version, is_flexible, _ = form
    is_nullable = version in field.nullable
    has_texts = field.type in TEXTS
    read: Read = read_value
    if field.is_array:

        def read_array(reader: MessageReader) -> Value:
            count = reader.length(is_flexible=is_flexible, form=INT32)
            # Each element takes at least a byte: a hostile count fails before anything is allocated for it.
            if count > reader.remaining:
                raise MessageError(
                    f"{field.name}: {count} elements, expected at most the {reader.remaining} bytes that remain"
                )
            reader.count_elements(count)
            values = None if count < 0 else [read_value(reader) for _ in range(count)]
            if has_texts and values and None in values:
                raise MessageError(f"{field.name}: null among its elements, expected values")
            return values

        read = read_array
    elif field.type == "struct" and is_nullable:

        def read_struct(reader: MessageReader) -> Value:
            # A leading byte says whether the structure exists.
            return None if reader.number(INT8) < 0 else read_value(reader)

        def read_tagged_struct(reader: MessageReader) -> Value:
            # In a tagged field an unsigned varint says it, which Java reads as an int32: 0 or less is null.
            return read_value(reader) if 0 < reader.uvarint() < 1 << 31 else None

        return read_struct if field.tag is None else read_tagged_struct
    if is_nullable or (not field.is_array and field.type not in TEXTS):
        return read

    def read_not_null(reader: MessageReader) -> Value:
        value = read(reader)
        if value is None:
            raise MessageError(f"{field.name}: null, expected a value")
        return value

    return read_not_null


def _value_reader(field: Field, form: Form) -> Read:
    """Reads one value of the field's type, which is the whole field or one element of it."""
    is_flexible = form.is_flexible
    if field.type in NUMBERS:
        return partial(MessageReader.number, form=NUMBERS[field.type])
    match field.type:
        case "string":
            return partial(MessageReader.string, is_flexible=is_flexible)
        case "bytes":
            return partial(MessageReader.binary, is_flexible=is_flexible)
        case "records":
            return partial(MessageReader.records, is_flexible=is_flexible)
        case "bool":
            return lambda reader: reader.take(1) != b"\0"
        case "uuid":
            return lambda reader: Uuid(reader.take(UUID_SIZE))
        case _:
            return _struct_reader(field.fields, form)


def _struct_writer(fields: Sequence[Field], form: Form) -> Write:
    version, is_flexible, fills_in = form
    there = [field for field in fields if version in field.versions]
    plain = [(field.name, field.default, _field_writer(field, form)) for field in there if field.tag is None]
    tagged = sorted(
        (field.tag, field.name, field.default, _field_writer(field, form)) for field in there if field.tag is not None
    )

    def write(writer: MessageWriter, values: object) -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"{values!r:.80}, expected a structure")
        if fills_in:
            for name, default, write_field in plain:
                write_field(writer, values.get(name, default))
        else:
            for name, _, write_field in plain:
                write_field(writer, values[name])
        if not is_flexible:
            return
        sections = []
        for tag, name, default, write_field in tagged:
            value = values.get(name, default)
            if value != default:
                content = _written(write_field, value)
                # A structure may leave out fields with their defaults.
                if not isinstance(value, Mapping) or content != _written(write_field, default):
                    sections.append((tag, content))
        writer.uvarint(len(sections))
        for tag, content in sections:
            writer.uvarint(tag)
            writer.uvarint(len(content))
            writer.data += content

    return write


def _written(write: Write, value: object) -> bytearray:
    writer = MessageWriter()
    write(writer, value)
    return writer.data


def _field_writer(field: Field, form: Form) -> Write:
    write_value = _value_writer(field, form)
    version, is_flexible, _ = form
    is_nullable = version in field.nullable
    if field.is_array:

        def write_array(writer: MessageWriter, value: object) -> None:
            if value is None and is_nullable:
                writer.length(-1, is_flexible=is_flexible, form=INT32)
                return
            if not isinstance(value, list):
                raise ValueError(f"{field.name}: {value!r:.80}, expected a list")
            writer.length(len(value), is_flexible=is_flexible, form=INT32)
            if None in value:
                raise ValueError(f"{field.name}: None among its elements, expected values")
            for element in value:
                write_value(writer, element)

        return write_array
    if field.type == "struct" and is_nullable:

        def write_struct(writer: MessageWriter, value: object) -> None:
            if field.tag is None:
                writer.number(INT8, -1 if value is None else 1)
            else:
                writer.uvarint(0 if value is None else 1)
            if value is not None:
                write_value(writer, value)

        return write_struct
    if is_nullable or field.type not in TEXTS:
        return write_value

    def write_not_null(writer: MessageWriter, value: object) -> None:
        if value is None:
            raise ValueError(f"{field.name}: None, expected a value")
        write_value(writer, value)

    return write_not_null


def _value_writer(field: Field, form: Form) -> Write:
    """Writes one value of the field's type, which is the whole field or one element of it."""
    is_flexible = form.is_flexible
    if field.type in NUMBERS:
        number = NUMBERS[field.type]
        return lambda writer, value: writer.number(number, value)
    match field.type:
        case "string":
            return partial(MessageWriter.string, is_flexible=is_flexible)
        case "bytes" | "records":
            return partial(MessageWriter.binary, is_flexible=is_flexible)
        case "bool":
            return MessageWriter.boolean
        case "uuid":
            return MessageWriter.uuid
        case _:
            return _struct_writer(field.fields, form)


# The value of an absent field whose schema names no default.
DEFAULTS: dict[str, Value] = {"bool": False, "uuid": Uuid(UUID_SIZE), "string": "", "bytes": b"", "records": b""}
# Those that may be null where the schema says so, and have a length.
TEXTS = ("string", "bytes", "records")


def _parse_fields(lines: Sequence[str], at: int, indent: int, *, fills_in: bool) -> tuple[tuple[Field, ...], int]:
    fields = []
    while at < len(lines) and lines[at].startswith(" " * indent):
        name, kind, *words = lines[at].split()
        options = dict(word.split("=") for word in words)
        inner, at = _parse_fields(lines, at + 1, indent + INDENT, fills_in=fills_in)
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
                _parse_default(kind, is_array, options.get("default"), inner, fills_in=fills_in),
                inner,
            )
        )
    return tuple(fields), at


def _parse_default(kind: str, is_array: bool, text: str | None, fields: Sequence[Field], *, fills_in: bool) -> Value:
    if text == "null":
        return None
    if is_array:
        return []
    if kind == "struct":
        return {field.name: field.default for field in fields if fills_in or field.tag is None}
    if text is None:
        return DEFAULTS.get(kind, 0)
    match kind:
        case "bool":
            return text == "true"
        case "string":
            return text
        case "float64":
            return float(text)
        case _:
            return int(text, 0)


def _parse_versions(text: str) -> Versions:
    if text.endswith("+"):
        return Versions(int(text[:-1]), FOREVER)
    lowest, _, highest = text.partition("-")
    return Versions(int(lowest), int(highest or lowest))
