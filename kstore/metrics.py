"""Metrics: what kstore counts, a row for each; their way out of it.

    log.metrics()                                       {"appends": 12, "sync_seconds": Histogram(...), ...}
    prometheus_client.REGISTRY.register(kstore.metrics.collector(store))    needs kstore[metrics]

Counters are plain numbers in one ``LogCounters`` for each log: to count is one addition, and takes no lock. They begin
at 0 when the log is opened; in a store, when it is first opened. Nothing of what records hold is in a name, a label or
a value.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from kstore.errors import KstoreError

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

__all__ = [
    "METRICS",
    "PRODUCER_METRICS",
    "PRODUCER_TOPIC_METRICS",
    "STORE_METRICS",
    "Histogram",
    "HistogramCounter",
    "LogCounters",
    "Metered",
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
# Seconds: from what a drive with its own battery takes to what one takes that is about to fail.
SYNC_SECONDS_BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
GROUP_BOUNDS = (1, 2, 4, 8, 16, 32, 64)
# The label of an error that is not kstore's own: the name of a caller's class says nothing here.
OTHER_ERROR = "other"
BUILTIN_ERRORS = frozenset({"MemoryError", "OSError", "OverflowError", "TypeError", "ValueError"})


class Metric(NamedTuple):
    """One metric. The unit stands at the name's end, as Prometheus wants it, where it is bytes, seconds or a ratio.

    ``label`` is the name of its one label, "" where it has none.

    ``is_summed``: of many logs the sum means something.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    meaning: str
    label: str = ""
    is_summed: bool = True


class Histogram(NamedTuple):
    """How many values were at most ``bounds[i]`` and above the bound before: ``counts[i]``; the last are above all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


MetricValue = int | float | dict[str, float] | Histogram

METRICS = (
    Metric("appends", "counter", "appends", "Appends that were published; repetitions of a producer are not."),
    Metric("append_batches", "counter", "batches", "Batches that were appended."),
    Metric("append_records", "counter", "records", "Records that were appended."),
    Metric("append_bytes", "counter", "bytes", "Bytes of the batches that were appended, as they are stored."),
    Metric("append_duplicates", "counter", "appends", "Appends that repeated what the log had, and changed nothing."),
    Metric("append_errors", "counter", "appends", "Appends that failed, by the type of their error.", label="error"),
    Metric("group_appends", "histogram", "appends", "Appends that shared one write and sync (group commit)."),
    Metric("sync_seconds", "histogram", "seconds", "What a sync of a .log took; with its write where both are one."),
    Metric("rolls", "counter", "segments", "New segments that were begun."),
    Metric("truncations", "counter", "truncations", "Truncations, partly or fully."),
    Metric("segments_deleted", "counter", "segments", "Segments that retention, delete_records or a truncation took."),
    Metric("retention_segments", "counter", "segments", "Those of them that retention took, by time or size."),
    Metric("retention_deleted_bytes", "counter", "bytes", "Bytes of .log files in those."),
    Metric("compactions", "counter", "compactions", "Compactions that had something to do."),
    Metric("compaction_seconds", "counter", "seconds", "What they took, all together."),
    Metric("compaction_records_read", "counter", "records", "Records that they went through."),
    Metric("compaction_records_removed", "counter", "records", "Records among those that did not stay."),
    Metric("compaction_damaged", "counter", "segments", "Segments that a compaction left as they are, for damage."),
    Metric("segments_compacted", "counter", "segments", "Segments that compaction has replaced."),
    Metric("index_failures", "counter", "segments", "Indexes that could not be written, and were given up."),
    Metric("reads", "counter", "reads", "Iterators and fetches that were asked for."),
    Metric("read_batches", "counter", "batches", "Batches that iterators have handed out."),
    Metric(
        "read_records",
        "counter",
        "records",
        "Records in them, within the offsets asked for; of a compacted batch that was asked for in part, at most.",
    ),
    Metric("read_bytes", "counter", "bytes", "Bytes of the batches that were handed out, and of fetched slices."),
    Metric("corrupt_ranges", "counter", "ranges", "Damaged ranges that reads have met; they were told, or left out."),
    Metric("recoveries", "counter", "recoveries", "1 where opening had to check the log, else 0."),
    Metric("recovery_seconds", "gauge", "seconds", "What opening the log took."),
    Metric("recovery_cut_bytes", "gauge", "bytes", "Bytes that opening has cut from the end, set aside or not."),
    Metric("fenced_ranges", "gauge", "ranges", "Damaged ranges that opening has found, and that are never served."),
    Metric("segments", "gauge", "segments", "Segments of the log."),
    Metric("size_bytes", "gauge", "bytes", "Bytes of their .log files."),
    Metric("start_offset", "gauge", "offset", "The first offset that can be read.", is_summed=False),
    Metric("end_offset", "gauge", "offset", "The offset that the next record gets.", is_summed=False),
    Metric("high_watermark", "gauge", "offset", "Where reads stop.", is_summed=False),
    Metric("last_stable_offset", "gauge", "offset", "Where committed reads stop.", is_summed=False),
    Metric("recovery_point", "gauge", "offset", "Below it the next open checks nothing.", is_summed=False),
    Metric("flush_lag_records", "gauge", "records", "Offsets below the end that are not known to be on disk."),
    Metric("dirty_bytes", "gauge", "bytes", "Bytes that the next compaction could go through; of compacted logs only."),
    Metric("dirty_ratio", "gauge", "ratio", "Their share in what is clean or could be cleaned.", is_summed=False),
    Metric(
        "last_compaction_timestamp_seconds",
        "gauge",
        "seconds",
        "When the last compaction that had something to do ended, since the epoch; 0 for never.",
        is_summed=False,
    ),
    Metric("open_handles", "gauge", "files", "Files of sealed segments that are kept open."),
    Metric("followers", "gauge", "readers", "Readers that wait for the next append."),
    Metric("poisoned", "gauge", "logs", "1 where a failure of unknown outcome has ended all writes, else 0."),
)

STORE_METRICS = (
    Metric("topics", "gauge", "topics", "Topics of the store."),
    Metric("partitions", "gauge", "partitions", "Their partitions."),
    Metric("open_logs", "gauge", "logs", "Logs that are open; what is said of logs is said of these."),
    Metric("task_runs", "counter", "runs", "Runs of background work, by task.", label="task"),
    Metric("task_errors", "counter", "runs", "Those of them that failed.", label="task"),
    Metric("task_last_run_seconds", "gauge", "seconds", "What the task's last run took.", label="task"),
    Metric(
        "task_last_run_timestamp_seconds",
        "gauge",
        "seconds",
        "When the task's last run began, since the epoch; 0 for never.",
        label="task",
    ),
    Metric("ignored_names", "gauge", "names", "Names in the store's directory that are somebody else's."),
    Metric("notes", "gauge", "notes", "What was found amiss in the store's directory, as its status tells."),
)

# Averages, and what is the greatest, are over the producer's life.
PRODUCER_METRICS = (
    Metric("records", "counter", "records", "Records that were written."),
    Metric("bytes", "counter", "bytes", "Bytes of their batches, as they are stored."),
    Metric("batches", "counter", "batches", "Their batches."),
    Metric("writes", "counter", "writes", "Appends to logs; one takes what waits for a partition, up to 1 MiB."),
    Metric("records_per_write", "gauge", "records", "Records in one of them, on average."),
    Metric("batch_avg_bytes", "gauge", "bytes", "Bytes of a batch, as it is stored, on average."),
    Metric("batch_max_bytes", "gauge", "bytes", "Bytes of the largest."),
    Metric("compression_ratio", "gauge", "ratio", "Stored bytes by bytes before compression; 1 where nothing is."),
    Metric("queue_seconds", "counter", "seconds", "What batches have waited, from their begin to their write."),
    Metric("queue_avg_seconds", "gauge", "seconds", "What a batch has waited, on average."),
    Metric("queue_max_seconds", "gauge", "seconds", "What a batch has waited at most."),
    Metric("append_seconds", "counter", "seconds", "What writes took, with their syncs."),
    Metric("append_avg_seconds", "gauge", "seconds", "What a write took, on average."),
    Metric("append_max_seconds", "gauge", "seconds", "What a write took at most."),
    Metric("retries", "counter", "writes", "Writes that failed, and that are tried again."),
    Metric("splits", "counter", "batches", "Batches that were split, since the log takes none that large."),
    Metric("failed_records", "counter", "records", "Records that failed, those that were never in a batch too."),
    Metric("flush_seconds", "counter", "seconds", "What calls of flush took."),
    Metric("transaction_init_seconds", "counter", "seconds", "What calls of init_transactions took."),
    Metric("transaction_begin_seconds", "counter", "seconds", "What calls of begin_transaction took."),
    Metric("transaction_send_offsets_seconds", "counter", "seconds", "What calls of send_offsets took."),
    Metric("transaction_commit_seconds", "counter", "seconds", "What commits took, with the writes they waited for."),
    Metric("transaction_abort_seconds", "counter", "seconds", "What aborts took."),
    Metric("metadata_wait_seconds", "counter", "seconds", "What sends took to look topics up, and to wait for them."),
    Metric("buffer_total_bytes", "gauge", "bytes", "Bytes of memory that batches may take."),
    Metric("buffer_available_bytes", "gauge", "bytes", "Bytes of it that none has."),
    Metric("buffer_waiting_threads", "gauge", "threads", "Threads that wait for some."),
    Metric("buffer_exhausted", "counter", "records", "Records that failed, since there was none in time."),
    Metric("buffer_wait_seconds", "counter", "seconds", "What threads have waited for it, all together."),
    Metric("waiting_batches", "gauge", "batches", "Batches that have no result yet."),
)

PRODUCER_TOPIC_METRICS = (
    Metric("records", "counter", "records", "Records that were written to the topic."),
    Metric("bytes", "counter", "bytes", "Bytes of their batches, as they are stored."),
    Metric("retries", "counter", "writes", "Writes to it that failed, and that are tried again."),
    Metric("failed_records", "counter", "records", "Records for it that failed."),
    Metric("compression_ratio", "gauge", "ratio", "Stored bytes by bytes before compression; 1 where nothing is."),
)


class HistogramCounter:
    """A histogram that counts."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float) -> None:
        at = bisect_left(self.bounds, value)
        self.counts[at] += 1
        self.sum += value

    def read(self) -> Histogram:
        return Histogram(self.bounds, tuple(self.counts), self.sum)


class LogCounters:
    """What is counted of one open log; a field is one counter of ``METRICS``.

    Count with ``counters.appends += count``, where ``count`` is a plain name or number. Several threads may do so
    without a lock: the interpreter changes threads at calls and jumps only, and there is none within the addition.
    """

    __slots__ = (
        "_errors_lock",
        "append_batches",
        "append_bytes",
        "append_duplicates",
        "append_errors",
        "append_records",
        "appends",
        "compaction_damaged",
        "compaction_records_read",
        "compaction_records_removed",
        "compaction_seconds",
        "compactions",
        "corrupt_ranges",
        "group_appends",
        "index_failures",
        "last_compaction_timestamp_seconds",
        "read_batches",
        "read_bytes",
        "read_records",
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
        self.appends = self.append_batches = self.append_records = self.append_bytes = self.append_duplicates = 0
        self.rolls = self.truncations = self.segments_deleted = self.segments_compacted = self.index_failures = 0
        self.reads = self.read_batches = self.read_records = self.read_bytes = self.corrupt_ranges = 0
        self.retention_segments = self.retention_deleted_bytes = 0
        self.compactions = self.compaction_records_read = self.compaction_records_removed = self.compaction_damaged = 0
        self.compaction_seconds: float = 0
        self.last_compaction_timestamp_seconds: float = 0
        self.group_appends = HistogramCounter(GROUP_BOUNDS)
        self.sync_seconds = HistogramCounter(SYNC_SECONDS_BOUNDS)
        self.append_errors: dict[str, float] = {}
        self._errors_lock = threading.Lock()

    def fetched(self, size: int) -> None:
        """Counts a slice of ``size`` bytes that was named."""
        self.reads += 1
        self.read_bytes += size

    def retained(self, segment_count: int, size: int) -> None:
        """Counts what retention has deleted. Needs the log's lock."""
        self.retention_segments += segment_count
        self.retention_deleted_bytes += size

    def compacted(self, *, read: int, removed: int, damaged: int, seconds: float, now_ms: int) -> None:
        """Counts a compaction that had something to do: records, segments. One at a time."""
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
        """Every counter as it is now."""
        values: dict[str, MetricValue] = {}
        for name in COUNTED:
            value = getattr(self, name)
            values[name] = value.read() if isinstance(value, HistogramCounter) else value
        with self._errors_lock:
            values["append_errors"] = dict(self.append_errors)
        return values


COUNTED = tuple(name for name in LogCounters.__slots__ if not name.startswith("_"))
assert set(COUNTED) < {metric.name for metric in METRICS}, "a counter without a row"


def summed(logs: Iterable[Mapping[str, MetricValue]]) -> dict[str, MetricValue]:
    """The metrics of many logs as one: sums. Offsets are left out, since their sum means nothing."""
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


class Metered(Protocol):
    """What has metrics: a log."""

    @property
    def path(self) -> PathLike[str]: ...

    def metrics(self) -> Mapping[str, MetricValue]: ...


@runtime_checkable
class MeteredStore(Protocol):
    """A store: metrics of its own, and those of its logs by topic and partition."""

    @property
    def path(self) -> PathLike[str]: ...

    def own_metrics(self) -> Mapping[str, MetricValue]: ...

    def log_metrics(self) -> Mapping[tuple[str, int], Mapping[str, MetricValue]]: ...

    def live_producers(self) -> Mapping[str, MeteredProducer]: ...


@runtime_checkable
class MeteredProducer(Protocol):
    """A producer: metrics of its own, and by topic."""

    @property
    def client_id(self) -> str: ...

    @property
    def store_path(self) -> PathLike[str]: ...

    @property
    def closed(self) -> bool: ...

    def metrics(self) -> Mapping[str, MetricValue]: ...

    def topic_metrics(self) -> Mapping[str, Mapping[str, MetricValue]]: ...


class Collector(Protocol):
    """What a registry of prometheus-client takes."""

    def collect(self) -> Iterable[Family]: ...

    def describe(self) -> Iterable[Family]: ...


def collector(*sources: Metered | MeteredStore | MeteredProducer) -> Collector:
    """What tells Prometheus of ``sources``, logs, stores and producers: for ``CollectorRegistry.register``.

    Metrics are named ``kstore_<name>``, counters with ``_total`` behind; a metric has the label ``store``, a directory,
    and that of a log ``topic`` and ``partition`` too. A store tells of its open producers: ``kstore_producer_<name>``
    with ``client_id``, ``kstore_producer_topic_<name>`` with ``topic`` too. A source that is closed, or that cannot be
    asked at the moment, is left out.

    Raises: ModuleNotFoundError where prometheus-client is not installed.
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
    """Metrics that have the same labels."""

    prefix: str
    rows: tuple[Metric, ...]
    labels: tuple[str, ...]


LOGS = _Table(PREFIX, METRICS, ("store", "topic", "partition"))
STORES = _Table(PREFIX, STORE_METRICS, ("store",))
PRODUCERS = _Table(PRODUCER_PREFIX, PRODUCER_METRICS, ("store", "client_id"))
TOPICS = _Table(TOPIC_PREFIX, PRODUCER_TOPIC_METRICS, ("store", "client_id", "topic"))
TABLES = (LOGS, STORES, PRODUCERS, TOPICS)

_Labels = tuple[str, ...]
_Told = tuple[_Table, _Labels, Mapping[str, MetricValue]]


class _Collector:
    """All sources in one, since a registry takes each name once."""

    def __init__(self, sources: Sequence[Metered | MeteredStore | MeteredProducer]) -> None:
        self._sources = sources

    def describe(self) -> Iterator[Family]:
        """The families without their values: to register asks nothing of a log."""
        for table in TABLES:
            for metric in table.rows:
                yield _family(table, metric)

    def collect(self) -> Iterator[Family]:
        known: dict[_Table, dict[_Labels, Mapping[str, MetricValue]]] = {table: {} for table in TABLES}
        for source in self._sources:
            try:
                for table, labels, values in _told_by(source):
                    # A producer may be told of by itself and by its store; Prometheus takes no labels twice.
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


def _told_by(source: Metered | MeteredStore | MeteredProducer) -> Iterator[_Told]:
    if isinstance(source, MeteredStore):
        store = str(source.path)
        yield STORES, (store,), source.own_metrics()
        for (topic, partition), values in source.log_metrics().items():
            yield LOGS, (store, topic, str(partition)), values
        for name, producer in source.live_producers().items():
            yield from _told_by_producer(store, name, producer)
    elif isinstance(source, MeteredProducer):
        if not source.closed:
            yield from _told_by_producer(str(source.store_path), source.client_id, source)
    else:
        yield LOGS, _log_labels(Path(source.path)), source.metrics()


def _told_by_producer(store: str, name: str, producer: MeteredProducer) -> Iterator[_Told]:
    yield PRODUCERS, (store, name), producer.metrics()
    for topic, values in producer.topic_metrics().items():
        yield TOPICS, (store, name, topic), values


def _log_labels(path: Path) -> tuple[str, str, str]:
    """Those of a log that no store has opened: its directory's name tells topic and partition."""
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
