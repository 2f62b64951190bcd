"""Reading a whole log as Arrow columns, every CRC checked: batches that are dropped, and a table that is kept."""

from __future__ import annotations

import statistics

import kstore
from tools.bench.logs import RECORDS, fill, fresh
from tools.bench.measure import MILLION, Line, Run, all_in_turn, percentile, rate_line, seconds_of
from tools.bench.read_lines import pread_rate

__all__ = ["arrow"]

# What most jobs read, and the least possible: the projection shows the cost of the columns themselves.
COLUMNS = ["key", "value", "offset", "timestamp"]


def arrow(run: Run) -> list[Line]:
    with fresh(run.root, "arrow") as path:
        fill(path, RECORDS)
        with kstore.Log(path, read_only=True) as log:
            assert log.to_arrow(columns=["offset"]).num_rows == RECORDS
            limits, batches, some, offsets, table = all_in_turn(
                (
                    lambda: pread_rate(path),
                    lambda: RECORDS / seconds_of(lambda: _drop(log, None)),
                    lambda: RECORDS / seconds_of(lambda: _drop(log, COLUMNS)),
                    lambda: RECORDS / seconds_of(lambda: _drop(log, ["offset"])),
                    lambda: RECORDS / seconds_of(log.to_arrow),
                ),
                rounds=run.rounds,
            )
    limit = percentile(limits, 0.75)
    return [
        rate_line(name, statistics.median(rates), limit, "pread of 1 MiB", rate_min=rate_min)
        for name, rates, rate_min in (
            ("to_arrow_batches, dropped, CRC checked", batches, 20 * MILLION),
            ("- key, value, offset, timestamp", some, None),
            ("- the offset alone", offsets, None),
            ("to_arrow, a kept table, CRC checked", table, 10 * MILLION),
        )
    ]


def _drop(log: kstore.Log, columns: list[str] | None) -> None:
    for _ in log.to_arrow_batches(columns=columns):
        pass
