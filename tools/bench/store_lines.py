"""A store of many logs: opening it, and retention over a log of many segments."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import kstore
from kstore.files.local import SYSTEM_FS
from kstore.log import writer_of
from tools.bench.logs import fresh, many_segments
from tools.bench.measure import Line, Run, in_turn, percentile, seconds_of

PARTITIONS = 1_000
SEGMENTS_EACH = 10
SEGMENTS = 10_000


def store(run: Run) -> list[Line]:
    with fresh(run.root, "store") as path:
        with kstore.open(path, durability="os", segment_bytes=1024) as made:
            made.create_topic("orders", PARTITIONS)
            for number in range(PARTITIONS):
                log = made.log("orders", number)
                for _ in range(SEGMENTS_EACH):
                    log.append(bytes(600))
                log.close()

        def opened() -> float:
            started = time.perf_counter()
            found = kstore.open(path)
            seconds = time.perf_counter() - started
            assert len(found.partitions("orders")) == PARTITIONS
            found.close()
            return 1 / seconds

        def listed() -> float:
            return 1 / seconds_of(lambda: [SYSTEM_FS.list(path / name) for name in SYSTEM_FS.list(path) if "-" in name
                                           and SYSTEM_FS.stat(path / name).is_dir])  # fmt: skip

        rate, limit = in_turn(opened, listed, rounds=run.rounds)
        ms, limit_ms = 1000 / rate, 1000 / limit
        name = f"open a store, {PARTITIONS:,} partitions and {PARTITIONS * SEGMENTS_EACH:,} segments closed cleanly"
        return [
            Line(name, f"{ms:.0f} ms", f"listing them {limit_ms:.0f} ms", f"{ms / limit_ms:.1f}", "500 ms", ms <= 500)
        ]


def retention(run: Run) -> list[Line]:
    """By time, which must examine every segment; the files are renamed, as in a store, and then removed."""
    taken: list[float] = []
    limits: list[float] = []
    with fresh(run.root, "retention") as origin:
        many_segments(origin / "orders-0", SEGMENTS)
        for _ in range(max(run.rounds // 2, 1)):
            with fresh(run.root, "retained") as path:
                shutil.copytree(origin, path)
                taken.append(_retention_seconds(path))
            with fresh(run.root, "renamed") as path:
                shutil.copytree(origin, path)
                limits.append(seconds_of(lambda: _rename_and_unlink_all(path / "orders-0")))
    seconds, limit = percentile(taken, 0.5), percentile(limits, 0.25)
    name = f"retention by time of {SEGMENTS:,} segments"
    return [
        Line(name, f"{seconds:.2f} s", f"renaming and unlinking their files {limit:.2f} s", f"{seconds / limit:.2f}",
             "at most 1.3 of it", seconds <= 1.3 * limit)
    ]  # fmt: skip


def _retention_seconds(path: Path) -> float:
    with kstore.Store(path, background=False, retention_ms=1) as opened:
        log = opened.log("orders")
        started = time.perf_counter()
        assert opened.apply_retention().segment_count >= SEGMENTS
        writer_of(log).files.remove_deleted(at_once=True)
        return time.perf_counter() - started


def _rename_and_unlink_all(path: Path) -> None:
    names = [f"{path}/{name}" for name in SYSTEM_FS.list(path)]
    for name in names:
        os.rename(name, name + ".deleted")  # noqa: PTH104  # the bare call
    for name in names:
        os.unlink(name + ".deleted")  # noqa: PTH108
