"""Reading a whole log, every CRC checked, beside a bare pread of its files."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import kstore
from tools.bench.logs import RECORD_BYTES, RECORDS, fill, fresh
from tools.bench.measure import MILLION, Line, Run, in_turn, rate_line, seconds_of

__all__ = ["read", "read_values"]

CHUNK_BYTES = 1 << 20


def read(run: Run) -> list[Line]:
    return [_read(run, "read as Record objects, CRC checked", lambda log: log.read(), 9 * MILLION)]


def read_values(run: Run) -> list[Line]:
    return [_read(run, "read_values, CRC checked", lambda log: log.read_values(), 14 * MILLION)]


def _read(run: Run, name: str, items: Callable[[kstore.Log], Iterable[object]], rate_min: float) -> Line:
    def loop(log: kstore.Log) -> None:
        for _ in items(log):
            pass

    with fresh(run.root, "read") as path:
        fill(path, RECORDS)
        with kstore.Log(path, read_only=True) as log:
            # The timed loop reads every record.
            last = deque(log.read(), maxlen=1)[0]
            assert last.offset == RECORDS - 1
            rate, limit = in_turn(lambda: RECORDS / seconds_of(lambda: loop(log)), lambda: pread_rate(path),
                                  rounds=run.rounds)  # fmt: skip
    return rate_line(name, rate, limit, "pread of 1 MiB", rate_min=rate_min)


def pread_rate(path: Path) -> float:
    """Records a second that a bare pread of the same files would make."""
    files = sorted(path.glob("*.log"))

    def read_all() -> None:
        for file in files:
            fd = os.open(file, os.O_RDONLY)
            at = 0
            while data := os.pread(fd, CHUNK_BYTES, at):
                at += len(data)
            os.close(fd)

    return sum(file.stat().st_size for file in files) / RECORD_BYTES / seconds_of(read_all)
