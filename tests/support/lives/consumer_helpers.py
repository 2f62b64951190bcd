"""Shared by the tests of consumers: a store with one topic, functions that fill it, and consumers of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kstore
from kstore import TopicPartition
from kstore.consumer.consumer import Consumer
from kstore.store import Store

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def opened(path: Path, *, shared: bool = False) -> Store:
    store = kstore.open(path, durability="os", shared=shared)
    store.create_topic("t", partitions=3)
    return store


def fill(store: Store, owner: TopicPartition, count: int, batch: int = 10) -> None:
    log = store.log(*owner)
    first = log.end_offset
    values = [b"%d:%d" % (owner.partition, number) for number in range(first, first + count)]
    for start in range(0, count, batch):
        log.append_many(values[start : start + batch])


def consumer(store: Store, *topics: str, **settings: Any) -> Consumer:
    return store.consumer(*topics, **{"iteration_timeout_ms": 0, **settings})


def offsets(found: dict[TopicPartition, list[Any]]) -> dict[TopicPartition, list[int]]:
    return {owner: [record.offset for record in records] for owner, records in found.items()}


def polled_or(reading: Consumer, error: type[Exception]) -> dict[TopicPartition, list[Any]]:
    """What a poll returns, which is not empty; {} if it raises ``error``."""
    try:
        found = reading.poll()
    except error:
        return {}
    assert found
    return found
