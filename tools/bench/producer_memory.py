"""A producer's memory above that of its process: the peak, while its sender is blocked in a write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from kstore.producer.config import ProducerConfig
from tools.bench.logs import fresh
from tools.bench.measure import Line, Run

# Where the package of these tools is imported from.
ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
BUFFER_BYTES = ProducerConfig().buffer_memory
ABOVE_BYTES = 32 * MIB


class Shape(NamedTuple):
    value_size: int
    codec: str
    words: str


SHAPES = (
    Shape(100, "none", "values of 100 bytes"),
    Shape(100, "zstd", "values of 100 bytes, zstd"),
    Shape(500_000, "none", "values of 500 KB"),
)


def producer_memory(run: Run) -> list[Line]:
    """Sends records until no memory is left for one more; then the sender continues, and all are delivered."""
    return [_line(run, shape) for shape in SHAPES]


def _line(run: Run, shape: Shape) -> Line:
    grown = blocked_growth(run, shape)
    return Line(
        f"memory of a producer whose sender is held up, {shape.words}",
        f"{grown / MIB:.1f} MiB",
        f"buffer_memory {BUFFER_BYTES // MIB} MiB",
        f"{grown / BUFFER_BYTES:.2f}",
        f"at most {ABOVE_BYTES // MIB} MiB above it",
        grown <= BUFFER_BYTES + ABOVE_BYTES,
    )


def blocked_growth(run: Run, shape: Shape) -> int:
    with fresh(run.root, "producer") as path:
        command = [sys.executable, "-m", "tools.bench.producer_memory_child", str(path.absolute())]
        command += [str(shape.value_size), shape.codec]
        output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    grown, count = map(int, output.split())
    # They fill the pool, except for the batches' overhead; compressed ones may take less than their size.
    assert count * shape.value_size > BUFFER_BYTES / 2, f"{count} records of {shape.value_size} bytes were taken"
    return grown
