"""Looking up one offset and reading the record there, one at a time, beside a bare pread of its batch."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import NamedTuple

import kstore
from tools.bench.logs import BATCH_BYTES, BATCH_COUNT, RECORDS, fill, fresh
from tools.bench.measure import Line, Run, percentile

LOOKUPS = 2_000


class Case(NamedTuple):
    """Batches of ``batch_count`` records; the requirement, and the size of one read."""

    name: str
    batch_count: int
    records: int
    asked_us: float
    read_bytes: int


CASES = (
    Case("batches of 1", 1, 100_000, 10, 8 << 10),
    # Small batches lie between two index entries, and are read together.
    Case("batches of 10", 10, 200_000, 10, 8 << 10),
    Case("batches of 16 KiB", 149, 200_000, 10, 16 << 10),
    Case("batches of 1,000", BATCH_COUNT, RECORDS, 22, BATCH_BYTES),
)


def lookup(run: Run) -> list[Line]:
    return [_line(run, case) for case in CASES]


def _line(run: Run, case: Case) -> Line:
    with fresh(run.root, "lookup") as path:
        fill(path, case.records, case.batch_count)
        return lookup_line(run, path, f"get one record, segment open, {case.name}", case.asked_us, case.read_bytes)


def lookup_line(run: Run, path: Path, name: str, asked_us: float, read_bytes: int, *, opens: bool = False) -> Line:
    """The line for the log at ``path``. With ``opens`` most lookups reach a segment that is not open; then the limit
    opens, reads and closes a file too."""
    generator = random.Random(11)
    files = sorted(path.glob("*.log"))
    p50s, p99s, floors = [], [], []
    with kstore.Log(path, read_only=True) as log:
        end = log.end_offset
        for _ in range(run.rounds):
            times = []
            for _ in range(LOOKUPS):
                offset = generator.randrange(end)
                started = time.perf_counter_ns()
                record = log.get(offset)
                times.append((time.perf_counter_ns() - started) / 1e3)
                assert record is not None
                assert record.offset == offset
            p50s.append(percentile(times, 0.5))
            p99s.append(percentile(times, 0.99))
            floors.append(_bare_open_us(files, read_bytes) if opens else _bare_read_us(files[0], read_bytes))
    p50, p99, floor = (percentile(each, 0.5) for each in (p50s, p99s, floors))
    limit = f"{'open, pread, close' if opens else f'pread of {read_bytes >> 10} KiB'} {floor:.1f} us"
    return Line(name, f"p50 {p50:.1f} us, p99 {p99:.1f} us", limit, f"{p50 / floor:.1f}", f"p50 {asked_us} us",
                p50 <= asked_us)  # fmt: skip


def _bare_read_us(file: Path, size: int) -> float:
    """The median of reading ``size`` bytes at random positions of an open file, into existing memory."""
    generator = random.Random(13)
    position_max = file.stat().st_size - size
    buffer = bytearray(size)
    times = []
    fd = os.open(file, os.O_RDONLY)
    for _ in range(LOOKUPS):
        position = generator.randrange(position_max)
        started = time.perf_counter_ns()
        os.preadv(fd, [buffer], position)
        times.append((time.perf_counter_ns() - started) / 1e3)
    os.close(fd)
    return percentile(times, 0.5)


def _bare_open_us(files: list[Path], size: int) -> float:
    """The median of opening one of ``files``, reading its first ``size`` bytes, and closing it."""
    generator = random.Random(13)
    names = [os.fspath(file) for file in files]
    times = []
    for _ in range(LOOKUPS):
        name = generator.choice(names)
        started = time.perf_counter_ns()
        fd = os.open(name, os.O_RDONLY)
        os.pread(fd, size, 0)
        os.close(fd)
        times.append((time.perf_counter_ns() - started) / 1e3)
    return percentile(times, 0.5)
