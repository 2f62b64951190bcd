"""What a consumer commits: its positions, given offsets, by itself, or in a producer's transaction."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from kstore import (
    ConfigError,
    ConsumerStateError,
)
from kstore.store import Store
from kstore.transactions.group_records import OffsetAndMetadata
from tests.support.lives.consumer_helpers import T0, T1, T2, consumer, fill, offsets, opened

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="shared on Linux only")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "data") as store:
        yield store


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
        with pytest.raises(ConfigError, match="metadata of a committed offset is None"):
            reading.commit({T0: OffsetAndMetadata(1, None)})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="expected a mapping"):
            reading.commit(7)  # type: ignore[arg-type]


def test_without_a_group_nothing_is_committed(store: Store) -> None:
    with consumer(store, "t") as reading:
        for call in (reading.commit, reading.committed, reading.group_metadata, reading.seek_to_committed):
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
            reading.seek_to_committed()
            producer.begin_transaction()
            for record in reading.poll(max_records=4)[T0]:
                producer.send("out", record.value)
            reading.commit(producer=producer)
            assert reading.committed(T0) == {}
            producer.commit_transaction() if commit else producer.abort_transaction()
            found = reading.committed(T0)
            assert (found[T0].offset if found else None) == expected
            assert reading.position(T0) == 4
        reading.seek_to_committed(T0)
        assert reading.position(T0) == 4


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


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=LINUX)])
def test_readers_that_were_open_before_see_a_stores_first_commit(tmp_path: Path, shared: bool) -> None:
    with opened(tmp_path / "data") as store:
        fill(store, T0, 5)
    with (
        kstore.open(tmp_path / "data", durability="os", shared=shared) as store,
        kstore.open(tmp_path / "data", durability="os", read_only=not shared, shared=shared) as other,
    ):
        assert other.consumer_offsets.committed("g") == {}
        with consumer(store, "t", group="g") as reading:
            reading.poll()
            reading.commit()
        assert other.consumer_offsets.groups() == ["g"]
        with consumer(other, group="g") as reading:
            reading.assign([T0])
            assert reading.position(T0) == 5
