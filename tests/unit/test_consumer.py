"""Consumers of one process: what they read, from where, in what order, and what they commit."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import (
    ClosedError,
    ConfigError,
    ConsumerStateError,
    CorruptBatchError,
    NoOffsetError,
    OffsetOutOfRangeError,
    RecordDeserializationError,
    TopicNotFoundError,
    TopicPartition,
    WakeupError,
)
from kstore.consumer.consumer import Consumer
from kstore.consumer.deserializers import ConsumerRecord
from kstore.store import Store
from kstore.transactions.group_records import OffsetAndMetadata

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kstore.open(tmp_path / "data", durability="os") as store:
        store.create_topic("t", partitions=3)
        yield store


def fill(store: Store, owner: TopicPartition, count: int, batch: int = 10) -> None:
    log = store.log(*owner)
    first = log.end_offset
    values = [b"%d:%d" % (owner.partition, number) for number in range(first, first + count)]
    for start in range(0, count, batch):
        log.append_many(values[start : start + batch])


def consumer(store: Store, *topics: str, **settings: Any) -> Consumer:
    return store.consumer(*topics, **{"iteration_timeout_ms": 0, **settings})


def offsets(found: dict[TopicPartition, list[Any]]) -> dict[TopicPartition, list[int]]:
    return {owner: [record.offset for record in records] for owner, records in found.items()}


def polled_or(reading: Consumer, error: type[Exception]) -> dict[TopicPartition, list[Any]]:
    """What a poll returns, {} where it raises ``error``, which it must do at the end."""
    try:
        found = reading.poll()
    except error:
        return {}
    assert found
    return found


# --- reading ----------------------------------------------------------------------------------------------------------


def test_every_record_is_read_once_and_those_of_a_partition_in_order(store: Store) -> None:
    for owner, count in ((T0, 25), (T1, 0), (T2, 37)):
        fill(store, owner, count)
    with consumer(store, "t") as reading:
        seen: dict[TopicPartition | None, list[int]] = {}
        for record in reading:
            seen.setdefault(reading.current, []).append(record.offset)
    assert seen == {T0: list(range(25)), T2: list(range(37))}


def test_a_poll_returns_at_most_what_was_asked_for(store: Store) -> None:
    fill(store, T0, 25)
    fill(store, T1, 25)
    with consumer(store, "t") as reading:
        seen: dict[TopicPartition, list[int]] = {}
        while found := reading.poll(max_records=7):
            assert 0 < sum(map(len, found.values())) <= 7
            for owner, numbers in offsets(found).items():
                seen.setdefault(owner, []).extend(numbers)
    assert seen == {T0: list(range(25)), T1: list(range(25))}


def test_the_default_of_a_poll_is_max_poll_records(store: Store) -> None:
    fill(store, T0, 25)
    with consumer(store, "t", max_poll_records=6) as reading:
        assert offsets(reading.poll()) == {T0: [0, 1, 2, 3, 4, 5]}


@pytest.mark.parametrize("count", [0, -1, True, "7"])
def test_a_poll_for_no_number_of_records_is_refused(store: Store, count: Any) -> None:
    with consumer(store, "t") as reading, pytest.raises(ConfigError, match="max_records"):
        reading.poll(max_records=count)


def test_partitions_take_turns(store: Store) -> None:
    fill(store, T0, 100, batch=10)
    fill(store, T1, 100, batch=10)
    with consumer(store, "t", max_partition_fetch_bytes=1) as reading:
        found = reading.poll(max_records=20)
    assert offsets(found) == {T0: list(range(10)), T1: list(range(10))}


def test_many_partitions_are_read_to_the_end(store: Store) -> None:
    store.create_topic("many", partitions=20)
    for number in range(20):
        fill(store, TopicPartition("many", number), 30, batch=5)
    with consumer(store, "many", max_partition_fetch_bytes=1) as reading:
        assert sum(1 for _ in reading) == 600


def test_values_and_columns_are_the_records(store: Store) -> None:
    pytest.importorskip("pyarrow")
    fill(store, T0, 25)
    fill(store, T2, 8)
    with consumer(store, "t") as reading:
        values = sorted(reading.values(), key=str)
        assert values == sorted(
            [record.value for record in store.log("t", 0).read()]
            + [record.value for record in store.log("t", 2).read()],
            key=str,
        )
        reading.seek_to_beginning()
        table = reading.to_arrow()
        assert sorted(table["value"].to_pylist(), key=str) == values
        assert set(zip(table["topic"].to_pylist(), table["partition"].to_pylist(), strict=True)) == {("t", 0), ("t", 2)}
        assert reading.positions() == {T0: 25, T1: 0, T2: 8}


def test_columns_come_in_pieces_of_any_size(store: Store) -> None:
    pytest.importorskip("pyarrow")
    fill(store, T0, 25)
    with consumer(store) as reading:
        reading.assign([T0])
        found = []
        while (table := reading.to_arrow(7, columns=["value"])).num_rows:
            assert table.column_names == ["topic", "partition", "value"]
            found.append(table.num_rows)
            assert reading.position(T0) == sum(found)
        assert found == [7, 7, 7, 4]
        assert reading.to_arrow().column_names[2:] == [
            "key",
            "value",
            "offset",
            "timestamp",
            "timestampType",
            "headers",
        ]


def test_ways_of_reading_may_be_mixed(store: Store) -> None:
    pytest.importorskip("pyarrow")
    fill(store, T0, 100)
    with consumer(store) as reading:
        reading.assign([T0])
        seen = [next(reading).offset, next(reading).offset]
        for _ in range(2):
            seen += offsets(reading.poll(max_records=3))[T0]
            seen += reading.to_arrow(4)["offset"].to_pylist()
        for _ in zip(range(3), reading.values(), strict=False):
            seen.append(reading.position(T0) - 1)
        for record in reading:
            seen.append(record.offset)
            if len(seen) == 30:
                break
        seen += offsets(reading.poll(max_records=1000))[T0]
    assert seen == list(range(100))


def test_compacted_logs_are_read_past_their_gaps(store: Store) -> None:
    store.create_topic("c", cleanup_policy="compact", segment_bytes=1024)
    log = store.log("c")
    for number in range(100):
        log.append(b"v%d" % number, key=b"k%d" % (number % 7))
    log.roll()
    log.compact()
    kept = [record.offset for record in log.read()]
    assert len(kept) < 100
    for ask in (1, 3, 1000):
        with consumer(store, "c") as reading:
            seen: list[int] = []
            while found := reading.poll(max_records=ask):
                seen += offsets(found)[TopicPartition("c", 0)]
            assert seen == kept
            reading.seek_to_beginning()
            assert list(reading.values()) == [record.value for record in log.read()]
            assert reading.positions() == {TopicPartition("c", 0): 100}


def test_an_iteration_ends_when_nothing_comes_and_goes_on_later(store: Store) -> None:
    with consumer(store, "t") as reading:
        assert list(reading) == []
        fill(store, T1, 3)
        assert [record.offset for record in reading] == [0, 1, 2]
        with pytest.raises(StopIteration):
            next(reading)


def test_records_that_come_while_it_waits_end_the_wait(store: Store) -> None:
    with consumer(store, "t") as reading:
        appender = threading.Timer(0.05, lambda: fill(store, T2, 1))
        appender.start()
        found = reading.poll(timeout=30)
        appender.join()
    assert offsets(found) == {T2: [0]}


def test_deserializers_make_records_that_say_where_they_are_from(store: Store) -> None:
    store.log("t", 1).append(b'{"a": 1}', key="ключ".encode(), headers=[("h", b"1")], timestamp=5)
    store.log("t", 1).append(None)
    with consumer(store, "t", key_deserializer="str", value_deserializer="json") as reading:
        first, second = reading.poll()[T1]
        reading.seek_to_beginning()
        assert [record.value for record in reading] == [{"a": 1}, None]
    assert first == ConsumerRecord("t", 1, 0, 5, "CreateTime", "ключ", {"a": 1}, (("h", b"1"),), 0)
    assert (second.key, second.value, second.offset) == (None, None, 1)


@pytest.mark.parametrize("read", ["poll", "iterate"])
def test_a_record_that_cannot_be_deserialized_stops_there_until_a_seek(store: Store, read: str) -> None:
    for value in (b"1", b"2", b"no", b"4"):
        store.log("t", 0).append(value)
    with consumer(store, "t", value_deserializer=lambda data: int(data)) as reading:

        def values() -> list[Any]:
            if read == "poll":
                return [record.value for record in reading.poll().get(T0, ())]
            found = []
            for record in reading:
                found.append(record.value)
                if len(found) == 2:
                    break
            return found

        assert values() == [1, 2]
        for _ in range(2):
            with pytest.raises(RecordDeserializationError, match="value of t-0 at offset 2") as caught:
                values()
        assert caught.value.offset == 2
        reading.seek(T0, caught.value.offset + 1)
        assert values() == [4]


def test_a_deserializer_may_be_an_object_that_sees_the_headers_and_is_closed(store: Store) -> None:
    class Upper:
        closed = False

        def deserialize(self, topic: str, headers: Any, data: bytes | None) -> str:
            return f"{topic} {headers} {data!r}"

        def close(self) -> None:
            self.closed = True

    upper = Upper()
    fill(store, T0, 1)
    with consumer(store, "t", value_deserializer=upper) as reading:
        assert reading.poll()[T0][0].value == "t () b'0:0'"
    assert upper.closed


def test_committed_reads_leave_out_what_was_aborted_and_stop_before_what_is_open(store: Store) -> None:
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
            producer.begin_transaction()
            producer.send("t", value, partition=0)
            producer.flush()
            producer.commit_transaction() if commit else producer.abort_transaction()
        producer.begin_transaction()
        producer.send("t", b"d", partition=0)
        producer.flush()
        with consumer(store, "t", isolation_level="read_committed") as reading:
            assert [record.value for record in reading] == [b"a", b"c"]
            assert reading.lag()[T0] == 0
            assert reading.end_offsets([T0]) == {T0: 6}
            producer.commit_transaction()
            assert [record.value for record in reading] == [b"d"]
        with consumer(store, "t") as reading:
            assert [record.value for record in reading] == [b"a", b"b", b"c", b"d"]


def test_damage_is_raised_behind_what_lies_before_it_or_left_out(store: Store, tmp_path: Path) -> None:
    fill(store, T0, 30, batch=10)
    log = tmp_path / "data" / "t-0" / ("0" * 20 + ".log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0x40
    with log.open("r+b") as file:
        file.write(data)
    with consumer(store, "t") as reading:
        found: list[int] = []
        for _ in range(2):
            while more := polled_or(reading, CorruptBatchError):
                found += offsets(more)[T0]
        assert found == list(range(10))
        with pytest.raises(CorruptBatchError) as caught:
            reading.poll()
        reading.seek(T0, caught.value.last_offset + 1)
        assert offsets(reading.poll()) == {T0: list(range(20, 30))}
    with consumer(store, "t", on_corrupt="skip") as reading:
        assert [record.offset for record in reading] == [*range(10), *range(20, 30)]
    pytest.importorskip("pyarrow")
    with consumer(store) as reading:
        reading.assign([T0])
        assert [reading.to_arrow(7).num_rows, reading.to_arrow(7).num_rows] == [7, 3]
        for _ in range(2):
            with pytest.raises(CorruptBatchError):
                reading.to_arrow()
            assert reading.position(T0) == 10


# --- what is read -----------------------------------------------------------------------------------------------------


def test_what_to_read_must_be_said(store: Store) -> None:
    with consumer(store) as reading:
        with pytest.raises(ConsumerStateError, match="nothing to read"):
            reading.poll()
        reading.subscribe(["t"])
        reading.poll()
        reading.unsubscribe()
        with pytest.raises(ConsumerStateError, match="nothing to read"):
            next(reading)


def test_subscriptions_and_assignments_exclude_each_other(store: Store) -> None:
    with consumer(store, "t") as reading:
        with pytest.raises(ConsumerStateError, match="unsubscribe before you assign"):
            reading.assign([T0])
        reading.unsubscribe()
        reading.assign([T0])
        with pytest.raises(ConsumerStateError, match="unsubscribe before you subscribe"):
            reading.subscribe(["t"])
        assert reading.assignment() == {T0}
        assert reading.subscription() == set()


def test_a_later_subscription_takes_the_place_of_the_first(store: Store) -> None:
    store.create_topic("u")
    with consumer(store, "t") as reading:
        assert reading.assignment() == {T0, T1, T2}
        reading.subscribe(["u"])
        assert reading.subscription() == {"u"}
        assert reading.assignment() == {TopicPartition("u", 0)}
        reading.subscribe([])
        assert reading.assignment() == set()


def test_an_assignment_keeps_the_position_of_what_stays(store: Store) -> None:
    fill(store, T0, 5)
    with consumer(store) as reading:
        reading.assign([T0])
        reading.poll(max_records=3)
        reading.assign([T0, T1])
        assert reading.position(T0) == 3
        reading.assign([])
        assert reading.assignment() == set()


@pytest.mark.parametrize("topics", [[""], [" "], [7], ["gone"]])
def test_a_topic_that_cannot_be_is_refused(store: Store, topics: list[Any]) -> None:
    with consumer(store) as reading, pytest.raises((ConfigError, TopicNotFoundError)):
        reading.subscribe(topics)
    with consumer(store) as reading, pytest.raises((ConfigError, TopicNotFoundError)):
        reading.assign([("gone", 0), ("t", 9)])


def test_a_pattern_takes_in_topics_that_come_later(store: Store) -> None:
    store.create_topic("tt")
    with consumer(store, pattern=re.compile("t+")) as reading:
        assert reading.subscription() == {"t", "tt"}
        store.create_topic("ttt")
        store.create_topic("other")
        fill(store, TopicPartition("ttt", 0), 1)
        assert offsets(reading.poll()) == {TopicPartition("ttt", 0): [0]}
        assert reading.subscription() == {"t", "tt", "ttt"}
        with pytest.raises(ConfigError, match="give one"):
            reading.subscribe(["t"], pattern="t")
        with pytest.raises(ConfigError, match="regular expression"):
            reading.subscribe(pattern="(")


def test_partitions_that_come_later_are_read_and_deleted_topics_are_not(store: Store) -> None:
    with consumer(store, "t") as reading:
        store.add_partitions("t", 4)
        fill(store, TopicPartition("t", 3), 2)
        assert offsets(reading.poll()) == {TopicPartition("t", 3): [0, 1]}
        store.delete_topic("t")
        assert reading.poll() == {}
        assert reading.assignment() == set()


@pytest.mark.parametrize("group", [None, "g"])
def test_a_topic_that_is_made_anew_is_read_from_its_start(store: Store, group: str | None) -> None:
    fill(store, T0, 10)
    with consumer(store, "t", group=group) as reading:
        reading.poll()
        if group:
            reading.commit()
        store.delete_topic("t")
        store.create_topic("t")
        fill(store, T0, 20)
        assert offsets(reading.poll()) == {T0: list(range(20))}
        assert reading.assignment() == {T0}


def test_paused_partitions_give_nothing_until_they_are_resumed(store: Store) -> None:
    fill(store, T0, 3)
    fill(store, T1, 3)
    with consumer(store, "t") as reading:
        reading.pause(T0)
        assert reading.paused() == {T0}
        assert offsets(reading.poll()) == {T1: [0, 1, 2]}
        assert reading.poll() == {}
        reading.resume(T0)
        assert offsets(reading.poll()) == {T0: [0, 1, 2]}
        reading.pause()
        assert reading.paused() == {T0, T1, T2}


def test_a_pause_within_an_iteration_holds_from_the_next_record_on(store: Store) -> None:
    fill(store, T0, 30)
    with consumer(store) as reading:
        reading.assign([T0])
        seen = []
        for record in reading:
            seen.append(record.offset)
            if len(seen) == 4:
                reading.pause(T0)
        assert seen == [0, 1, 2, 3]
        reading.resume()
        assert [record.offset for record in reading] == list(range(4, 30))


# --- where ------------------------------------------------------------------------------------------------------------


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
        for wrong in (-1, True, "3"):
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


def test_a_position_above_the_end_becomes_the_end(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    fill(store, T0, 10)
    with consumer(store) as reading:
        reading.assign([T0])
        reading.seek(T0, 99)
        assert reading.poll() == {}
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


# --- commit -----------------------------------------------------------------------------------------------------------


def test_a_group_goes_on_where_it_has_committed(store: Store) -> None:
    fill(store, T0, 10)
    fill(store, T1, 10)
    with consumer(store, "t", group="g") as reading:
        reading.poll(max_records=4)
        reading.commit()
        reading.poll(max_records=4)
        assert {owner: found.offset for owner, found in reading.committed().items()} == {T0: 4, T1: 0, T2: 0}
    with consumer(store, "t", group="g") as reading:
        assert offsets(reading.poll(max_records=1)) == {T0: [4]}
    with consumer(store, "t", group="other") as reading:
        assert offsets(reading.poll(max_records=1)) == {T0: [0]}


def test_a_commit_within_an_iteration_takes_in_the_record_just_given(store: Store) -> None:
    fill(store, T0, 10)
    with consumer(store, "t", group="g") as reading:
        for record in reading:
            reading.commit()
            assert reading.committed(T0)[T0].offset == record.offset + 1


def test_given_offsets_are_committed_as_they_are(store: Store) -> None:
    with consumer(store, "t", group="g") as reading:
        reading.commit({T0: 3, T1: OffsetAndMetadata(4, "note")})
        found = reading.committed(T0, T1, T2)
        assert {owner: (one.offset, one.metadata) for owner, one in found.items()} == {T0: (3, ""), T1: (4, "note")}
        for wrong in (-1, True, "3"):
            with pytest.raises(ConfigError, match="a committed offset"):
                reading.commit({T0: wrong})  # type: ignore[dict-item]


def test_without_a_group_nothing_is_committed(store: Store) -> None:
    with consumer(store, "t") as reading:
        for call in (reading.commit, reading.committed, reading.group_metadata):
            with pytest.raises(ConsumerStateError, match="of no group"):
                call()
    with pytest.raises(ConfigError, match="enable_auto_commit"):
        consumer(store, "t", enable_auto_commit=True)
    with pytest.raises(ConfigError, match="group"):
        consumer(store, "t", group="")


def test_auto_commit_takes_what_was_handed_out_before(store: Store) -> None:
    fill(store, T0, 10)
    with consumer(store, "t", group="g", enable_auto_commit=True, auto_commit_interval_ms=0) as reading:
        reading.poll(max_records=4)
        assert reading.committed(T0) == {T0: reading.committed(T0)[T0]} if reading.committed(T0) else True
        reading.poll(max_records=4)
        assert reading.committed(T0)[T0].offset == 4
    assert store.consumer_offsets.committed("g")[T0].offset == 8


def test_auto_commit_leaves_out_what_was_handed_out_when_something_went_wrong(store: Store) -> None:
    fill(store, T0, 10)

    def read() -> None:
        with consumer(store, "t", group="g", enable_auto_commit=True) as reading:
            reading.poll(max_records=4)
            raise KeyError("the application's")

    with pytest.raises(KeyError):
        read()
    assert T0 not in store.consumer_offsets.committed("g")


def test_a_commit_may_be_part_of_a_producers_transaction(store: Store) -> None:
    store.create_topic("out")
    fill(store, T0, 10)
    with store.producer(transactional_id="x") as producer, consumer(store, "t", group="g") as reading:
        producer.init_transactions()
        for commit, expected in ((False, None), (True, 4)):
            reading.seek(T0, 0)
            producer.begin_transaction()
            for record in reading.poll(max_records=4)[T0]:
                producer.send("out", record.value)
            reading.commit(producer=producer)
            assert reading.committed(T0) == {}
            producer.commit_transaction() if commit else producer.abort_transaction()
            found = reading.committed(T0)
            assert (found[T0].offset if found else None) == expected


def test_an_offset_in_an_open_transaction_is_waited_for(store: Store) -> None:
    fill(store, T0, 10)
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets({T0: 6}, "g")
        with consumer(store, group="g", isolation_level="read_committed") as reading:
            reading.assign([T0])
            assert reading.poll() == {}
            producer.commit_transaction()
            assert offsets(reading.poll()) == {T0: [6, 7, 8, 9]}


def test_committed_offsets_are_there_after_a_reopen(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data") as store:
        store.create_topic("t", partitions=3)
        fill(store, T0, 5)
        with consumer(store, "t", group="g") as reading:
            reading.poll()
            reading.commit()
    with kstore.open(tmp_path / "data") as store, consumer(store, "t", group="g") as reading:
        assert reading.poll() == {}
        assert reading.position(T0) == 5


# --- other processes, other threads, and the end ----------------------------------------------------------------------


def test_a_store_that_is_open_for_reading_has_consumers_that_commit_nothing(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os") as writing:
        writing.create_topic("t", partitions=3)
        fill(writing, T0, 10)
        writing.coordinator.commit_offsets("g", {T0: 4})
        with kstore.open(tmp_path / "data", read_only=True) as store:
            with consumer(store, "t", metadata_max_age_ms=0) as reading:
                assert sum(1 for _ in reading) == 10
                fill(writing, T0, 1)
                assert offsets(reading.poll(timeout=10)) == {T0: [10]}
                writing.add_partitions("t", 4)
                assert reading.poll() == {}
                assert len(reading.assignment()) == 4
            with consumer(store, group="g") as reading:
                reading.assign([T0])
                assert next(reading).offset == 4
                with pytest.raises(kstore.ReadOnlyError, match="open for reading"):
                    reading.commit()
            with pytest.raises(kstore.ReadOnlyError, match="its members need a store that writes"):
                consumer(store, "t", group="g")


def test_a_reader_of_another_process_is_woken_by_what_is_appended(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data") as writing:
        writing.create_topic("t", partitions=3)
        with kstore.open(tmp_path / "data", read_only=True) as store, consumer(store, "t") as reading:
            assert reading.poll() == {}
            appender = threading.Timer(0.05, lambda: fill(writing, T1, 2))
            appender.start()
            assert offsets(reading.poll(timeout=30))[T1][0] == 0
            appender.join()


def test_a_wakeup_ends_a_wait_or_the_next_one(store: Store) -> None:
    with consumer(store, "t") as reading:
        reading.wakeup()
        with pytest.raises(WakeupError):
            reading.poll(timeout=30)
        assert reading.poll() == {}
        waker = threading.Timer(0.05, reading.wakeup)
        waker.start()
        with pytest.raises(WakeupError):
            reading.poll(timeout=None)
        waker.join()


def test_another_thread_may_only_wake_it(store: Store) -> None:
    with consumer(store, "t") as reading:
        is_waiting = threading.Event()

        class Listener:
            def on_partitions_assigned(self, partitions: Any) -> None:
                pass

        def wait() -> None:
            is_waiting.set()
            with pytest.raises(WakeupError):
                reading.poll(timeout=30)

        thread = threading.Thread(target=wait)
        thread.start()
        is_waiting.wait()
        refused = False
        while not refused:
            try:
                reading.positions()
            except ConsumerStateError as error:
                refused = "used by another thread" in str(error)
        reading.wakeup()
        thread.join()


def test_a_closed_consumer_says_so(store: Store) -> None:
    reading = consumer(store, "t", group="g")
    reading.close()
    reading.close()
    assert reading.closed
    for call in (reading.poll, reading.commit, reading.unsubscribe, reading.positions, lambda: next(reading)):
        with pytest.raises(ClosedError, match="consumer-g-"):
            call()


def test_a_store_that_is_closed_ends_its_consumers(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data") as store:
        store.create_topic("t")
        reading = consumer(store, "t", group="g")
    with pytest.raises(ClosedError):
        reading.poll()


def test_a_consumer_that_is_forgotten_warns(store: Store) -> None:
    forgotten = [consumer(store, "t", group="g")]
    with pytest.warns(ResourceWarning, match="unclosed Consumer"):
        forgotten.clear()


def test_no_listener_is_left_behind(store: Store) -> None:
    log = store.log("t", 0)
    with consumer(store, "t"):
        assert log.metrics()["followers"] == 1
    assert log.metrics()["followers"] == 0


@pytest.mark.parametrize("shared", [False, True])
def test_a_child_has_nothing_of_its_parents_consumers(tmp_path: Path, shared: bool) -> None:
    if shared and sys.platform != "linux":
        pytest.skip("writers share a store on Linux only")
    with kstore.open(tmp_path / "data", shared=shared, background=False) as store:
        store.create_topic("t", partitions=3)
        with consumer(store, "t", group="g") as reading:
            reading.poll()
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    reading.poll()
                except kstore.ForkedError:
                    reading.close()
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            fill(store, T0, 1)
            assert offsets(reading.poll()) == {T0: [0]}
            reading.commit()
            assert store.group_members("g").keys() == {T0, T1, T2}
