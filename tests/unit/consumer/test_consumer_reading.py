"""How a consumer reads: polls, iteration, values, columns; deserializers, committed reads, damage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kstore import (
    ConfigError,
    ConsumerRecord,
    ConsumerStateError,
    CorruptBatchError,
    RecordDeserializationError,
    TopicPartition,
)
from kstore.store import Store
from tests.support.lives.consumer_helpers import T0, T1, T2, consumer, fill, offsets, opened, polled_or
from tests.support.lives.foreign_batches import message_set
from tests.support.lives.run_helpers import small_batch


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "data") as store:
        yield store


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
    with consumer(store, "t") as reading:
        with pytest.raises(ConfigError, match="max_records"):
            reading.poll(max_records=count)
        with pytest.raises(ConfigError, match="max_records"):
            reading.to_arrow(count)


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


@pytest.mark.parametrize("batch", [1, 7])
def test_next_returns_a_record_after_some_values(store: Store, batch: int) -> None:
    fill(store, T0, 25, batch=batch)
    with consumer(store) as reading:
        reading.assign([T0])
        values = reading.values()
        assert len(list(islice(values, 3))) == 3
        assert [next(reading).offset, next(reading).offset] == [3, 4]
        assert list(islice(reading.values(), 1)) == [next(store.log("t", 0).read(5, 6)).value]
        assert reading.position(T0) == 6


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
        found = reading.poll(timeout=300)
        appender.join()
    assert offsets(found) == {T2: [0]}


def test_every_record_names_its_topic_and_partition(store: Store) -> None:
    log = store.log("t", 1)
    log.append(b"a", key=b"k")
    log.append_many([b"b"] * 3)
    log.append_batches(message_set(1, "none", 1, 2, offsets=(4, 5)), assign_offsets=False)
    log.append_batches(small_batch(0, codec="lz4"))
    with consumer(store, "t") as reading:
        polled = reading.poll()[T1]
        reading.seek_to_beginning()
        iterated = list(reading)
    assert polled == iterated
    assert len(polled) == 8
    assert {type(record) for record in polled} == {ConsumerRecord}
    assert {(record.topic, record.partition) for record in polled} == {("t", 1)}
    assert [(record.offset, record.key, record.value) for record in polled] == [
        (record.offset, record.key, record.value) for record in log.read()
    ]


def test_deserializers_make_records_that_say_where_they_are_from(store: Store) -> None:
    store.log("t", 1).append(b'{"a": 1}', key="ключ".encode(), headers=[("h", b"1")], timestamp=5)
    store.log("t", 1).append(None)
    with consumer(store, "t", key_deserializer="str", value_deserializer="json") as reading:
        first, second = reading.poll()[T1]
        reading.seek_to_beginning()
        assert [record.value for record in reading] == [{"a": 1}, None]
    plain = ConsumerRecord("t", 1, 0, 5, "CreateTime", headers=(("h", b"1"),), leader_epoch=0)
    assert first == plain.deserialized("ключ", {"a": 1})
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


def test_a_consumer_can_be_told_to_go_on_after_damage(store: Store, tmp_path: Path) -> None:
    fill(store, T0, 30, batch=10)
    fill(store, T1, 3, batch=1)
    log = tmp_path / "data" / "t-0" / ("0" * 20 + ".log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0x40
    with log.open("r+b") as file:
        file.write(data)
    with consumer(store, "t", group="g") as reading:
        while polled_or(reading, CorruptBatchError):
            pass
        with pytest.raises(CorruptBatchError) as caught:
            reading.poll()
        assert reading.skip_damage(caught.value) == T0
        assert reading.position(T0) == 20
        assert reading.skip_damage(caught.value) == T0
        assert offsets(reading.poll())[T0] == list(range(20, 30))
        reading.commit()
        with pytest.raises(ConsumerStateError):
            reading.skip_damage(CorruptBatchError("bad", path=tmp_path / "data" / "x-0" / log.name, last_offset=9))
    with consumer(store, "t", group="g") as reading:
        assert reading.poll() == {}
    with consumer(store, "t") as reading:
        store.log("t", 0).accept_loss(10, 19)
        assert len([None for _ in reading]) == 23


def test_damage_is_raised_after_what_precedes_it_or_left_out(store: Store, tmp_path: Path) -> None:
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


def test_columns_wait_where_an_open_transaction_holds_them_up(store: Store) -> None:
    pytest.importorskip("pyarrow")
    with (
        store.producer(transactional_id="x") as producer,
        consumer(store, isolation_level="read_committed") as reading,
    ):
        producer.init_transactions()
        reading.assign([T0])
        with producer.transaction():
            for number in range(4):
                producer.send("t", b"%d" % number, partition=0)
            producer.flush()
            reading.seek(T0, 2)
            assert reading.to_arrow().num_rows == 0
            assert reading.position(T0) == 2
        assert reading.to_arrow(columns=["value"]).column("value").to_pylist() == [b"2", b"3"]
