"""Compaction: a log in which each of many keys has several records, and what another log's appends keep beside it."""

from __future__ import annotations

import random
import shutil

import kstore
from tools.bench.logs import BATCH_COUNT, fresh, values
from tools.bench.measure import Line, Run, percentile, seconds_of

__all__ = ["compaction"]

# One record in ten stays, as with a million keys in a gibibyte.
RECORDS = 2_000_000
KEYS = 200_000
SEGMENT_BYTES = 64 << 20
MB = 1e6


def compaction(run: Run) -> list[Line]:
    rates: list[float] = []
    limits: list[float] = []
    with fresh(run.root, "compaction") as origin:
        size = _fill(origin)
        for _ in range(max(run.rounds // 2, 1)):
            with fresh(run.root, "compacted") as path:
                shutil.copytree(origin, path)
                with kstore.Log(path, durability="os") as log:
                    rates.append(size / MB / seconds_of(log.compact))
                    assert log.verify().clean
            limits.append(size / MB / seconds_of(lambda: shutil.copytree(origin, path)))
            shutil.rmtree(path)
    rate, limit = percentile(rates, 0.5), percentile(limits, 0.75)
    return [
        Line(
            f"compact {size / MB:,.0f} MB, {KEYS // 1000:,} k keys, one record in ten stays",
            f"{rate:,.0f} MB/s",
            f"copying the files {limit:,.0f} MB/s",
            f"{rate / limit:.2f}",
            "300 MB/s",
            rate >= 300,
        )
    ]


def _fill(path: object) -> int:
    """A log of ``RECORDS`` records over random keys, sealed; its size in bytes."""
    generator = random.Random(7)
    keys = [b"customer-%07d" % number for number in range(KEYS)]
    batch = values()
    with kstore.Log(path, durability="os", segment_bytes=SEGMENT_BYTES) as log:  # type: ignore[arg-type]
        for _ in range(RECORDS // BATCH_COUNT):
            log.append_many(batch, keys=generator.choices(keys, k=BATCH_COUNT))
        log.roll()
        return sum(each.stat().st_size for each in log.path.glob("*.log"))
