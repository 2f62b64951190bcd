"""What scans find is compared with a walk that shares no code with them (``oracle_codec``), over damaged segments.

Verification, statistics, the check of an open log, a mirror's end and recovery see batches through one scan
(``kstore.scan``): this one holds if they are wrong together.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.upkeep.mirror.compare import end_offset
from kstore.upkeep.recover import plan_recovery
from kstore.upkeep.stats import log_stats
from kstore.upkeep.verify import verify_log
from tests.support.harness.selection import tries
from tests.support.lives.log_cases import data, flip
from tests.support.oracles.oracle_codec import crc32c

pytestmark = pytest.mark.promise("hostile file")

LOGS = tries(200, quick=6)
# From here on a CRC covers the bytes, and no walk needs them to find the next batch.
RECORDS_AT = 61


class Entry(NamedTuple):
    """A batch as its header says, and whether its CRC is right."""

    position: int
    size: int
    base_offset: int
    next_offset: int
    record_count: int
    is_whole: bool


def entries(data: bytes) -> Iterator[Entry]:
    """The batches of a segment whose sizes are right."""
    position = 0
    while position < len(data):
        base_offset, length = struct.unpack_from(">qi", data, position)
        crc, last_delta = struct.unpack_from(">I2xi", data, position + 17)
        (count,) = struct.unpack_from(">i", data, position + 57)
        covered = data[position + 21 : position + 12 + length]
        next_offset = base_offset + last_delta + 1
        yield Entry(position, 12 + length, base_offset, next_offset, count, crc32c(covered) == crc)
        position += 12 + length


def written(path: Path, generator: random.Random) -> None:
    """A log of one or more segments, with gaps and codecs."""
    with Log(path, segment_bytes=generator.choice([1024, 1 << 20]), index_interval_bytes=200) as log:
        for _ in range(generator.choice([1, 8, 25])):
            at = log.end_offset + generator.choice([0] * 8 + [1, 5])
            wanted = range(at, at + generator.choice([1, 1, 2, 4]))
            log.append_batches(data(*wanted, codec=generator.choice(["none", "none", "zstd"])), assign_offsets=False)


def damaged(path: Path, generator: random.Random) -> None:
    for file in path.glob("*.log"):
        content = file.read_bytes()
        for entry in entries(content):
            if generator.random() < 0.2:
                flip(file, generator.randrange(entry.position + RECORDS_AT, entry.position + entry.size))


@pytest.mark.parametrize("seed", range(LOGS))
def test_every_scan_finds_what_a_plain_walk_finds(tmp_path: Path, seed: int) -> None:
    generator = random.Random(f"scan {seed}")
    path = tmp_path / "log"
    written(path, generator)
    damaged(path, generator)
    segments = {file: list(entries(file.read_bytes())) for file in sorted(path.glob("*.log"))}
    found = [entry for listed in segments.values() for entry in listed]
    whole = [entry for entry in found if entry.is_whole]
    counts = (len(whole), sum(entry.record_count for entry in whole))
    broken = [entry.base_offset for entry in found if not entry.is_whole]

    verified = verify_log(path)
    assert (verified.batch_count, verified.record_count) == counts
    assert (len([each for each in verified.damages if each.kind in ("batch", "tail")]) > 0) == bool(broken)
    counted = log_stats(path, deep=True)
    assert (counted.batch_count, counted.record_count) == counts
    for file, listed in segments.items():
        ends = [int(file.stem), *(entry.next_offset for entry in listed)]
        # Headers are enough for it.
        assert end_offset(SYSTEM_FS.open(str(file)), file.stat().st_size, int(file.stem)) == ends[-1]
    with Log(path, read_only=True) as log:
        checked = log.verify()
    assert (checked.batches_scanned, checked.records_scanned) == counts
    assert {entry.base_offset for entry in found if not entry.is_whole} <= {
        offset for lost in checked.corrupt for offset in range(lost.first, lost.last + 1)
    }
    # Without its state, recovery reads everything.
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    (copy / "kstore.state").unlink()
    recovered = plan_recovery(copy)
    assert (recovered.batches_scanned, recovered.records_scanned) == counts
