"""Where a consumer is: seeks, where reading begins, offsets of any partitions, lag."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kstore import (
    ConfigError,
    ConsumerStateError,
    NoOffsetError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from kstore.store import Store
from kstore.transactions.group_records import OffsetAndMetadata
from tests.support.lives.consumer_helpers import T0, T1, T2, consumer, fill, offsets, opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "data") as store:
        yield store


def test_a_seek_goes_anywhere(store: Store) -> None:
    log = store.log("t", 0)
    for number in range(10):
        log.append(b"", timestamp=1_700_000_000_000 + number * 1000)
    with consumer(store) as reading:
        reading.assign([T0])
        reading.seek(T0, 7)
        assert reading.position(T0) == 7
        assert offsets(reading.poll(max_records=2)) == {T0: [7, 8]}
        reading.seek(T0, OffsetAndMetadata(3))
        assert next(reading).offset == 3
        reading.seek_to_beginning(T0)
        assert next(reading).offset == 0
        reading.seek_to_end()
        assert reading.poll() == {}
        assert reading.position(T0) == 10
        reading.seek_to_time(datetime.fromtimestamp(1_700_000_004, UTC))
        assert next(reading).offset == 4
        reading.seek_to_time(1_800_000_000_000, T0)
        assert reading.position(T0) == 10
        for wrong in (-1, True, "3", 2**63):
            with pytest.raises(ConfigError, match="an offset to seek"):
                reading.seek(T0, wrong)  # type: ignore[arg-type]
        with pytest.raises(ConsumerStateError, match="t-1 is not one of this consumer's"):
            reading.seek(T1, 0)


def test_a_seek_within_an_iteration_holds_from_the_next_record_on(store: Store) -> None:
    fill(store, T0, 30)
    with consumer(store, max_poll_records=1000) as reading:
        reading.assign([T0])
        seen = []
        for record in reading:
            seen.append(record.offset)
            if record.offset == 4:
                reading.seek(T0, 27)
    assert seen == [0, 1, 2, 3, 4, 27, 28, 29]


@pytest.mark.parametrize(("reset", "expected"), [("earliest", 5), ("latest", 30), ("none", None)])
def test_where_reading_begins_without_a_committed_offset(store: Store, reset: str, expected: int | None) -> None:
    fill(store, T0, 30)
    store.log("t", 0).delete_records(5)
    with consumer(store, group="g", auto_offset_reset=reset) as reading:
        reading.assign([T0])
        if expected is None:
            with pytest.raises(NoOffsetError, match="no committed offset of t-0 in group 'g'"):
                reading.poll()
            reading.seek(T0, 6)
            assert reading.position(T0) == 6
        else:
            reading.poll(max_records=1) if reset == "latest" else None
            assert reading.position(T0) == expected


@pytest.mark.parametrize(("reset", "expected"), [("earliest", 8), ("latest", 10), ("none", None)])
def test_a_position_that_retention_has_passed_is_reset(store: Store, reset: str, expected: int | None) -> None:
    fill(store, T0, 10)
    store.log("t", 0).delete_records(8)
    with consumer(store, auto_offset_reset=reset) as reading:
        reading.assign([T0])
        reading.seek(T0, 2)
        if expected is None:
            for _ in range(2):
                with pytest.raises(OffsetOutOfRangeError):
                    reading.poll()
            assert reading.position(T0) == 2
        else:
            reading.poll(max_records=1)
            assert reading.position(T0) == expected + (reset == "earliest")


@pytest.mark.parametrize("way", ["poll", "to_arrow"])
def test_a_position_above_the_end_becomes_the_end(store: Store, way: str, caplog: pytest.LogCaptureFixture) -> None:
    if way == "to_arrow":
        pytest.importorskip("pyarrow")
    fill(store, T0, 10)
    with consumer(store) as reading:
        reading.assign([T0])
        reading.seek(T0, 99)
        assert not len(getattr(reading, way)())
        assert reading.position(T0) == 10
    assert "outside the log" in caplog.text


def test_offsets_of_any_partitions_can_be_asked_for(store: Store) -> None:
    log = store.log("t", 0)
    for number in range(4):
        log.append(b"", timestamp=1_700_000_000_000 + number)
    log.delete_records(1)
    with consumer(store) as reading:
        assert reading.beginning_offsets([T0, T1]) == {T0: 1, T1: 0}
        assert reading.end_offsets([T0, T1]) == {T0: 4, T1: 0}
        assert reading.offsets_for_times({T0: 1_700_000_000_002, T1: 0, T2: "latest"}) == {T0: 2, T1: None, T2: 0}
        assert reading.partitions_for("t") == [T0, T1, T2]
        with pytest.raises(TopicNotFoundError):
            reading.end_offsets([("gone", 0)])


def test_lag_is_what_lies_before_it(store: Store) -> None:
    fill(store, T0, 10)
    with consumer(store, "t") as reading:
        reading.poll(max_records=4)
        assert reading.lag() == {T0: 6, T1: 0, T2: 0}


def test_what_is_no_partition_is_refused_everywhere(store: Store) -> None:
    with consumer(store, "t", group="g") as reading:
        for call in (
            lambda wrong: reading.position(wrong),
            lambda wrong: reading.seek(wrong, 0),
            lambda wrong: reading.seek_to_end(wrong),
            lambda wrong: reading.pause(wrong),
            lambda wrong: reading.commit({wrong: 1}),
            lambda wrong: reading.committed(wrong),
            lambda wrong: reading.end_offsets([wrong]),
            lambda wrong: reading.offsets_for_times({wrong: 1}),
        ):
            for wrong in ("t", ("t",), (0, "t"), ("t", True), ("t", 1.0), ("t", "0"), None):
                with pytest.raises(ConfigError, match="expected a TopicPartition"):
                    call(wrong)
