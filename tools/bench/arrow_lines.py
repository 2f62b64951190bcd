"""Reading a whole log as Arrow columns, every CRC checked: dropped batches, and a kept table."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

import kstore
from tools.bench.logs import RECORD_BYTES, RECORDS, fill, fresh, values
from tools.bench.measure import MILLION, Line, Run, all_in_turn, in_turn, percentile, rate_line, seconds_of
from tools.bench.read_lines import pread_rate

# What most jobs read, and the minimum, which shows the cost of the columns themselves.
SMALL_RECORDS, LONG_RECORDS = 150_000, 200_000
APPENDS = 20
COLUMNS = ["key", "value", "offset", "timestamp"]


def arrow(run: Run) -> list[Line]:
    return [*_large(run), _small(run), _long_values(run), _append(run)]


def _append(run: Run) -> Line:
    import pyarrow as pa

    batch = values(10_000)
    table = pa.table({"value": pa.array(batch, pa.binary())})
    with (
        fresh(run.root, "columns") as one,
        fresh(run.root, "values") as other,
        kstore.Log(one, durability="os") as columns,
        kstore.Log(other, durability="os") as objects,
    ):
        rates = in_turn(
            lambda: APPENDS * len(batch) / seconds_of(lambda: _repeat(lambda: columns.append_arrow(table))),
            lambda: APPENDS * len(batch) / seconds_of(lambda: _repeat(lambda: objects.append_many(batch))),
            rounds=run.rounds,
        )
    return rate_line("append_arrow, tables of 10,000", *rates, "append_many of 10,000", rate_min=20 * MILLION)


def _repeat(append: Callable[[], object]) -> None:
    for _ in range(APPENDS):
        append()


def _small(run: Run) -> Line:
    with fresh(run.root, "arrow") as path:
        fill(path, SMALL_RECORDS, 1)
        with kstore.Log(path, read_only=True) as log:
            # A record alone in its batch takes more bytes.
            share = SMALL_RECORDS * RECORD_BYTES / sum(file.stat().st_size for file in path.glob("*.log"))
            rates = in_turn(
                lambda: SMALL_RECORDS / seconds_of(lambda: _drop(log, None)),
                lambda: pread_rate(path) * share,
                rounds=run.rounds,
            )
    return rate_line("to_arrow_batches, batches of 1", *rates, "pread of 1 MiB", rate_min=3 * MILLION)


def _long_values(run: Run) -> Line:
    batch = values(500, 1_000)
    with fresh(run.root, "arrow") as path:
        with kstore.Log(path, durability="os") as log:
            for _ in range(LONG_RECORDS // len(batch)):
                log.append_many(batch)
        with kstore.Log(path, read_only=True) as log:
            rates = in_turn(
                lambda: LONG_RECORDS / seconds_of(lambda: _drop(log, None)),
                lambda: LONG_RECORDS / seconds_of(lambda: deque(log.read_values(), maxlen=0)),
                rounds=run.rounds,
            )
    return rate_line("to_arrow_batches, values of 1 KB", *rates, "read_values", ratio_min=1.0)


def _large(run: Run) -> list[Line]:
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
