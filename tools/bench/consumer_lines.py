"""Consuming a topic as records, values, lists and Arrow, beside reading its log without a consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import kstore
from tools.bench.logs import BATCH_COUNT, RECORDS, fresh, values
from tools.bench.measure import Line, Run, in_turn, rate_line, seconds_of

__all__ = ["consumer"]

ARROW_RECORDS = 65_536


class Case(NamedTuple):
    """A way to consume, and the way to read a log for comparison."""

    name: str
    consume: Callable[[kstore.Consumer], object]
    read: Callable[[kstore.Log], Iterable[object]]
    limit_name: str


def iterate(consumer: kstore.Consumer) -> None:
    for _ in consumer:
        pass


def iterate_values(consumer: kstore.Consumer) -> None:
    for _ in consumer.values():
        pass


def poll(consumer: kstore.Consumer) -> None:
    while found := consumer.poll():
        for records in found.values():
            for _ in records:
                pass


def arrow(consumer: kstore.Consumer) -> None:
    while consumer.to_arrow(ARROW_RECORDS).num_rows:
        pass


CASES = (
    Case("consume as records", iterate, lambda log: log.read(), "Log.read"),
    Case("consume as lists of 500, poll", poll, lambda log: log.read(), "Log.read"),
    Case("consume as values", iterate_values, lambda log: log.read_values(), "Log.read_values"),
    Case("consume as Arrow tables", arrow, lambda log: log.to_arrow_batches(), "Log.to_arrow_batches"),
)


def consumer(run: Run) -> list[Line]:
    with fresh(run.root, "consumer") as path, kstore.open(path, durability="os") as store:
        store.create_topic("orders")
        log, batch = store.log("orders"), values()
        for _ in range(RECORDS // BATCH_COUNT):
            log.append_many(batch)
        return [_line(run, store, case) for case in CASES]


def _line(run: Run, store: kstore.Store, case: Case) -> Line:
    def consume() -> None:
        with store.consumer("orders", iteration_timeout_ms=0) as made:
            case.consume(made)
            assert made.lag() == {kstore.TopicPartition("orders", 0): 0}

    def read() -> None:
        for _ in case.read(store.log("orders")):
            pass

    rate, limit = in_turn(lambda: RECORDS / seconds_of(consume), lambda: RECORDS / seconds_of(read), rounds=run.rounds)
    return rate_line(case.name, rate, limit, case.limit_name)
