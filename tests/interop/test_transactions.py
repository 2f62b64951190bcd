"""Transactions over several partitions and committed offsets of kstore's coordinator, in Kafka's tool and a broker.

One transaction was decided but not carried out when the broker took over: the broker finishes it, as kstore finishes a
broker's.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kstore.errors import DiskFullError, ProducerFencedError
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TopicPartition
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.store import Store, coordinator_of
from kstore.transactions.group_records import OffsetAndMetadata
from kstore.transactions.metadata import TransactionState
from tests.interop.conftest import Kafka
from tests.support.fakes.fake_fs import FailingFs, Fault
from tools.interop.broker import Broker
from tools.interop.dump import Run, kafka_dumps
from tools.interop.handover import put_in_place

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
TOPICS = ("a", "b", "c")
PARTITIONS = [TopicPartition(topic, 0) for topic in TOPICS]
INTERNAL = ("__transaction_state", "__consumer_offsets")
GROUP = "billing"
SECONDS_MAX = 60.0


def write(store: Store, name: str, producer: tuple[int, int], value: bytes) -> None:
    """One record in each partition, as part of a transaction."""
    coordinator_of(store).add_partitions(name, *producer, PARTITIONS)
    fields: dict[str, Any] = {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": 0}
    for owner in PARTITIONS:
        record = Record(0, time.time_ns() // 1_000_000, value=value)
        store.log(*owner).append_batches(build_batch([record], is_transactional=True, **fields))


def live(path: Path) -> None:
    """Commits, aborts, offsets; at the end a commit that ends after its decision."""
    fs = FailingFs(SYSTEM_FS)
    store = Store(path, background=False, fs=fs)
    for topic in TOPICS:
        store.create_topic(topic)
    # As many as the broker's own topic has.
    store.create_topic("__consumer_offsets", 1, cleanup_policy="compact")
    coordinator = coordinator_of(store)
    producer = coordinator.init_producer_id("first")
    for number in range(6):
        write(store, "first", producer, b"first-%d" % number)
        given: dict[TopicPartition, OffsetAndMetadata | int] = {
            PARTITIONS[0]: OffsetAndMetadata(number, "größe"),
            PARTITIONS[1]: number,
        }
        coordinator.add_offsets("first", *producer, GROUP, given)
        producer = coordinator.end("first", *producer, commit=number % 3 != 2)
    coordinator.commit_offsets(GROUP, {PARTITIONS[2]: 7})
    fenced = coordinator.init_producer_id("second")
    write(store, "second", fenced, b"second-lost")
    second = coordinator.init_producer_id("second")
    write(store, "second", second, b"second-decided")
    # The decision is written, but no marker.
    fs.faults.append(Fault(2, errno.ENOSPC, kinds=frozenset({"write_and_sync"}), sticky=True))
    with pytest.raises(DiskFullError):
        coordinator.end("second", *second, commit=True)
    with pytest.raises(DiskFullError):
        store.close()


EXPECTED = [b"first-0", b"first-1", b"first-3", b"first-4"]
OFFSETS = ["a\t0\t4\tgröße", "b\t0\t4\t", "c\t0\t7\t"]


class Story(NamedTuple):
    """The store as kstore left it, what the broker served, and the broker's directory after its stop."""

    given: Path
    consumed: dict[str, list[bytes | None]]
    committed: list[str]
    left: Path


@pytest.fixture(scope="module")
def story(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Story:
    root = tmp_path_factory.mktemp("transactions")
    given = root / "given"
    live(given)
    broker = kafka.broker(root / "broker")
    (root / "broker").mkdir()
    with broker.running():
        broker.create_topics(
            {**{topic: {} for topic in TOPICS}, **{topic: {"cleanup.policy": "compact"} for topic in INTERNAL}}
        )
    put_in_place(broker.data, {topic: given / f"{topic}-0" for topic in (*TOPICS, *INTERNAL)}, clean=False)
    with broker.running():
        consumed = consume(broker)
        path = root / "committed.txt"
        broker.client([f"committed\t{GROUP}\t{path}"])
    return Story(given, consumed, path.read_text("utf-8").splitlines(), broker.data)


def consume(broker: Broker) -> dict[str, list[bytes | None]]:
    """What a committed reader gets after the broker has finished the open transaction."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        found = {
            topic: [row.value for row in consumed.rows]
            for topic, consumed in broker.consume(TOPICS, "read_committed").items()
        }
        if all(len(values) > len(EXPECTED) for values in found.values()) or time.monotonic() > deadline:
            return found
        time.sleep(1)


def test_the_broker_serves_whole_transactions_and_finishes_the_one_that_was_decided(story: Story) -> None:
    assert story.consumed == {topic: [*EXPECTED, b"second-decided"] for topic in TOPICS}


def test_the_broker_knows_what_groups_have_committed(story: Story) -> None:
    assert story.committed == OFFSETS


def test_kstore_goes_on_with_what_the_broker_left(story: Story, tmp_path: Path) -> None:
    shutil.copytree(story.left, tmp_path / "s", ignore=shutil.ignore_patterns("kstore.*"))
    with Store(tmp_path / "s", background=False) as store:
        coordinator = coordinator_of(store)
        known = {one.transactional_id: one for one in coordinator.transactions()}
        assert {name: one.state for name, one in known.items()} == {
            "first": TransactionState.COMPLETE_ABORT,
            "second": TransactionState.COMPLETE_COMMIT,
        }
        assert {owner.topic: kept.offset for owner, kept in coordinator.committed(GROUP).items()} == {
            "a": 4,
            "b": 4,
            "c": 7,
        }
        before = known["second"]
        producer = coordinator.init_producer_id("second")
        assert producer == (before.producer_id, before.producer_epoch + 1)
        with pytest.raises(ProducerFencedError):
            coordinator.end("second", before.producer_id, before.producer_epoch, commit=True)
        write(store, "second", producer, b"again")
        coordinator.end("second", *producer, commit=True)
        assert coordinator.init_producer_id(None)[0] > before.producer_id
        for owner in PARTITIONS:
            values = [record.value for record in store.log(*owner).read(isolation_level="read_committed")]
            assert values == [*EXPECTED, b"second-decided", b"again"]


def test_kafkas_tool_and_ours_decode_alike(story: Story, kafka: Kafka, tmp_path: Path) -> None:
    runs = []
    for name, option in (
        ("__transaction_state-0", "--transaction-log-decoder"),
        ("__consumer_offsets-0", "--offsets-decoder"),
    ):
        for where in (story.given, story.left):
            copy = tmp_path / where.name / name
            shutil.copytree(where / name, copy)
            runs += [Run(path, (option,)) for path in sorted(copy.glob("*.log"))]
    work = tmp_path / "work"
    work.mkdir()
    for run, printed in kafka_dumps(kafka.java, kafka.jars, runs, work).items():
        assert not printed.threw, run
        assert b"Error" not in printed.out
        assert (b'"transactionalId":"first"' in printed.out) or (b'"group":"billing"' in printed.out)
        command = [sys.executable, str(ROOT / "tools" / "dump_log.py"), *run.arguments]
        ours = subprocess.run(command, capture_output=True, check=False)
        assert (ours.returncode, ours.stderr, kafka.lines(ours.stdout)) == (0, b"", printed.out), run
