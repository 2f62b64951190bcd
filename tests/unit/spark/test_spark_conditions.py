"""SQL conditions as what a read may skip: understood exactly, or not at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

import kstore
from kstore.errors import ConfigError
from kstore.spark import frames
from kstore.spark.conditions import columns_in, filters_of
from kstore.spark.frames import read
from kstore.spark.schema import COLUMNS
from tests.spark.reading import make_reader, offsets_of, splits_of, table_of

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
OFFSET, PARTITION, TOPIC, TIME = ("offset",), ("partition",), ("topic",), ("timestamp",)

UNDERSTOOD: dict[str, list[Filter]] = {
    "offset >= 990": [GreaterThanOrEqual(OFFSET, 990)],
    "Offset<-5": [LessThan(OFFSET, -5)],
    " 5 < offset AND 7>=offset ": [GreaterThan(OFFSET, 5), LessThanOrEqual(OFFSET, 7)],
    "partition == 3 and topic = 'a b'": [EqualTo(PARTITION, 3), EqualTo(TOPIC, "a b")],
    "offset between 1 and 5 and partition <=> 0": [
        GreaterThanOrEqual(OFFSET, 1),
        LessThanOrEqual(OFFSET, 5),
        EqualTo(PARTITION, 0),
    ],
    "partition in (1, 2,3)": [In(PARTITION, (1, 2, 3))],
    "topic IN ('a', 'b')": [In(TOPIC, ("a", "b"))],
    "topic like 'click%'": [StringStartsWith(TOPIC, "click")],
    "'a' <= topic": [GreaterThanOrEqual(TOPIC, "a")],
    "timestamp >= timestamp'2026-01-01 00:00:00Z'": [GreaterThanOrEqual(TIME, NEW_YEAR)],
    "timestamp > '2026-01-01T02:00:00+02:00'": [
        GreaterThanOrEqual(TIME, NEW_YEAR.astimezone(timezone(timedelta(hours=2))))
    ],
    # Whatever the session's time zone.
    "timestamp >= date'2026-01-01'": [GreaterThanOrEqual(TIME, NEW_YEAR - timedelta(hours=18))],
    "timestamp = '2026-01-01 00:00'": [GreaterThanOrEqual(TIME, NEW_YEAR - timedelta(hours=18))],
    "timestamp < '2026-01-01'": [],
    "timestamp between '2026-01-01' and '2026-01-02'": [GreaterThanOrEqual(TIME, NEW_YEAR - timedelta(hours=18))],
}

NOT_UNDERSTOOD = [
    "offset >= 5 or partition = 1",
    "not offset >= 5",
    "offset >= 5 and not partition = 1",
    "(offset >= 5)",
    "offset >= 5 - 3",
    "offset >= 5 -3",
    "offset -5 > 3",
    "offset >= 5 -- or true",
    "offset >= 5 /* or true */",
    "offset + 1 >= 5",
    "-offset > 5",
    "offset >= 5L",
    "offset >= 5.5",
    "offset >= 1e3",
    "offset >= '5'",
    "offset >= 9999999999999999999",
    "offset != 5",
    "offset <> 5",
    "offset = 5 = true",
    "offset in (1, 2) = false",
    "offset not in (1, 2)",
    "offset in ()",
    "offset in (select 1)",
    "offset between 1 and 5 or true",
    "offset is not null",
    "offset >= partition",
    "5 > 3",
    "key = 'a'",
    "`offset` >= 5",
    "t.offset >= 5",
    "topic = 'a' 'b'",
    r"topic = 'a\'b'",
    "topic = r'a'",
    "topic = X'61'",
    'topic = "a"',
    "topic = 'a' collate utf8_lcase",
    "topic like 'a_c%'",
    "topic like 'a%c%'",
    "topic like 'abc'",
    "topic like 'a!%%' escape '!'",
    "upper(topic) = 'A'",
    "timestamp >= 5",
    "timestamp >= date'2026-01-01T23:00:00Z'",
    "timestamp >= '20260101'",
    "timestamp >= '2026-W01-1'",
    "timestamp >= '2026-13-01'",
    "timestamp >= '2026-01-01 00:00:00 Europe/Paris'",
    "timestamp >= '0001-01-01'",
    "timestamp >= timestamp_ltz'2026-01-01'",
    "timestamp >= now()",
    "timestamp in ('2026-01-01')",
    "offset >= 5 and",
    "offset >=",
    "and",
    "",
    "offset >= \u0665",
]


@pytest.mark.parametrize("condition", UNDERSTOOD)
def test_a_condition_is_the_filters_that_spark_would_push(condition: str) -> None:
    assert filters_of(condition) == UNDERSTOOD[condition]


@pytest.mark.parametrize("condition", NOT_UNDERSTOOD)
@pytest.mark.sampled(16)
def test_any_other_condition_skips_nothing(condition: str) -> None:
    assert filters_of(condition) == []


def test_the_columns_of_a_condition_are_a_superset() -> None:
    assert columns_in("Offset > 5 and `timestampType` = 1 or key like 'value'", COLUMNS) == [
        "key",
        "value",
        "offset",
        "timestampType",
    ]
    assert columns_in("true", COLUMNS) == []


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.fixture(name="path", scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("conditions")
    for name in ("a-0", "a-1", "b-0"):
        with kstore.Log(path / name, durability="os", segment_bytes=1024, index_interval_bytes=0) as log:
            for first in range(0, 100, 10):
                log.append_many(
                    [b"%d" % number for number in range(first, first + 10)], timestamps=range(first, first + 10)
                )
    return path


def test_what_cannot_match_is_not_planned(path: Path) -> None:
    reader = make_reader(path, pruneWhere="topic = 'a' and partition = 1 and offset between 30 and 39")
    (split,) = splits_of(reader)
    (piece,) = split.pieces
    assert (piece.place.topic, piece.place.partition, piece.start, piece.stop) == ("a", 1, 30, 40)
    assert offsets_of(reader) == list(range(30, 40))
    # An upper bound of a time skips nothing, a lower one skips what is before it.
    assert len(offsets_of(make_reader(path, pruneWhere="timestamp < '1970-01-01'"))) == 300
    assert offsets_of(make_reader(path, pruneWhere="timestamp >= '1970-01-01T00:00:00.095Z' and topic = 'b'")) == [
        95,
        96,
        97,
        98,
        99,
    ]
    assert len(offsets_of(make_reader(path, pruneWhere="offset >= 50 or true"))) == 300


def test_pushed_filters_are_added_to_it(path: Path) -> None:
    reader = make_reader(path, pruneWhere="topic = 'a'", filterPushdown=True)
    list(reader.pushFilters([EqualTo(PARTITION, 0)]))
    assert table_of(reader).num_rows == 100


class Frame:
    """The part of a DataFrame and its reader that ``read`` uses; notes the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.read = self

    def format(self, name: str) -> Frame:
        return self._noted("format", name)

    def options(self, **options: str) -> Frame:
        return self._noted("options", options)

    def load(self, path: object) -> Frame:
        return self._noted("load", path)

    def where(self, condition: str) -> Frame:
        return self._noted("where", condition)

    def select(self, *columns: str) -> Frame:
        return self._noted("select", columns)

    def _noted(self, name: str, value: object) -> Frame:
        self.calls.append((name, value))
        return self


@pytest.fixture(name="frame")
def noting_frame(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(frames, "register", lambda spark: None)
    return Frame()


def test_columns_of_the_condition_are_read_and_left_out_of_the_result(frame: Any) -> None:
    read(frame, Path("/data"), columns=["value"], where="offset > 5 and value is not null", includeHeaders=False)
    assert frame.calls == [
        ("format", "kstore"),
        (
            "options",
            {
                "includeHeaders": "false",
                "columns": "value,offset",
                "pruneWhere": "offset > 5 and value is not null",
            },
        ),
        ("load", "/data"),
        ("where", "offset > 5 and value is not null"),
        ("select", ("value",)),
    ]


def test_arguments_become_options(frame: Any) -> None:
    read(
        frame,
        ["/a", Path("/b")],
        startingOffsets={"a": {"0": 5}},
        paths=None,
        minPartitions=7,
        storage_options={"anon": True},
    )
    assert frame.calls[1:] == [
        (
            "options",
            {"startingOffsets": '{"a": {"0": 5}}', "minPartitions": "7", "storage_options": '{"anon": true}'},
        ),
        ("load", ["/a", "/b"]),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": "offset"}, "columns is the text 'offset', expected a list of names"),
        ({"where": 5}, "where is of type int, expected SQL as a text"),
    ],
)
def test_wrong_arguments_are_refused(frame: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(frame, "/data", **arguments)
    assert frame.calls == []
