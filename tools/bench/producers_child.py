"""Sends or reads in its own process, on a signal, and prints when it started and ended.

usage: python -m tools.bench.producers_child sent|read STORE COUNT
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import kstore
from tools.bench.logs import BATCH_COUNT, values

TOPIC = "orders"
READY = "ready\n"
FOLLOW_SECONDS = 30


class Span(NamedTuple):
    """Seconds by the machine's monotonic clock, which all processes share."""

    started: float
    ended: float


def produce(store: kstore.Store, partition: int, count: int, begin: Callable[[], object]) -> Span:
    """Sends one by one; ends when the last record is delivered."""
    batch = values()
    with store.producer(acks="1") as producer:
        producer.partitions_for(TOPIC)
        send = producer.send
        begin()
        started = time.monotonic()
        for _ in range(count // BATCH_COUNT):
            for value in batch:
                send(TOPIC, value, partition=partition)
        producer.flush()
        return Span(started, time.monotonic())


def follow(store: kstore.Store, partition: int, count: int, begin: Callable[[], object]) -> Span:
    """Reads records one by one as they arrive; ends with the last."""
    log = store.log(TOPIC, partition)
    begin()
    started = time.monotonic()
    read = 0
    for _ in log.read(0, count, follow=True, timeout=FOLLOW_SECONDS):
        read += 1
    ended = time.monotonic()
    assert read == count, f"{read} records, expected {count}"
    return Span(started, ended)


def main() -> None:
    what, path, count = sys.argv[1:]

    def begin() -> None:
        sys.stdout.write(READY)
        sys.stdout.flush()
        sys.stdin.readline()

    is_reader = what == "read"
    with kstore.open(path, durability="os", read_only=is_reader) as store:
        span = (follow if is_reader else produce)(store, 0, int(count), begin)
    print(*span)


if __name__ == "__main__":
    main()
