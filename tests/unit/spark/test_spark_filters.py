"""Filters: how each of Spark's limits a read, and that none loses a record that passes it."""

from __future__ import annotations

import operator
import pickle
import random
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from kstore.spark.filters import EVERYTHING, SoftPushdown, wanted_by
from kstore.spark.places import LogPlace
from kstore.types import OFFSET_MAX
from tests.support.harness.evidence import Lost

OFFSET, TIMESTAMP, TOPIC, PARTITION = ("offset",), ("timestamp",), ("topic",), ("partition",)


@pytest.mark.parametrize(
    ("filters", "start", "stop"),
    [
        ([], 0, OFFSET_MAX),
        ([EqualTo(OFFSET, 5)], 5, 6),
        ([EqualNullSafe(OFFSET, 5)], 5, 6),
        ([GreaterThan(OFFSET, 5)], 6, OFFSET_MAX),
        ([GreaterThanOrEqual(OFFSET, 5)], 5, OFFSET_MAX),
        ([LessThan(OFFSET, 5)], 0, 5),
        ([LessThanOrEqual(OFFSET, 5)], 0, 6),
        ([IsNotNull(OFFSET), GreaterThanOrEqual(OFFSET, 5), LessThan(OFFSET, 10)], 5, 10),
        ([GreaterThan(OFFSET, 5), GreaterThan(OFFSET, 7), LessThan(OFFSET, 99), LessThan(OFFSET, 20)], 8, 20),
        ([In(OFFSET, (9, 3, 5))], 3, 10),
        ([In(OFFSET, (9, None))], 9, 10),
        # An unknown filter excludes nothing.
        ([In(OFFSET, (9, "3"))], 0, OFFSET_MAX),
        ([In(OFFSET, ())], 0, OFFSET_MAX),
        ([EqualTo(OFFSET, None)], 0, OFFSET_MAX),
        ([EqualTo(OFFSET, 5.0)], 0, OFFSET_MAX),
        ([EqualTo(OFFSET, True)], 0, OFFSET_MAX),
        ([Not(EqualTo(OFFSET, 5))], 0, OFFSET_MAX),
        ([Not(LessThan(OFFSET, 5))], 0, OFFSET_MAX),
        ([IsNull(OFFSET)], 0, OFFSET_MAX),
        ([EqualTo(("headers", "offset"), 5)], 0, OFFSET_MAX),
        ([EqualTo(("key",), b"5"), EqualTo(("value",), b"5")], 0, OFFSET_MAX),
    ],
)
def test_filters_on_the_offset_bound_what_is_read(filters: list[Filter], start: int, stop: int) -> None:
    wanted = wanted_by(filters)
    assert (wanted.start, wanted.stop) == (start, stop)
    assert wanted.timestamp_ms_min is None


MOMENT = datetime(2026, 1, 1, 12, tzinfo=UTC)
MOMENT_MS = 1_767_268_800_000


@pytest.mark.parametrize(
    ("filters", "timestamp_ms_min"),
    [
        ([GreaterThanOrEqual(TIMESTAMP, MOMENT)], MOMENT_MS),
        ([EqualTo(TIMESTAMP, MOMENT)], MOMENT_MS),
        ([GreaterThan(TIMESTAMP, MOMENT)], MOMENT_MS + 1),
        ([GreaterThanOrEqual(TIMESTAMP, MOMENT + timedelta(microseconds=1))], MOMENT_MS + 1),
        ([GreaterThan(TIMESTAMP, MOMENT - timedelta(microseconds=1))], MOMENT_MS),
        ([GreaterThanOrEqual(TIMESTAMP, MOMENT.astimezone(timezone(timedelta(hours=5))))], MOMENT_MS),
        ([In(TIMESTAMP, (MOMENT + timedelta(days=1), MOMENT))], MOMENT_MS),
        ([GreaterThan(TIMESTAMP, MOMENT), GreaterThan(TIMESTAMP, MOMENT - timedelta(days=1))], MOMENT_MS + 1),
        # An early record may follow a late one.
        ([LessThan(TIMESTAMP, MOMENT)], None),
        ([LessThanOrEqual(TIMESTAMP, MOMENT)], None),
        ([Not(EqualTo(TIMESTAMP, MOMENT))], None),
        # The moment depends on a time zone.
        ([GreaterThan(TIMESTAMP, MOMENT.replace(tzinfo=None))], None),
        ([GreaterThan(TIMESTAMP, date(2026, 1, 1))], None),
    ],
)
def test_filters_on_the_time_say_where_reading_may_begin(filters: list[Filter], timestamp_ms_min: int | None) -> None:
    assert wanted_by(filters).timestamp_ms_min == timestamp_ms_min


@pytest.mark.parametrize(
    ("one", "wants"),
    [
        (EqualTo(TOPIC, "orders"), True),
        (EqualTo(TOPIC, "order"), False),
        (EqualNullSafe(TOPIC, "orders"), True),
        (In(TOPIC, ("payments", "orders")), True),
        (In(TOPIC, ("payments",)), False),
        (Not(EqualTo(TOPIC, "orders")), False),
        (Not(In(TOPIC, ("payments",))), True),
        (StringStartsWith(TOPIC, "ord"), True),
        (StringStartsWith(TOPIC, "pay"), False),
        (StringEndsWith(TOPIC, "ers"), True),
        (StringContains(TOPIC, "x"), False),
        (Not(StringContains(TOPIC, "x")), True),
        (GreaterThan(TOPIC, "p"), False),
        (LessThan(TOPIC, "p"), True),
        (EqualTo(PARTITION, 3), True),
        (EqualTo(PARTITION, 4), False),
        (GreaterThanOrEqual(PARTITION, 4), False),
        (LessThanOrEqual(PARTITION, 3), True),
        (In(PARTITION, (1, 2)), False),
        (Not(EqualTo(PARTITION, 3)), False),
        # An unknown filter excludes nothing.
        (EqualTo(TOPIC, 5), True),
        (EqualTo(PARTITION, "4"), True),
        (In(PARTITION, (1, None)), True),
        (Not(EqualTo(PARTITION, None)), True),
        (Not(IsNull(TOPIC)), True),
        (IsNotNull(TOPIC), True),
    ],
)
def test_filters_on_topic_and_partition_choose_logs(one: Filter, wants: bool) -> None:
    wanted = wanted_by([one])
    assert wanted.wants(LogPlace("/logs/orders-3", "orders", 3)) is wants
    assert pickle.loads(pickle.dumps(wanted)) == wanted


def test_offsets_that_no_record_has_want_no_log() -> None:
    assert not wanted_by([EqualTo(OFFSET, 5), EqualTo(OFFSET, 6)]).wants(LogPlace("/logs/a-0", "a", 0))
    assert not wanted_by([LessThan(OFFSET, 0)]).wants(LogPlace("/logs/a-0", "a", 0))
    assert EVERYTHING.wants(LogPlace("/logs/a-0", "a", 0))


COMPARISONS: dict[type, Any] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def test_no_row_that_passes_all_filters_is_left_out(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3000):
        row: dict[str, Any] = {"offset": rng.randrange(10), "partition": rng.randrange(3), "topic": rng.choice("ab")}
        row["timestamp"] = MOMENT + timedelta(milliseconds=rng.randrange(10))
        filters: list[Filter] = []
        passes = True
        for _ in range(rng.randrange(4)):
            column = rng.choice(list(row))
            kind = rng.choice(list(COMPARISONS))
            value = {
                "offset": rng.randrange(-1, 11),
                "partition": rng.randrange(3),
                "topic": rng.choice("ab"),
                "timestamp": MOMENT + timedelta(microseconds=rng.randrange(10_000)),
            }[column]
            filters.append(kind((column,), value))
            passes = passes and COMPARISONS[kind](row[column], value)
        wanted = wanted_by(filters)
        late = wanted.timestamp_ms_min is None or row["timestamp"].timestamp() * 1000 >= wanted.timestamp_ms_min
        place = LogPlace("/x", row["topic"], row["partition"])
        if passes and not (late and wanted.start <= row["offset"] < wanted.stop and wanted.wants(place)):
            raise Lost(f"{row} by {filters}")


def test_spark_takes_a_soft_pushdown_for_none_where_filters_are_not_pushed() -> None:
    taken: list[list[Filter]] = []
    soft = SoftPushdown(taken.append)
    # What Spark checks in pyspark.sql.worker.data_source_pushdown_filters and plan_data_source_read.
    assert getattr(soft, "__func__", None) is DataSourceReader.pushFilters
    filters: list[Filter] = [EqualTo(OFFSET, 5)]
    assert soft(filters) is filters
    assert taken == [filters]
