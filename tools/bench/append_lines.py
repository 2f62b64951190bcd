"""Appending without a sync: batches of 1,000, calls of several batches, and single records.

Values that are appended repeatedly stay in the processor's cache; an application has distinct ones. So both are
measured.
"""

from __future__ import annotations

import os
from functools import partial

import kstore
from tools.bench.logs import BATCH_BYTES, BATCH_COUNT, RECORD_BYTES, RECORDS, fresh, values
from tools.bench.measure import Line, Run, all_in_turn, in_turn, percentile, rate_line, seconds_of
from tools.bench.peers import PEERS, Peer

BLOCK_BYTES = 64 * 1024
ONE_COUNT = 20_000
# The records of a call of several batches, each of the largest default size.
LONG_COUNT = 50_000
# How many times distinct values are appended: a fifth of them is far more than a processor's cache.
DISTINCT_ROUNDS = 5
# A batch of one record: 61 bytes of header, 108 of record.
ONE_BYTES = 169


def append_many(run: Run) -> list[Line]:
    hot, distinct = values(), values(RECORDS // DISTINCT_ROUNDS)
    chunks = [distinct[start : start + BATCH_COUNT] for start in range(0, len(distinct), BATCH_COUNT)]
    long_calls = [distinct[start : start + LONG_COUNT] for start in range(0, len(distinct), LONG_COUNT)]

    def rate(calls: list[list[bytes]]) -> float:
        count = RECORDS // len(calls[0])
        with fresh(run.root, "append") as path, kstore.Log(path, durability="os") as log:
            append = log.append_many
            append(hot)
            return RECORDS / seconds_of(lambda: [append(calls[number % len(calls)]) for number in range(count)])

    def limit() -> float:
        blocks = RECORDS * BATCH_BYTES // BATCH_COUNT // BLOCK_BYTES
        return blocks * BLOCK_BYTES / RECORD_BYTES / write_seconds(run, BLOCK_BYTES, blocks)

    works = (lambda: rate([hot]), lambda: rate(chunks), lambda: rate(long_calls), limit)
    *rates, limits = all_in_turn(works, rounds=run.rounds + 2)
    bound = percentile(limits, 0.75)
    return [
        rate_line(name, percentile(taken, 0.5), bound, "os.write of 64 KiB", ratio_min=ratio_min)
        for name, taken, ratio_min in (
            ("append_many, batches of 1,000, the same values", rates[0], 0.5),
            ("append_many, batches of 1,000, distinct values", rates[1], 0.42),
            (f"append_many of {LONG_COUNT:,}, distinct values", rates[2], 0.7),
        )
    ]


def append_one(run: Run) -> list[Line]:
    batch = values()

    def rate() -> float:
        with fresh(run.root, "append-one") as path, kstore.Log(path, durability="os") as log:
            append = log.append
            return ONE_COUNT / seconds_of(lambda: [append(batch[i % BATCH_COUNT]) for i in range(ONE_COUNT)])

    one, bound = in_turn(rate, lambda: ONE_COUNT / write_seconds(run, ONE_BYTES, ONE_COUNT), rounds=run.rounds)
    return [Line("append, one record a call", f"{one / 1e3:,.0f} k records/s",
                 f"os.write of {ONE_BYTES} bytes {bound / 1e3:,.0f} k/s", f"{one / bound:.2f}", "", None)]  # fmt: skip


def append_peers(run: Run) -> list[Line]:
    """One record in each call, nothing synced, beside the trees that are made for writing."""
    batch = values()
    peers = [peer for peer in PEERS if peer.name in ("kstore", "RocksDB", "LevelDB")]

    def rate(peer: Peer) -> float:
        with fresh(run.root, "append-peer") as path:
            store = peer.open(path, False)
            append = store.append
            seconds = seconds_of(lambda: [append(batch[i % BATCH_COUNT]) for i in range(ONE_COUNT)])
            store.close()
        return ONE_COUNT / seconds

    taken = all_in_turn([partial(rate, peer) for peer in peers], rounds=run.rounds)
    own, *others = (percentile(rates, 0.5) for rates in taken)
    beside = ", ".join(f"{peer.name} {found / 1e3:,.0f} k/s" for peer, found in zip(peers[1:], others, strict=True))
    best = max(others)
    return [Line("append, one record a call, beside others", f"{own / 1e3:,.0f} k records/s", beside,
                 f"{own / best:.2f}", "1.2 x the best", own >= 1.2 * best)]  # fmt: skip


def write_seconds(run: Run, size: int, count: int) -> float:
    """How long ``count`` bare writes of ``size`` bytes take."""
    block = os.urandom(size)
    path = run.root / "limit"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        return seconds_of(lambda: [os.write(fd, block) for _ in range(count)])
    finally:
        os.close(fd)
        path.unlink()
