"""kstore beside other stores: the same bytes, the same durability, in turn in each round."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import NamedTuple

from tools.bench.logs import BATCH_COUNT, fresh, values
from tools.bench.measure import Run, percentile, rows_as_table, seconds_of
from tools.bench.peers import PEERS, Peer, Store

LOOKUPS = 2_000
BLOCK_BYTES = 512


class Workload(NamedTuple):
    """``batch_count`` records in a call: ``records`` in all without syncs, ``synced`` with a sync in each call."""

    name: str
    batch_count: int
    records: int
    synced: int


WORKLOADS = (
    Workload("batches of 1,000 records", BATCH_COUNT, 300_000, 100_000),
    Workload("one record a call", 1, 20_000, 400),
)


class Result(NamedTuple):
    """Records per second, the p50 of a lookup, and a record's bytes on disk."""

    append_synced: float
    append: float
    read: float
    lookup_us: float
    record_bytes: float


def comparison(run: Run) -> str:
    """A table for each workload, with its heading."""
    return "\n\n".join(f"### {workload.name.capitalize()}\n\n{compare(run, workload)}" for workload in WORKLOADS)


def compare(run: Run, workload: Workload) -> str:
    results: dict[str, list[Result]] = {peer.name: [] for peer in PEERS}
    for number in range(run.rounds + 1):
        for peer in PEERS:
            result = measure(run, peer, workload)
            if number:  # the first round warms up
                results[peer.name].append(result)
    head = ("", "append, synced", "append, not synced", "read all", "look up one, p50", "on disk, a record")
    return rows_as_table([head, *(_row(name, taken) for name, taken in results.items())])


def _row(name: str, results: list[Result]) -> tuple[str, ...]:
    medians = Result(*(percentile(column, 0.5) for column in zip(*results, strict=True)))
    rates = (f"{rate:,.0f}/s" for rate in map(_rounded, medians[:3]))
    return (name, *rates, f"{medians.lookup_us:.1f} us", f"{medians.record_bytes:.0f} bytes")


def _rounded(rate: float) -> float:
    """With three significant digits: the rest is noise."""
    return float(f"{rate:.3g}")


def measure(run: Run, peer: Peer, workload: Workload) -> Result:
    with fresh(run.root, "peer") as path:
        synced = filled(path, peer, workload, synced=True)[0]
    with fresh(run.root, "peer") as path:
        rate, store = filled(path, peer, workload, synced=False)
        read = workload.records / seconds_of(lambda: exhaust(store))
        lookup_us = lookup(store, workload)
        ensure_whole(peer, store, workload)
        store.close()
        blocks = sum(file.stat().st_blocks for file in path.iterdir())
        return Result(synced, rate, read, lookup_us, blocks * BLOCK_BYTES / workload.records)


def filled(path: Path, peer: Peer, workload: Workload, *, synced: bool) -> tuple[float, Store]:
    """The rate of appending, and the filled store; already closed if ``synced``."""
    batch = values()
    records = workload.synced if synced else workload.records
    store = peer.open(path, synced)
    if workload.batch_count == 1:
        append = store.append
        seconds = seconds_of(lambda: [append(batch[number % BATCH_COUNT]) for number in range(records)])
    else:
        append_many = store.append_many
        seconds = seconds_of(lambda: [append_many(batch) for _ in range(records // BATCH_COUNT)])
    if synced:
        store.close()
    return records / seconds, store


def exhaust(store: Store) -> None:
    for _ in store.values():
        pass


def lookup(store: Store, workload: Workload) -> float:
    """The median of looking up one value, in us."""
    generator = random.Random(11)
    batch = values()
    times = []
    for _ in range(LOOKUPS):
        number = generator.randrange(workload.records)
        started = time.perf_counter_ns()
        value = store.value_at(number)
        times.append((time.perf_counter_ns() - started) / 1e3)
        assert value == batch[number % BATCH_COUNT]
    return percentile(times, 0.5)


def ensure_whole(peer: Peer, store: Store, workload: Workload) -> None:
    """Checks that all appended values are read: a store that loses records is not fast."""
    batch = values()
    count = 0
    for count, value in enumerate(store.values(), 1):
        assert value == batch[(count - 1) % BATCH_COUNT], f"{peer.name}: value {count - 1} is another"
    assert count == workload.records, f"{peer.name}: {count} values, expected {workload.records}"
