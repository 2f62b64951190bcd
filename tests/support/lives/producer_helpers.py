"""Shared by the tests of producers: an accumulator alone, a store's producer without threads, logs that fail."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kstore.config import LogConfig
from kstore.producer._accumulate import Delivery, Failures, ProducerBatch
from kstore.producer.accumulator import BatchQueue, RecordAccumulator, Topic
from kstore.producer.buffer_pool import BufferPool
from kstore.producer.config import ProducerConfig
from kstore.producer.parts import producer_parts
from kstore.producer.producer import Producer
from kstore.record._codec import Record
from kstore.record.parse import parse_batch
from kstore.store import Store, parts_of
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import WRITES, FailingFs, Fault

TIME_MS = 1_700_000_000_000


class Gathering:
    """A RecordAccumulator with one topic, its pool and its clock."""

    def __init__(
        self, *, partitions: int = 1, codec: str = "none", buffer_memory: int = 1 << 20, **settings: Any
    ) -> None:
        self.clock = ManualClock()
        self.config = ProducerConfig.from_settings(buffer_memory=buffer_memory, **settings)
        self.pool = BufferPool(self.config.buffer_memory, max(self.config.batch_size, 1), self.clock)
        self.failures = Failures()
        self.hurried: list[ProducerBatch] = []
        self.accumulator = RecordAccumulator(
            self.config, self.pool, self.clock, hurry=self.hurried.append, failures=self.failures
        )
        queues = [BatchQueue("orders", number) for number in range(partitions)]
        level = self.config.compression_level(codec)
        self.topic = Topic("orders", queues, LogConfig(), codec, level, ignores_keys=False)
        self.topic.sticky_partition = 0

    def queue(self, partition: int = 0) -> BatchQueue:
        return self.topic.queue(partition)

    def append(
        self, value: bytes | None, partition: int | None = 0, *, key: bytes | None = None, timeout: float = 0.0
    ) -> Delivery:
        done = self.accumulator.append(self.topic, partition, value, key, (), TIME_MS, None, timeout)
        assert done is not None
        return done[0]

    def now(self) -> float:
        return self.clock.monotonic()

    def ready(self) -> list[int]:
        """The partitions with something to write now."""
        return [
            queue.partition
            for queue in self.topic.queues
            if queue.batch_count and self.accumulator.ready_in(queue, self.now()) <= 0
        ]

    def take(self, partition: int = 0, size_max: int = 1 << 20) -> list[ProducerBatch]:
        return self.accumulator.take(self.queue(partition), size_max, self.now())


def records_of(batch: ProducerBatch) -> list[Record]:
    """The records of a closed batch."""
    assert batch.buffer is not None
    data = bytearray(bytes(batch.buffer))
    found = parse_batch(data)
    data[17:21] = found.computed_crc().to_bytes(4, "big")
    return list(parse_batch(data).records())


def values_of(batch: ProducerBatch) -> list[bytes | None]:
    return [record.value for record in records_of(batch)]


def producer_of(store: Store, **settings: Any) -> Producer:
    """A producer that the store does not know; ``is_threaded=False``: without a thread."""
    parts = parts_of(store)
    return Producer(producer_parts(parts.topics, parts.coordinator, **settings))


class Unthreaded:
    """A store's producer without threads, on the test's clock and file system."""

    def __init__(
        self, path: Path, *, partitions: int = 1, topic: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        self.clock = ManualClock()
        self.fs = FailingFs()
        self.store = Store(path, durability="os", background=False, fs=self.fs, clock=self.clock)
        self.store.create_topic("orders", partitions, **(topic or {}))
        self.producer = self.another(**settings)

    def another(self, **settings: Any) -> Producer:
        return producer_of(self.store, is_threaded=False, **{"max_block_ms": 0, **settings})

    def round(self) -> float:
        return self.producer._outbox.sender.run_once()

    def linger(self) -> float:
        """Makes the open batches due, and writes them."""
        self.clock.advance(self.producer.config.linger_ms + 1)
        return self.round()

    def values(self, partition: int = 0) -> list[bytes | None]:
        return list(self.store.log("orders", partition).read_values())


def full_disk(at: int = 1, *, sticky: bool = True) -> Fault:
    return Fault(at, errno.ENOSPC, sticky=sticky, kinds=WRITES, suffix=".log")


@contextmanager
def unthreaded(path: Path, **settings: Any) -> Iterator[Unthreaded]:
    one = Unthreaded(path, **settings)
    try:
        yield one
    finally:
        one.fs.faults.clear()
        one.producer.close()
        one.store.close()
