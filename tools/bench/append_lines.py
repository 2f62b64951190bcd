"""Appending without a sync: batches of 1,000, and single records."""

from __future__ import annotations

import os

import kstore
from tools.bench.logs import BATCH_BYTES, BATCH_COUNT, RECORD_BYTES, RECORDS, fresh, values
from tools.bench.measure import Line, Run, in_turn, rate_line, seconds_of

__all__ = ["append_many", "append_one"]

BLOCK_BYTES = 64 * 1024
ONE_COUNT = 20_000
# A batch of one record: 61 bytes of header, 108 of record.
ONE_BYTES = 169


def append_many(run: Run) -> list[Line]:
    batch = values()

    def rate() -> float:
        with fresh(run.root, "append") as path, kstore.Log(path, durability="os") as log:
            append = log.append_many
            append(batch)
            return RECORDS / seconds_of(lambda: [append(batch) for _ in range(RECORDS // BATCH_COUNT)])

    def limit() -> float:
        blocks = RECORDS * BATCH_BYTES // BATCH_COUNT // BLOCK_BYTES
        return blocks * BLOCK_BYTES / RECORD_BYTES / write_seconds(run, BLOCK_BYTES, blocks)

    return [rate_line("append_many, batches of 1,000", *in_turn(rate, limit, rounds=run.rounds + 2),
                      "os.write of 64 KiB", ratio_min=0.5)]  # fmt: skip


def append_one(run: Run) -> list[Line]:
    batch = values()

    def rate() -> float:
        with fresh(run.root, "append-one") as path, kstore.Log(path, durability="os") as log:
            append = log.append
            return ONE_COUNT / seconds_of(lambda: [append(batch[i % BATCH_COUNT]) for i in range(ONE_COUNT)])

    one, bound = in_turn(rate, lambda: ONE_COUNT / write_seconds(run, ONE_BYTES, ONE_COUNT), rounds=run.rounds)
    return [Line("append, one record a call", f"{one / 1e3:,.0f} k records/s",
                 f"os.write of {ONE_BYTES} bytes {bound / 1e3:,.0f} k/s", f"{one / bound:.2f}", "", None)]  # fmt: skip


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
