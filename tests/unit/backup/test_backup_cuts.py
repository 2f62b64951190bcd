"""Restores to offsets: what is cut from one log is undone in all others, and nothing else."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from kstore.backup import take
from kstore.backup.restore import restore
from kstore.cli.main import main
from kstore.errors import (
    ConfigError,
    InvalidTransactionStateError,
    KstoreError,
    OffsetOutOfRangeError,
    StorageError,
    TopicNotFoundError,
)
from kstore.files import local
from kstore.files.paths import TopicPartition
from kstore.producer.producer import Producer
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.store import Store
from kstore.transactions.coordinator import TransactionCoordinator
from kstore.upkeep.verify import verify
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries
from tests.support.lives.foreign_batches import tampered

SETTINGS: dict[str, Any] = {"background": False, "recovery_threads": 1, "segment_bytes": 1024}
PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
FIRST, SECOND = PARTITIONS[:2]
LIVES = tries(40, quick=1)


@pytest.fixture
def tmp_path(directory: Path) -> Path:
    return directory


def restored(target: Path, path: Path, offsets: dict[TopicPartition, int]) -> Store:
    """A restored store, which must be sound, need no recovery, and have no open transactions."""
    restore(target, path, at_offsets=offsets)
    for checked in verify(path):
        if checked.findings:
            raise Wrong(f"{checked.path}: {checked.findings}")
    store = Store(path, **SETTINGS)
    assert not store.notes
    for topic in store.topics(internal=True):
        for partition in store.partitions(topic):
            log = store.log(topic, partition)
            log.check()
            assert log.recovery.clean
            assert log.last_stable_offset == log.end_offset
            assert not log.transactions()
    return store


def values(store: Store, owner: TopicPartition) -> list[bytes | None]:
    return [one.value for one in store.log(*owner).read(isolation_level="read_committed")]


def transactional(store: Store, name: str = "t") -> Producer:
    producer = store.producer(transactional_id=name)
    producer.init_transactions()
    return producer


# --- a model ----------------------------------------------------------------------------------------------------------


class Written(NamedTuple):
    """A batch, at ``first``, and its values; ``transaction`` is -1 for one without."""

    owner: TopicPartition
    first: int
    values: list[bytes]
    transaction: int


class Committed(NamedTuple):
    """A committed offset; ``transaction`` is -1 for one without."""

    group: str
    owner: TopicPartition
    offset: int
    transaction: int


class Life:
    """A random life of a store with transactions, and where each of them wrote what."""

    def __init__(self, path: Path, generator: random.Random) -> None:
        self.path = path
        self.draw = generator
        self.written: list[Written] = []
        self.committed: list[Committed] = []
        # By transaction: its outcome, and its markers' places.
        self.outcomes: dict[int, bool] = {}
        self.markers: dict[int, dict[TopicPartition, int]] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.count = 0

    def run(self) -> None:
        with Store(self.path / "store", **SETTINGS) as store:
            store.create_topic("orders", len(PARTITIONS))
            store.create_topic("__consumer_offsets", 2, cleanup_policy="compact")
            for _ in range(tries(25, quick=15)):
                step = self.draw.choice((self.append, self.transaction, self.transaction, self.commit, self.delete))
                step(store)
            for owner in PARTITIONS:
                log = store.log(*owner)
                self.starts[owner], self.ends[owner] = log.start_offset, log.end_offset
            with transactional(store, "open") as producer:
                if self.draw.random() < 0.5:
                    self.leave_open(producer)
                store.backup(self.path / "backups")

    def value(self) -> bytes:
        self.count += 1
        return b"%d " % self.count + b"x" * self.draw.choice((0, 40, 200))

    def append(self, store: Store) -> None:
        owner = self.draw.choice(PARTITIONS)
        batch = [self.value() for _ in range(self.draw.randint(1, 4))]
        self.written.append(Written(owner, store.log(*owner).append_many(batch).first_offset, batch, -1))

    def commit(self, store: Store) -> None:
        owner = self.draw.choice(PARTITIONS)
        offset = self.draw.randint(0, store.log(*owner).end_offset)
        store.consumer_offsets.commit("plain", {owner: offset})
        self.committed.append(Committed("plain", owner, offset, -1))

    def delete(self, store: Store) -> None:
        log = store.log(*self.draw.choice(PARTITIONS))
        if self.draw.random() < 0.3:
            log.delete_records(self.draw.randint(log.start_offset, (log.start_offset + log.last_stable_offset) // 2))

    def transaction(self, store: Store) -> None:
        """Two at a time, from two producers."""
        numbers = [len(self.outcomes), len(self.outcomes) + 1]
        producers = [transactional(store, name) for name in "ab"]
        for producer in producers:
            producer.begin_transaction()
        touched: list[set[TopicPartition]] = [set(), set()]
        for _ in range(self.draw.randint(1, 6)):
            which = self.draw.randrange(2)
            owner = self.draw.choice(PARTITIONS)
            touched[which].add(owner)
            self.write(producers[which], owner, numbers[which])
        for which in self.draw.sample((0, 1), 2):
            if self.draw.random() < 0.5:
                offset = self.draw.randint(0, 50)
                group = self.draw.choice(("plain", "ab"[which]))
                producers[which].send_offsets({FIRST: offset}, group)
                self.committed.append(Committed(group, FIRST, offset, numbers[which]))
        for which in self.draw.sample((0, 1), 2):
            commits = self.outcomes[numbers[which]] = self.draw.random() < 0.7
            producers[which].commit_transaction() if commits else producers[which].abort_transaction()
            self.markers[numbers[which]] = {owner: store.log(*owner).end_offset - 1 for owner in touched[which]}
        for producer in producers:
            producer.close()

    def write(self, producer: Producer, owner: TopicPartition, number: int) -> None:
        """Each record is a batch."""
        for _ in range(self.draw.randint(1, 3)):
            value = self.value()
            delivery = producer.send(owner.topic, value, partition=owner.partition)
            self.written.append(Written(owner, delivery.result().offset, [value], number))

    def leave_open(self, producer: Producer) -> None:
        """A transaction that is not decided when the store is backed up."""
        producer.begin_transaction()
        for owner in PARTITIONS[:2]:
            producer.send(owner.topic, b"open", partition=owner.partition)
        producer.flush()

    # --- what a restore to offsets must give --------------------------------------------------------------------------

    def is_undone(self, transaction: int, offsets: dict[TopicPartition, int]) -> bool:
        if transaction < 0:
            return False
        marks = self.markers[transaction]
        cut = any(
            marks[one.owner] >= offsets[one.owner]
            for one in self.written
            if one.transaction == transaction and one.owner in offsets and self.is_kept_of(one)
        )
        return cut or not self.outcomes[transaction]

    def is_kept_of(self, one: Written) -> bool:
        """Whether the backup has a record of the transaction."""
        return one.first + len(one.values) > self.starts[one.owner]

    def expected(self, owner: TopicPartition, offsets: dict[TopicPartition, int]) -> list[tuple[int, bytes]]:
        end = offsets.get(owner, self.ends[owner])
        return [
            (one.first + at, value)
            for one in sorted(self.written, key=lambda one: one.first)
            if one.owner == owner
            and one.first + len(one.values) <= end
            and not self.is_undone(one.transaction, offsets)
            for at, value in enumerate(one.values)
            if one.first + at >= self.starts[owner]
        ]

    def expected_offsets(self, offsets: dict[TopicPartition, int]) -> dict[tuple[str, TopicPartition], int]:
        found = {}
        for one in self.committed:
            if not self.is_undone(one.transaction, offsets):
                found[one.group, one.owner] = one.offset
        return {key: min(offset, offsets.get(key[1], offset)) for key, offset in found.items()}


@pytest.mark.long
def test_a_restore_to_offsets_equals_the_model(tmp_path: Path, seed: int, tried: Callable[[str, int], None]) -> None:
    for number in range(LIVES):
        draw = random.Random(f"cuts {seed} {number}")
        path = tmp_path / "life"
        path.mkdir()
        life = Life(path, draw)
        life.run()
        for _ in range(3):
            cut = draw.sample(PARTITIONS, draw.randint(1, len(PARTITIONS)))
            offsets = {owner: draw.randint(life.starts[owner], life.ends[owner]) for owner in cut}
            with restored(path / "backups", path / "new", offsets) as new:
                compare(life, new, offsets, f"life {number}, {offsets}")
            shutil.rmtree(path / "new")
            tried("states", 1)
        shutil.rmtree(path)


def compare(life: Life, new: Store, offsets: dict[TopicPartition, int], what: str) -> None:
    for owner in PARTITIONS:
        log = new.log(*owner)
        found = [(one.offset, one.value) for one in log.read(isolation_level="read_committed")]
        if found != (expected := life.expected(owner, offsets)):
            verdict = Lost if len(found) < len(expected) else Wrong
            raise verdict(f"{what}: {owner} has {found}, expected {expected}")
        if owner in offsets and any(one.offset >= offsets[owner] for one in log.read()):
            raise Wrong(f"{what}: {owner} has records at or after its offset")
        # A log without records starts at its offset.
        assert log.start_offset in (life.starts[owner], offsets.get(owner))
    groups = new.consumer_offsets
    committed = {
        (group, owner): kept.offset for group in groups.groups() for owner, kept in groups.committed(group).items()
    }
    if committed != (wanted := life.expected_offsets(offsets)):
        raise Wrong(f"{what}: committed {committed}, expected {wanted}")


# --- transactions whose end is not everywhere -------------------------------------------------------------------------


@pytest.mark.parametrize("marked", [[], [SECOND]], ids=["nowhere", "elsewhere"])
def test_a_decided_commit_without_a_marker_in_the_cut_log_is_aborted(
    marked: list[TopicPartition], tmp_path: Path
) -> None:
    mark = TransactionCoordinator._mark

    def only(self: TransactionCoordinator, owner: TopicPartition, metadata: Any) -> None:
        if owner not in marked:
            raise StorageError(errno.EIO, "no")
        mark(self, owner, metadata)

    with Store(tmp_path / "store", **SETTINGS) as store:
        store.create_topic("orders", 2)
        store.log(*FIRST).append(b"before")
        with transactional(store) as producer:
            producer.begin_transaction()
            for owner in (FIRST, SECOND):
                producer.send(owner.topic, b"decided", partition=owner.partition)
            producer.flush()
            with mock.patch.object(TransactionCoordinator, "_mark", only):
                with pytest.raises(StorageError):
                    producer.commit_transaction()
                store.backup(tmp_path / "backups")
            producer.commit_transaction()
    with restored(tmp_path / "backups", tmp_path / "whole", {}) as new:
        assert (values(new, FIRST), values(new, SECOND)) == ([b"before", b"decided"], [b"decided"])
    with restored(tmp_path / "backups", tmp_path / "cut", {FIRST: 1}) as new:
        assert (values(new, FIRST), values(new, SECOND)) == ([b"before"], [])
    with restored(tmp_path / "backups", tmp_path / "other", {SECOND: 0}) as new:
        assert (values(new, FIRST), values(new, SECOND)) == ([b"before"], [])
        with transactional(new) as producer:  # its id goes on
            producer.begin_transaction()
            producer.send("orders", b"next", partition=0)
            producer.commit_transaction()
        assert values(new, FIRST) == [b"before", b"next"]


def append_transaction(store: Store, owner: TopicPartition, *, epoch: int, marker_epoch: int) -> None:
    log = store.log(*owner)
    record = Record(0, 1_700_000_000_000, value=b"x")
    log.append_batches(
        build_batch([record], producer_id=7, producer_epoch=epoch, base_sequence=0, is_transactional=True)
    )
    log.end_transaction(7, marker_epoch, commit=True)


def test_a_cut_transaction_of_an_old_client_is_refused_and_one_that_is_not_cut_is_not(tmp_path: Path) -> None:
    """Before KIP-890 all transactions of a producer had the same epoch."""
    with Store(tmp_path / "store", **SETTINGS) as store:
        store.create_topic("orders", 2)
        for owner in (FIRST, SECOND):
            append_transaction(store, owner, epoch=3, marker_epoch=3)
            store.log(*owner).append(b"y")
        store.backup(tmp_path / "backups")
    for offset in (0, 1):
        with pytest.raises(InvalidTransactionStateError, match=r"orders-0 at offset 1: .*next one may share"):
            restore(tmp_path / "backups", tmp_path / "new", at_offsets={FIRST: offset})
    assert not (tmp_path / "new").exists()
    with restored(tmp_path / "backups", tmp_path / "new", {FIRST: 2}) as new:
        assert (values(new, FIRST), values(new, SECOND)) == ([b"x"], [b"x", b"y"])


def test_a_batch_is_not_split(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        store.create_topic("orders")
        for _ in range(2):
            store.log("orders").append_many([b"a", b"b", b"c"])
        store.backup(tmp_path / "backups")
    with restored(tmp_path / "backups", tmp_path / "new", {FIRST: 5}) as new:
        assert [one.offset for one in new.log("orders").read()] == [0, 1, 2]
        assert new.log("orders").append(b"d") == 5


def test_the_next_backup_copies_a_changed_file_though_its_inode_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat_of = local._file_stat
    monkeypatch.setattr(local, "_file_stat", lambda stat: stat_of(stat)._replace(inode=1))
    monkeypatch.setattr(take, "SETTLED_NS", -(10**12))
    with Store(tmp_path / "store", **SETTINGS) as store:
        store.create_topic("orders", 2)
        with transactional(store) as producer:
            producer.begin_transaction()
            for owner in (FIRST, SECOND):
                producer.send("orders", b"cut", partition=owner.partition)
            producer.commit_transaction()
        store.backup(tmp_path / "backups")
    with restored(tmp_path / "backups", tmp_path / "new", {FIRST: 0}) as new:
        assert not values(new, SECOND)
        new.backup(tmp_path / "backups")
    with restored(tmp_path / "backups", tmp_path / "newer", {}) as newer:
        assert not values(newer, SECOND)


def test_a_batch_of_transaction_states_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        store.create_topic("orders", 2)
        with transactional(store) as producer:
            producer.begin_transaction()
            for owner in (FIRST, SECOND):
                producer.send("orders", b"cut", partition=owner.partition)
            producer.commit_transaction()
        log = store.log("__transaction_state")
        path, end = max(log.path.glob("*.log")), log.end_offset
    batch = build_batch([Record(end, 1, key=b"key", value=b"value")])
    path.write_bytes(path.read_bytes() + tampered(batch, attributes=1))  # gzip, which it is not
    with Store(tmp_path / "store", **SETTINGS) as store:
        assert store.log("__transaction_state").end_offset == end + 1
        store.backup(tmp_path / "backups")
    restore(tmp_path / "backups", tmp_path / "new", at_offsets={FIRST: 0})
    with Store(tmp_path / "new", **SETTINGS) as new:
        assert not values(new, SECOND)


# --- refusals, and the command line -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "offset", "error"),
    [
        pytest.param(("orders", 0), 4, OffsetOutOfRangeError, id="above the end"),
        pytest.param(("orders", 0), 0, OffsetOutOfRangeError, id="below the start"),
        pytest.param(("orders", 9), 1, TopicNotFoundError, id="no such partition"),
        pytest.param(("jobs", 0), 1, ConfigError, id="a queue"),
        pytest.param(("jobs.dead", 0), 0, ConfigError, id="its dead letters"),
        pytest.param(("__queue_jobs", 0), 1, ConfigError, id="its journal"),
        pytest.param(("__consumer_offsets", 0), 0, ConfigError, id="an internal topic"),
        pytest.param(("orders", 0), True, ConfigError, id="no number"),
    ],
)
def test_other_offsets_are_refused(
    owner: tuple[str, int], offset: int, error: type[KstoreError], tmp_path: Path
) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        store.create_topic("orders")
        store.create_topic("__consumer_offsets", 1)
        store.log("orders").append_many([b"a", b"b", b"c"])
        store.log("orders").delete_records(1)
        queue = store.queue("jobs", max_deliveries=1)
        queue.put(b"job")
        queue.get(timeout=1).nack()
        with suppress(KstoreError):
            queue.get(timeout=0)
        assert "jobs.dead" in store.topics()
        store.backup(tmp_path / "backups")
    with pytest.raises(error):
        restore(tmp_path / "backups", tmp_path / "new", at_offsets={TopicPartition(*owner): offset})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backups", "store"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"at_offsets": {"orders-0": 1}}, "at_offsets names 'orders-0', expected a TopicPartition"),
        ({"at_offsets": {("orders", 0, 1): 1}}, "expected a TopicPartition"),
        ({"at_offsets": [FIRST]}, "expected offsets by TopicPartition"),
        ({"at_ms": "2026-01-01"}, "at_ms is '2026-01-01', expected ms since the epoch as an int"),
        ({"at_ms": datetime(2026, 1, 1)}, "expected ms since the epoch as an int"),
        ({"at_ms": True}, "expected ms since the epoch as an int"),
    ],
)
def test_arguments_of_a_wrong_type_get_a_sentence(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        store.backup(tmp_path / "backups")
    with pytest.raises(ConfigError, match=message):
        restore(tmp_path / "backups", tmp_path / "new", **wrong)


def test_the_command_restores_to_offsets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        store.create_topic("orders", 2)
        for number in range(8):
            store.log("orders", number % 2).append(b"%d" % number)
        store.backup(tmp_path / "backups")
    places = [str(tmp_path / "backups"), str(tmp_path / "new")]
    for wrong in ("orders-0", "orders=1", "orders-0=-1", "orders-0=x", "=1", "orders-0=" + "9" * 5000):
        assert main(["restore", *places, "--stop", wrong]) == 2
    assert main(["restore", *places, "--stop", "orders-0=1", "--stop", "orders-0=2"]) == 2
    assert main(["restore", *places, "--stop", "orders-0=5"]) == 1
    assert "offset 5 is outside" in capsys.readouterr().err
    assert main(["restore", *places, "--stop", "orders-0=1", "--stop", "orders-1=3"]) == 0
    with Store(tmp_path / "new", **SETTINGS) as store:
        assert [store.log("orders", number).end_offset for number in range(2)] == [1, 3]
