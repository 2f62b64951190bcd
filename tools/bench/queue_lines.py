"""A queue: items put, got and acked a second, beside others at the same durability, and beside bare synced writes."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable

from tools.bench.logs import fresh, values
from tools.bench.measure import Line, Run, all_in_turn, seconds_of
from tools.bench.queue_peers import QUEUES

__all__ = ["queue"]

# The number of items queued at a time in bulk, and one by one; the slower ones use fewer.
KSTORE_COUNT, PEER_COUNT = 20_000, 1_000
BULK = 1_000
SYNCED_COUNT = 150


def queue(run: Run) -> list[Line]:
    return [
        _beside_peers(run, "queue, put + get + ack in bulk, no fsync", in_bulk=True, times=20),
        _beside_peers(run, "queue, put + get + ack one by one, no fsync", in_bulk=False, times=3),
        _beside_syncs(run),
    ]


def _rate(run: Run, name: str, *, in_bulk: bool, synced: bool, count: int) -> Callable[[], float]:
    value = values(1)[0]

    def measured() -> float:
        with fresh(run.root, "queue") as path:
            made = QUEUES[name](path, synced)
            try:
                if in_bulk:
                    return count / seconds_of(lambda: [made.bulk(value, BULK) for _ in range(count // BULK)])
                return count / seconds_of(lambda: made.one_by_one(value, count))
            finally:
                made.close()

    return measured


def _beside_peers(run: Run, name: str, *, in_bulk: bool, times: float) -> Line:
    works = [
        _rate(
            run, queue, in_bulk=in_bulk, synced=False, count=KSTORE_COUNT * (1 + 4 * in_bulk) if at == 0 else PEER_COUNT
        )
        for at, queue in enumerate(QUEUES)
    ]
    rate, *others = (statistics.median(rates) for rates in all_in_turn(works, rounds=run.rounds))
    named = dict(zip(list(QUEUES)[1:], others, strict=True))
    fastest = max(others)
    beside = ", ".join(f"{peer} {found:,.0f}/s" for peer, found in named.items())
    asked = f"{times:.0f} x the fastest"
    return Line(name, f"{rate:,.0f} items/s", beside, f"{rate / fastest:.1f}", asked, rate >= times * fastest)


def _bare_rate(run: Run) -> float:
    """Items a second if each were two writes in two files, each followed by a sync and nothing else."""
    block = os.urandom(169)
    paths = [run.root / "limit-items", run.root / "limit-journal"]
    fds = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600) for path in paths]

    def work() -> None:
        for _ in range(SYNCED_COUNT):
            for fd in fds:
                os.write(fd, block)
                os.fdatasync(fd)

    try:
        return SYNCED_COUNT / seconds_of(work)
    finally:
        for fd, path in zip(fds, paths, strict=True):
            os.close(fd)
            path.unlink()


def _beside_syncs(run: Run) -> Line:
    """Each item takes two syncs: its put, and its ack."""
    works = [
        _rate(run, "kstore", in_bulk=False, synced=True, count=SYNCED_COUNT),
        lambda: _bare_rate(run),
        *(_rate(run, peer, in_bulk=False, synced=True, count=SYNCED_COUNT // 3) for peer in list(QUEUES)[1:]),
    ]
    rate, bare, *others = (statistics.median(rates) for rates in all_in_turn(works, rounds=run.rounds))
    beside = ", ".join(f"{peer} {found:,.0f}/s" for peer, found in zip(list(QUEUES)[1:], others, strict=True))
    name = "queue, put + get + ack one by one, fsync each"
    limit = f"two bare synced writes {bare:,.0f}/s; {beside}"
    return Line(name, f"{rate:,.0f} items/s", limit, f"{rate / bare:.2f}", "0.8 of bare syncs", rate >= 0.8 * bare)
