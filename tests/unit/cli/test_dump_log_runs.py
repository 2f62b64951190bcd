"""``kstore dump-log`` prints runs of batches as it prints single ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner

from kstore.cli.dump import log_file
from kstore.cli.dump._lines import CONTENTS, METADATA, RECORDS, UNKNOWN, plain_lines
from kstore.cli.dump_log import command
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.control import ControlRecordType, EndTransactionMarker
from tests.support.harness.selection import tries
from tests.support.lives.run_helpers import TIME, marker, small_batch

LOGS = tries(60, quick=15)


def any_batch(generator: random.Random, base_offset: int, count: int) -> bytes:
    """Records with every kind of field: absent, empty, text, control characters, and bytes that are not text."""
    fields = [
        None,
        b"",
        b"plain",
        "später \u20ac \U0001f600".encode(),
        b"\x1b[31m\r\n",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xc0\x80",
    ]
    names = ["", "name", "größe", "a,b"]
    records = [
        Record(
            base_offset + number,
            generator.choice([0, TIME, TIME + 10**6]),
            key=generator.choice(fields),
            value=generator.choice(fields),
            headers=[(generator.choice(names), generator.choice(fields)) for _ in range(generator.randrange(3))],
        )
        for number in range(count)
    ]
    return build_batch(records, log_append_time=generator.choice([None, None, TIME]))


def written(generator: random.Random) -> bytes:
    parts, offset = [], 0
    for _ in range(30):
        count = generator.choice([1, 1, 2, 5])
        offset += generator.choice([0, 0, 0, 0, 3])
        kind = generator.randrange(8)
        owned: dict[str, Any] = {"producer_id": 4, "producer_epoch": 1, "base_sequence": 2**31 - 2}
        if kind == 0:
            count = 1
            parts.append(marker(offset, 4, 1, EndTransactionMarker(ControlRecordType.ABORT, 7)))
        elif kind == 1:
            parts.append(small_batch(offset, count, codec="gzip"))
        elif kind < 4:
            parts.append(small_batch(offset, count, **owned))
        else:
            parts.append(any_batch(generator, offset, count))
        offset += count
    changed = bytearray(b"".join(parts))
    for _ in range(generator.choice([0, 0, 1, 2])):
        changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--deep-iteration"],
        ["--print-data-log"],
        ["--print-data-log", "--skip-record-metadata"],
        ["--value-decoder-class", "LongDecoder", "--past-damage"],
    ],
    ids=["batches", "records", "data", "data alone", "a decoder that refuses"],
)
def test_lines_of_runs_are_those_of_single_batches(tmp_path: Path, options: list[str], seed: int) -> None:
    generator = random.Random(seed)
    path = tmp_path / f"{0:020d}.log"
    for _ in range(LOGS):
        path.write_bytes(written(generator))
        found = CliRunner().invoke(command, [*options, str(path)])
        with mock.patch.object(log_file._LogDump, "_run_at", return_value=None):
            expected = CliRunner().invoke(command, [*options, str(path)])
        assert (found.stdout, found.stderr, found.exit_code) == (expected.stdout, expected.stderr, expected.exit_code)


def test_no_bytes_lead_compiled_code_out_of_them(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(tries(20_000, quick=300)):
        data = bytearray(b"".join(any_batch(generator, 5 * number, 3) for number in range(3)))
        for _ in range(generator.randrange(4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        what, stop = RECORDS | METADATA | CONTENTS, generator.randrange(len(data) + 1)
        text, end, _ = plain_lines(bytes(data), 0, stop, 0, what, UNKNOWN, [])
        assert 0 <= end <= stop
        assert text.count("\n") >= text.count("baseOffset: ")


@pytest.mark.parametrize(("at", "stop"), [(-1, 5), (3, 2), (0, 11)])
def test_bytes_that_are_not_there_are_refused(at: int, stop: int) -> None:
    with pytest.raises(ValueError, match="of 10 bytes"):
        plain_lines(bytes(10), at, stop, 0, 0, UNKNOWN, [])
