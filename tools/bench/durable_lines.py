"""Durable appends of single records, 16 threads beside one: on this disk, and on one whose syncs take 4 ms more."""

from __future__ import annotations

import os
import threading
import time

import kstore
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from tools.bench.logs import fresh, values
from tools.bench.measure import Line, Run, in_turn, percentile, seconds_of
from tools.bench.slow_fs import SlowSyncFs

__all__ = ["durable", "durable_slow_disk"]

THREADS = 16
SECONDS = 0.7
SLOWER_SECONDS = 0.004
SYNCS = 200


def durable(run: Run) -> list[Line]:
    bare = sync_rate(run)
    return [_line(run, f"durable appends, {THREADS} threads", SYSTEM_FS, 5, f"bare synced write {bare:,.0f}/s")]


def durable_slow_disk(run: Run) -> list[Line]:
    name = f"durable appends, {THREADS} threads, a sync takes 4 ms more"
    bare = 1 / (1 / sync_rate(run) + SLOWER_SECONDS)
    return [_line(run, name, SlowSyncFs(SLOWER_SECONDS), 10, f"bare synced write {bare:,.0f}/s")]


def _line(run: Run, name: str, fs: FileSystem, times: float, bare: str) -> Line:
    many, one = in_turn(lambda: append_rate(run, THREADS, fs), lambda: append_rate(run, 1, fs), rounds=run.rounds)
    return Line(name, f"{many:,.0f} records/s", f"one thread {one:,.0f}/s, {bare}", f"{many / one:.1f}",
                f"{times} x one thread", many >= times * one)  # fmt: skip


def append_rate(run: Run, threads: int, fs: FileSystem) -> float:
    """Appends per second by ``threads`` threads together."""
    value = values(1)[0]
    with fresh(run.root, "durable") as path, kstore.Log(path, fs=fs) as log:
        counts = [0] * threads
        started = time.perf_counter()
        stop = started + SECONDS

        def work(number: int) -> None:
            while time.perf_counter() < stop:
                log.append(value)
                counts[number] += 1

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        rate = sum(counts) / (time.perf_counter() - started)
        assert log.end_offset == sum(counts)
    return rate


def sync_rate(run: Run) -> float:
    """Bare writes of one record's batch per second, each followed by fdatasync."""
    block = os.urandom(169)
    path = run.root / "limit"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def once() -> None:
        os.write(fd, block)
        os.fdatasync(fd)

    try:
        return 1 / percentile([seconds_of(once) for _ in range(SYNCS)], 0.5)
    finally:
        os.close(fd)
        path.unlink()
