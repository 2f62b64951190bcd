"""What a consumer reads: topics, patterns, assigned partitions; partitions that come and go, or are paused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import (
    ClosedError,
    ConfigError,
    ConsumerStateError,
    NotALogError,
    TopicNotFoundError,
    TopicPartition,
)
from kstore.logs.directory import LogDirectory
from kstore.store import Store
from tests.support.lives.consumer_helpers import T0, T1, T2, consumer, fill, offsets, opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "data") as store:
        yield store


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


def test_an_assignment_that_fails_changes_nothing(store: Store) -> None:
    with consumer(store) as reading:
        reading.assign([T0])
        with pytest.raises(TopicNotFoundError):
            reading.assign([T1, ("nope", 0)])
        assert reading.assignment() == {T0}


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
def test_a_recreated_topic_is_read_from_its_start(store: Store, group: str | None) -> None:
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


@pytest.mark.parametrize("group", [None, "g"])
def test_a_partition_that_could_not_be_opened_is_read_when_it_can(tmp_path: Path, group: str | None) -> None:
    with opened(tmp_path / "data") as store:
        for owner in (T0, T1, T2):
            fill(store, owner, 1)
    there, aside = tmp_path / "data" / "t-1", tmp_path / "aside"
    with kstore.open(tmp_path / "data", durability="os") as store, consumer(store, group=group) as reading:
        there.rename(aside)
        there.touch()
        for read in (lambda: reading.subscribe("t"), reading.poll, reading.poll):
            with pytest.raises(NotALogError):
                read()
        there.unlink()
        aside.rename(there)
        assert offsets(reading.poll()) == {T0: [0], T1: [0], T2: [0]}


def test_an_assignment_of_a_topic_that_exists_again_reads_its_new_log(store: Store) -> None:
    fill(store, T0, 3)
    with consumer(store) as reading:
        reading.assign([T0])
        assert offsets(reading.poll()) == {T0: [0, 1, 2]}
        store.delete_topic("t")
        store.create_topic("t")
        fill(store, T0, 2)
        with pytest.raises(ClosedError):
            reading.poll()
        reading.assign([T0])
        assert offsets(reading.poll()) == {T0: [0, 1]}


# --- a change of topics that fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_topic_whose_deletion_was_interrupted_ends_no_poll(
    store: Store, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logs are closed, and the store's background work continues the deletion."""
    store.create_topic("other")
    store.log("other").append(b"x")

    def interrupted(*_: object, **__: object) -> None:
        raise error

    with consumer(store, "t", "other") as reading:
        reading.poll()
        with monkeypatch.context() as patch:
            patch.setattr(LogDirectory, "finish_delete", interrupted)
            with pytest.raises(error):
                store.delete_topic("t")
        store.log("other").append(b"y")
        assert offsets(reading.poll()) == {TopicPartition("other", 0): [1]}
        assert reading.assignment() == {TopicPartition("other", 0)}


@pytest.mark.parametrize(
    ("make", "new"),
    [
        pytest.param(lambda store: store.create_topic("new"), TopicPartition("new", 0), id="create"),
        pytest.param(lambda store: store.add_partitions("t", 4), TopicPartition("t", 3), id="grow"),
    ],
)
def test_new_partitions_are_read_if_the_call_that_made_them_was_interrupted(
    store: Store, make: Callable[[Store], None], new: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LogDirectory.create

    def interrupted(self: LogDirectory, *arguments: Any, **options: Any) -> None:
        real(self, *arguments, **options)
        raise KeyboardInterrupt

    with consumer(store, pattern=".*") as reading:
        before = reading.assignment()
        with monkeypatch.context() as patch:
            patch.setattr(LogDirectory, "create", interrupted)
            with pytest.raises(KeyboardInterrupt):
                make(store)
        reading.poll()
        assert reading.assignment() - before == {new}
