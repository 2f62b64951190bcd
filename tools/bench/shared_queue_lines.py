"""A queue that several processes share: items got and acked per second, beside a table of SQLite, by hand."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from tools.bench.logs import fresh, values
from tools.bench.measure import Line, Run, all_in_turn
from tools.bench.shared_queue_child import fill

WORKERS = 4


class Workload(NamedTuple):
    """``workers`` processes take ``bulk`` items a call until all ``items`` are done. ``times``: the requirement, as a
    multiple of the queue by hand."""

    workers: int
    bulk: int
    durability: str
    items: int
    times: float


class Outcome(NamedTuple):
    """Items a second, and the smallest share of them that a worker had."""

    rate: float
    share: float


WORKLOADS = (
    Workload(1, 1, "os", 3_000, 1.5),
    Workload(1, 50, "os", 50_000, 1.0),
    Workload(WORKERS, 1, "os", 6_000, 1.0),
    Workload(WORKERS, 50, "os", 100_000, 0.5),
    Workload(WORKERS, 1, "sync", 1_000, 1.0),
    Workload(WORKERS, 50, "sync", 20_000, 1.2),
)
# Of the items of each of four workers.
SHARE_MIN = 0.15


def shared_queue(run: Run) -> list[Line]:
    """get + ack of a backlog, by one process and by four."""
    return [_line(run, workload) for workload in WORKLOADS]


def _line(run: Run, workload: Workload) -> Line:
    ours, theirs = all_in_turn(
        [_measured(run, "kstore", workload), _measured(run, "sqlite3", workload)], rounds=max(run.rounds // 2, 1)
    )
    rate, limit = (statistics.median(outcome.rate for outcome in outcomes) for outcomes in (ours, theirs))
    share = statistics.median(outcome.share for outcome in ours)
    who = "1 process" if workload.workers == 1 else f"{workload.workers} processes"
    how = "one by one" if workload.bulk == 1 else f"{workload.bulk} a call"
    asked, shares = f"{workload.times} x", ""
    if workload.workers > 1:
        asked += f", each {SHARE_MIN} of the items"
        shares = f", the least of a worker {share:.2f}"
    return Line(
        f"shared queue, {who}, get + ack {how}, {'fsync each' if workload.durability == 'sync' else 'no fsync'}",
        f"{rate:,.0f} items/s{shares}",
        f"sqlite3 by hand {limit:,.0f}/s",
        f"{rate / limit:.2f}",
        asked,
        rate >= workload.times * limit and (workload.workers == 1 or share >= SHARE_MIN),
    )


def _measured(run: Run, kind: str, workload: Workload) -> Callable[[], Outcome]:
    def measured() -> Outcome:
        with fresh(run.root, "shared-queue") as path:
            fill(kind, path, workload.durability, values(1) * workload.items)
            command = [sys.executable, "-m", "tools.bench.shared_queue_child", kind, str(path), workload.durability]
            workers = [
                subprocess.Popen(
                    [*command, str(workload.bulk)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
                for _ in range(workload.workers)
            ]
            try:
                for worker in workers:
                    assert worker.stdout is not None
                    worker.stdout.readline()
                started = time.monotonic()
                taken, ended = zip(*(_said(worker) for worker in _told_to_begin(workers)), strict=True)
            finally:
                for worker in workers:
                    worker.kill()
                    worker.communicate()
        assert sum(taken) == workload.items, (taken, workload)
        return Outcome(workload.items / (max(ended) - started), min(taken) / workload.items)

    return measured


def _told_to_begin(workers: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    return workers


def _said(worker: subprocess.Popen[str]) -> tuple[int, float]:
    assert worker.stdout is not None
    taken, ended = worker.stdout.readline().split()
    return int(taken), float(ended)
