"""A reader's memory above that of its process after the imports: the peak, in its own process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import kstore
from tools.bench.logs import RECORD_BYTES, fill, fresh, values
from tools.bench.measure import Line, Run

# Where the package of these tools is imported from.
ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
GROWTH_MAX = 64 * MIB
# GROWTH_MAX applies to batches up to this size, uncompressed; larger ones may take this many times their size.
BATCH_BYTES_USUAL = 8 * MIB
TIMES_LARGE = 3
METHODS = ("read", "read_values")
PLAIN_COUNT = 9_000_000
# The fewest bytes of a record in a batch, besides its value.
RECORD_OVERHEAD = 7


class Shape(NamedTuple):
    """A log of ``batches`` zstd batches of ``batch_bytes``, before compression, with values of ``value_size``."""

    batch_bytes: int
    value_size: int
    batches: int


SHAPES = (
    Shape(BATCH_BYTES_USUAL, 100, 16),
    # A value takes 48 bytes in Python but 2 in the batch: the largest cost of reading values.
    Shape(BATCH_BYTES_USUAL, 2, 4),
    Shape(4 * BATCH_BYTES_USUAL, 100, 4),
)


def memory(run: Run) -> list[Line]:
    with fresh(run.root, "memory") as path:
        fill(path, PLAIN_COUNT)
        size = PLAIN_COUNT * RECORD_BYTES
        grown = grown_most(path, PLAIN_COUNT)
        lines = [_line(f"memory of a reader, {size / 1e9:.1f} GB in batches of 1,000", grown, GROWTH_MAX, "64 MiB")]
    return lines + [_shape_line(run, shape) for shape in SHAPES]


def _shape_line(run: Run, shape: Shape) -> Line:
    with fresh(run.root, "memory") as path:
        count = fill_compressed(path, shape)
        grown = grown_most(path, count)
    name = f"memory of a reader, zstd batches of {shape.batch_bytes // MIB} MiB, values of {shape.value_size} bytes"
    if shape.batch_bytes > BATCH_BYTES_USUAL:
        return _line(name, grown, TIMES_LARGE * shape.batch_bytes, f"{TIMES_LARGE} x the batch", shape.batch_bytes)
    return _line(name, grown, GROWTH_MAX, "64 MiB", shape.batch_bytes)


def _line(name: str, grown: int, limit: int, asked: str, batch_bytes: int = 0) -> Line:
    beside = f"the batch {batch_bytes // MIB} MiB" if batch_bytes else "-"
    ratio = f"{grown / batch_bytes:.1f}" if batch_bytes else "-"
    return Line(name, f"{grown / MIB:.1f} MiB", beside, ratio, f"at most {asked}", grown <= limit)


def fill_compressed(path: Path, shape: Shape) -> int:
    """Writes the log; returns its number of records."""
    distinct = values(1000, shape.value_size)
    count = shape.batch_bytes // (shape.value_size + RECORD_OVERHEAD)
    batch = (distinct * (count // 1000 + 1))[:count]
    with kstore.Log(path, durability="os", compression_type="zstd", max_message_bytes=shape.batch_bytes) as log:
        for _ in range(shape.batches):
            log.append_many(batch)
    return count * shape.batches


def grown_most(path: Path, count: int) -> int:
    """The growth in bytes of a process that reads the log, for the worst way of reading."""
    return max(_grown(path, method, count) for method in METHODS)


def _grown(path: Path, method: str, count: int) -> int:
    command = [sys.executable, "-m", "tools.bench.memory_child", str(path.absolute()), method, str(count)]
    return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
