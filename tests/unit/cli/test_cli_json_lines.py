"""Compiled lines of JSON equal those of the slow path."""

from __future__ import annotations

import random

import pytest

from kstore.cli import record_json
from kstore.cli._json_lines import kcat_line, plain_line
from kstore.cli.consume import _json_fields, _JsonLines
from kstore.cli.record_json import compact, line_start, record_fields, record_line
from kstore.files.paths import TopicPartition
from kstore.record._codec import Record
from kstore.types import TIMESTAMP_TYPES
from tests.support.harness.selection import tries

ROUNDS = tries(20_000, quick=2_000)
OWNER = TopicPartition('a"topic', 3)
PARTS = [b'"', b"\\", b"\n\r\t\b\f", b"\x00\x1f\x7f", "é€😀\u2028".encode(), b"plain text " * 3, b"x", b"/"]


def some_bytes(chance: random.Random) -> bytes | None:
    if chance.random() < 0.2:
        return None
    data = b"".join(chance.choices(PARTS, k=chance.randrange(6)))
    return data if chance.random() < 0.9 else data + chance.choice([b"\xff", b"\xc3", b"\xed\xa0\x80"])


def some_record(chance: random.Random) -> Record:
    return Record(
        chance.choice([0, 7, 2**63 - 1]),
        chance.choice([-(2**63), -1, 0, 1_700_000_000_000]),
        chance.choice(TIMESTAMP_TYPES),
        some_bytes(chance),
        some_bytes(chance),
        [(chance.choice(["", "trace", 'é"\n']), some_bytes(chance)) for _ in range(chance.choice([0, 0, 1, 3]))],
    )


@pytest.mark.parametrize("first", [{}, {"log": "data/é\n-0"}], ids=["alone", "with a log"])
def test_a_line_of_a_record_is_the_one_that_the_standard_library_makes(first: dict[str, str]) -> None:
    chance, start = random.Random(1), line_start(first)
    compiled = 0
    for _ in range(ROUNDS):
        record = some_record(chance)
        expected = compact({**first, **record_fields(record)}).encode() + b"\n"
        assert record_line(record, first, start) == expected
        compiled += plain_line(record, start, record.timestamp_type.encode()) is not None
    assert ROUNDS // 2 < compiled < ROUNDS


def test_a_line_of_a_consumer_is_the_one_that_the_standard_library_makes() -> None:
    chance, lines = random.Random(2), _JsonLines(str)
    for _ in range(ROUNDS):
        record = some_record(chance)
        assert lines(OWNER, record) == compact(_json_fields(OWNER, record)).encode() + b"\n"


@pytest.mark.parametrize("at", range(24))
@pytest.mark.parametrize("byte", [0x00, 0x1F, 0x20, 0x22, 0x5C, 0x7F])
@pytest.mark.sampled(24)
def test_a_character_is_escaped_wherever_it_stands(at: int, byte: int) -> None:
    value = bytearray(b"a" * 24)
    value[at] = byte
    record = Record(1, 2, value=bytes(value))
    assert plain_line(record, b"{", b"CreateTime") == compact(record_fields(record)).encode() + b"\n"


def test_what_is_not_utf_8_is_left_to_the_slow_way() -> None:
    for record in (
        Record(1, 2, key=b"\xff"),
        Record(1, 2, value=b"a" * 20 + b"\x80"),
        Record(1, 2, headers=[("h", b"\xff")]),
    ):
        assert plain_line(record, b"{", b"CreateTime") is None
        assert kcat_line(record, b"{", b"create") is None
        assert b"_base64" in record_line(record, {}, b"{")
    assert record_json.line_start({}) == b"{"
