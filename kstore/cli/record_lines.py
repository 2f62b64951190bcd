"""Lines of text or JSON as records: the input of ``kstore append`` and ``kstore produce``."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeAlias

import click

from kstore.cli.interrupts import Interrupts
from kstore.cli.record_json import InputError, JsonRecord, parse_record

READ_BYTES = 1 << 20
# How late Ctrl-C may be noticed.
WAIT_MS = 500
BATCH_RECORDS = 1000
# No log takes a longer record by default; this limits the memory of an endless line.
LINE_BYTES_MAX = 64 << 20

Parse: TypeAlias = Callable[[bytes], JsonRecord]

FIELDS = """\
Fields of a JSON line, all of them optional:
  key, value, headers    text, or null
  key_base64, value_base64, and value_base64 in a header    bytes that are not text
  timestamp    ms since the epoch; now if absent
"""


def line_batches(file: BinaryIO, interrupts: Interrupts, batch_records: int = BATCH_RECORDS) -> Iterator[list[bytes]]:
    """The lines of ``file`` without line breaks: as many at a time as are available, at most ``batch_records``.

    Ctrl-C interrupts the wait for lines, and nothing that the caller does with them.
    """
    rest = b""
    while True:
        with interrupts.allowed():
            _wait_for(file, interrupts)
        chunk: bytes = file.read1(READ_BYTES)  # type: ignore[attr-defined]  # every binary file that click opens has it
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise InputError(f"a line of more than {LINE_BYTES_MAX} bytes")
        for start in range(0, len(lines), batch_records):
            yield lines[start : start + batch_records]
    if rest:
        yield [rest]


def _wait_for(file: BinaryIO, interrupts: Interrupts) -> None:
    """Waits until a read of ``file`` does not wait. A file of no system has everything.

    The read itself is not to be interrupted: what it has taken would be lost. And it would not notice a signal that
    came just before it.
    """
    try:
        poll = select.poll()
        poll.register(file, select.POLLIN)
    except (OSError, ValueError):
        return
    # No bytes wait in the file's buffer: each read asks for more than it holds.
    while not poll.poll(WAIT_MS):
        interrupts.check()


def line_parser(is_json: bool, key_separator: str | None, *, takes_partition: bool = False) -> Parse:
    """A function that turns a line into a record, by a command's options; it raises InputError.

    Raises: click.UsageError for options that contradict each other.
    """
    if is_json and key_separator is not None:
        raise click.UsageError("--key-separator is for lines of text: in JSON the key is a field")
    if key_separator == "":
        raise click.UsageError("--key-separator is empty")
    if is_json:
        return _json_parser(takes_partition)
    return _text_parser(None if key_separator is None else key_separator.encode("utf-8", "surrogateescape"))


def _text_parser(separator: bytes | None) -> Parse:
    def parse(line: bytes) -> JsonRecord:
        if separator is None:
            return JsonRecord(None, line, (), None)
        key, found, value = line.partition(separator)
        if not found:
            raise InputError(f"no key separator {separator.decode('utf-8', 'backslashreplace')!r}")
        return JsonRecord(key, value, (), None)

    return parse


def _json_parser(takes_partition: bool) -> Parse:
    def parse(line: bytes) -> JsonRecord:
        try:
            return parse_record(line.decode(), takes_partition=takes_partition)
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8: {error.reason} at byte {error.start}") from None

    return parse
