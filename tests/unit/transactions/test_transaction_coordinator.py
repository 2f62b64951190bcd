"""The coordinator: producer ids, epochs and fencing, transactions that end everywhere, and background work."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import (
    ConfigError,
    DiskFullError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionStateError,
    KstoreError,
    ProducerFencedError,
    ReadOnlyError,
)
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.control import ControlRecordType
from kstore.store import Store, coordinator_of
from kstore.transactions.coordinator import EXPIRATION_MS, TransactionCoordinator
from kstore.transactions.metadata import EPOCH_MAX, TransactionMetadata, TransactionState
from kstore.transactions.transaction_records import (
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault
from tests.support.harness.golden_data import golden_root

State = TransactionState
PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
SYNCS = frozenset({"write_and_sync"})
Producer = tuple[int, int]


def opened(path: Path, clock: ManualClock | None = None, **settings: Any) -> Store:
    store = Store(path, background=False, clock=clock or ManualClock(), recovery_threads=1, **settings)
    if not store.read_only and "orders" not in store.topics():
        store.create_topic("orders", len(PARTITIONS))
    return store


def write(store: Store, owner: TopicPartition, producer: Producer, value: bytes, sequence: int = 0) -> None:
    record = Record(0, 1_700_000_000_000, value=value)
    fields: dict[str, Any] = {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": sequence}
    store.log(*owner).append_batches(build_batch([record], is_transactional=True, **fields))


def begin(store: Store, name: str, producer: Producer, value: bytes) -> None:
    """One record in each partition."""
    coordinator_of(store).add_partitions(name, *producer, PARTITIONS)
    for owner in PARTITIONS:
        write(store, owner, producer, value)


def committed(store: Store) -> list[list[bytes | None]]:
    return [
        [record.value for record in store.log(*owner).read(isolation_level="read_committed")] for owner in PARTITIONS
    ]


def known(coordinator: TransactionCoordinator, name: str = "x") -> TransactionMetadata:
    (found,) = (one for one in coordinator.transactions() if one.transactional_id == name)
    return found


def states(path: Path) -> list[State]:
    """The states in the records of ``__transaction_state``, in order."""
    with Log(path / "__transaction_state-0", read_only=True) as log:
        return [decode_transaction_value("x", record.value).state for record in log.read() if record.value]


def markers(log: Log) -> list[ControlRecordType]:
    found = []
    offset = log.start_offset
    while offset < log.end_offset:
        for batch in log.fetch(offset).batches():
            offset = batch.last_offset + 1
            if batch.is_control:
                found += [
                    ControlRecordType(int.from_bytes((record.key or b"")[2:], "big")) for record in batch.records()
                ]
    return found


# --- epochs and fencing -----------------------------------------------------------------------------------------------


def test_a_second_producer_fences_the_first(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        coordinator = coordinator_of(store)
        first = coordinator.init_producer_id("x", 5000)
        second = coordinator.init_producer_id("x", 7000)
        assert (first[1], second) == (0, (first[0], 1))
        assert known(coordinator).timeout_ms == 7000
        for call in (
            lambda: coordinator.add_partitions("x", *first, PARTITIONS),
            lambda: coordinator.end("x", *first, commit=True),
            lambda: coordinator.end("x", *first, commit=False),
            lambda: coordinator.add_offsets("x", *first, "billing", {PARTITIONS[0]: 1}),
            lambda: coordinator.init_producer_id("x", producer=first),
        ):
            with pytest.raises(ProducerFencedError, match="has epoch 0, expected at least 1"):
                call()
        assert coordinator.init_producer_id("x", producer=second) == (first[0], 2)
        assert coordinator.init_producer_id("y")[0] != first[0]


def test_a_second_producer_aborts_what_the_first_has_open(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        first = coordinator_of(store).init_producer_id("x")
        begin(store, "x", first, b"lost")
        second = coordinator_of(store).init_producer_id("x")
        assert committed(store) == [[], [], []]
        assert all(not store.log(*owner).transactions() for owner in PARTITIONS)
        # In every partition, before it has written to any.
        with pytest.raises(InvalidProducerEpochError):
            write(store, PARTITIONS[0], first, b"late", 1)
        begin(store, "x", second, b"kept")
        coordinator_of(store).end("x", *second, commit=True)
        assert committed(store) == [[b"kept"]] * 3


def test_a_fenced_producer_cannot_write_to_a_partition_that_it_only_announced(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        first = coordinator_of(store).init_producer_id("x")
        coordinator_of(store).add_partitions("x", *first, PARTITIONS)
        coordinator_of(store).init_producer_id("x")
        with pytest.raises(InvalidProducerEpochError):
            write(store, PARTITIONS[1], first, b"late")


def test_an_unknown_producer_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        producer_id, epoch = coordinator_of(store).init_producer_id("x")
        for name, producer, found in (
            ("y", (producer_id, epoch), "the id is not known"),
            ("x", (producer_id + 1, epoch), f"its producer is {producer_id}, epoch 0"),
            ("x", (producer_id, epoch + 1), f"its producer is {producer_id}, epoch 0"),
        ):
            with pytest.raises(InvalidProducerIdMappingError, match=found):
                coordinator_of(store).add_partitions(name, *producer, PARTITIONS)
            with pytest.raises(ProducerFencedError):
                coordinator_of(store).end(name, *producer, commit=True)


def test_epochs_that_are_used_up_give_a_new_producer_id(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        producer_id, _ = coordinator_of(store).init_producer_id("x")
    last = TransactionMetadata("x", producer_id, EPOCH_MAX - 1, 5000, State.COMPLETE_COMMIT)
    with Log(tmp_path / "s/__transaction_state-0", cleanup_policy="compact") as log:
        log.append(encode_transaction_value(last), key=encode_transaction_key("x"))
    with opened(tmp_path / "s") as store:
        coordinator = coordinator_of(store)
        begin(store, "x", (producer_id, EPOCH_MAX - 1), b"last")
        following = coordinator.end("x", producer_id, EPOCH_MAX - 1, commit=True)
        assert (following[0] > producer_id, following[1]) == (True, 0)
        assert coordinator.end("x", producer_id, EPOCH_MAX - 1, commit=True) == following
        with pytest.raises(ProducerFencedError):
            coordinator.add_partitions("x", producer_id, EPOCH_MAX - 1, PARTITIONS)
        begin(store, "x", following, b"next")
        coordinator.end("x", *following, commit=True)
        assert committed(store) == [[b"last", b"next"]] * 3


def test_a_new_producer_after_the_last_epoch_gets_a_new_id(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        producer_id, _ = coordinator_of(store).init_producer_id("x")
    last = TransactionMetadata("x", producer_id, EPOCH_MAX - 1, 5000, State.EMPTY)
    with Log(tmp_path / "s/__transaction_state-0", cleanup_policy="compact") as log:
        log.append(encode_transaction_value(last), key=encode_transaction_key("x"))
    with opened(tmp_path / "s") as store:
        made = coordinator_of(store).init_producer_id("x")
        assert (made[0] > producer_id, made[1]) == (True, 0)


@pytest.mark.parametrize("name", ["", "x" * 40_000, "\ud800", 7, b"x"])
def test_an_id_that_is_no_text_is_refused(name: object, tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store, pytest.raises(ConfigError, match="transactional_id is"):
        coordinator_of(store).init_producer_id(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0, -1, 2**31, True, "1s"])
def test_a_timeout_that_is_none_is_refused(timeout: object, tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store, pytest.raises(ConfigError, match="timeout_ms is"):
        coordinator_of(store).init_producer_id("x", timeout)  # type: ignore[arg-type]


# --- transactions -----------------------------------------------------------------------------------------------------


def test_a_transaction_is_seen_when_it_commits_and_never_when_it_aborts(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        coordinator = coordinator_of(store)
        producer = coordinator.init_producer_id("x")
        begin(store, "x", producer, b"first")
        assert committed(store) == [[], [], []]
        following = coordinator.end("x", *producer, commit=True)
        assert following == (producer[0], producer[1] + 1)
        assert committed(store) == [[b"first"]] * 3
        begin(store, "x", following, b"second")
        coordinator.end("x", *following, commit=False)
        assert committed(store) == [[b"first"]] * 3
    complete, moves = State.COMPLETE_COMMIT, [State.EMPTY, State.ONGOING, State.PREPARE_COMMIT]
    assert states(tmp_path / "s") == [*moves, complete, State.ONGOING, State.PREPARE_ABORT, State.COMPLETE_ABORT]


def test_the_state_is_on_disk_at_once_whatever_the_store_says(tmp_path: Path) -> None:
    with opened(tmp_path / "s", durability="os") as store:
        coordinator_of(store).init_producer_id("x")
        topic = store.describe_topic("__transaction_state")
        assert (topic.durability, topic.config.cleanup_policy) == ("sync", "compact")
        assert len(topic.partitions) == 1


def test_partitions_are_added_once(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        coordinator = coordinator_of(store)
        producer = coordinator.init_producer_id("x")
        coordinator.add_partitions("x", *producer, PARTITIONS[:1])
        coordinator.add_partitions("x", *producer, PARTITIONS[:2])
        before = store.log("__transaction_state").end_offset
        coordinator.add_partitions("x", *producer, PARTITIONS[1:2])
        coordinator.add_partitions("x", *producer, [])
        assert store.log("__transaction_state").end_offset == before
        assert known(coordinator).partitions == set(PARTITIONS[:2])


def test_the_same_end_may_be_repeated_and_the_other_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        coordinator = coordinator_of(store)
        producer = coordinator.init_producer_id("x")
        for commit in (True, False):
            begin(store, "x", producer, b"%d" % commit)
            following = coordinator.end("x", *producer, commit=commit)
            before = store.log("__transaction_state").end_offset
            assert coordinator.end("x", *producer, commit=commit) == following
            assert store.log("__transaction_state").end_offset == before
            with pytest.raises(InvalidTransactionStateError, match="which is final"):
                coordinator.end("x", *producer, commit=not commit)
            producer = following


def test_without_partitions_there_is_nothing_to_end(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        coordinator = coordinator_of(store)
        producer = coordinator.init_producer_id("x")
        for commit in (True, False):
            with pytest.raises(InvalidTransactionStateError, match="in state Empty"):
                coordinator.end("x", *producer, commit=commit)
        begin(store, "x", producer, b"a")
        producer = coordinator.end("x", *producer, commit=True)
        with pytest.raises(InvalidTransactionStateError, match="in state CompleteCommit"):
            coordinator.end("x", *producer, commit=True)


def test_a_partition_that_was_deleted_is_passed_over(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("gone")
        gone = TopicPartition("gone", 0)
        producer = coordinator_of(store).init_producer_id("x")
        begin(store, "x", producer, b"kept")
        coordinator_of(store).add_partitions("x", *producer, [gone])
        write(store, gone, producer, b"gone")
        store.delete_topic("gone")
        coordinator_of(store).end("x", *producer, commit=True)
        assert committed(store) == [[b"kept"]] * 3
        assert known(coordinator_of(store)).state == State.COMPLETE_COMMIT


def test_a_marker_that_fails_leaves_a_decision_that_only_the_same_call_completes(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    with opened(tmp_path / "s", fs=fs) as store:
        coordinator = coordinator_of(store)
        producer = coordinator.init_producer_id("x")
        begin(store, "x", producer, b"a")
        # The decision is written, and the second of the markers.
        fs.faults.append(Fault(3, 28, kinds=SYNCS))
        with pytest.raises(DiskFullError):
            coordinator.end("x", *producer, commit=True)
        assert known(coordinator).state == State.PREPARE_COMMIT
        # The others were tried.
        assert committed(store) == [[b"a"], [], [b"a"]]
        with pytest.raises(InvalidTransactionStateError):
            coordinator.end("x", *producer, commit=False)
        for late in (producer, (producer[0], producer[1] + 1)):
            with pytest.raises((InvalidTransactionStateError, ProducerFencedError)):
                coordinator.add_partitions("x", *late, PARTITIONS)
        following = coordinator.end("x", *producer, commit=True)
        assert following == (producer[0], producer[1] + 1)
        assert committed(store) == [[b"a"]] * 3
        # Each partition got its marker once.
        assert [markers(store.log(*owner)) for owner in PARTITIONS] == [[ControlRecordType.COMMIT]] * 3


def test_a_decision_that_was_not_written_may_be_another(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    with opened(tmp_path / "s", fs=fs) as store:
        coordinator = coordinator_of(store)
        producer = coordinator.init_producer_id("x")
        begin(store, "x", producer, b"a")
        fs.faults.append(Fault(1, 28, kinds=SYNCS))
        with pytest.raises(DiskFullError):
            coordinator.end("x", *producer, commit=True)
        assert known(coordinator).state == State.ONGOING
        coordinator.end("x", *producer, commit=False)
        assert committed(store) == [[], [], []]


def test_a_partition_that_cannot_be_added_is_not_part_of_the_transaction(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    with opened(tmp_path / "s", fs=fs) as store:
        coordinator = coordinator_of(store)
        producer = coordinator.init_producer_id("x")
        fs.faults.append(Fault(1, 28, kinds=SYNCS))
        with pytest.raises(DiskFullError):
            coordinator.add_partitions("x", *producer, PARTITIONS)
        assert known(coordinator).state == State.EMPTY
        coordinator.add_partitions("x", *producer, PARTITIONS[:1])
        assert known(coordinator).partitions == {PARTITIONS[0]}


def test_a_transaction_that_was_ended_without_the_coordinator_ends(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        producer = coordinator_of(store).init_producer_id("x")
        begin(store, "x", producer, b"a")
        store.log(*PARTITIONS[1]).end_transaction(producer[0], producer[1] + 5, commit=False)
        coordinator_of(store).end("x", *producer, commit=True)
        assert committed(store) == [[b"a"], [], [b"a"]]


def test_a_later_coordinator_epoch_in_a_log_is_followed(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        producer = coordinator_of(store).init_producer_id("x")
        store.log(*PARTITIONS[1]).end_transaction(*producer, commit=False, coordinator_epoch=26)
        begin(store, "x", producer, b"a")
        coordinator_of(store).end("x", *producer, commit=True)
        assert committed(store) == [[b"a"]] * 3


def test_transactions_of_several_ids_end_at_the_same_time(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        failures: list[BaseException] = []

        def run(name: str) -> None:
            try:
                producer = coordinator_of(store).init_producer_id(name)
                for number in range(5):
                    begin(store, name, producer, name.encode())
                    producer = coordinator_of(store).end(name, *producer, commit=number % 2 == 0)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(f"x{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not failures
        for values in committed(store):
            assert sorted(value or b"" for value in values) == sorted([b"x0", b"x1", b"x2", b"x3"] * 3)


# --- background work --------------------------------------------------------------------------------------------------


def test_an_open_finishes_what_was_left_unfinished(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    store = opened(tmp_path / "s", fs=fs)
    decided, left = coordinator_of(store).init_producer_id("decided"), coordinator_of(store).init_producer_id("left")
    begin(store, "decided", decided, b"whole")
    begin(store, "left", left, b"nothing")
    fs.faults.append(Fault(3, 28, kinds=SYNCS, sticky=True))
    with pytest.raises(DiskFullError):
        coordinator_of(store).end("decided", *decided, commit=True)
    with pytest.raises(DiskFullError):
        store.close()
    fs.faults.clear()
    with opened(tmp_path / "s") as store:
        # Before any use of the coordinator.
        assert committed(store) == [[b"whole"]] * 3
        assert all(not store.log(*owner).transactions() for owner in PARTITIONS)
        found = {one.transactional_id: one.state for one in coordinator_of(store).transactions()}
        assert found == {"decided": State.COMPLETE_COMMIT, "left": State.COMPLETE_ABORT}
        with pytest.raises(ProducerFencedError):
            coordinator_of(store).add_partitions("left", *left, PARTITIONS)


def test_a_close_aborts_what_is_open(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        begin(store, "x", coordinator_of(store).init_producer_id("x"), b"lost")
    with Store(tmp_path / "s", read_only=True) as store:
        assert committed(store) == [[], [], []]
        assert [store.log(*owner).last_stable_offset for owner in PARTITIONS] == [2, 2, 2]
        assert known(coordinator_of(store)).state == State.COMPLETE_ABORT


def test_a_transaction_that_is_open_for_too_long_is_aborted(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "s", clock) as store:
        coordinator = coordinator_of(store)
        slow, quick = coordinator.init_producer_id("slow", 30_000), coordinator.init_producer_id("quick", 60_000)
        begin(store, "slow", slow, b"lost")
        begin(store, "quick", quick, b"kept")
        # The wall clock does not matter.
        clock.jump(10**9)
        clock.advance(29_999)
        store.run_due_tasks()
        assert known(coordinator, "slow").state == State.ONGOING
        clock.advance(10_001)
        store.run_due_tasks()
        assert known(coordinator, "slow").state == State.COMPLETE_ABORT
        with pytest.raises(InvalidTransactionStateError):
            coordinator.end("slow", *slow, commit=True)
        with pytest.raises(ProducerFencedError):
            coordinator.add_partitions("slow", *slow, PARTITIONS)
        coordinator.end("quick", *quick, commit=True)
        assert committed(store) == [[b"kept"]] * 3
        # The producer learns of the abort, and goes on.
        begin(store, "slow", coordinator.end("slow", *slow, commit=False), b"again")


@pytest.mark.parametrize("how", ["task", "close"])
def test_a_transaction_that_cannot_end_keeps_no_other_one_open(tmp_path: Path, how: str) -> None:
    clock, fs = ManualClock(), FailingFs(SYSTEM_FS)
    store = opened(tmp_path / "s", clock, fs=fs)
    coordinator = coordinator_of(store)
    for owner in PARTITIONS[:2]:
        name = str(owner)
        producer = coordinator.init_producer_id(name, 1000)
        coordinator.add_partitions(name, *producer, [owner])
        write(store, owner, producer, b"lost")
    fs.faults.append(Fault(1, sticky=True, suffix=f"{PARTITIONS[0]}/{0:020d}.log"))
    clock.advance(5000)
    with pytest.raises(KstoreError):
        coordinator.run_due() if how == "task" else store.close()
    assert known(coordinator, str(PARTITIONS[0])).state == State.PREPARE_ABORT
    assert known(coordinator, str(PARTITIONS[1])).state == State.COMPLETE_ABORT
    with suppress(KstoreError):
        store.close()


def test_the_task_completes_what_was_decided(tmp_path: Path) -> None:
    clock, fs = ManualClock(), FailingFs(SYSTEM_FS)
    with opened(tmp_path / "s", clock, fs=fs) as store:
        producer = coordinator_of(store).init_producer_id("x")
        begin(store, "x", producer, b"a")
        fs.faults.append(Fault(3, 28, kinds=SYNCS))
        with pytest.raises(DiskFullError):
            coordinator_of(store).end("x", *producer, commit=True)
        store.run_task("transactions")
        assert committed(store) == [[b"a"]] * 3
        assert coordinator_of(store).end("x", *producer, commit=True) == (producer[0], producer[1] + 1)


def test_an_unused_id_is_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "s", clock) as store:
        old = coordinator_of(store).init_producer_id("old")
        clock.advance(EXPIRATION_MS - 1)
        coordinator_of(store).init_producer_id("new")
        store.run_task("transactions")
        assert len(coordinator_of(store).transactions()) == 2
        clock.advance(1)
        store.run_task("transactions")
        assert [one.transactional_id for one in coordinator_of(store).transactions()] == ["new"]
        with pytest.raises(InvalidProducerIdMappingError):
            coordinator_of(store).add_partitions("old", *old, PARTITIONS)
    with opened(tmp_path / "s", clock) as store:
        assert [one.transactional_id for one in coordinator_of(store).transactions()] == ["new"]
        made, epoch = coordinator_of(store).init_producer_id("old")
        assert (made > old[0], epoch) == (True, 0)


def test_damaged_records_of_the_state_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path / "s") as store:
        coordinator_of(store).init_producer_id("x")
    with Log(tmp_path / "s/__transaction_state-0", cleanup_policy="compact") as log:
        log.append(b"\0\1?", key=encode_transaction_key("y"))
        log.append(b"\0\7?", key=encode_transaction_key("z"))
        log.append(b"?", key=b"\0\5of another type")
        log.append(b"?", key=b"\0")
    with opened(tmp_path / "s") as store:
        assert [one.transactional_id for one in coordinator_of(store).transactions()] == ["x"]
    assert caplog.text.count("is skipped") == 3


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "producer id": {"producer_id": -5},
    "epoch": {"producer_epoch": -7},
    "next producer id": {"next_producer_id": -2},
    "state": {"state": State.DEAD},
}


@pytest.mark.parametrize("fields", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_record_of_a_transaction_that_cannot_be_does_not_keep_the_store_from_opening(
    tmp_path: Path, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path / "s") as store:
        coordinator_of(store).init_producer_id("x")
    metadata = TransactionMetadata("y", 5, 0, 1000, State.ONGOING, frozenset(PARTITIONS))
    with Log(tmp_path / "s/__transaction_state-0", cleanup_policy="compact") as log:
        log.append(encode_transaction_value(replace(metadata, **fields)), key=encode_transaction_key("y"))
    with opened(tmp_path / "s") as store:
        assert [one.transactional_id for one in coordinator_of(store).transactions()] == ["x"]
        assert coordinator_of(store).init_producer_id("y")[1] == 0
    assert "is skipped" in caplog.text


def test_a_store_that_is_read_says_what_is_known_and_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        producer = coordinator_of(store).init_producer_id("x")
        begin(store, "x", producer, b"open")
        with Store(tmp_path / "s", read_only=True) as reader:
            assert known(coordinator_of(reader)).state == State.ONGOING
            for call in (
                lambda: coordinator_of(reader).init_producer_id("x"),
                lambda: coordinator_of(reader).end("x", *producer, commit=True),
                lambda: coordinator_of(reader).commit_offsets("billing", {PARTITIONS[0]: 1}),
            ):
                with pytest.raises(ReadOnlyError):
                    call()
        coordinator_of(store).end("x", *producer, commit=True)


def test_a_brokers_transactions_are_left_alone_until_the_coordinator_is_used() -> None:
    with Store(golden_root() / "clean", read_only=True) as store:
        found = coordinator_of(store).transactions()
    assert {one.transactional_id for one in found} >= {"txn-a", "txn-b"}


@pytest.mark.parametrize("commit", [True, False])
def test_a_failure_after_the_decision_leaves_no_partition_without_a_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    """The decision was adopted, but not its list of partitions: the next call completed it without any marker."""
    failing = [True]

    def set_once(*items: Any) -> set[Any]:
        if failing:
            failing.pop()
            raise MemoryError
        return set(*items)

    with opened(tmp_path / "s") as store:
        coordinator = coordinator_of(store)
        producer = coordinator.init_producer_id("x")
        begin(store, "x", producer, b"a")
        monkeypatch.setattr("kstore.transactions.coordinator.set", set_once, raising=False)
        with pytest.raises(MemoryError):
            coordinator.end("x", *producer, commit=commit)
        coordinator.end("x", *producer, commit=commit)
        assert not failing
        assert committed(store) == [[b"a"] if commit else []] * len(PARTITIONS)
        assert [len(markers(store.log(*owner))) for owner in PARTITIONS] == [1] * len(PARTITIONS)


def test_a_transaction_whose_first_call_was_interrupted_is_not_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time was missing, so the next look aborted it."""
    with opened(tmp_path / "s") as store:
        coordinator: Any = coordinator_of(store)
        producer = coordinator.init_producer_id("x")
        real = coordinator._move

        def move(*step: Any) -> None:
            real(*step)
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(coordinator, "_move", move)
        with pytest.raises(KeyboardInterrupt):
            coordinator.add_partitions("x", *producer, PARTITIONS)
        begin(store, "x", producer, b"a")
        coordinator.run_due()
        coordinator.end("x", *producer, commit=True)
        assert committed(store) == [[b"a"]] * len(PARTITIONS)
