"""Durable appends of single records: 16 threads beside one, on this disk and on one whose syncs take 4 ms more; and 64
threads beside a bare writer that does the least: a thread that writes and syncs whatever waits."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable

import kstore
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from tools.bench.logs import fresh, values
from tools.bench.measure import Line, Run, in_turn, percentile, seconds_of
from tools.bench.slow_fs import SlowSyncFs

THREADS = 16
MANY_THREADS = 64
GROUPED_RATIO_MIN = 0.6
# Of a record of 100 bytes in a batch of its own.
BATCH_BYTES = 169
SECONDS = 0.7
SLOWER_SECONDS = 0.004
SYNCS = 200


def durable(run: Run) -> list[Line]:
    bare = sync_rate(run)
    return [_line(run, f"durable appends, {THREADS} threads", SYSTEM_FS, 5, f"bare synced write {bare:,.0f}/s")]


def durable_grouped(run: Run) -> list[Line]:
    """Many threads, beside a writer made by hand that groups what they wait for."""
    ours, bare = in_turn(
        lambda: append_rate(run, MANY_THREADS, SYSTEM_FS), lambda: grouped_rate(run, MANY_THREADS), rounds=run.rounds
    )
    return [
        Line(
            f"durable appends, {MANY_THREADS} threads",
            f"{ours:,.0f} records/s",
            f"a bare grouped writer {bare:,.0f}/s",
            f"{ours / bare:.2f}",
            f"{GROUPED_RATIO_MIN} x the bare writer",
            ours >= GROUPED_RATIO_MIN * bare,
        )
    ]


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
        rate, count = _rate(threads, lambda: log.append(value))
        assert log.end_offset == count
    return rate


def grouped_rate(run: Run, threads: int) -> float:
    """The same, if a thread writes and syncs as many blocks as threads wait for, and wakes these."""
    block = os.urandom(BATCH_BYTES)
    waiting: queue.SimpleQueue[threading.Lock | None] = queue.SimpleQueue()
    mine = threading.local()

    def append() -> None:
        written = getattr(mine, "written", None)
        if written is None:
            written = mine.written = threading.Lock()
            written.acquire()
        waiting.put(written)
        written.acquire()

    def write() -> None:
        while True:
            group = [waiting.get()]
            while not waiting.empty():
                group.append(waiting.get())
            waiters = [written for written in group if written is not None]
            if waiters:
                os.write(fd, block * len(waiters))
                os.fdatasync(fd)
            for written in waiters:
                written.release()
            if len(waiters) < len(group):
                return

    path = run.root / "grouped"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        return _rate(threads, append)[0]
    finally:
        waiting.put(None)
        writer.join()
        os.close(fd)
        path.unlink()


def _rate(threads: int, append: Callable[[], object]) -> tuple[float, int]:
    """Calls of ``append`` per second by ``threads`` threads together, and how many there were."""
    counts = [0] * threads
    started = time.perf_counter()
    stop = started + SECONDS

    def work(number: int) -> None:
        while time.perf_counter() < stop:
            append()
            counts[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - started), sum(counts)


def sync_rate(run: Run) -> float:
    """Bare writes of one record's batch per second, each followed by fdatasync."""
    block = os.urandom(BATCH_BYTES)
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
