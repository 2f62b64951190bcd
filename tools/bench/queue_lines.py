"""A queue: items put, got and acked per second, beside queues written by hand at the same durability, and libraries."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

from tools.bench.logs import fresh, values
from tools.bench.measure import Line, Run, all_in_turn, rows_as_table, seconds_of
from tools.bench.queue_peers import BY_HAND, QUEUES

# Items in each bulk call.
BULK = 1_000


class Workload(NamedTuple):
    """``items``: how many in one measurement of kstore and the queues by hand; ``library_items``: of the slower
    libraries. ``times``: the requirement, as a multiple of the best by hand."""

    name: str
    in_bulk: bool
    synced: bool
    items: int
    library_items: int
    times: float


WORKLOADS = (
    Workload("in bulk, no fsync", True, False, 50_000, 1_000, 1.5),
    Workload("one by one, no fsync", False, False, 10_000, 1_000, 1.5),
    Workload("in bulk, fsync each", True, True, 20_000, 1_000, 1.3),
    Workload("one by one, fsync each", False, True, 150, 50, 1.5),
)


def queue(run: Run) -> list[Line]:
    return [_line(run, workload) for workload in WORKLOADS]


def queues(run: Run) -> str:
    """A table of all queues, the libraries among them."""
    columns = []
    for workload in WORKLOADS:
        works = [
            _rate(
                run, name, workload, workload.items if name == "kstore" or name in BY_HAND else workload.library_items
            )
            for name in QUEUES
        ]
        columns.append([statistics.median(rates) for rates in all_in_turn(works, rounds=run.rounds)])
    rows = [(name, *(f"{rate:,.0f}/s" for rate in found)) for name, *found in zip(QUEUES, *columns, strict=True)]
    return rows_as_table([("put + get + ack", *(workload.name for workload in WORKLOADS)), *rows])


def _rate(run: Run, name: str, workload: Workload, count: int) -> Callable[[], float]:
    value = values(1)[0]

    def measured() -> float:
        with fresh(run.root, "queue") as path:
            made = QUEUES[name](path, workload.synced)
            try:
                if workload.in_bulk:
                    return count / seconds_of(lambda: [made.bulk(value, BULK) for _ in range(count // BULK)])
                return count / seconds_of(lambda: made.one_by_one(value, count))
            finally:
                made.close()

    return measured


def _line(run: Run, workload: Workload) -> Line:
    works = [_rate(run, name, workload, workload.items) for name in ("kstore", *BY_HAND)]
    rate, *others = (statistics.median(rates) for rates in all_in_turn(works, rounds=run.rounds))
    best = max(others)
    beside = ", ".join(f"{name} {found:,.0f}/s" for name, found in zip(BY_HAND, others, strict=True))
    return Line(
        f"queue, put + get + ack {workload.name}",
        f"{rate:,.0f} items/s",
        beside,
        f"{rate / best:.1f}",
        f"{workload.times} x the best",
        rate >= workload.times * best,
    )
