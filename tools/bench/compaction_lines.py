"""Compaction: a log in which each of a million keys has ten records, and the rate of another log's appends
meanwhile."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Self

import kstore
from kstore.config import MAP_BYTES
from kstore.types import Durability
from tools.bench.logs import BATCH_COUNT, fresh, values
from tools.bench.measure import Line, Run, percentile, seconds_of

ROOT = Path(__file__).resolve().parents[2]
MB, MIB = 1e6, 1 << 20
SEGMENT_BYTES = 64 * MIB
RATE_MIN = 300
# Ten records a key, 1 GiB of them; the smaller log is for work beside it.
KEYS, RECORDS = 1_000_000, 8_800_000
KEYS_BESIDE, RECORDS_BESIDE = 100_000, 2_000_000
# A pass's memory besides its map: the blocks that it reads, processes and writes.
BLOCKS_BYTES = 64 * MIB
WINDOW_SECONDS = 1.0
# Takes a few milliseconds, all without the interpreter's lock.
COMPUTED = bytes(8 * MIB)
# The share of their rate that appends keep while another log is compacted.
SHARES: dict[Durability, float] = {"os": 0.7, "sync": 0.5}


def compaction(run: Run) -> list[Line]:
    """The rate, and the most memory, over 1 GiB with a million keys."""
    rates: list[float] = []
    limits: list[float] = []
    grown = keys = 0
    with fresh(run.root, "compaction") as origin:
        size = _fill(origin, RECORDS, KEYS)
        for _ in range(max(run.rounds // 2, 1)):
            with fresh(run.root, "compacted") as path:
                limits.append(size / MB / seconds_of(lambda path=path: shutil.copytree(origin, path)))  # type: ignore[misc]
                command = [sys.executable, "-m", "tools.bench.compaction_child", str(path.absolute())]
                output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
                rates.append(size / MB / float(output[0]))
                grown, keys = max(grown, int(output[1])), int(output[2])
                with kstore.Log(path, durability="os") as log:
                    assert log.verify().clean
    rate, limit, bound = percentile(rates, 0.5), percentile(limits, 0.75), MAP_BYTES + BLOCKS_BYTES
    return [
        Line(
            f"compact {size / MIB:,.0f} MiB, {keys:,} keys, about one record in nine stays",
            f"{rate:,.0f} MB/s",
            f"copying the files {limit:,.0f} MB/s",
            f"{rate / limit:.2f}",
            f"{RATE_MIN} MB/s",
            rate >= RATE_MIN,
        ),
        Line(
            "memory of that compaction",
            f"{grown / MIB:,.0f} MiB",
            f"the map {MAP_BYTES // MIB} MiB",
            f"{grown / MAP_BYTES:.2f}",
            f"at most the map and {BLOCKS_BYTES // MIB} MiB",
            grown <= bound,
        ),
    ]


def compaction_beside(run: Run) -> list[Line]:
    """Single appends to one log: alone, while another thread compacts another log, and beside one that only computes.

    The last shows what busy cores leave: no compaction could cost less.
    """
    with fresh(run.root, "compaction") as other:
        _fill(other, RECORDS_BESIDE, KEYS_BESIDE)
        return [_beside(run, other, durability, share) for durability, share in SHARES.items()]


def _beside(run: Run, other: Path, durability: Durability, share: float) -> Line:
    alone: list[float] = []
    beside: list[float] = []
    computing: list[float] = []
    passes = 0
    for _ in range(run.rounds):
        with fresh(run.root, "appended") as path, kstore.Log(path, durability=durability) as log:
            alone.append(_append_rate(log))
            with fresh(run.root, "compacted") as copy:
                shutil.copytree(other, copy)
                passes += _compact_while(lambda: beside.append(_append_rate(log)), copy)
            with _Working(lambda: zlib.crc32(COMPUTED)):
                computing.append(_append_rate(log))
    assert passes, "nothing was compacted"
    was, kept, beside_work = (percentile(rates, 0.5) for rates in (alone, beside, computing))
    return Line(
        f'append to a log of durability "{durability}" while another is compacted',
        f"{kept:,.0f} a second",
        f"alone {was:,.0f} a second; beside a thread that only computes {beside_work / was:.2f} of it",
        f"{kept / was:.2f}",
        f"{share} of it",
        kept >= share * was,
    )


def _compact_while(work: Callable[[], object], path: Path) -> int:
    """Does ``work`` while the log at ``path`` is wholly compacted, repeatedly; returns how many times."""
    with kstore.Log(path, durability="os") as log, _Working(lambda: log.compact(whole=True)) as compacting:
        work()
    return compacting.count


def _append_rate(log: kstore.Log) -> float:
    value = values(1)[0]
    count = 0
    started = time.perf_counter()
    while (seconds := time.perf_counter() - started) < WINDOW_SECONDS:
        for _ in range(20):
            log.append(value)
        count += 20
    return count / seconds


class _Working:
    """Repeats some work in a thread while it is entered."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def _run(self) -> None:
        while not self._ended.is_set():
            self._work()
            self.count += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def _fill(path: Path, records: int, keys: int) -> int:
    """A log of ``records`` records over random keys, sealed; its size in bytes."""
    generator = random.Random(7)
    names = [b"customer-%07d" % number for number in range(keys)]
    batch = values()
    with kstore.Log(path, durability="os", segment_bytes=SEGMENT_BYTES) as log:
        for _ in range(records // BATCH_COUNT):
            log.append_many(batch, keys=generator.choices(names, k=BATCH_COUNT))
        log.roll()
        return sum(each.stat().st_size for each in log.path.glob("*.log"))
