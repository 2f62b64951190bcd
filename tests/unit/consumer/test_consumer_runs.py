"""A consumer that reads runs gives the same as one that reads batch by batch, for any requests in any order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import CorruptBatchError, TopicPartition
from kstore.consumer.consumer import Consumer
from kstore.log import Log
from kstore.store import Store
from tests.support.harness.selection import tries
from tests.support.lives.consumer_helpers import T0, consumer
from tests.support.lives.log_cases import FIRST, data, flip, marker, transaction

LIVES = tries(60, quick=4)
STEPS = 40
# Less than a few runs: this consumer reads batch by batch.
ONE_BY_ONE = {"max_partition_fetch_bytes": 1 << 19}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kstore.open(tmp_path / "data", durability="os") as store:
        yield store


def mixed_log(store: Store, topic: str, generator: random.Random, batches: int = 150) -> Log:
    """Batches of every size, compressed ones, gaps, and transactions that commit, abort or stay open."""
    store.create_topic(topic)
    log = store.log(topic)
    offset, sequences, open_ones = 0, dict.fromkeys(range(3), 0), set[int]()
    for _ in range(batches):
        offset += generator.choice([0, 0, 0, 0, 3])
        count = generator.choice([1, 1, 1, 2, 10, 60])
        wanted = [offset + number for number in range(count) if count == 1 or number % 7 != 5]
        kind = generator.randrange(10)
        if kind < 4:
            batch = data(*wanted, size=generator.choice([1, 10, 400]))
        elif kind == 4:
            batch = data(*wanted, codec=generator.choice(["gzip", "zstd"]))
        elif kind < 8:
            producer = generator.randrange(3)
            batch = transaction(producer, *wanted, sequence=sequences[producer])
            sequences[producer] += wanted[-1] - wanted[0] + 1
            open_ones.add(producer)
        elif open_ones:
            producer = generator.choice(sorted(open_ones))
            open_ones.discard(producer)
            batch, wanted = marker(producer, offset, commit=generator.random() < 0.5), [offset]
        else:
            continue
        log.append_batches(batch, assign_offsets=False)
        offset = wanted[-1] + 1
    return log


def offsets_of(found: Any) -> list[int]:
    return [record.offset for records in found.values() for record in records]


def steps(reading: Consumer, owner: TopicPartition, generator: random.Random) -> list[Callable[[], Any]]:
    """Requests to a consumer; each answer is comparable."""
    count = generator.choice([1, 2, 9, 100, 5000])
    offset = generator.randrange(900)
    return [
        lambda: offsets_of(reading.poll(max_records=count)),
        lambda: [record.offset for record in islice(reading, count)],
        lambda: list(islice(reading.values(), count)),
        lambda: resumed(reading),
        lambda: reading.commit(),
        lambda: reading.seek(owner, min(offset, reading.end_offsets([owner])[owner])),
        lambda: paused(reading),
    ]


def resumed(reading: Consumer) -> int:
    reading.resume()  # ends the previous iteration, which may be over values
    return int(next(reading).offset)


def paused(reading: Consumer) -> Any:
    reading.pause()
    found = reading.poll()
    reading.resume()
    return found


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_two_consumers_agree_after_every_step(isolation_level: Any, store: Store, seed: int) -> None:
    generator = random.Random(seed)
    for life in range(LIVES):
        topic = f"t{life}"
        owner = TopicPartition(topic, 0)
        mixed_log(store, topic, generator)
        settings: dict[str, Any] = {
            "isolation_level": isolation_level,
            "max_poll_records": generator.choice([1, 20, 500]),
        }
        with (
            consumer(store, group=f"runs{life}", **settings) as runs,
            consumer(store, group=f"batches{life}", **settings, **ONE_BY_ONE) as batches,
        ):
            for reading in (runs, batches):
                reading.assign([owner])
            for _ in range(STEPS):
                before = generator.getstate()
                asked = generator.randrange(7)
                answers = []
                for reading in (runs, batches):
                    generator.setstate(before)
                    generator.randrange(7)
                    try:
                        answers.append(steps(reading, owner, generator)[asked]())
                    except StopIteration:
                        answers.append(StopIteration)
                assert answers[0] == answers[1]
                # It may pass markers, or an open transaction, before or after the answer.
                held = [_next_record(store.log(topic), reading.position(owner)) for reading in (runs, batches)]
                assert held[0] == held[1]


def _next_record(log: Log, offset: int) -> int | None:
    return next((record.offset for record in log.read(offset)), None)


def test_records_are_counted_that_were_given_not_offsets(store: Store) -> None:
    store.create_topic("t")
    log = store.log("t")
    for batch in (transaction(7, 0), marker(7, 1, commit=True), data(5), data(9), data(10, 12)):
        log.append_batches(batch, assign_offsets=False)
    for items in (iter, Consumer.values):
        with consumer(store, "t") as reading:
            assert len(list(items(reading))) == 5
            assert reading.metrics()["records"] == 5
    with consumer(store, "t") as reading:
        assert [record.offset for record in islice(reading, 2)] == [0, 5]
        assert (reading.position(T0), reading.lag()) == (6, {T0: 7})
        reading.seek_to_beginning()
        assert reading.metrics()["records"] == 2


def test_a_commit_within_a_run_is_after_the_last_record(store: Store) -> None:
    store.create_topic("t")
    for number in range(50):
        store.log("t").append(b"%d" % number)
    for expected in (range(7), range(7, 14)):
        with consumer(store, "t", group="g") as reading:
            assert [record.offset for record in islice(reading, 7)] == list(expected)
            reading.commit()
            assert reading.committed(T0)[T0].offset == expected[-1] + 1


def test_damage_within_what_would_be_a_run_is_met_after_the_records_before_it(store: Store) -> None:
    store.create_topic("t")
    log = store.log("t")
    for number in range(30):
        log.append(b"%d" % number)
    log.roll()
    damage(log.path, 20)
    for settings in ({}, ONE_BY_ONE):
        with consumer(store, "t", **settings) as reading:
            found: list[int] = []
            with pytest.raises(CorruptBatchError) as caught:
                found.extend(record.offset for record in reading)
            assert found == list(range(20))
            assert (caught.value.first_offset, reading.position(T0)) == (20, 20)
            reading.skip_damage(caught.value)
            assert [record.offset for record in reading] == list(range(21, 30))


def damage(path: Path, offset: int) -> None:
    """Damages the batch of one record with that offset."""
    with Log(path, read_only=True) as view:
        position = view.fetch(offset).position
    flip(path / FIRST, position + 65)
