"""A consumer that polls without waiting looks at its logs again only if they may have grown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

import kstore
from kstore.consumer.consumer import Consumer
from kstore.consumer.fetching import PartitionReader
from kstore.engine.change.growth import NOTIFIED_POLL_SECONDS, Growth
from kstore.files.paths import TopicPartition
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock

PARTITIONS = 20
FIRST = TopicPartition("orders", 0)
TRANSACTIONAL = {"transactional_id": "t", "linger_ms": 0}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store(tmp_path / "store", durability="os", background=False, clock=clock) as opened:
        opened.create_topic("orders", PARTITIONS)
        for number in range(PARTITIONS):
            opened.log("orders", number).append(b"old")
        yield opened


def looks_of(consumer: Consumer) -> int:
    """How often an empty poll asks for the end of a log."""
    with mock.patch.object(PartitionReader, "end_offset", autospec=True, side_effect=PartitionReader.end_offset) as ask:
        assert consumer.poll() == {}
    return ask.call_count


def idle(store: Store, **settings: str) -> Consumer:
    """A consumer that has read everything and knows it."""
    consumer = store.consumer("orders", **settings)  # type: ignore[arg-type]
    consumer.poll(max_records=1000)
    assert consumer.poll() == {}
    return consumer


def test_an_idle_poll_and_the_lag_ask_no_log(store: Store) -> None:
    with idle(store) as consumer:
        assert looks_of(consumer) == 0
        with mock.patch.object(PartitionReader, "end_offset", side_effect=AssertionError):
            assert consumer.lag() == dict.fromkeys((TopicPartition("orders", n) for n in range(PARTITIONS)), 0)


def test_an_append_whose_signal_was_lost_is_found_after_a_while(store: Store, clock: ManualClock) -> None:
    with idle(store) as consumer:
        with mock.patch.object(Growth, "wake"):
            store.log("orders", 0).append(b"new")
        assert consumer.poll() == {}
        clock.advance(int(NOTIFIED_POLL_SECONDS * 1000))
        assert [record.value for record in consumer.poll()[FIRST]] == [b"new"]


def test_a_poll_looks_only_at_the_log_that_has_grown(store: Store) -> None:
    with idle(store) as consumer:
        for number in (0, 7, 7):
            store.log("orders", number).append(b"new")
            with mock.patch.object(
                PartitionReader, "end_offset", autospec=True, side_effect=PartitionReader.end_offset
            ) as ask:
                assert list(consumer.poll()) == [TopicPartition("orders", number)]
                assert consumer.poll() == {}
            assert ask.call_count <= 3


def in_a_transaction(store: Store, *, commit: bool) -> None:
    with store.producer(**TRANSACTIONAL) as producer:  # type: ignore[arg-type]
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"new", partition=0)
        producer.flush()
        if commit:
            producer.commit_transaction()


CHANGES: dict[str, Callable[[Store, Consumer], object]] = {
    "append": lambda store, _: store.log("orders", 0).append(b"new"),
    "append_many": lambda store, _: store.log("orders", 0).append_many([b"new"]),
    "a committed transaction": lambda store, _: in_a_transaction(store, commit=True),
    "seek": lambda _, consumer: consumer.seek(FIRST, 0),
    "seek_to_beginning": lambda _, consumer: consumer.seek_to_beginning(FIRST),
}


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", CHANGES)
def test_the_next_poll_finds_what_came_since_an_idle_one(store: Store, name: str, isolation_level: str) -> None:
    with idle(store, isolation_level=isolation_level) as consumer:
        CHANGES[name](store, consumer)
        assert sum(consumer.lag().values()) > 0
        assert FIRST in consumer.poll()


def test_a_partition_that_reading_goes_on_in_is_looked_at(store: Store) -> None:
    with store.consumer("orders") as consumer:
        consumer.poll(max_records=1000)
        consumer.pause(FIRST)
        store.log("orders", 0).append(b"new")
        assert consumer.poll() == {}
        assert consumer.poll() == {}
        assert consumer.lag()[FIRST] == 1
        consumer.resume(FIRST)
        assert [record.value for record in consumer.poll()[FIRST]] == [b"new"]


def test_records_of_an_open_transaction_are_found_when_it_ends(store: Store) -> None:
    with idle(store, isolation_level="read_committed") as consumer, store.producer(**TRANSACTIONAL) as producer:  # type: ignore[arg-type]
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"new", partition=0)
        producer.flush()
        assert consumer.poll() == {}
        assert consumer.poll() == {}
        producer.commit_transaction()
        assert [record.value for record in consumer.poll()[FIRST]] == [b"new"]


def test_new_partitions_and_deleted_topics_are_noticed(store: Store) -> None:
    with idle(store) as consumer:
        store.add_partitions("orders", PARTITIONS + 1)
        store.log("orders", PARTITIONS).append(b"new")
        assert TopicPartition("orders", PARTITIONS) in consumer.poll()
        store.delete_topic("orders")
        consumer.poll()
        assert consumer.assignment() == set()


def test_a_reader_of_another_process_s_store_looks_each_time(tmp_path: Path, store: Store) -> None:
    with kstore.open(tmp_path / "store", read_only=True) as view, view.consumer("orders") as consumer:
        consumer.poll(max_records=1000)
        for _ in range(3):
            assert looks_of(consumer) >= PARTITIONS
        store.log("orders", 0).append(b"new")
        assert FIRST in consumer.poll()
