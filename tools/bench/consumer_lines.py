"""Consuming a topic as records, values, lists and Arrow, beside reading its log without a consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import kstore
from tools.bench.logs import BATCH_COUNT, RECORDS, fresh, values
from tools.bench.measure import Line, Run, in_turn, rate_line, seconds_of

ARROW_RECORDS = 65_536
SMALL_COUNTS = (1, 10)
SMALL_RECORDS = 150_000


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
    """Each way in batches of 1,000; records and values in small batches too."""
    with fresh(run.root, "consumer") as path, kstore.open(path, durability="os") as store:
        _fill(store, "orders", RECORDS, BATCH_COUNT)
        lines = [_line(run, store, "orders", case, case.name) for case in CASES]
        for count in SMALL_COUNTS:
            topic = f"small-{count}"
            _fill(store, topic, SMALL_RECORDS // count * count, count)
            lines += [_line(run, store, topic, case, f"{case.name}, batches of {count}") for case in CASES[:3]]
        return lines


def _fill(store: kstore.Store, topic: str, records: int, batch_count: int) -> None:
    store.create_topic(topic)
    log, batch = store.log(topic), values(batch_count)
    for _ in range(records // batch_count):
        log.append_many(batch)


def _line(run: Run, store: kstore.Store, topic: str, case: Case, name: str) -> Line:
    def consume() -> None:
        with store.consumer(topic, iteration_timeout_ms=0) as made:
            case.consume(made)
            assert made.lag() == {kstore.TopicPartition(topic, 0): 0}

    def read() -> None:
        for _ in case.read(store.log(topic)):
            pass

    count = store.log(topic).end_offset
    rate, limit = in_turn(lambda: count / seconds_of(consume), lambda: count / seconds_of(read), rounds=run.rounds)
    return rate_line(name, rate, limit, case.limit_name)
