"""What a query's filters let a read leave out. Pure: no files, and nothing is lost by not understanding a filter.

Spark gives filters as it has them, and evaluates each of them again on what comes; here they only bound what is read:

    offset          the offsets of every partition that is read
    timestamp       where reading begins: no record before the first one that is late enough can be wanted
    topic           which logs are opened at all
    partition       the same

A timestamp has only its lower bound used: producers' clocks differ, so that an early record may follow a late one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import eq, ge, gt, le, lt
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from kstore.spark.places import LogPlace
from kstore.types import OFFSET_MAX

__all__ = ["EVERYTHING", "SoftPushdown", "Wanted", "wanted_by"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
US_PER_MS = 1000

# What the topic or the partition of a log must be; those of texts are only ever given for a topic.
TESTS: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: eq,
    EqualNullSafe: eq,
    GreaterThan: gt,
    GreaterThanOrEqual: ge,
    LessThan: lt,
    LessThanOrEqual: le,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: str.__contains__,
}


class Interval(NamedTuple):
    """Whole numbers from ``low`` to ``high``, both inclusive; None is no bound."""

    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A part of all records that holds every one which the filters let through."""

    start: int = 0
    stop: int = OFFSET_MAX
    timestamp_ms_min: int | None = None
    # On topic and partition, which a log has only one of each: evaluated as they are.
    of_log: tuple[Filter, ...] = ()

    def wants(self, place: LogPlace) -> bool:
        """Whether anything of a log may be wanted."""
        return self.start < self.stop and all(_passes(each, place) is not False for each in self.of_log)


EVERYTHING = Wanted()


def wanted_by(filters: Sequence[Filter]) -> Wanted:
    """What records can pass all of ``filters``."""
    start, stop, timestamp_ms_min = 0, OFFSET_MAX, None
    of_log: list[Filter] = []
    for each in filters:
        column = _column(each)
        if column in ("topic", "partition"):
            of_log.append(each)
        elif column == "offset":
            low, high = _interval(each, _whole)
            start = start if low is None else max(start, low)
            stop = stop if high is None else min(stop, high + 1)
        elif column == "timestamp":
            low = _interval(each, _microseconds).low
            if low is not None:
                # A record's time is whole milliseconds.
                low_ms = -(-low // US_PER_MS)
                timestamp_ms_min = low_ms if timestamp_ms_min is None else max(timestamp_ms_min, low_ms)
    return Wanted(start, stop, timestamp_ms_min, tuple(of_log))


def _column(one: Filter) -> str | None:
    """The column that a filter is on; None for one of a field within a column, or of another form."""
    path = _column_path(one.child if isinstance(one, Not) else one)
    return path[0] if path is not None and len(path) == 1 else None


def _column_path(one: Filter) -> tuple[str, ...] | None:
    return getattr(one, "attribute", None)


def _interval(one: Filter, number: Callable[[object], int | None]) -> Interval:
    """What the numbers that pass a filter lie within."""
    if isinstance(one, In):
        values = [found for value in one.value if value is not None for found in [number(value)]]
        known = [value for value in values if value is not None]
        # One that is not understood may be any; none at all lets nothing through, which Spark sees to.
        return Interval(min(known), max(known)) if known and len(known) == len(values) else Interval(None, None)
    value = number(getattr(one, "value", None))
    if value is None:
        return Interval(None, None)
    if isinstance(one, EqualTo | EqualNullSafe):
        return Interval(value, value)
    if isinstance(one, GreaterThanOrEqual):
        return Interval(value, None)
    if isinstance(one, GreaterThan):
        return Interval(value + 1, None)
    if isinstance(one, LessThanOrEqual):
        return Interval(None, value)
    if isinstance(one, LessThan):
        return Interval(None, value - 1)
    return Interval(None, None)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _microseconds(value: object) -> int | None:
    """Since the epoch, of a moment; None for a time without a zone, which may be any."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - EPOCH) // MICROSECOND


def _passes(one: Filter, place: LogPlace) -> bool | None:
    """Whether the records of a log pass a filter on its topic or partition; None where that is not known."""
    if isinstance(one, Not):
        passes = _passes(one.child, place)
        return None if passes is None else not passes
    found: str | int = place.topic if _column(one) == "topic" else place.partition
    if isinstance(one, In):
        return found in one.value if all(isinstance(value, type(found)) for value in one.value) else None
    value = getattr(one, "value", None)
    if not isinstance(value, type(found)):
        return None
    test = TESTS.get(type(one))
    return None if test is None else test(found, value)


class SoftPushdown:
    """What a reader has as ``pushFilters`` where Spark may have been told not to push filters.

    With ``spark.sql.python.filterPushdown.enabled`` false, Spark refuses every reader whose class defines the method:
    it looks whether ``reader.pushFilters.__func__`` is the base class's. This says that it is, and takes the filters
    where there are any.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Callable[[list[Filter]], None]) -> None:
        self._take = take

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._take(filters)
        return filters  # each is only used to leave out what it would not let through
