"""Backups of a store, and what they and a replicator cost those who append meanwhile; all on one disk."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kstore
from tools.bench.logs import BATCH_BYTES, fresh, values
from tools.bench.measure import Line, Run, all_in_turn, percentile, seconds_of

GIB = 1 << 30
SEGMENT_BYTES = 128 << 20
SEGMENTS = 1_000
# What a backup copies beside appends.
BESIDE_BYTES = 32 << 20
# How long one measurement of durable appends takes: a few rounds of a replicator.
APPEND_SECONDS = 4.0
SETTINGS: dict[str, Any] = {"background": False, "durability": "os"}


def backup(run: Run) -> list[Line]:
    """All of a store, and then nothing new."""
    return [_whole(run), _unchanged(run)]


def _whole(run: Run) -> Line:
    with fresh(run.root, "store") as path:
        with kstore.open(path, segment_bytes=SEGMENT_BYTES, **SETTINGS) as store:
            _fill(store, GIB)
        size = sum(file.stat().st_size for file in path.rglob("*.log"))

        def backed_up() -> float:
            with fresh(run.root, "copy") as copy, kstore.open(path, **SETTINGS) as store:
                return size / seconds_of(lambda: store.backup(copy))

        def copied() -> float:
            with fresh(run.root, "copy") as copy:
                return size / seconds_of(lambda: _cp(path, copy))

        rates, limits = all_in_turn((backed_up, copied), rounds=max(run.rounds // 2, 1))
    rate, limit = percentile(rates, 0.5), percentile(limits, 0.5)
    figure, bound = f"{rate / 1e9:.2f} GB/s", f"cp, and a sync of each file {limit / 1e9:.2f} GB/s"
    return Line("backup of 1 GiB to the same disk", figure, bound, f"{rate / limit:.2f}", "0.8 of it",
                rate >= 0.8 * limit)  # fmt: skip


def _unchanged(run: Run) -> Line:
    with fresh(run.root, "store") as path, fresh(run.root, "copy") as copy:
        with kstore.open(path, segment_bytes=1200, **SETTINGS) as store:
            store.create_topic("orders")
            batch = values(10)
            for _ in range(SEGMENTS):
                store.log("orders").append_many(batch)
            store.backup(copy)
        time.sleep(2.5)  # until the files' times can be believed
        with kstore.open(path, **SETTINGS) as store:
            store.backup(copy)

        def again() -> float:
            with kstore.open(path, **SETTINGS) as store:
                started = time.perf_counter()
                result = store.backup(copy)
                seconds = time.perf_counter() - started
            assert not result.copied_count
            assert result.file_count >= SEGMENTS
            return seconds

        seconds = percentile([again() for _ in range(run.rounds)], 0.5)
    return Line(
        f"backup of {SEGMENTS:,} segments, none of them new", f"{seconds:.2f} s", "", "", "0.5 s", seconds <= 0.5
    )


# --- beside appends ---------------------------------------------------------------------------------------------------


def backup_beside(run: Run) -> list[Line]:
    """Durable appends while a backup copies what is there already."""
    with fresh(run.root, "store") as path:
        with kstore.open(path, segment_bytes=BESIDE_BYTES // 8, **SETTINGS) as store:
            _fill(store, BESIDE_BYTES)
        with kstore.open(path, background=False) as store:
            store.create_topic("live")
            return [_beside(run, store, count) for count in (1, 100)]


def _beside(run: Run, store: kstore.Store, count: int) -> Line:
    log, batch = store.log("live"), values(count)

    def rate_while(work: Callable[[Path], object]) -> float:
        """Records a second until ``work`` ends."""
        calls = 0
        with fresh(run.root, "copy") as copy, _in_thread(lambda: work(copy)) as thread:
            started = time.perf_counter()
            while thread.is_alive():
                log.append_many(batch)
                calls += 1
            seconds = time.perf_counter() - started
        log.delete_records(log.end_offset)  # or the next backup would take longer
        return calls * count / seconds

    alone, beside = all_in_turn(
        (lambda: rate_while(lambda copy: time.sleep(APPEND_SECONDS)), lambda: rate_while(store.backup)),
        rounds=max(run.rounds // 2, 1),
        warm_up=0,
    )
    rate, limit = percentile(beside, 0.5), percentile(alone, 0.5)
    name = f"durable appends of {count} beside a backup"
    figure, bound = f"{rate / 1e3:.1f} k records/s", f"alone {limit / 1e3:.1f} k/s"
    return Line(name, figure, bound, f"{rate / limit:.2f}", "0.9 of it", rate >= 0.9 * limit)


def replicator_beside(run: Run) -> list[Line]:
    """Durable appends one by one, while what they append is replicated each second, to the same disk."""
    with fresh(run.root, "store") as path, fresh(run.root, "copy") as copy, kstore.open(path) as store:
        store.create_topic("live")
        log = store.log("live")

        def append_us() -> list[float]:
            times = []
            deadline = time.perf_counter() + APPEND_SECONDS
            while (started := time.perf_counter()) < deadline:
                log.append(b"v" * 100)
                times.append((time.perf_counter() - started) * 1e6)
            return times

        def append_beside_us() -> list[float]:
            with store.replicator(copy, every="1s") as replicator:
                replicator.flush()
                return append_us()

        alone, beside = all_in_turn((append_us, append_beside_us), rounds=max(run.rounds // 2, 1))
    lines = []
    for share, times in ((0.5, ""), (0.99, "at most 1.2 x")):
        us, limit = (percentile([percentile(one, share) for one in taken], 0.5) for taken in (beside, alone))
        name = f"a durable append beside a replicator, p{100 * share:.0f}"
        reached = us <= 1.2 * limit if times else None
        lines.append(Line(name, f"{us:.0f} us", f"alone {limit:.0f} us", f"{us / limit:.2f}", times, reached))
    return lines


# --- helpers ----------------------------------------------------------------------------------------------------------


def _fill(store: kstore.Store, size: int) -> None:
    store.create_topic("orders")
    batch = values()
    for _ in range(size // BATCH_BYTES):
        store.log("orders").append_many(batch)


def _cp(source: Path, target: Path) -> None:
    """cp, and what a backup does too: its files are on disk in the end."""
    subprocess.run(["cp", "-r", source, target], check=True)
    for directory, _, names in os.walk(target):
        for name in [*names, "."]:
            descriptor = os.open(Path(directory, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextmanager
def _in_thread(work: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()
