"""A roll, and the commands that read every byte of a log: verify, a deep count, a search; small and large batches."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import kstore
from kstore.upkeep.search import Pattern, pieces, search
from kstore.upkeep.stats import log_stats
from kstore.upkeep.verify import verify_log
from tools.bench.logs import BATCH_COUNT, RECORD_BYTES, RECORDS, fill, fill_as_producer, fresh
from tools.bench.measure import MILLION, Line, Run, all_in_turn, in_turn, percentile, seconds_of
from tools.bench.read_lines import pread_rate

ROLLS = 200
ROLL_US_MAX = 400
# The measured log's records, by the records in a batch.
LOGS = {1: RECORDS // 10, 3: RECORDS // 10, 10: RECORDS // 2, 149: RECORDS // 2, BATCH_COUNT: RECORDS}
# Small batches of one producer: records in a batch, and batches in a transaction; 0 means no transactions.
OWNED = ((1, 0), (1, 10), (10, 1))
SMALL_RATE_MIN, LARGE_BYTES_MIN = 3 * MILLION, 1e9
# A record and its share of the header: more in a small batch.
SMALL_BATCH_RECORD_BYTES = 1.01 * RECORD_BYTES


def roll(run: Run) -> list[Line]:
    """Rolls of segments of ten records, beside the bare creation of three files."""
    with fresh(run.root, "rolled") as path, fresh(run.root, "created") as made:
        made.mkdir()
        numbers = iter(range(1 << 30))
        with kstore.Log(path, durability="os") as log:
            rates = in_turn(lambda: 1 / _roll_seconds(log), lambda: 1 / _create_seconds(made, numbers),
                            rounds=run.rounds)  # fmt: skip
    us, bare_us = (1e6 / rate for rate in rates)
    limit = f"creating three files p50 {bare_us:.0f} us"
    return [
        Line('roll, durability "os"', f"p50 {us:.0f} us", limit, f"{us / bare_us:.1f}", f"p50 {ROLL_US_MAX} us",
             us <= ROLL_US_MAX)
    ]  # fmt: skip


def _roll_seconds(log: kstore.Log) -> float:
    times = []
    for _ in range(ROLLS):
        for _ in range(10):
            log.append(b"v" * 100)
        times.append(seconds_of(log.roll))
    return percentile(times, 0.5)


def _create_seconds(path: Path, numbers: Iterator[int]) -> float:
    times = []
    for _ in range(ROLLS):
        number = next(numbers)
        started = time.perf_counter()
        for suffix in (".log", ".index", ".timeindex"):
            os.close(os.open(f"{path}/{number:020d}{suffix}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        times.append(time.perf_counter() - started)
    return percentile(times, 0.5)


def upkeep(run: Run) -> list[Line]:
    return [
        *(line for count, records in LOGS.items() for line in _upkeep(run, count, records)),
        *(_verify_owned(run, *shape) for shape in OWNED),
    ]


def _upkeep(run: Run, count: int, records: int) -> list[Line]:
    with fresh(run.root, "upkeep") as path:
        fill(path, records, count)
        size = _size_of(path)
        verified, counted, searched, limits = all_in_turn(
            (
                lambda: size / seconds_of(lambda: verify_log(path)),
                lambda: size / seconds_of(lambda: log_stats(path, deep=True)),
                lambda: size / seconds_of(lambda: _search(path)),
                lambda: pread_rate(path) * RECORD_BYTES,
            ),
            rounds=run.rounds,
        )
    limit = percentile(limits, 0.75)
    return [
        _upkeep_line(f"{name}, batches of {count:,}", percentile(speeds, 0.5), limit, size, records)
        for name, speeds in (("verify", verified), ("stats --deep", counted), ("grep, three bytes", searched))
    ]


def _search(path: Path) -> None:
    with kstore.Log(path, read_only=True) as log:
        for piece in pieces(log):
            assert not any(search(log, Pattern(b"\xfe\xff\xfe"), piece))


def _verify_owned(run: Run, count: int, transaction_batches: int) -> Line:
    with fresh(run.root, "upkeep") as path:
        fill_as_producer(path, LOGS[1], count, transaction_batches=transaction_batches)
        size = _size_of(path)
        speed, limit = in_turn(
            lambda: size / seconds_of(lambda: verify_log(path)),
            lambda: pread_rate(path) * RECORD_BYTES,
            rounds=run.rounds,
        )
    of = {0: "an idempotent producer's", 1: "each a transaction,"}
    name = f"verify, {of.get(transaction_batches, f'transactions of {transaction_batches}')} batches of {count}"
    return _upkeep_line(name, speed, limit, size, LOGS[1])


def _size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.log"))


def _upkeep_line(name: str, speed: float, limit: float, size: int, records: int) -> Line:
    rate = speed * records / size
    is_small = size / records > SMALL_BATCH_RECORD_BYTES
    figure, beside = (
        f"{rate / MILLION:.1f} M records/s, {speed / 1e9:.2f} GB/s",
        f"pread of 1 MiB {limit / 1e9:.1f} GB/s",
    )
    asked, reached = ("3 M records/s", rate >= SMALL_RATE_MIN) if is_small else ("1 GB/s", speed >= LARGE_BYTES_MIN)
    return Line(name, figure, beside, f"{speed / limit:.2f}", asked, reached)
