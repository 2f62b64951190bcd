"""``kstore dump-log`` prints runs of batches as it prints single ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner

from kstore.cli.dump import log_file
from kstore.cli.dump_log import command
from kstore.record.control import ControlRecordType, EndTransactionMarker
from tests.run_helpers import marker, small_batch
from tests.selection import tries

LOGS = tries(60, quick=15)


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
        else:
            parts.append(small_batch(offset, count, **(owned if kind < 4 else {})))
        offset += count
    changed = bytearray(b"".join(parts))
    for _ in range(generator.choice([0, 0, 1, 2])):
        changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize(
    "options",
    [[], ["--deep-iteration"], ["--print-data-log"], ["--value-decoder-class", "LongDecoder", "--past-damage"]],
    ids=["batches", "records", "data", "a decoder that refuses"],
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
