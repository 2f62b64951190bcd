"""The log's lines of the benchmark: append, read, lookup, open, recovery.

Values of 100 bytes, 1,000 distinct ones, batches of 1,000 records; everything in the page cache but recovery, which
reads what is on disk.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kstore
from kstore.files.local import SYSTEM_FS
from tools.bench.measure import Line, in_turn, percentile, seconds_of

__all__ = ["BENCHES"]

VALUE_SIZE = 100
BATCH_COUNT = 1_000
RECORDS = 1_000_000
BLOCK_BYTES = 64 * 1024
# What 1,000 such records take on disk in one batch, header included.
BATCH_BYTES = 109_061
LOOKUPS = 5_000
MILLION = 1e6


def values(count: int = BATCH_COUNT) -> list[bytes]:
    generator = random.Random(7)
    return [generator.randbytes(VALUE_SIZE) for _ in range(count)]


@contextmanager
def fresh(root: Path, name: str) -> Iterator[Path]:
    path = root / name
    shutil.rmtree(path, ignore_errors=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def os_write_rate(root: Path, total: int) -> float:
    """Records a second that os.write of 64 KiB blocks would make of the same bytes."""
    block = os.urandom(BLOCK_BYTES)
    path = root / "limit"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        seconds = seconds_of(lambda: [os.write(fd, block) for _ in range(total // BLOCK_BYTES)])
    finally:
        os.close(fd)
        path.unlink()
    return total / (BATCH_BYTES / BATCH_COUNT) / seconds


def pread_rate(path: Path) -> float:
    """Records a second that a bare pread of the same files would make, in chunks of 1 MiB."""
    files = sorted(path.glob("*.log"))
    total = sum(file.stat().st_size for file in files)

    def read_all() -> None:
        for file in files:
            fd = os.open(file, os.O_RDONLY)
            at = 0
            while data := os.pread(fd, 1 << 20, at):
                at += len(data)
            os.close(fd)

    return total / (BATCH_BYTES / BATCH_COUNT) / seconds_of(read_all)


def append_many(root: Path) -> Line:
    batch = values()

    def run() -> float:
        with fresh(root, "append") as path, kstore.Log(path, durability="os") as log:
            log.append_many(batch)
            append = log.append_many
            seconds = seconds_of(lambda: [append(batch) for _ in range(RECORDS // BATCH_COUNT)])
        return RECORDS / seconds

    rate, limit = in_turn(run, lambda: os_write_rate(root, RECORDS * BATCH_BYTES // BATCH_COUNT), rounds=9)
    return rate_line("append_many, batches of 1,000", rate, limit, "os.write", ratio_min=0.5)


def append_one(root: Path) -> Line:
    batch = values()
    count = 20_000

    def run() -> float:
        with fresh(root, "append-one") as path, kstore.Log(path, durability="os") as log:
            append = log.append
            seconds = seconds_of(lambda: [append(batch[i % BATCH_COUNT]) for i in range(count)])
        return count / seconds

    def limit() -> float:
        # One batch of one record: 61 bytes of header, 108 of record.
        block = os.urandom(169)
        path = root / "limit"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        seconds = seconds_of(lambda: [os.write(fd, block) for _ in range(count)])
        os.close(fd)
        path.unlink()
        return count / seconds

    rate, bound = in_turn(run, limit)
    return Line("append, one record a call", f"{rate / 1e3:,.0f} k records/s", f"os.write {bound / 1e3:,.0f} k/s",
                f"{rate / bound:.2f}", "", None)  # fmt: skip


def read(root: Path) -> Line:
    def loop(log: kstore.Log) -> None:
        for _ in log.read():
            pass

    return _read(root, "read as Record objects, CRC checked", loop, 9 * MILLION)


def read_values(root: Path) -> Line:
    def loop(log: kstore.Log) -> None:
        for _ in log.read_values():
            pass

    return _read(root, "read_values, CRC checked", loop, 14 * MILLION)


def _read(root: Path, name: str, loop: Callable[[kstore.Log], None], rate_min: float) -> Line:
    with fresh(root, "read") as path:
        fill(path, RECORDS)
        with kstore.Log(path, read_only=True) as log:
            rate, limit = in_turn(lambda: RECORDS / seconds_of(lambda: loop(log)), lambda: pread_rate(path))
    return rate_line(name, rate, limit, "pread", rate_min=rate_min)


def fill(path: Path, records: int, batch_count: int = BATCH_COUNT, **settings: Any) -> None:
    batch = values(batch_count)
    with kstore.Log(path, durability="os", **settings) as log:
        for _ in range(records // batch_count):
            log.append_many(batch)


def lookup_small(root: Path) -> Line:
    """Batches of 16 KiB, the segment open."""
    with fresh(root, "lookup") as path:
        fill(path, 200_000, batch_count=149)
        return _lookup(path, "lookup and read one, batches of 16 KiB, p50", 12)


def lookup_large(root: Path) -> Line:
    with fresh(root, "lookup") as path:
        fill(path, RECORDS)
        return _lookup(path, "lookup and read one, batches of 1,000, p50", 22)


def lookup_many_segments(root: Path) -> Line:
    with fresh(root, "lookup") as path:
        many_segments(path)
        return _lookup(path, "lookup and read one, segment not open, one of 10,000, p50", 20, segments=True)


def _lookup(path: Path, name: str, limit_us: float, *, segments: bool = False) -> Line:
    generator = random.Random(11)
    with kstore.Log(path, read_only=True) as log:
        end = log.end_offset
        log_files = sorted(path.glob("*.log"))
        fd = os.open(log_files[0], os.O_RDONLY)
        times, bare = [], []
        for _ in range(LOOKUPS):
            offset = generator.randrange(end)
            started = time.perf_counter_ns()
            record = next(log.read(offset))
            times.append(time.perf_counter_ns() - started)
            assert record.offset == offset
            started = time.perf_counter_ns()
            os.pread(fd, 16_384, 0)
            bare.append(time.perf_counter_ns() - started)
        os.close(fd)
    p50, p99 = percentile(times, 0.5) / 1e3, percentile(times, 0.99) / 1e3
    floor = percentile(bare, 0.5) / 1e3
    return Line(name, f"{p50:.1f} us (p99 {p99:.1f})", f"one pread of 16 KiB {floor:.1f} us", f"{p50 / floor:.1f}",
                f"{limit_us} us", p50 <= limit_us)  # fmt: skip


def many_segments(path: Path, count: int = 10_000) -> None:
    """A log of ``count`` segments, each with one small batch, closed in order."""
    batch = values(10)
    with kstore.Log(path, durability="os", segment_bytes=1200) as log:
        for _ in range(count):
            log.append_many(batch)


def open_clean(root: Path) -> Line:
    with fresh(root, "open") as path:
        many_segments(path)

        def run() -> float:
            started = time.perf_counter()
            log = kstore.Log(path)
            seconds = time.perf_counter() - started
            assert log.recovery.clean
            log.close()
            return 1 / seconds

        def limit() -> float:
            return 1 / seconds_of(lambda: SYSTEM_FS.list(path))

        rate, bound = in_turn(run, limit)
    ms = 1000 / rate
    name, limit_figure = "open a cleanly closed log of 10,000 segments", f"one directory listing {1000 / bound:.0f} ms"
    return Line(name, f"{ms:.0f} ms", limit_figure, f"{bound / rate:.1f}", "75 ms", ms <= 75)


def recovery(root: Path) -> Line:
    with fresh(root, "recovery") as path:
        fill(path, 4 * RECORDS)
        total = sum(file.stat().st_size for file in path.glob("*.log"))

        def run() -> float:
            (path / "kstore.state").unlink()
            started = time.perf_counter()
            log = kstore.Log(path)
            seconds = time.perf_counter() - started
            assert log.recovery.records_scanned == 4 * RECORDS
            log.close()
            return total / seconds

        def limit() -> float:
            file = SYSTEM_FS.open(next(path.glob("*.log")))
            file.advise(0, 0, "dontneed")

            def read_all() -> None:
                at = 0
                while data := file.pread(1 << 20, at):
                    at += len(data)

            return total / seconds_of(read_all)

        rate, bound = in_turn(run, limit, rounds=5)
    return Line("recovery after a crash, every record decoded", f"{rate / 1e9:.2f} GB/s",
                f"pread after dropping the cache {bound / 1e9:.2f} GB/s", f"{rate / bound:.2f}", "2.5 GB/s",
                rate >= 2.5e9)  # fmt: skip


def durable(root: Path) -> Line:
    """16 threads, each appending one record a call with durability "sync", beside one thread."""
    value = values(1)[0]
    seconds = 1.0

    def rate(threads: int) -> float:
        with fresh(root, "durable") as path, kstore.Log(path) as log:
            counts = [0] * threads
            stop = time.perf_counter() + seconds

            def work(number: int) -> None:
                while time.perf_counter() < stop:
                    log.append(value)
                    counts[number] += 1

            workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            return sum(counts) / seconds

    many, one = in_turn(lambda: rate(16), lambda: rate(1), rounds=5)
    figure, limit = f"{many:,.0f} records/s", f"one thread {one:,.0f}/s"
    return Line("durable appends, 16 threads", figure, limit, f"{many / one:.1f}", "5 x", many >= 5 * one)


def rate_line(
    name: str,
    rate: float,
    limit: float,
    limit_name: str,
    *,
    ratio_min: float | None = None,
    rate_min: float | None = None,
) -> Line:
    target, reached = "", None
    if ratio_min is not None:
        target, reached = f"{ratio_min} x", rate >= ratio_min * limit
    if rate_min is not None:
        target, reached = f"{rate_min / MILLION:.0f} M records/s", rate >= rate_min
    return Line(
        name,
        f"{rate / MILLION:.1f} M records/s",
        f"{limit_name} {limit / MILLION:.1f} M/s",
        f"{rate / limit:.2f}",
        target,
        reached,
    )


BENCHES: tuple[Callable[[Path], Line], ...] = (
    append_many,
    append_one,
    read,
    read_values,
    lookup_small,
    lookup_many_segments,
    lookup_large,
    open_clean,
    recovery,
    durable,
)
