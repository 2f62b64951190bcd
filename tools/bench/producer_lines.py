"""A producer: ``send`` and ``send_many`` to delivery, and the time of a wait for one record."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import kstore
from kstore.producer.producer import Producer
from kstore.types import Durability
from tools.bench.append_lines import BLOCK_BYTES, ONE_BYTES, write_seconds
from tools.bench.logs import BATCH_COUNT, RECORD_BYTES, RECORDS, fresh, values
from tools.bench.measure import Line, Run, all_in_turn, percentile, rate_line, seconds_of

TOPIC = "orders"
# Delivered before the clock runs, so that the producer knows its topic and has used its memory.
WARM_COUNT = 50_000
LATENCY_COUNT = 300


class Case(NamedTuple):
    """A way to send ``RECORDS`` records from ``threads`` threads, and the required rate."""

    name: str
    send: Callable[[Producer, int], object]
    threads: int = 1
    partitions: int = 1
    rate_min: float | None = None


def send_values(producer: Producer, count: int) -> None:
    batch, send = values(), producer.send
    for _ in range(count // BATCH_COUNT):
        for value in batch:
            send(TOPIC, value)


def send_keyed(producer: Producer, count: int) -> None:
    pairs, send = list(zip(values(), keys(), strict=True)), producer.send
    for _ in range(count // BATCH_COUNT):
        for value, key in pairs:
            send(TOPIC, value, key=key)


def send_bulk(producer: Producer, count: int) -> None:
    batch = values()
    for _ in range(count // BATCH_COUNT):
        producer.send_many(TOPIC, batch)


CASES = (
    Case("send, one by one", send_values, rate_min=4e6),
    Case("send, one by one, 4 threads", send_values, threads=4, rate_min=3e6),
    Case("send with key=, 8 partitions", send_keyed, partitions=8, rate_min=3e6),
    Case("send_many of 1,000", send_bulk, rate_min=10e6),
    Case("send, one by one, 8 partitions", send_values, partitions=8),
)


def keys() -> list[bytes]:
    return [b"customer-%04d" % number for number in range(BATCH_COUNT)]


@contextmanager
def producing(
    path: Path, *, partitions: int = 1, durability: Durability = "os", acks: str = "1"
) -> Iterator[tuple[Producer, kstore.Store]]:
    """A producer with a running sender, in its own store; at the end everything is delivered."""
    with kstore.open(path, durability=durability) as store:
        store.create_topic(TOPIC, partitions)
        with store.producer(acks=acks) as producer:  # type: ignore[arg-type]  # a parameter of the program
            yield producer, store


def producer_send(run: Run) -> list[Line]:
    """From the first call until the last record is delivered, with ``acks=1``."""
    works = [lambda case=case: send_rate(run, case) for case in CASES]
    blocks = int(RECORDS * RECORD_BYTES) // BLOCK_BYTES

    def limit() -> float:
        return blocks * BLOCK_BYTES / RECORD_BYTES / write_seconds(run, BLOCK_BYTES, blocks)

    *rates, limits = all_in_turn([*works, limit], rounds=run.rounds)
    bound = percentile(limits, 0.75)
    return [
        rate_line(f"producer: {case.name}", percentile(taken, 0.5), bound, "os.write of 64 KiB", rate_min=case.rate_min)
        for case, taken in zip(CASES, rates, strict=True)
    ]


def send_rate(run: Run, case: Case) -> float:
    """Records a second, from the first ``send`` until the last record is delivered."""
    with (
        fresh(run.root, "producer") as path,
        producing(path, partitions=case.partitions) as (producer, store),
    ):
        case.send(producer, WARM_COUNT)
        producer.flush()

        def work() -> None:
            if case.threads == 1:
                case.send(producer, RECORDS)
            else:
                threads = [
                    threading.Thread(target=case.send, args=(producer, RECORDS // case.threads))
                    for _ in range(case.threads)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            producer.flush()

        seconds = seconds_of(work)
        delivered = sum(store.log(TOPIC, number).end_offset for number in range(case.partitions))
        assert delivered == WARM_COUNT + RECORDS, f"{delivered} records, expected {WARM_COUNT + RECORDS}"
    return RECORDS / seconds


def producer_latency(run: Run) -> list[Line]:
    """``send(...).result()``: waits for each record, whose batch is sent at once."""
    return [_latency_line(run, "os", synced=False), _latency_line(run, "sync", synced=True)]


def _latency_line(run: Run, durability: Durability, *, synced: bool) -> Line:
    one, bare = all_in_turn(
        [lambda: result_us(run, durability), lambda: bare_us(run, synced=synced)], rounds=max(run.rounds // 2, 1)
    )
    p50, p99 = (percentile([us for taken in one for us in taken], share) for share in (0.5, 0.99))
    limit = percentile([us for taken in bare for us in taken], 0.5)
    name = f"pwrite{' and fdatasync' if synced else ''} of {ONE_BYTES} bytes"
    return Line(
        f'producer: send().result(), durability "{durability}"',
        f"p50 {p50:.0f} us, p99 {p99:.0f} us",
        f"{name} {limit:.0f} us" if limit >= 10 else f"{name} {limit:.1f} us",
        f"{p50 / limit:.1f}",
        "",
        None,
    )


def result_us(run: Run, durability: Durability) -> list[float]:
    value = values(1)[0]
    with (
        fresh(run.root, "producer") as path,
        producing(path, durability=durability, acks="all") as (producer, _),
    ):
        return timed_us(lambda: producer.send(TOPIC, value).result())


def bare_us(run: Run, *, synced: bool) -> list[float]:
    """The time of a write of one record's batch, with or without a sync."""
    block = os.urandom(ONE_BYTES)
    path = run.root / "limit"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    end = 0

    def once() -> None:
        nonlocal end
        end += os.pwrite(fd, block, end)
        if synced:
            os.fdatasync(fd)

    try:
        return timed_us(once)
    finally:
        os.close(fd)
        path.unlink()


def timed_us(work: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(LATENCY_COUNT):
        started = time.perf_counter_ns()
        work()
        times.append((time.perf_counter_ns() - started) / 1e3)
    return times
