"""Keys, values and headers as JSON and back: text if they are UTF-8, else base64 in a field that says so.

{"offset": 7, "timestamp": 1700000000000, "timestamp_type": "CreateTime", "key": "k", "value_base64": "/w==",
 "headers": [{"key": "trace", "value": "1"}]}
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kstore.cli._json_lines import plain_line
from kstore.errors import KstoreError
from kstore.record._codec import Record
from kstore.types import TIMESTAMP_TYPES

BASE64 = "_base64"
TYPE_BYTES = {each: each.encode() for each in TIMESTAMP_TYPES}
RECORD_FIELDS = {"key", "value", "headers", "timestamp", "key_base64", "value_base64"}
# Fields that a dump, a read, a search or an export prints, and that an append assigns.
IGNORED_FIELDS = {
    "log",
    "topic",
    "partition",
    "matched",
    "offset",
    "timestamp_type",
    "leader_epoch",
    "type",
    "path",
    "sequence",
    "key_size",
    "value_size",
    "is_valid",
    "crc",
}

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class InputError(KstoreError, ValueError):
    """A line of input that is not a record."""


class JsonRecord(NamedTuple):
    """A record to append; ``timestamp`` in ms, None for now; ``partition`` None if the line names none."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int | None
    partition: int | None = None


def compact(value: Mapping[str, Any]) -> str:
    """One line of JSON, without spaces, with characters beyond ASCII unescaped."""
    return _encode(value)


def json_line(value: Mapping[str, Any]) -> bytes:
    """``compact`` in bytes, with a line break."""
    return compact(value).encode("utf-8", "surrogatepass") + b"\n"


def line_start(fields: Mapping[str, Any]) -> bytes:
    """How a line begins whose first fields these are."""
    return json_line(fields)[: -len(b"}\n")] + b"," if fields else b"{"


def record_line(record: Record, first: Mapping[str, Any], start: bytes) -> bytes:
    """``json_line`` of the fields ``first`` and those of the record; ``start`` is their ``line_start``."""
    line = plain_line(record, start, TYPE_BYTES[record.timestamp_type])
    return json_line({**first, **record_fields(record)}) if line is None else line


def add_bytes(fields: dict[str, Any], name: str, data: bytes | None) -> None:
    """Adds ``data`` as ``name`` if it is UTF-8 or None, else in base64 as ``<name>_base64``."""
    if data is None:
        fields[name] = None
        return
    try:
        fields[name] = data.decode()
    except UnicodeDecodeError:
        fields[name + BASE64] = b64encode(data).decode()


def header_fields(headers: Sequence[tuple[str, bytes | None]]) -> list[dict[str, Any]]:
    """One object for each header, in their order: names may repeat."""
    listed = []
    for name, value in headers:
        fields: dict[str, Any] = {"key": name}
        add_bytes(fields, "value", value)
        listed.append(fields)
    return listed


def record_fields(record: Record) -> dict[str, Any]:
    """A whole record."""
    fields: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
    }
    # ``add_bytes`` without its calls, which take as long as all the rest.
    key, value, headers = record.key, record.value, record.headers
    try:
        fields["key"] = None if key is None else key.decode()
    except UnicodeDecodeError:
        add_bytes(fields, "key", key)
    try:
        fields["value"] = None if value is None else value.decode()
    except UnicodeDecodeError:
        add_bytes(fields, "value", value)
    fields["headers"] = header_fields(headers) if headers else []
    return fields


def parse_record(line: str, *, takes_partition: bool = False) -> JsonRecord:
    """The record of a line that ``record_fields`` could have made; headers may also be an object or a list of pairs.

    Fields that an append assigns (``offset``, ...) are ignored; ``takes_partition``: the record may name its partition.
    Raises InputError, also for unknown fields.
    """
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise InputError(f"no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InputError(f"a JSON {type(fields).__name__}, expected an object")
    known = RECORD_FIELDS | {"partition"} if takes_partition else RECORD_FIELDS
    unknown = fields.keys() - known - IGNORED_FIELDS
    if unknown:
        raise InputError(f"unknown field {min(unknown)!r}, expected {', '.join(sorted(known))}")
    return JsonRecord(
        _parse_bytes(fields, "key"),
        _parse_bytes(fields, "value"),
        _parse_headers(fields.get("headers")),
        _parse_number(fields, "timestamp", "ms as a whole number"),
        _parse_number(fields, "partition", "a whole number"),
    )


def _parse_number(fields: Mapping[str, Any], name: str, expected: str) -> int | None:
    number = fields.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int):
        raise InputError(f"{name} {number!r}, expected {expected}")
    return number


def _parse_bytes(fields: Mapping[str, Any], name: str) -> bytes | None:
    text, encoded = fields.get(name), fields.get(name + BASE64)
    if text is not None and encoded is not None:
        raise InputError(f"both {name} and {name}{BASE64}, expected one")
    for value in (text, encoded):
        if value is not None and not isinstance(value, str):
            raise InputError(f"{name} is a JSON {type(value).__name__}, expected a string or null")
    if encoded is None:
        # JSON can express a lone surrogate, but UTF-8 cannot encode it.
        try:
            return None if text is None else text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{name}: {error}") from None
    try:
        return b64decode(encoded, validate=True)
    except ValueError as error:
        raise InputError(f"{name}{BASE64}: {error}") from None


def _parse_headers(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    if headers is None:
        return ()
    if isinstance(headers, dict):
        return tuple((name, _parse_bytes({"value": value}, "value")) for name, value in headers.items())
    if not isinstance(headers, list):
        raise InputError(f"headers are a JSON {type(headers).__name__}, expected a list or an object")
    return tuple(_parse_header(header) for header in headers)


def _parse_header(header: Any) -> tuple[str, bytes | None]:
    if isinstance(header, list) and len(header) == 2:
        header = {"key": header[0], "value": header[1]}
    if not isinstance(header, dict) or not isinstance(header.get("key"), str):
        raise InputError('a header that is neither {"key": ..., "value": ...} nor a pair')
    return header["key"], _parse_bytes(header, "value")
