"""What a read may skip because of a query's filters. Pure: no files; an unknown filter only skips nothing.

Spark passes its filters, and evaluates each of them again on the result; here they only bound what is read:

    offset          the offsets of every partition that is read
    timestamp       where reading starts: no record before the first one that is late enough can match
    topic           which logs are opened at all
    partition       the same

Only a lower bound of a timestamp is used: producers' clocks differ, so an early record may follow a late one.
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

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
US_PER_MS = 1000

# Conditions on a log's topic or partition; those on texts apply only to topics.
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
    """Integers from ``low`` to ``high``, both inclusive; None means no bound."""

    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A part of all records that contains every one that passes the filters."""

    start: int = 0
    stop: int = OFFSET_MAX
    timestamp_ms_min: int | None = None
    # On topic and partition, of which a log has one each: evaluated directly.
    of_log: tuple[Filter, ...] = ()

    def wants(self, place: LogPlace) -> bool:
        """Whether a log may have matching records."""
        return self.start < self.stop and all(_passes(each, place) is not False for each in self.of_log)


EVERYTHING = Wanted()


def wanted_by(filters: Sequence[Filter]) -> Wanted:
    """The records that can pass all of ``filters``."""
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
    """The column of a filter; None for a field within a column, or another form."""
    path = _column_path(one.child if isinstance(one, Not) else one)
    return path[0] if path is not None and len(path) == 1 else None


def _column_path(one: Filter) -> tuple[str, ...] | None:
    return getattr(one, "attribute", None)


def _interval(one: Filter, number: Callable[[object], int | None]) -> Interval:
    """The interval of the numbers that pass a filter."""
    if isinstance(one, In):
        values = [found for value in one.value if value is not None for found in [number(value)]]
        known = [value for value in values if value is not None]
        # An unknown value may be any; a null lets nothing through, which Spark ensures.
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
    """Since the epoch, for a moment; None for a time without a zone, which is ambiguous."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - EPOCH) // MICROSECOND


def _passes(one: Filter, place: LogPlace) -> bool | None:
    """Whether the records of a log pass a filter on its topic or partition; None if unknown."""
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
    """A reader's ``pushFilters``, for the case that Spark may not push filters.

    With ``spark.sql.python.filterPushdown.enabled`` false, Spark refuses every reader whose class defines the method:
    it checks whether ``reader.pushFilters.__func__`` is the base class's. This object claims that it is, and takes the
    filters if there are any.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Callable[[list[Filter]], None]) -> None:
        self._take = take

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._take(filters)
        return filters  # each is only used to skip what it would reject
