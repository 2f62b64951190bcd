"""A consumer whose call fails half-way: records that the call took but did not return come again, uncommitted; it keeps
its partitions, and its group learns that it has left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.consumer.commits import Commits
from kstore.consumer.consumer import Consumer
from kstore.consumer.fetching import PartitionReader
from kstore.consumer.groups import Membership
from kstore.log import writer_of
from kstore.store import Store
from tests.support.lives.consumer_helpers import T0, T1, T2, consumer, fill, offsets, opened
from tests.unit.engine.test_interrupted_counts import Tried, at_every_place

COUNT = 200


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "data") as store:
        fill(store, T0, COUNT, batch=7)
        yield store


def polled(reading: Consumer) -> list[int]:
    return [record.offset for record in reading.poll(max_records=10).get(T0, ())]


def columns(reading: Consumer) -> list[int]:
    found: list[int] = reading.to_arrow(max_records=10)["offset"].to_pylist()
    return found


def iterated(reading: Consumer) -> list[int]:
    return [record.offset for record in [next(reading, None)] if record is not None]


# An interrupt while a generator is dropped: Python cannot raise it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("take", "settings"),
    [
        pytest.param(polled, {}, id="poll"),
        pytest.param(polled, {"value_deserializer": "str"}, id="deserialized"),
        pytest.param(columns, {}, id="columns"),
        pytest.param(iterated, {}, id="iteration"),
        pytest.param(iterated, {"value_deserializer": "str"}, id="deserialized-iteration"),
    ],
)
@pytest.mark.sampled(1)
def test_an_interrupt_at_any_place_loses_no_record(
    store: Store, take: Callable[[Consumer], list[int]], settings: dict[str, Any], tried: Tried
) -> None:
    with consumer(store, group="g", **settings) as reading:
        reading.assign([T0])
        seen: list[int] = []

        def act() -> None:
            seen.extend(take(reading))

        def check() -> None:
            assert reading.positions().get(T0, 0) == len(seen)
            assert seen == list(range(len(seen)))
            # Also from what another call has read ahead.
            seen.extend(record.offset for record in reading.poll(max_records=3).get(T0, ()))
            assert seen == list(range(len(seen)))
            if len(seen) > COUNT - 30:
                reading.seek(T0, 0)
                seen.clear()

        at_every_place(act, check, tried)
        reading.commit()
        assert reading.committed()[T0].offset == len(seen)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_failure_between_two_partitions_loses_no_record(
    store: Store, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, T1, 20)
    real, struck = PartitionReader.take, list[bool]()

    def take(self: PartitionReader, number: int) -> list[Any]:
        found = real(self, number)
        if self.owner == T0 and not struck:  # the other partition's records were all taken, but not returned yet
            struck.append(True)
            self.stop()
            self.seek(found[0].offset)
            raise error
        return found

    monkeypatch.setattr(PartitionReader, "take", take)
    with consumer(store) as reading:
        reading.assign([T1, T0])
        seen: dict[Any, list[int]] = {T0: [], T1: []}
        for _ in range(20):
            try:
                found = offsets(reading.poll(max_records=300))
            except KeyboardInterrupt:
                assert reading.positions() == {owner: len(numbers) for owner, numbers in seen.items()}
                continue
            for owner, numbers in found.items():
                seen[owner] += numbers
    assert struck
    assert seen == {T0: list(range(COUNT)), T1: list(range(20))}


def test_memory_that_runs_out_within_a_piece_loses_no_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from kstore.consumer import fetching

    failing = [True]

    def islice(items: Any, number: int) -> Any:
        for place, item in enumerate(items):
            if place == 4 and failing:
                failing.pop()
                raise MemoryError
            yield item
            if place + 1 == number:
                return

    monkeypatch.setattr(fetching, "islice", islice)
    with consumer(store) as reading:
        reading.assign([T0])
        with pytest.raises(MemoryError):
            reading.poll(max_records=10)
        assert offsets(reading.poll(max_records=10)) == {T0: list(range(10))}


# --- its partitions ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_place_loses_no_partition(store: Store, tried: Tried) -> None:
    fill(store, T1, 3)
    fill(store, T2, 3)
    with consumer(store) as reading:
        reading.assign([T0, T1, T2])

        def check() -> None:
            assert reading.assignment() == {T0, T1, T2}
            reading.seek_to_beginning()
            reading.seek(T0, COUNT - 3)

        check()
        at_every_place(reading.poll, check, tried)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_after_an_interrupt_at_any_place_of_a_rebalance_appends_wake_the_consumer(store: Store, tried: Tried) -> None:
    """Each round one more partition is another member's, or is back."""
    with consumer(store, "t", group="g") as reading:
        others: list[Consumer] = []

        def change() -> None:
            if others:
                others.pop().close()
            else:
                others.append(consumer(store, "t", group="g"))

        def check() -> None:
            for _ in range(3):
                for member in (reading, *others):
                    member.poll()
            found = reading.assignment()
            assert found == ({T0, T1} if others else {T0, T1, T2})
            assert {reader.sibling_count for reader in reading._reading.readers.values()} == {len(found) - 1}
            watchers = {owner: writer_of(store.log(*owner)).growth._watchers for owner in (T0, T1, T2)}
            assert {owner: each.count(reading._waiter.wake) for owner, each in watchers.items()} == {
                owner: int(owner in found) for owner in watchers
            }
            change()

        check()
        at_every_place(reading.poll, check, tried)
        for other in others:
            other.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_after_an_interrupted_assignment_appends_wake_the_consumer(store: Store, tried: Tried) -> None:
    with consumer(store) as reading:
        wanted = [T0, T1]

        def check() -> None:
            reading.poll(max_records=1)
            heard = {owner for owner in (T0, T1, T2) if writer_of(store.log(*owner)).growth._watchers}
            assert heard == reading.assignment()
            wanted[1] = T2 if wanted[1] == T1 else T1

        reading.assign([T0])
        at_every_place(lambda: reading.assign(wanted), check, tried)


# --- its place in the group -------------------------------------------------------------------------------------------


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", [Consumer.close, Consumer.unsubscribe])
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_a_member_whose_end_is_interrupted_has_left_its_group(
    tmp_path: Path, end: Callable[[Consumer], None], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start of a call, where CPython serves signals too."""
    with opened(tmp_path / "own", shared=shared) as store, consumer(store, "t", group="g") as other:
        leaving = consumer(store, "t", group="g")
        for member in (other, leaving, other, leaving):
            member.poll()
        assert len(leaving.assignment()) == 1
        with monkeypatch.context() as patch:
            patch.setattr(Membership, "leave", interrupted)
            with pytest.raises(KeyboardInterrupt):
                end(leaving)
        other.poll()
        assert other.assignment() == {T0, T1, T2}
        leaving.close()


def test_a_close_that_is_interrupted_while_it_commits_has_left_the_group(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with consumer(store, "t", group="g") as other:
        leaving = consumer(store, "t", group="g", enable_auto_commit=True)
        for member in (other, leaving, other, leaving):
            member.poll()
        monkeypatch.setattr(Commits, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            leaving.close()
        assert leaving.closed
        other.poll()
        assert other.assignment() == {T0, T1, T2}
