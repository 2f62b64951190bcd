"""Metrics: what kstore counts (``metric_rows``), and its exports.

    log.metrics()                                       {"appends": 12, "sync_seconds": Histogram(...), ...}
    prometheus_client.REGISTRY.register(kstore.metrics.collector(store))    needs kstore[metrics]

Counters are plain numbers in one ``LogCounters`` for each log: counting is one addition, without a lock. They start at
0 when the log is opened; in a store, when it is first opened. No name, label or value contains anything from records.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from kstore.errors import KstoreError
from kstore.metric_rows import (
    CONSUMER_METRICS,
    CONSUMER_PARTITION_METRICS,
    DOOR_METRICS,
    METRICS,
    PRODUCER_METRICS,
    PRODUCER_TOPIC_METRICS,
    STORE_METRICS,
    Histogram,
    Metric,
    MetricValue,
)

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

__all__ = [
    "CONSUMER_METRICS",
    "CONSUMER_PARTITION_METRICS",
    "DOOR_METRICS",
    "METRICS",
    "PRODUCER_METRICS",
    "PRODUCER_TOPIC_METRICS",
    "STORE_METRICS",
    "Histogram",
    "HistogramCounter",
    "LogCounters",
    "Metered",
    "MeteredConsumer",
    "MeteredProducer",
    "MeteredStore",
    "Metric",
    "MetricValue",
    "collector",
    "summed",
]

PREFIX = "kstore_"
PRODUCER_PREFIX = "kstore_producer_"
TOPIC_PREFIX = "kstore_producer_topic_"
CONSUMER_PREFIX = "kstore_consumer_"
PARTITION_PREFIX = "kstore_consumer_partition_"
DOOR_PREFIX = "kstore_door_"
# Seconds: from the time of a drive with its own battery to that of one that is about to fail.
SYNC_SECONDS_BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
GROUP_BOUNDS = (1, 2, 4, 8, 16, 32, 64)
# The label of an error that is not kstore's own: the name of a caller's class means nothing here.
OTHER_ERROR = "other"
# By their place in ``LogCounters.appended``.
APPENDED = ("appends", "append_batches", "append_records", "append_bytes")
# By their place in ``LogCounters.delivered``.
DELIVERED = ("read_batches", "read_records", "read_bytes")
DELIVERED_BATCHES, DELIVERED_RECORDS, DELIVERED_BYTES = range(len(DELIVERED))
BUILTIN_ERRORS = frozenset({"MemoryError", "OSError", "OverflowError", "TypeError", "ValueError"})


class HistogramCounter:
    """A histogram that counts."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: tuple[float, ...] = tuple(bounds)
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float) -> None:
        at = bisect_left(self.bounds, value)
        self.counts[at] += 1
        self.sum += value

    def read(self) -> Histogram:
        return Histogram(self.bounds, tuple(self.counts), self.sum)


class LogCounters:
    """The counts of one open log; a field is one counter of ``METRICS``.

    Count with ``counters.reads += count``, where ``count`` is a plain name or number. Several threads may do so
    without a lock: the interpreter switches threads only at calls and jumps, and the addition contains neither.
    """

    __slots__ = (
        "_errors_lock",
        "append_duplicates",
        "append_errors",
        "appended",
        "compaction_damaged",
        "compaction_records_read",
        "compaction_records_removed",
        "compaction_seconds",
        "compactions",
        "corrupt_ranges",
        "delivered",
        "group_appends",
        "index_failures",
        "last_compaction_timestamp_seconds",
        "reads",
        "retention_deleted_bytes",
        "retention_segments",
        "rolls",
        "segments_compacted",
        "segments_deleted",
        "sync_seconds",
        "truncations",
    )

    def __init__(self) -> None:
        # The numbers named by APPENDED, for compiled code: the log's lock guards them.
        self.appended: array[int] = array("q", [0] * len(APPENDED))
        self.append_duplicates: int = 0
        self.rolls: int = 0
        self.truncations: int = 0
        self.segments_deleted: int = 0
        self.segments_compacted: int = 0
        self.index_failures: int = 0
        self.reads: int = 0
        self.corrupt_ranges: int = 0
        # The numbers named by DELIVERED, for compiled code.
        self.delivered: array[int] = array("q", [0] * len(DELIVERED))
        self.retention_segments: int = 0
        self.retention_deleted_bytes: int = 0
        self.compactions: int = 0
        self.compaction_records_read: int = 0
        self.compaction_records_removed: int = 0
        self.compaction_damaged: int = 0
        self.compaction_seconds: float = 0
        self.last_compaction_timestamp_seconds: float = 0
        self.group_appends: HistogramCounter = HistogramCounter(GROUP_BOUNDS)
        self.sync_seconds: HistogramCounter = HistogramCounter(SYNC_SECONDS_BOUNDS)
        self.append_errors: dict[str, float] = {}
        self._errors_lock = threading.RLock()

    def fetched(self, size: int) -> None:
        """Counts a requested slice of ``size`` bytes."""
        self.reads += 1
        self.delivered[DELIVERED_BYTES] += size

    def retained(self, segment_count: int, size: int) -> None:
        """Counts what retention has deleted. Needs the log's lock."""
        self.retention_segments += segment_count
        self.retention_deleted_bytes += size

    def compacted(self, *, read: int, removed: int, damaged: int, seconds: float, now_ms: int) -> None:
        """Counts a compaction that had work to do: records, segments. One at a time."""
        self.compactions += 1
        self.compaction_records_read += read
        self.compaction_records_removed += removed
        self.compaction_damaged += damaged
        self.compaction_seconds += seconds
        self.last_compaction_timestamp_seconds = now_ms / 1000

    def append_failed(self, error: BaseException) -> None:
        """Counts an append that ended in ``error``."""
        name = type(error).__name__
        if not isinstance(error, KstoreError) and name not in BUILTIN_ERRORS:
            name = OTHER_ERROR
        with self._errors_lock:
            self.append_errors[name] = self.append_errors.get(name, 0) + 1

    def read(self) -> dict[str, MetricValue]:
        """The present value of every counter."""
        values: dict[str, MetricValue] = {}
        for name in FIELDS:
            value = getattr(self, name)
            values[name] = value.read() if isinstance(value, HistogramCounter) else value
        values.update(zip(APPENDED, self.appended, strict=True))
        values.update(zip(DELIVERED, self.delivered, strict=True))
        with self._errors_lock:
            values["append_errors"] = dict(self.append_errors)
        return values


ARRAYS = frozenset({"appended", "delivered"})
FIELDS = tuple(name for name in LogCounters.__slots__ if not name.startswith("_") and name not in ARRAYS)
COUNTED = FIELDS + APPENDED + DELIVERED
assert set(COUNTED) < {metric.name for metric in METRICS}, "a counter without a row"


def summed(logs: Iterable[Mapping[str, MetricValue]]) -> dict[str, MetricValue]:
    """The metrics of many logs as one: sums. Offsets are omitted, since their sum means nothing."""
    total: dict[str, MetricValue] = {}
    rows = [metric.name for metric in METRICS if metric.is_summed]
    for values in logs:
        for name in rows:
            if name in values:
                total[name] = _added(total[name], values[name]) if name in total else values[name]
    return total


def _added(one: MetricValue, other: MetricValue) -> MetricValue:
    if isinstance(one, Histogram) and isinstance(other, Histogram):
        counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
        return Histogram(one.bounds, counts, one.sum + other.sum)
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}
    assert not isinstance(one, Histogram | dict)
    assert not isinstance(other, Histogram | dict)
    return one + other


# --- Prometheus -------------------------------------------------------------------------------------------------------

# Protocols, because this file is on the lowest floor: stores, producers and consumers import it.


class Metered(Protocol):
    """An object with metrics: a log."""

    @property
    def path(self) -> PathLike[str]: ...

    def metrics(self) -> Mapping[str, MetricValue]: ...


@runtime_checkable
class MeteredStore(Protocol):
    """A store: its own metrics, and those of its logs by topic and partition."""

    @property
    def path(self) -> PathLike[str]: ...

    def own_metrics(self) -> Mapping[str, MetricValue]: ...

    def log_metrics(self) -> Mapping[tuple[str, int], Mapping[str, MetricValue]]: ...

    def live_producers(self) -> Mapping[str, MeteredProducer]: ...

    def live_consumers(self) -> Mapping[str, MeteredConsumer]: ...

    def door_metrics(self) -> Mapping[str, MetricValue]: ...


class MeteredClient(Protocol):
    """What a producer and a consumer have in common."""

    @property
    def client_id(self) -> str: ...

    @property
    def store_path(self) -> PathLike[str]: ...

    @property
    def closed(self) -> bool: ...

    def metrics(self) -> Mapping[str, MetricValue]: ...


@runtime_checkable
class MeteredProducer(MeteredClient, Protocol):
    """A producer: its own metrics, and those by topic."""

    def topic_metrics(self) -> Mapping[str, Mapping[str, MetricValue]]: ...


@runtime_checkable
class MeteredConsumer(MeteredClient, Protocol):
    """A consumer: its own metrics, and those by topic and partition."""

    def partition_metrics(self) -> Mapping[Any, Mapping[str, MetricValue]]: ...


class Collector(Protocol):
    """The interface that a registry of prometheus-client needs."""

    def collect(self) -> Iterable[Family]: ...

    def describe(self) -> Iterable[Family]: ...


Source: TypeAlias = Metered | MeteredStore | MeteredProducer | MeteredConsumer


def collector(*sources: Source) -> Collector:
    """A Prometheus collector for ``sources``, logs, stores, producers, consumers: for ``CollectorRegistry.register``.

    Metrics are named ``kstore_<name>``, counters end with ``_total``; a metric has the label ``store``, a directory,
    and one of a log ``topic`` and ``partition`` too. A store reports its open producers: ``kstore_producer_<name>``
    with ``client_id``, ``kstore_producer_topic_<name>`` with ``topic`` too; and its open consumers:
    ``kstore_consumer_<name>``, ``kstore_consumer_partition_<name>`` with ``topic`` and ``partition`` too; and its door:
    ``kstore_door_<name>``. A source that is closed, or that cannot be queried at the moment, is omitted.

    Raises: ModuleNotFoundError if prometheus-client is not installed.
    """
    try:
        import prometheus_client.core  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "metrics for Prometheus need prometheus-client: pip install 'kstore[metrics]'", name=error.name
        ) from error
    return _Collector(sources)


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Metrics with the same labels."""

    prefix: str
    rows: tuple[Metric, ...]
    labels: tuple[str, ...]


LOGS = _Table(PREFIX, METRICS, ("store", "topic", "partition"))
STORES = _Table(PREFIX, STORE_METRICS, ("store",))
PRODUCERS = _Table(PRODUCER_PREFIX, PRODUCER_METRICS, ("store", "client_id"))
TOPICS = _Table(TOPIC_PREFIX, PRODUCER_TOPIC_METRICS, ("store", "client_id", "topic"))
CONSUMERS = _Table(CONSUMER_PREFIX, CONSUMER_METRICS, ("store", "client_id"))
PARTITIONS = _Table(PARTITION_PREFIX, CONSUMER_PARTITION_METRICS, ("store", "client_id", "topic", "partition"))
DOORS = _Table(DOOR_PREFIX, DOOR_METRICS, ("store",))
TABLES = (LOGS, STORES, PRODUCERS, TOPICS, CONSUMERS, PARTITIONS, DOORS)

_Labels = tuple[str, ...]
_Reported = tuple[_Table, _Labels, Mapping[str, MetricValue]]


class _Collector:
    """All sources in one, since a registry takes each name once."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def describe(self) -> Iterator[Family]:
        """The families without values: registering queries no log."""
        for table in TABLES:
            for metric in table.rows:
                yield _family(table, metric)

    def collect(self) -> Iterator[Family]:
        known: dict[_Table, dict[_Labels, Mapping[str, MetricValue]]] = {table: {} for table in TABLES}
        for source in self._sources:
            try:
                for table, labels, values in _rows_of(source):
                    # One may be reported by itself and by its store; Prometheus does not accept the same labels twice.
                    known[table].setdefault(labels, values)
            except KstoreError:
                continue
        for table in TABLES:
            for metric in table.rows:
                family = _family(table, metric)
                for labels, values in known[table].items():
                    if metric.name in values:
                        _add_value(family, metric, labels, values[metric.name])
                yield family


def _rows_of(source: Source) -> Iterator[_Reported]:
    if isinstance(source, MeteredStore):
        store = str(source.path)
        yield STORES, (store,), source.own_metrics()
        for (topic, partition), values in source.log_metrics().items():
            yield LOGS, (store, topic, str(partition)), values
        for name, producer in source.live_producers().items():
            yield from _producer_rows(store, name, producer)
        for name, consumer in source.live_consumers().items():
            yield from _consumer_rows(store, name, consumer)
        if door := source.door_metrics():
            yield DOORS, (store,), door
    elif isinstance(source, MeteredProducer):
        if not source.closed:
            yield from _producer_rows(str(source.store_path), source.client_id, source)
    elif isinstance(source, MeteredConsumer):
        if not source.closed:
            yield from _consumer_rows(str(source.store_path), source.client_id, source)
    else:
        yield LOGS, _log_labels(Path(source.path)), source.metrics()


def _producer_rows(store: str, name: str, producer: MeteredProducer) -> Iterator[_Reported]:
    yield PRODUCERS, (store, name), producer.metrics()
    for topic, values in producer.topic_metrics().items():
        yield TOPICS, (store, name, topic), values


def _consumer_rows(store: str, name: str, consumer: MeteredConsumer) -> Iterator[_Reported]:
    yield CONSUMERS, (store, name), consumer.metrics()
    for (topic, partition), values in consumer.partition_metrics().items():
        yield PARTITIONS, (store, name, topic, str(partition)), values


def _log_labels(path: Path) -> tuple[str, str, str]:
    """The labels of a log that no store has opened: its directory's name gives topic and partition."""
    topic, separator, partition = path.name.rpartition("-")
    if not separator or not partition.isdecimal():
        topic, partition = path.name, ""
    return str(path.parent), topic, partition


def _family(table: _Table, metric: Metric) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    names = [*table.labels, metric.label] if metric.label else table.labels
    return kinds[metric.kind](table.prefix + metric.name, metric.meaning, labels=names)


def _add_value(family: Any, metric: Metric, labels: Sequence[str], value: MetricValue) -> None:
    if isinstance(value, Histogram):
        bounds = [*map(str, map(float, value.bounds)), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(value.counts), strict=True)), value.sum)
    elif isinstance(value, dict):
        for label, count in value.items():
            family.add_metric([*labels, label], count)
    else:
        assert not metric.label, f"{metric.name} has a label, and one value"
        family.add_metric(labels, value)
