r"""Records on standard output: in a format like kcat's ``-f``, and in large pieces.

The placeholders of a format and their bytes:

%s  value     %S  its size, -1 for null    %R  the same in four bytes, big-endian
%k  key       %K  its size                 %h  headers: name=value, with commas between
%t  topic     %p  partition   %o  offset   %T  timestamp, ms
\n \t \r \\   \xHH  a byte     %%  a per cent sign
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import BinaryIO

from kstore.files.paths import TopicPartition
from kstore.record._codec import Record

Part = Callable[[TopicPartition, Record], bytes]

TOKEN = re.compile(rb"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"\\": b"\\"}

WRITE_BYTES = 1 << 18


class FormatError(ValueError):
    """A format with an unknown placeholder."""


class RecordFormat:
    """Turns records into bytes. A null is empty, or the text ``null``."""

    def __init__(self, text: str, *, null: bytes = b"", shown: Callable[[bytes], bytes] | None = None) -> None:
        """``shown`` makes a record's bytes fit for a terminal. Raises: FormatError."""
        fields: dict[bytes, Part] = {
            b"s": lambda owner, record: null if record.value is None else record.value,
            b"S": lambda owner, record: b"%d" % _size(record.value),
            b"R": lambda owner, record: _size(record.value).to_bytes(4, "big", signed=True),
            b"k": lambda owner, record: null if record.key is None else record.key,
            b"K": lambda owner, record: b"%d" % _size(record.key),
            b"h": lambda owner, record: _headers(record, null),
            b"t": lambda owner, record: owner.topic.encode(),
            b"p": lambda owner, record: b"%d" % owner.partition,
            b"o": lambda owner, record: b"%d" % record.offset,
            b"T": lambda owner, record: b"%d" % record.timestamp,
        }
        self._parts: list[Part] = []
        for match in TOKEN.finditer(text.encode("utf-8", "surrogateescape")):
            field, byte, escape, plain, wrong = match.groups()
            if field in fields:
                self._parts.append(fields[field] if shown is None else _shown(fields[field], shown))
                continue
            literal = plain or (b"%" if field == b"%" else None) or ESCAPES.get(escape)
            if byte is not None:
                literal = bytes([int(byte, 16)])
            if literal is None or wrong:
                raise FormatError(f"{match[0].decode('utf-8', 'replace')!r} is not a placeholder")
            self._parts.append(_literal(literal))

    def __call__(self, owner: TopicPartition, record: Record) -> bytes:
        return b"".join([part(owner, record) for part in self._parts])


def _shown(part: Part, shown: Callable[[bytes], bytes]) -> Part:
    return lambda owner, record: shown(part(owner, record))


def _literal(data: bytes) -> Part:
    return lambda owner, record: data


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: Record, null: bytes) -> bytes:
    return b",".join(name + b"=" + (null if value is None else value) for name, value in record.header_bytes)


class LineWriter:
    """Collects lines for ``out``, and writes them when there are many, or on ``flush``."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lines: list[bytes] = []
        self._size = 0

    def add(self, line: bytes) -> None:
        """Takes a line with its line break."""
        self._lines.append(line)
        self._size += len(line)
        if self._size >= WRITE_BYTES:
            self._write()

    def flush(self) -> None:
        """Writes what is left, also out of the stream's own buffer."""
        self._write()
        self._out.flush()

    def _write(self) -> None:
        data = b"".join(self._lines)
        self._lines.clear()
        self._size = 0
        self._out.write(data)
