"""The bytes at a finding, with the names of their fields. No I/O here.

Bytes of records are hidden unless the caller asks for them, and so are bytes that do not look like a header: after
damage, anything may be in the place of one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kstore.record.batch import (
    BATCH_HEADER_BYTES,
    CODEC_NAMES,
    CRC_START,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    batch_crc,
)
from kstore.types import RELATIVE_OFFSET_MAX
from kstore.upkeep.numbers import time_text

# What a view shows at most.
VIEW_BYTES = 128

Fields = tuple[tuple[str, str], ...]

BATCH_FIELDS: Fields = (
    ("base_offset", "q"),
    ("batch_length", "i"),
    ("leader_epoch", "i"),
    ("magic", "b"),
    ("crc", "I"),
    ("attributes", "h"),
    ("last_offset_delta", "i"),
    ("base_timestamp", "q"),
    ("max_timestamp", "q"),
    ("producer_id", "q"),
    ("producer_epoch", "h"),
    ("base_sequence", "i"),
    ("record_count", "i"),
)
MESSAGE_FIELDS: Fields = (("offset", "q"), ("size", "i"), ("crc", "I"), ("magic", "b"), ("attributes", "b"))
TIMED_MESSAGE_FIELDS: Fields = (*MESSAGE_FIELDS, ("timestamp", "q"))
# By the kind of a finding: the fields of an entry, or of the head, of a small file.
ENTRY_FIELDS: dict[str, Fields] = {
    "index": (("relative_offset", "i"), ("position", "i")),
    "timeindex": (("timestamp", "q"), ("relative_offset", "i")),
    "snapshot": (("version", "h"), ("crc", "I"), ("entry_count", "i")),
}
ENTRY_SIZES = {
    kind: struct.calcsize(">" + "".join(code for _, code in fields)) for kind, fields in ENTRY_FIELDS.items()
}
assert ENTRY_SIZES == {"index": 8, "timeindex": 12, "snapshot": 10}
assert struct.calcsize(">" + "".join(code for _, code in BATCH_FIELDS)) == BATCH_HEADER_BYTES

MAGIC_AT = 16


class HexField(NamedTuple):
    """A field at bytes ``start`` to ``stop`` of a view; ``remark`` says what it means, or what is wrong with it."""

    name: str
    start: int
    stop: int
    value: int
    remark: str = ""
    is_wrong: bool = False


@dataclass(frozen=True, slots=True)
class HexView:
    """The bytes of a file from ``position`` on; ``hidden_count`` more follow ``data`` that are not shown."""

    position: int
    data: bytes
    hidden_count: int
    fields: tuple[HexField, ...]


def batch_view(
    batch: bytes, position: int, size_left: int, *, first_offset: int, base_offset: int, with_payload: bool
) -> HexView:
    """A view of bytes in which a whole, fitting batch was expected.

    Args:
        batch: the bytes from ``position`` on: all of the entry that its size field claims, or as much as was read.
        size_left: bytes of the file from ``position`` on.
        first_offset: the offset expected there.
        base_offset: of the segment.
        with_payload: also show bytes that may be a record's.
    """
    names = _layout(batch)
    fields = tuple(_remarked(tuple(_fields(names, batch)), batch, size_left, first_offset))
    wanted = VIEW_BYTES
    if not with_payload:
        wanted = fields[-1].stop if fields and _is_header_like(fields, base_offset) else _zero_count(batch)
        if not wanted:
            fields = ()
    data = batch[: min(wanted, VIEW_BYTES)]
    shown = tuple(field for field in fields if field.stop <= len(data))
    return HexView(position, data, size_left - len(data), shown)


def entry_view(kind: str, data: bytes, position: int, size_left: int) -> HexView:
    """A view of the entry of an index, or of the head of a snapshot: they have no payload."""
    fields = tuple(_fields(ENTRY_FIELDS[kind], data))
    shown = data[: ENTRY_SIZES[kind]]
    return HexView(position, shown, max(size_left - len(shown), 0), fields)


def _layout(batch: bytes) -> Fields:
    magic = batch[MAGIC_AT] if len(batch) > MAGIC_AT else MAGIC_V2
    return {0: MESSAGE_FIELDS, 1: TIMED_MESSAGE_FIELDS}.get(magic, BATCH_FIELDS)


def _fields(names: Fields, data: bytes) -> Iterator[HexField]:
    start = 0
    for name, code in names:
        stop = start + struct.calcsize(">" + code)
        if stop > len(data):
            return
        (value,) = struct.unpack(">" + code, data[start:stop])
        yield HexField(name, start, stop, value)
        start = stop


def _zero_count(batch: bytes) -> int:
    """Leading zero bytes, which say nothing about a record."""
    return len(batch) - len(batch.lstrip(b"\0"))


def _is_header_like(fields: tuple[HexField, ...], base_offset: int) -> bool:
    """Whether the bytes are a batch's header, damaged or not, and not something in its place: text never passes.

    A damaged header has one wrong field, a lost write leaves zeros.
    """
    value = {field.name: field.value for field in fields}
    offset = value.get("base_offset", value.get("offset"))
    if offset is None:
        return False  # too few bytes to know them by
    signs = [base_offset <= offset <= base_offset + RELATIVE_OFFSET_MAX]
    if "magic" in value:
        signs.append(0 <= value["magic"] <= MAGIC_V2)
    if "batch_length" in value and "magic" in value:
        signs.append(0 <= value.get("last_offset_delta", -1) == value.get("record_count", -2) - 1)
    return signs[0] if len(signs) < 3 else sum(signs) >= 2


def _remarked(fields: tuple[HexField, ...], batch: bytes, size_left: int, first_offset: int) -> Iterator[HexField]:
    """The fields with what they mean, or what is wrong with them."""
    values = {field.name: field.value for field in fields}
    for field in fields:
        wrong = _problem(field, values, batch, size_left, first_offset)
        if wrong:
            yield field._replace(remark=wrong, is_wrong=True)
        else:
            yield field._replace(remark=_meaning(field))


def _problem(field: HexField, values: dict[str, int], batch: bytes, size_left: int, first_offset: int) -> str:
    value = field.value
    match field.name:
        case "base_offset" | "offset" if value < first_offset:
            return f"expected at least {first_offset}"
        case "batch_length" | "size":
            if value + LOG_OVERHEAD_BYTES > size_left:
                return f"the file has {max(size_left - LOG_OVERHEAD_BYTES, 0)} bytes after this field"
            if field.name == "batch_length" and value < BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES:
                return f"a header alone needs {BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES}"
        case "magic" if not 0 <= value <= MAGIC_V2:
            return "versions 0, 1 and 2 exist"
        case "attributes" if value & 7 >= len(CODEC_NAMES):
            return f"codec {value & 7} does not exist"
        case "last_offset_delta" if value < 0:
            return "negative"
        case "record_count" if not 0 <= value <= max(values["last_offset_delta"] + 1, 0):
            return f"expected 0 to {max(values['last_offset_delta'] + 1, 0)}"
        case "crc" if values.get("magic") == MAGIC_V2:
            size = values["batch_length"] + LOG_OVERHEAD_BYTES
            if (
                BATCH_HEADER_BYTES <= size <= len(batch)
                and (computed := batch_crc(memoryview(batch)[CRC_START:size])) != value
            ):
                return f"stored {value:#010x}, computed {computed:#010x} over the {size - CRC_START} bytes after it"
    return ""


def _meaning(field: HexField) -> str:
    if field.name == "crc":
        return f"{field.value:#010x}"
    if field.name == "attributes":
        codec = CODEC_NAMES[field.value & 7]
        flags = (("LogAppendTime", 8), ("transactional", 16), ("control", 32), ("delete horizon", 64))
        return ", ".join([codec, *[name for name, bit in flags if field.value & bit]])
    if field.name.endswith("timestamp"):
        return time_text(field.value)
    if field.value == -1 and field.name in ("producer_id", "producer_epoch", "base_sequence", "leader_epoch"):
        return "none"
    return ""
