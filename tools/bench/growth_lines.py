"""How cost grows with the work: each line is the same call at two sizes, in one run."""

from __future__ import annotations

import time

import kstore
from tools.bench.logs import fresh, values
from tools.bench.measure import Line, Run, all_in_turn, percentile

__all__ = ["growth"]

FEW_PARTITIONS, MANY_PARTITIONS = 100, 2_000
# Of these rounds the last one counts: in the others logs are opened and the memory is used for the first time.
SENDS_A_PARTITION, SEND_ROUNDS = 50, 3
SEND_RATIO_MAX = 2.5


def growth(run: Run) -> list[Line]:
    """Calls whose cost must not grow with the number of partitions."""
    few, many = all_in_turn(
        [lambda: send_us(run, FEW_PARTITIONS), lambda: send_us(run, MANY_PARTITIONS)], rounds=max(run.rounds // 2, 1)
    )
    few_us, many_us = percentile(few, 0.5), percentile(many, 0.5)
    return [
        Line(
            f"producer: send to {MANY_PARTITIONS:,} partitions in turn",
            f"{many_us:.1f} us of CPU",
            f"{FEW_PARTITIONS} partitions {few_us:.1f} us",
            f"{many_us / few_us:.1f}",
            f"at most {SEND_RATIO_MAX}",
            many_us <= SEND_RATIO_MAX * few_us,
        )
    ]


def send_us(run: Run, partitions: int) -> float:
    """The processor time of a record of 100 bytes, from ``send`` to its delivery, us."""
    (value,) = values(1)
    count = SENDS_A_PARTITION * partitions
    used = 0.0
    with fresh(run.root, "growth") as path, kstore.open(path, durability="os") as store:
        store.create_topic("orders", partitions)
        with store.producer(acks="1") as producer:
            for _ in range(SEND_ROUNDS):
                started = time.process_time()
                for number in range(count):
                    producer.send("orders", value, partition=number % partitions)
                producer.flush()
                used = time.process_time() - started
    return used / count * 1e6
