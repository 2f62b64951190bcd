"""Committed offsets and their logs: set back after a crash, respected by retention, in read-only stores."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import ConfigError, TopicPartition
from kstore.config import LogConfig
from kstore.engine.change.cuts import Cuts
from kstore.rules.retain import SegmentAge, deletable_count, passed_by_all
from kstore.rules.topics import KSTORE_TOPICS
from kstore.store import Store, coordinator_of
from kstore.transactions import group_offsets
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.foreign_batches import tampered

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def fill(store: Store, owner: TopicPartition, count: int) -> None:
    store.log(*owner).append_many([b"x"] * count)


def commit(store: Store, group: str, offsets: dict[TopicPartition, int]) -> None:
    store.consumer_offsets.commit(group, offsets)


# --- above the end ----------------------------------------------------------------------------------------------------


def test_offsets_above_the_end_are_set_back_at_the_next_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the next records at these offsets would be skipped."""
    with kstore.open(tmp_path / "s", durability="os") as store:
        store.create_topic("t", partitions=2)
        fill(store, T0, 10)
        fill(store, T1, 10)
        commit(store, "g", {T0: 10, T1: 10})
        commit(store, "h", {T0: 4})
        # As after a power cut that took the log's tail, but not what came later.
        store.log("t", 0).truncate_to(0)
        fill(store, T0, 6)
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
    with kstore.open(tmp_path / "killed", durability="os") as store:
        assert any("group 'g' has committed offset 10 of t-0, which ends at 6" in note for note in store.notes)
        assert "set back" in caplog.text
        fill(store, T0, 4)
        with store.consumer("t", group="g", iteration_timeout_ms=0) as reading:
            assert [record.offset for record in reading] == [6, 7, 8, 9]
        assert store.consumer_offsets.committed("h")[T0].offset == 4
        assert store.consumer_offsets.committed_at("h", T0) == store.consumer_offsets.committed("h")[T0]
        assert store.consumer_offsets.committed("g")[T1].offset == 10
        assert store.consumer_offsets.committed_at("h", T1) is None
        # Logs of offsets that were opened only for this are closed again.
        assert sum(name.startswith("__consumer_offsets") for name in store.status().open_logs) <= 2


def test_they_are_set_back_too_in_a_directory_that_was_a_brokers(tmp_path: Path) -> None:
    """Its topics have no settings of their own."""
    with kstore.open(tmp_path / "s", durability="os") as store:
        store.create_topic("t", partitions=2)
        commit(store, "g", {T0: 0})
    (tmp_path / "s" / KSTORE_TOPICS).unlink()
    with kstore.open(tmp_path / "s", durability="os") as store:
        fill(store, T0, 10)
        commit(store, "g", {T0: 10})
        store.log("t", 0).truncate_to(6)
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
    with kstore.open(tmp_path / "killed", durability="os") as store:
        assert store.consumer_offsets.committed("g")[T0].offset == 6


def test_after_an_orderly_close_nothing_is_compared(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "s", durability="os") as store:
        store.create_topic("t", partitions=2)
        commit(store, "g", {T0: 10})
    with kstore.open(tmp_path / "s", durability="os") as store:
        assert store.notes == []
        # Even so, a consumer does not begin above the end.
        with store.consumer("t", group="g") as reading:
            reading.poll()
            assert reading.position(T0) == 0


def test_a_deleted_topics_offsets_go_with_it(tmp_path: Path) -> None:
    """A later topic of the same name has other records."""
    with kstore.open(tmp_path / "s", durability="os") as store:
        for name in ("t", "u"):
            store.create_topic(name, partitions=2)
        commit(store, "g", {T0: 3, TopicPartition("u", 0): 0})
        commit(store, "h", {T1: 5})
        store.delete_topic("t")
        assert store.consumer_offsets.committed("g").keys() == {TopicPartition("u", 0)}
        assert store.consumer_offsets.groups() == ["g"]


def test_what_a_dead_brokers_groups_have_committed_can_be_read(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "s", durability="os") as store:
        store.create_topic("t", partitions=2)
        commit(store, "g", {T0: 3})
    # As a broker leaves it: without kstore's own files.
    for path in [*tmp_path.glob("s/kstore.*"), *tmp_path.glob("s/*/kstore.*")]:
        path.unlink()
    with kstore.open(tmp_path / "s", read_only=True) as store:
        assert store.consumer_offsets.groups() == ["g"]
        assert store.consumer_offsets.committed("g")[T0].offset == 3


# --- retention --------------------------------------------------------------------------------------------------------


def test_nothing_goes_that_a_group_has_not_passed(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "s", durability="os", background=False, file_delete_delay_ms=0) as store:
        store.create_topic(
            "t", partitions=2, segment_bytes=1024, retention_bytes=0, retention_groups=["billing", "audit"]
        )
        log = store.log("t", 0)
        for _ in range(100):
            log.append(b"x" * 100)
        assert store.apply_retention().segment_count == 0
        commit(store, "billing", {T0: 100})
        assert store.apply_retention().segment_count == 0
        commit(store, "audit", {T0: 50})
        assert store.apply_retention().segment_count > 0
        kept_from = log.start_offset
        assert 40 < kept_from <= 50
        # A roll, which also applies retention, does the same.
        for _ in range(100):
            log.append(b"x" * 100)
        assert log.start_offset == kept_from
        commit(store, "audit", {T0: 200})
        commit(store, "billing", {T0: 200})
        store.apply_retention()
        assert log.start_offset == 200


def test_the_store_s_retention_leaves_offsets_queues_and_transactions_of_a_broker_s_directory(tmp_path: Path) -> None:
    """They have no settings of their own there; without its offsets the group would read everything again."""
    clock = ManualClock()
    with Store(tmp_path / "s", durability="os", background=False, clock=clock) as store:
        store.create_topic("t", partitions=2)
        fill(store, T0, 5)
        commit(store, "g", {T0: 3})
        queue = store.queue("jobs")
        queue.put_many([b"done", b"left"])
        queue.get().ack()
        with store.producer(transactional_id="x") as producer, producer.transaction():
            producer.send("t", b"x", partition=1)
    (tmp_path / "s" / KSTORE_TOPICS).unlink()  # a broker's directory has none
    clock.advance(86_400_000)
    limits: dict[str, Any] = {"retention_ms": 1, "retention_bytes_total": 0}
    for _ in range(2):
        with Store(tmp_path / "s", durability="os", background=False, clock=clock, **limits) as store:
            store.apply_retention()
            assert store.log("t", 0).start_offset == 5, "an ordinary topic's records are gone"
            assert store.consumer_offsets.committed("g")[T0].offset == 3
            assert [job.value for job in store.queue("jobs").get_many(9)] == [b"left"]
            state = store.describe_topic("__transaction_state")
            assert (state.partitions[0].start_offset, state.durability) == (0, "sync")


def test_the_limit_for_all_logs_leaves_what_a_group_has_not_passed(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "s", durability="os", background=False, retention_bytes_total=0) as store:
        store.create_topic("t", partitions=2, segment_bytes=1024, retention_groups="g")
        for number in range(2):
            for _ in range(50):
                store.log("t", number).append(b"x" * 100)
        commit(store, "g", {T0: 20})
        store.apply_retention()
        assert 10 < store.log("t", 0).start_offset <= 20
        assert store.log("t", 1).start_offset == 0


def test_the_setting_is_kept_and_checked(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "s") as store:
        store.create_topic("t", retention_groups=("b", "a", "b"))
        store.create_topic("u", retention_groups="x,y")
        for wrong in (7, ["a", 7], [""]):
            with pytest.raises(ConfigError, match="retention_groups"):
                store.create_topic("v", retention_groups=wrong)  # type: ignore[arg-type]  # wrong on purpose
    with kstore.open(tmp_path / "s") as store:
        assert store.describe_topic("t").config.retention_groups == ("a", "b")
        assert store.describe_topic("u").config.retention_groups == ("x", "y")


def test_a_log_without_a_store_knows_of_no_group_and_deletes_nothing(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "l", segment_bytes=1024, retention_bytes=0, retention_groups=["g"]) as log:
        for _ in range(50):
            log.append(b"x" * 100)
        assert log.apply_retention().segment_count == 0


def test_what_is_below_the_logs_start_goes_whatever_groups_say() -> None:
    ages = [SegmentAge(stop, 100, -1, 0) for stop in (10, 20, 30)]
    config = LogConfig(retention_bytes=0, retention_groups=("g",))

    def count(passed: int | None, start: int = 0) -> int:
        return deletable_count(ages, config, size=300, start_offset=start, high_watermark=30, now_ms=0, passed=passed)

    assert [count(passed) for passed in (0, 9, 10, 25, 30, None)] == [0, 0, 1, 2, 3, 3]
    assert count(0, start=20) == 2


def test_all_groups_have_passed_what_the_last_of_them_has() -> None:
    committed = {"a": 5, "b": 3}
    assert passed_by_all(("a", "b"), committed.get) == 3
    assert passed_by_all(("a", "b", "c"), committed.get) == 0
    assert passed_by_all((), committed.get) == 0


# --- a read that fails ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_read_that_fails_within_a_transaction_forgets_none_of_its_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    real: Any = group_offsets._Partition._set
    struck: list[object] = []

    def set_one(*arguments: Any) -> None:
        struck.append(arguments)
        if len(struck) == 2:
            raise error
        real(*arguments)

    with kstore.open(tmp_path / "s", durability="os", background=False) as store:
        store.create_topic("t", partitions=2)
        commit(store, "g", {T0: 1, T1: 1})
        assert store.consumer_offsets.committed_at("g", T1)
        coordinator = coordinator_of(store)
        producer = coordinator.init_producer_id("x")
        coordinator.add_offsets("x", *producer, "g", {T0: 5, T1: 5})
        coordinator.end("x", *producer, commit=True)
        monkeypatch.setattr(group_offsets._Partition, "_set", set_one)
        with pytest.raises(error):
            store.consumer_offsets.committed("g")
        found = store.consumer_offsets.committed("g")
        assert (found[T0].offset, found[T1].offset) == (5, 5)


def cut(store: Store) -> None:
    store.log("__consumer_offsets").truncate_to(0)


def recreate(store: Store) -> None:
    store.delete_topic("__consumer_offsets")
    store.create_topic("__consumer_offsets", cleanup_policy="compact")


@pytest.mark.parametrize("change", [cut, recreate])
@pytest.mark.parametrize("reader", ["the same store", "a view"])
def test_offsets_that_were_cut_are_forgotten_although_the_log_has_grown_beyond_them(
    tmp_path: Path, change: Callable[[Store], None], reader: str
) -> None:
    with kstore.open(tmp_path / "s", durability="os", background=False) as store:
        store.create_topic("t", partitions=2)
        store.create_topic("__consumer_offsets", cleanup_policy="compact")
        with kstore.open(tmp_path / "s", read_only=True) if reader == "a view" else nullcontext(store) as reading:
            commit(store, "g", {T0: 5})
            assert reading.consumer_offsets.committed("g")[T0].offset == 5
            change(store)
            for offset in range(3):
                commit(store, "h", {T1: offset})
            assert reading.consumer_offsets.committed("g") == {}
            assert reading.consumer_offsets.groups() == ["h"]
            assert reading.consumer_offsets.committed("h")[T1].offset == 2


def test_a_cut_while_the_offsets_are_read_is_seen_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.open(tmp_path / "s", durability="os", background=False) as store:
        store.create_topic("t", partitions=2)
        store.create_topic("__consumer_offsets", cleanup_policy="compact")
        commit(store, "g", {T0: 5})

        def read_meanwhile(*_: object) -> None:
            monkeypatch.undo()
            assert store.consumer_offsets.committed("g")[T0].offset == 5

        # Within the cut, after it was announced and before anything is gone.
        monkeypatch.setattr(Cuts, "_lower_dirt", read_meanwhile)
        store.log("__consumer_offsets").truncate_to(0)
        for offset in range(3):
            commit(store, "h", {T1: offset})
        assert store.consumer_offsets.groups() == ["h"]


UNREADABLE = {
    "not the codec's": {"attributes": 1},
    "no such codec": {"attributes": 7},
    "another count": {"record_count": 1},
}


@pytest.mark.parametrize("fields", UNREADABLE.values(), ids=UNREADABLE)
def test_a_batch_that_cannot_be_read_hides_no_other_offsets(
    tmp_path: Path, fields: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with kstore.open(tmp_path / "s", durability="os", background=False) as store:
        store.create_topic("t", partitions=2)
        store.create_topic("__consumer_offsets", cleanup_policy="compact")
        commit(store, "g", {T0: 1, T1: 1})
        path = tmp_path / f"s/__consumer_offsets-0/{0:020d}.log"
        before = path.stat().st_size
        commit(store, "g", {T0: 2, T1: 2})
        with path.open("r+b") as file:
            file.seek(before)
            batch = file.read()
            file.seek(before)
            file.write(tampered(batch, **fields))
        commit(store, "h", {T0: 3})
        assert {group: store.consumer_offsets.offset_at(group, T0) for group in "gh"} == {"g": 1, "h": 3}
        commit(store, "g", {T0: 4})
        assert store.consumer_offsets.offset_at("g", T0) == 4
    assert caplog.text.count("in the batch at offset 2 are skipped") == 1


class _Interrupted(dict[Any, Any]):
    """Its first ``clear`` ends with an interrupt."""

    def clear(self) -> None:
        is_first = bool(self)
        super().clear()
        if is_first:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["groups", "pending"])
def test_an_interrupt_while_the_offsets_of_a_cut_log_are_dropped_keeps_none_of_them(tmp_path: Path, name: str) -> None:
    with kstore.open(tmp_path / "s", durability="os", background=False) as store:
        store.create_topic("t")
        partition = group_offsets._Partition()
        partition.groups, partition.pending, partition.position = {"g": {}}, {7: {}}, 10
        setattr(partition, name, _Interrupted(getattr(partition, name)))
        with pytest.raises(KeyboardInterrupt):
            partition.catch_up(store.log("t"))
        partition.catch_up(store.log("t"))
        assert (partition.groups, partition.pending, partition.position) == ({}, {}, 0)
