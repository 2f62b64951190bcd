"""Reading a whole log, every CRC checked, beside a bare pread of its files."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import kstore
from tools.bench.logs import BATCH_COUNT, RECORD_BYTES, RECORDS, fill, fill_as_producer, fresh, values
from tools.bench.measure import MILLION, Line, Run, in_turn, rate_line, seconds_of
from tools.bench.peers import LmdbTree

CHUNK_BYTES = 1 << 20
# Usual numbers of records in a batch, and the required share of the rate of batches of 1,000.
SMALL_COUNTS = {1: None, 3: None, 10: 0.6, 149: None}
SMALL_RECORDS = 149_000
PRODUCER_COUNTS = (1, 3, 10, 149, BATCH_COUNT)


def read(run: Run) -> list[Line]:
    return [_read(run, "read as Record objects, CRC checked", lambda log: log.read(), 9 * MILLION)]


def read_values(run: Run) -> list[Line]:
    return [_read(run, "read_values, CRC checked", lambda log: log.read_values(), 14 * MILLION)]


def read_small(run: Run) -> list[Line]:
    """Small batches beside batches of 1,000, and batches of one beside lmdb's cursor."""
    lines = []
    for method in ("read", "read_values"):
        for count, ratio_min in SMALL_COUNTS.items():
            name = f"{method}, batches of {count}"
            with fresh(run.root, "small") as small, fresh(run.root, "large") as large:
                fill(small, SMALL_RECORDS // count * count, count)
                fill(large, SMALL_RECORDS // BATCH_COUNT * BATCH_COUNT)
                with kstore.Log(small, read_only=True) as one, kstore.Log(large, read_only=True) as other:
                    rates = in_turn(partial(_rate, one, method), partial(_rate, other, method), rounds=run.rounds)
            lines.append(rate_line(name, *rates, "batches of 1,000", ratio_min=ratio_min))
    return [*lines, _beside_lmdb(run)]


def read_producers(run: Run) -> list[Line]:
    """An idempotent producer's batches, the same in transactions, and the same without a producer."""
    lines = [_of_producer(run, count) for count in PRODUCER_COUNTS]
    # Small transactions: ten records in one batch, then ten batches of any size.
    lines.append(_of_producer(run, 10, transaction_batches=1))
    return [*lines, *(_of_producer(run, count, transaction_batches=10) for count in PRODUCER_COUNTS)]


def _of_producer(run: Run, count: int, *, transaction_batches: int = 0) -> Line:
    options = {"isolation_level": "read_committed"} if transaction_batches else {}
    batches = SMALL_RECORDS // count
    records = count * (batches - batches % max(transaction_batches, 1))
    with fresh(run.root, "owned") as owned, fresh(run.root, "plain") as plain:
        fill_as_producer(owned, records, count, transaction_batches=transaction_batches)
        fill(plain, records, count)
        with kstore.Log(owned, read_only=True) as one, kstore.Log(plain, read_only=True) as other:
            rates = in_turn(partial(_rate, one, "read", **options), partial(_rate, other, "read"), rounds=run.rounds)
    of = {0: "read, an idempotent producer's", 1: "read_committed, each a transaction,"}
    name = (
        f"{of.get(transaction_batches, f'read_committed, transactions of {transaction_batches}')} batches of {count:,}"
    )
    return rate_line(name, *rates, f"plain batches of {count:,}")


def _beside_lmdb(run: Run) -> Line:
    with fresh(run.root, "small") as path, fresh(run.root, "lmdb") as tree_path:
        fill(path, SMALL_RECORDS, 1)
        tree = LmdbTree(tree_path, synced=False)
        for _ in range(SMALL_RECORDS // BATCH_COUNT):
            tree.append_many(values())
        with kstore.Log(path, read_only=True) as log:
            rates = in_turn(
                lambda: _rate(log, "read"),
                lambda: SMALL_RECORDS / seconds_of(lambda: deque(tree.values(), maxlen=0)),
                rounds=run.rounds,
            )
        tree.close()
    return rate_line("read, batches of 1, beside a cursor", *rates, "lmdb's cursor", ratio_min=0.8)


def _rate(log: kstore.Log, method: str, **options: str) -> float:
    """Offsets per second of one pass over the log; a marker counts as one."""

    def loop() -> None:
        for _ in getattr(log, method)(**options):
            pass

    return log.end_offset / seconds_of(loop)


def _read(run: Run, name: str, items: Callable[[kstore.Log], Iterable[object]], rate_min: float) -> Line:
    def loop(log: kstore.Log) -> None:
        for _ in items(log):
            pass

    with fresh(run.root, "read") as path:
        fill(path, RECORDS)
        with kstore.Log(path, read_only=True) as log:
            # The timed loop reads every record.
            last = deque(log.read(), maxlen=1)[0]
            assert last.offset == RECORDS - 1
            rate, limit = in_turn(lambda: RECORDS / seconds_of(lambda: loop(log)), lambda: pread_rate(path),
                                  rounds=run.rounds)  # fmt: skip
    return rate_line(name, rate, limit, "pread of 1 MiB", rate_min=rate_min)


def pread_rate(path: Path) -> float:
    """Records per second at the speed of a bare pread of the same files."""
    files = sorted(path.glob("*.log"))

    def read_all() -> None:
        for file in files:
            fd = os.open(file, os.O_RDONLY)
            at = 0
            while data := os.pread(fd, CHUNK_BYTES, at):
                at += len(data)
            os.close(fd)

    return sum(file.stat().st_size for file in files) / RECORD_BYTES / seconds_of(read_all)
