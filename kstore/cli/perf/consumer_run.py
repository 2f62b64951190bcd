"""The speed of a consumer: records and bytes a second, as kafka-consumer-perf-test measures them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.consumer.consumer import Consumer

KINDS = ("records", "values", "arrow")
ARROW_RECORDS = 65_536


@dataclass(frozen=True, slots=True)
class ConsumerPerfReport:
    """The results of a run. ``size`` is the bytes of the values; times are ms since the epoch, or seconds."""

    start_ms: int
    end_ms: int
    records: int
    size: int
    join_seconds: float
    fetch_seconds: float

    @property
    def seconds(self) -> float:
        return self.join_seconds + self.fetch_seconds

    @property
    def mb(self) -> float:
        """In units of 2**20 bytes, as in Kafka's tool."""
        return self.size / (1 << 20)


def measure(
    make: Callable[[], Consumer], count: int, *, kind: str = "records", clock: Clock = SYSTEM_CLOCK
) -> ConsumerPerfReport:
    """Reads ``count`` records, or fewer if none arrives for the consumer's ``iteration_timeout_ms``."""
    start_ms, started = clock.now_ms(), clock.monotonic()
    with make() as consumer:
        joined = clock.monotonic()
        records, size = _READERS[kind](consumer, count)
        ended = clock.monotonic()
    return ConsumerPerfReport(start_ms, clock.now_ms(), records, size, joined - started, ended - joined)


def _records(consumer: Consumer, count: int) -> tuple[int, int]:
    records = size = 0
    for record in consumer:
        records += 1
        size += len(record.value or b"")
        if records >= count:
            break
    return records, size


def _values(consumer: Consumer, count: int) -> tuple[int, int]:
    records = size = 0
    for value in consumer.values():
        records += 1
        size += len(value or b"")
        if records >= count:
            break
    return records, size


def _arrow(consumer: Consumer, count: int) -> tuple[int, int]:
    records = size = 0
    timeout = consumer.config.iteration_timeout_ms / 1000
    while records < count:
        table = consumer.to_arrow(min(ARROW_RECORDS, count - records), timeout)
        if not table.num_rows:
            break
        records += table.num_rows
        size += table.column("value").nbytes
    return records, size


_READERS: dict[str, Callable[[Consumer, int], tuple[int, int]]] = {
    "records": _records,
    "values": _values,
    "arrow": _arrow,
}
