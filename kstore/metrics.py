"""Metrics: what kstore counts, one row of ``METRICS`` for each, and their way into a dict and to Prometheus.

    log.metrics()                                       {"appends": 12, "sync_seconds": Histogram(...), ...}
    prometheus_client.REGISTRY.register(kstore.metrics.collector(log))      needs kstore[prometheus]

Counters are plain numbers in one ``LogCounters`` for each open log: to count is one addition, and takes no lock. They
begin at 0 when the log is opened. Nothing of what records hold is in a name, a label or a value.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from kstore.errors import KstoreError

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

__all__ = [
    "METRICS",
    "Histogram",
    "HistogramCounter",
    "LogCounters",
    "Metered",
    "Metric",
    "MetricValue",
    "collector",
    "summed",
]

PREFIX = "kstore_"
# Seconds: from what a drive with its own battery takes to what one takes that is about to fail.
SYNC_SECONDS_BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
GROUP_BOUNDS = (1, 2, 4, 8, 16, 32, 64)
# The label of an error that is not kstore's own: the name of a caller's class says nothing here.
OTHER_ERROR = "other"
BUILTIN_ERRORS = frozenset({"MemoryError", "OSError", "OverflowError", "TypeError", "ValueError"})


class Metric(NamedTuple):
    """One metric. ``label`` is the name of its one label, "" where it has none.

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


MetricValue = int | float | dict[str, int] | Histogram

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
    Metric("recovery_bytes_cut", "gauge", "bytes", "Bytes that opening has cut from the end, set aside or not."),
    Metric("fenced_ranges", "gauge", "ranges", "Damaged ranges that opening has found, and that are never served."),
    Metric("segments", "gauge", "segments", "Segments of the log."),
    Metric("size_bytes", "gauge", "bytes", "Bytes of their .log files."),
    Metric("start_offset", "gauge", "offset", "The first offset that can be read.", is_summed=False),
    Metric("end_offset", "gauge", "offset", "The offset that the next record gets.", is_summed=False),
    Metric("high_watermark", "gauge", "offset", "Where reads stop.", is_summed=False),
    Metric("last_stable_offset", "gauge", "offset", "Where committed reads stop.", is_summed=False),
    Metric("recovery_point", "gauge", "offset", "Below it the next open checks nothing.", is_summed=False),
    Metric("flush_lag", "gauge", "records", "Offsets below the end that are not known to be on disk."),
    Metric("open_handles", "gauge", "files", "Files of sealed segments that are kept open."),
    Metric("followers", "gauge", "readers", "Readers that wait for the next append."),
    Metric("poisoned", "gauge", "logs", "1 where a failure of unknown outcome has ended all writes, else 0."),
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
        "corrupt_ranges",
        "group_appends",
        "index_failures",
        "read_batches",
        "read_bytes",
        "read_records",
        "reads",
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
        self.group_appends = HistogramCounter(GROUP_BOUNDS)
        self.sync_seconds = HistogramCounter(SYNC_SECONDS_BOUNDS)
        self.append_errors: dict[str, int] = {}
        self._errors_lock = threading.Lock()

    def fetched(self, size: int) -> None:
        """Counts a slice of ``size`` bytes that was named."""
        self.reads += 1
        self.read_bytes += size

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
    """What has metrics: a log, or a store."""

    @property
    def path(self) -> PathLike[str]: ...

    def metrics(self) -> Mapping[str, MetricValue]: ...


class Collector(Protocol):
    """What a registry of prometheus-client takes."""

    def collect(self) -> Iterable[Family]: ...

    def describe(self) -> Iterable[Family]: ...


def collector(*sources: Metered) -> Collector:
    """What tells Prometheus of ``sources``, logs and stores: for ``CollectorRegistry.register``.

    Metrics are named ``kstore_<name>``, counters with ``_total`` behind; the label ``log`` is the path of the log, or
    store. A source that is closed, or that cannot be asked at the moment, is left out.

    Raises: ModuleNotFoundError where prometheus-client is not installed.
    """
    try:
        import prometheus_client.core  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "metrics for Prometheus need prometheus-client: pip install 'kstore[prometheus]'", name=error.name
        ) from error
    return _Collector(sources)


class _Collector:
    """All sources in one, since a registry takes each name once."""

    def __init__(self, sources: Sequence[Metered]) -> None:
        self._sources = sources

    def describe(self) -> Iterator[Family]:
        """The families without their values: to register asks nothing of a log."""
        for metric in METRICS:
            yield _family(metric)

    def collect(self) -> Iterator[Family]:
        known: list[tuple[str, Mapping[str, MetricValue]]] = []
        for source in self._sources:
            try:
                known.append((fspath(source.path), source.metrics()))
            except KstoreError:
                continue
        for metric in METRICS:
            family = _family(metric)
            for log, values in known:
                if metric.name in values:
                    _add_value(family, metric, log, values[metric.name])
            yield family


def _family(metric: Metric) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    labels = ["log", metric.label] if metric.label else ["log"]
    return kinds[metric.kind](PREFIX + metric.name, metric.meaning, labels=labels)


def _add_value(family: Any, metric: Metric, log: str, value: MetricValue) -> None:
    if isinstance(value, Histogram):
        bounds = [*map(str, map(float, value.bounds)), "+Inf"]
        family.add_metric([log], list(zip(bounds, accumulate(value.counts), strict=True)), value.sum)
    elif isinstance(value, dict):
        for label, count in value.items():
            family.add_metric([log, label], count)
    else:
        assert not metric.label, f"{metric.name} has a label, and one value"
        family.add_metric([log], value)
