"""A producer beside its peers, in one run: the same values, with nothing synced and with each commit on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tools.bench.logs import BATCH_BYTES, BATCH_COUNT, fresh, values
from tools.bench.measure import MILLION, Line, Run, all_in_turn, percentile, seconds_of
from tools.bench.producer_lines import producing, send_values
from tools.bench.producer_peers import PEERS, Peer, Unavailable

ONE_BYTES = 169
COMMITS = 60
# Some 200 MB: a stream that the producer's memory cannot hold.
STEADY_RECORDS = 2_000_000
STEADY_SHARE = 0.7
WAITED_SHARE = 0.85


class Workload(NamedTuple):
    """A commit after each ``commit_count`` records; synced: it is then on disk."""

    name: str
    in_bulk: bool
    commit_count: int
    synced: bool


ONE_BY_ONE = Workload("send, one by one, nothing synced", False, BATCH_COUNT, False)
BULK = Workload("send_many of 1,000, nothing synced", True, BATCH_COUNT, False)
COMMIT_ONE = Workload("send and wait, each on disk", False, 1, True)
COMMIT_MANY = Workload("send_many of 1,000 and wait, each on disk", True, BATCH_COUNT, True)


class Rates(NamedTuple):
    """Records a second: kstore's, by peer, and of a limit; and why other peers have none."""

    own: float
    peers: dict[str, float]
    limit: float
    missing: dict[str, str]


def producer_peers(run: Run) -> list[Line]:
    """Nothing is synced; a store that has transactions commits each thousand, the others end with a flush."""
    one, many = rates_of(run, ONE_BY_ONE), rates_of(run, BULK)
    return [
        _peer_line(ONE_BY_ONE, one, max(one.peers.values()), 3, "the fastest"),
        _peer_line(BULK, many, many.peers.get("lmdb", 0.0), 2, "lmdb's putmulti"),
    ]


def _peer_line(workload: Workload, rates: Rates, beside: float, times: float, which: str) -> Line:
    asked, reached, ratio = f"{times:.0f} x {which}", None, "-"
    if beside:
        ratio, reached = f"{rates.own / beside:.1f}", rates.own >= times * beside
    return Line(f"producer: {workload.name}", f"{rates.own / MILLION:.1f} M records/s",
                _told(rates, in_millions=True), ratio, asked, reached)  # fmt: skip


def producer_peers_synced(run: Run) -> list[Line]:
    """Each commit is on disk: one that is waited for beside those of the peers, and a stream of them."""
    return [
        _commit_line(run, COMMIT_ONE, ONE_BYTES),
        _commit_line(run, COMMIT_MANY, BATCH_BYTES),
        _steady_line(run),
    ]


def _commit_line(run: Run, workload: Workload, size: int) -> Line:
    rates = rates_of(run, workload, limit=lambda: workload.commit_count * bare_commits(run, size))
    limit = rates.limit
    return Line(
        f"producer: {workload.name}",
        f"{rates.own:,.0f} records/s",
        f"pwrite and fdatasync of {size:,} bytes {limit:,.0f}/s; {_told(rates)}",
        f"{rates.own / limit:.2f}",
        f"{WAITED_SHARE} of it",
        rates.own >= WAITED_SHARE * limit,
    )


def _steady_line(run: Run) -> Line:
    """Only the end is waited for; the sender syncs what arrived meanwhile, in the sizes that the limit uses."""
    sizes: list[float] = []
    limits: list[float] = []

    def rate() -> float:
        with fresh(run.root, "producer") as path, producing(path, durability="sync", acks="all") as (producer, _):
            send_values(producer, BATCH_COUNT)
            producer.flush()
            before = producer.metrics()

            def work() -> None:
                send_values(producer, STEADY_RECORDS)
                producer.flush()

            seconds = seconds_of(work)
            after = producer.metrics()
        written, writes = (after[name] - before[name] for name in ("bytes", "writes"))
        sizes.append(written / writes)
        limits.append(bare_commits(run, round(written / writes), count=round(writes)) * STEADY_RECORDS / writes)
        return STEADY_RECORDS / seconds

    (rates,) = all_in_turn([rate], rounds=run.rounds)
    own, limit, size = percentile(rates, 0.5), percentile(limits, 0.75), percentile(sizes, 0.5)
    return Line(
        "producer: send, one by one, each write on disk",
        f"{own / MILLION:.2f} M records/s",
        f"pwrite and fdatasync of the same {size / 1024:,.0f} KiB {limit / MILLION:.2f} M/s",
        f"{own / limit:.2f}",
        f"{STEADY_SHARE} of it",
        own >= STEADY_SHARE * limit,
    )


def rates_of(run: Run, workload: Workload, limit: Callable[[], float] = lambda: 0.0) -> Rates:
    """The rates of the available peers, measured in turn with that of a limit."""
    missing: dict[str, str] = {}
    there: list[Peer] = []
    for peer in PEERS:
        try:
            with fresh(run.root, "peer") as path:
                peer.open(path, workload.synced).close()
            there.append(peer)
        except Unavailable as reason:
            missing[peer.name] = str(reason)
    works: list[Callable[[], float]] = [partial(peer_rate, run, peer, workload) for peer in there]
    *taken, limits = all_in_turn([*works, limit], rounds=run.rounds)
    medians = {peer.name: percentile(rates, 0.5) for peer, rates in zip(there, taken, strict=True)}
    return Rates(medians.pop(PEERS[0].name), medians, percentile(limits, 0.75), missing)


def peer_rate(run: Run, peer: Peer, workload: Workload) -> float:
    """Records a second, from the second commit until all have arrived: the first one opens things."""
    batch = values()
    records = peer.commits * workload.commit_count if workload.synced else peer.records
    commits_itself = peer.commits_itself and not workload.synced
    with fresh(run.root, "peer") as path:
        target = peer.open(path, workload.synced)
        target.send(batch[:1])
        target.commit()

        def work() -> None:
            send, commit = target.send_many if workload.in_bulk else target.send, target.commit
            for number in range(records // workload.commit_count):
                send(batch if workload.commit_count == BATCH_COUNT else batch[number : number + 1])
                if not commits_itself:
                    commit()
            if commits_itself:
                commit()

        seconds = seconds_of(work)
        assert target.count() == records + 1, f"{peer.name}: {target.count()} records, expected {records + 1}"
        target.close()
    return records / seconds


def bare_commits(run: Run, size: int, count: int = COMMITS) -> float:
    """Writes of ``size`` bytes a second, each with its fdatasync, with nothing around them."""
    block = os.urandom(size)
    path = run.root / "limit"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def work() -> None:
        for number in range(count):
            os.pwrite(fd, block, number * size)
            os.fdatasync(fd)

    try:
        return count / seconds_of(work)
    finally:
        os.close(fd)
        path.unlink()


def _told(rates: Rates, *, in_millions: bool = False) -> str:
    """The peers, the fastest first, then the unavailable ones."""
    fastest_first = sorted(rates.peers.items(), key=lambda item: -item[1])
    told = [
        f"{name} {rate / MILLION:.2f} M/s" if in_millions and rate >= MILLION / 10 else f"{name} {rate:,.0f}/s"
        for name, rate in fastest_first
    ]
    return ", ".join(told + [f"{name}: {reason}" for name, reason in rates.missing.items()])
