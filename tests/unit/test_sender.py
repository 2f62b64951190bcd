"""The sender's rounds: what is written, in which order its callbacks run, and that it outlives whatever fails."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import DiskFullError, OutOfOrderSequenceError, StorageError, TopicWaitTimeoutError
from kstore.producer.records import RecordMetadata
from tests.producer_helpers import Unthreaded, unthreaded

SECONDS_MAX = 20.0


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Unthreaded]:
    with unthreaded(tmp_path / "data", partitions=2) as made:
        made.store.log("orders", 0)
        made.store.log("orders", 1)
        yield made


def fail_next(one: Unthreaded, partition: int, *errors: Exception) -> None:
    """Lets the next writes to a partition fail with ``errors``, one after the other."""
    writer = one.store.log("orders", partition).writer
    commit, left = writer.commit_many, list(errors)

    def commit_many(appends: Any) -> None:
        if left:
            raise left.pop(0)
        commit(appends)

    writer.commit_many = commit_many  # type: ignore[method-assign]


# --- what fails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [False, True], ids=["for good", "for a while"])
def test_a_new_id_that_cannot_be_had_holds_nothing_up(one: Unthreaded, kept: bool) -> None:
    one.producer.send("orders", b"a", partition=0)
    one.linger()
    fail_next(one, 0, OutOfOrderSequenceError(1, 0, 5, 1))
    coordinator = one.store.coordinator
    give, refusals = coordinator.init_producer_id, 1 if kept else 99

    def refuse(*args: Any) -> tuple[int, int]:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise DiskFullError(errno.ENOSPC, "full", "ids") if kept else StorageError(errno.EIO, "broken", "ids")
        return give(*args)

    coordinator.init_producer_id = refuse  # type: ignore[method-assign, assignment]
    delivery = one.producer.send("orders", b"b", partition=0)
    one.linger()
    one.clock.advance(2000)
    one.round()
    assert delivery.done()
    if kept:
        assert delivery.result().offset == 1
        assert one.values() == [b"a", b"b"]
    else:
        assert isinstance(delivery.exception(), StorageError)


def test_a_callback_that_ends_the_thread_does_not_end_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def leave(*_: object) -> None:
        raise SystemExit("of a callback")

    told: list[int] = []
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("orders", 2)
        with store.producer() as producer:
            first = producer.send("orders", b"a", partition=0, on_delivery=leave)
            second = producer.send("orders", b"b", partition=0, on_delivery=lambda at, _: told.append(at.offset))
            assert first.result(SECONDS_MAX).offset == 0
            assert second.result(SECONDS_MAX).offset == 1
            assert producer.send("orders", b"c", partition=1).result(SECONDS_MAX).offset == 0
    assert told == [1]
    assert "of a callback" in caplog.text


def test_a_topic_made_anew_takes_no_records_of_the_one_before_for_repetitions(one: Unthreaded) -> None:
    old = one.producer.send("orders", b"old", partition=0)
    one.store.delete_topic("orders")
    with pytest.raises(TopicWaitTimeoutError):
        one.producer.partitions_for("orders")
    one.store.create_topic("orders", 2)
    new = one.producer.send("orders", b"new", partition=0)
    one.linger()
    one.linger()
    assert isinstance(old.exception(0), kstore.TopicNotFoundError)
    assert new.result(0).offset == 0
    assert one.values() == [b"new"]


# --- callbacks --------------------------------------------------------------------------------------------------------


def test_callbacks_run_in_order_whoever_wrote(tmp_path: Path) -> None:
    """One batch is written by the thread that sends; before it hands it over, the sender writes the next one."""
    with unthreaded(tmp_path / "data", linger_ms=0) as one:
        sender, told = one.producer.sender, []

        def tell(metadata: RecordMetadata, _: Exception | None) -> None:
            told.append(metadata.offset)

        one.producer.send("orders", b"a", on_delivery=tell)
        queue = one.producer._metadata.topics["orders"].queue(0)
        release = one.producer._wakeup.set

        def run_the_sender() -> None:
            one.producer._wakeup.set = release  # type: ignore[method-assign]
            one.producer.send("orders", b"b", on_delivery=tell)
            one.round()

        one.producer._wakeup.set = run_the_sender  # type: ignore[method-assign]
        sender.write_here(queue)
        one.round()
        assert told == [0, 1]


# --- topics -----------------------------------------------------------------------------------------------------------


def test_news_of_topics_that_nobody_sends_to_are_none(one: Unthreaded) -> None:
    one.producer.send("orders", b"v")
    one.store.create_topic("others")
    assert not one.producer._metadata.has_news
