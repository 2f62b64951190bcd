"""The messages for which Kafka generates serializers, by their schemas. No I/O but the schemas.

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

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

from kstore.messages._wire import MessageReader, StructPlan
from kstore.messages.primitives import UUID_SIZE, MessageError, Uuid

Value: TypeAlias = "bool | int | float | str | bytes | memoryview | Uuid | list[Value] | dict[str, Value] | None"

FOREVER = 2**15 - 1
INDENT = 4


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
        # By version, each made at its first use.
        self._plans: dict[int, StructPlan] = {}

    def read(self, reader: MessageReader, version: int) -> dict[str, Value]:
        """The fields of ``version``, in the schema's order, without tagged ones that have their default; of a request
        or a response, all fields of all versions.

        Raises MessageError.
        """
        plan = self._plans.get(version)
        if plan is None:
            if version not in self.versions:
                lowest, highest = self.versions
                raise MessageError(f"{self.name} version {version}, expected {lowest} to {highest}")
            plan = self._plan(version)
        return plan.read(reader)

    def write(self, values: Mapping[str, object], version: int) -> bytes:
        """The bytes of a message of ``version`` with these fields; a tagged one may be omitted, for its default, and
        any one of a request or a response.

        Raises ValueError, or struct.error, for a value that its field cannot hold.
        """
        plan = self._plans.get(version)
        if plan is None:
            assert version in self.versions, f"{self.name} version {version}"
            plan = self._plan(version)
        return plan.write(values)

    def _plan(self, version: int) -> StructPlan:
        plan = StructPlan(self.fields, version, is_flexible=version in self.flexible, fills_in=self.fills_in)
        self._plans[version] = plan
        return plan


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


# The value of an absent field whose schema names no default.
DEFAULTS: dict[str, Value] = {"bool": False, "uuid": Uuid(UUID_SIZE), "string": "", "bytes": b"", "records": b""}


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
