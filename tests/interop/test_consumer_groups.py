"""Groups and a queue move with their store to a broker and back: no member reads a record twice, or misses one.

One story. A store's groups commit: as members that share a topic, by a reset on the command line, and in a producer's
transaction. A broker takes the store; its tools show these offsets, and its consumer continues at them. Then kstore
takes it back, and its groups continue where Kafka's consumer and tools left them.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

import kstore
from kstore import TopicPartition
from kstore.cli.main import main
from kstore.consumer.consumer import Consumer
from kstore.files.checkpoint import read_topic_id
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import PARTITION_METADATA
from kstore.rules.handover import format_topic_id
from kstore.store import Store, coordinator_of
from kstore.transactions.group_records import OffsetAndMetadata
from tests.interop.conftest import Kafka
from tests.support.harness.evidence import Hung, Lost, Wrong
from tools.interop.broker import Broker

pytestmark = pytest.mark.interop

ORDERS = [TopicPartition("orders", number) for number in range(3)]
# With as many partitions as in kstore.
TOPICS = {
    "orders": {"partitions": "3"},
    "invoices": {},
    "jobs": {},
    "__queue_jobs": {},
    "__consumer_offsets": {"partitions": "50", "cleanup.policy": "compact"},
    "__transaction_state": {"cleanup.policy": "compact"},
}
GROUP_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PER_PARTITION = 30
READ_BY_MEMBERS_MIN = 10  # of each partition
SECONDS_MAX = 30
READ_BY_KAFKA = 40  # of all, half of them by each protocol of Kafka's groups
PROTOCOLS = ("classic", "consumer")
# Appended after all reads, so that more records follow.
APPENDED_LAST = 5
ACKED = [b"job 0", b"job 1", b"job 4"]
JOBS = [b"job %d" % number for number in range(10)]
PRODUCED_BY_KAFKA = 3

Read = dict[TopicPartition, list[tuple[int, bytes]]]


class Story(NamedTuple):
    """What was read and committed: first in kstore, then in Kafka, then in kstore again."""

    kstore_committed: dict[str, dict[TopicPartition, OffsetAndMetadata]]
    read_first: Read
    console: list[bytes]
    jobs_before: list[bytes]
    described: dict[str, dict[TopicPartition, tuple[int, int, int]]]
    listed: dict[str, list[str]]
    read_by_kafka: Read
    kafka_committed: dict[str, dict[TopicPartition, OffsetAndMetadata]]
    read_last: Read
    deliveries: list[tuple[bytes | None, int]]
    broker_log: str


def append(store: Store, count: int) -> None:
    for owner in ORDERS:
        log = store.log(*owner)
        first = log.end_offset
        log.append_many([value(owner, offset) for offset in range(first, first + count)])


def value(owner: TopicPartition, offset: int) -> bytes:
    return b"order %d of %d" % (offset, owner.partition)


def take(consumer: Consumer, into: Read, count: int) -> None:
    """Reads at most ``count`` records, and commits them with a note."""
    for owner, records in consumer.poll(max_records=count).items():
        into[owner] += [(record.offset, record.value or b"") for record in records]
    consumer.commit({owner: OffsetAndMetadata(offset, "by kstore") for owner, offset in consumer.positions().items()})


def live(path: Path) -> Read:
    """Fills the store; returns what the members of the group "billing" read."""
    read: Read = defaultdict(list)
    with kstore.open(path, durability="os") as store:
        store.create_topic("orders", partitions=3)
        store.create_topic("invoices")
        append(store, PER_PARTITION)
        jobs = store.queue("jobs")
        jobs.put_many(JOBS)
        for job in jobs.get_many(6):
            if job.value in ACKED:
                job.ack()  # the others are leased when the store is closed
    # Two members in two stores, as in two processes: they coordinate through files.
    with kstore.open(path, durability="os", shared=True) as one, kstore.open(path, durability="os", shared=True) as two:
        members = [store.consumer("orders", group="billing", max_poll_records=4) for store in (one, two)]
        deadline = time.monotonic() + SECONDS_MAX
        while any(len(read[owner]) < READ_BY_MEMBERS_MIN for owner in ORDERS):
            if time.monotonic() > deadline:
                raise Hung(f"two members have read {read}")
            for member in members:
                for owner in member.assignment():
                    if len(read[owner]) >= READ_BY_MEMBERS_MIN:
                        member.pause(owner)
                take(member, read, 4)
        assert all(member.assignment() for member in members)
        for member in members:
            member.close()
    with kstore.open(path, durability="os") as store:
        for group in ("audit", "gone"):
            coordinator_of(store).commit_offsets(group, dict.fromkeys(ORDERS, 20))
        in_transactions(store)
    to_seven = ["--reset-offsets", "audit", "--topic", "orders:0,2", "--to-offset", "7", "--execute"]
    assert main(["groups", str(path), *to_seven]) == 0
    return read


def in_transactions(store: Store) -> None:
    """The group "invoicing" commits 3 in each partition with a transaction; 9 and 10 are aborted or left open."""
    with store.producer(transactional_id="invoices") as producer:
        with producer.transaction():
            producer.send("invoices", b"three of each")
            producer.send_offsets(dict.fromkeys(ORDERS, 3), "invoicing")
        producer.begin_transaction()
        producer.send_offsets(dict.fromkeys(ORDERS, 9), "invoicing")
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send_offsets(dict.fromkeys(ORDERS, 10), "invoicing")


def committed(path: Path) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
    with kstore.open(path, read_only=True) as store:
        offsets = store.consumer_offsets
        return {group: offsets.committed(group) for group in offsets.groups()}


def give(store: Path, broker: Broker) -> None:
    """Replaces the broker's empty partitions with the store's, kstore's own files included."""
    ids = {topic: read_topic_id(SYSTEM_FS, broker.data / f"{topic}-0" / PARTITION_METADATA) for topic in TOPICS}
    for path in store.iterdir():
        if path.is_dir():
            shutil.rmtree(broker.data / path.name)
            shutil.copytree(path, broker.data / path.name)
        elif path.name.startswith("kstore."):
            shutil.copy2(path, broker.data)
    chosen = [f"--topic-id={topic}={format_topic_id(one)}" for topic, one in ids.items()]
    assert main(["handover", str(broker.data), "--to-broker", *chosen]) == 0


def described(path: Path) -> dict[str, dict[TopicPartition, tuple[int, int, int]]]:
    """The committed offset, the log's end and the lag by group and partition, from the output of ``--describe``."""
    found: dict[str, dict[TopicPartition, tuple[int, int, int]]] = defaultdict(dict)
    for row in re.findall(r"^(\S+) +(\S+) +(\d+) +(\d+) +(\d+) +(\d+) ", path.read_text("utf-8"), re.MULTILINE):
        group, topic, *numbers = row
        partition, offset, end, lag = map(int, numbers)
        found[group][TopicPartition(topic, partition)] = (offset, end, lag)
    return found


def rows(paths: Iterable[Path]) -> Read:
    found: Read = defaultdict(list)
    for line in (line for path in paths for line in path.read_text("utf-8").splitlines()):
        partition, offset, text = line.split("\t")
        found[ORDERS[int(partition)]].append((int(offset), text.encode()))
    return found


@pytest.fixture(scope="module")
def story(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Story:
    root = tmp_path_factory.mktemp("groups")
    read_first = live(root / "store")
    kstore_committed = committed(root / "store")
    (root / "broker").mkdir()
    broker = kafka.broker(root / "broker")
    with broker.running():
        broker.create_topics(TOPICS)
    with kstore.open(root / "store", read_only=True) as store:
        jobs_before = [record.value or b"" for record in store.log("jobs").read()]
    give(root / "store", broker)

    groups = ("billing", "audit", "invoicing")
    to_four = ["--reset-offsets", "--group", "audit", "--topic", "orders:1", "--to-offset", "4", "--execute"]
    commands = [
        [
            "tool",
            "described",
            GROUP_TOOL,
            "--describe",
            "--group",
            "billing",
            "--group",
            "audit",
            "--group",
            "invoicing",
        ],
        *(["committed", group, group] for group in groups),
        *(["join", "billing", protocol, "orders", str(READ_BY_KAFKA // 2), protocol] for protocol in PROTOCOLS),
        ["tool", "reset", GROUP_TOOL, *to_four],
        ["tool", "deleted", GROUP_TOOL, "--delete", "--group", "gone"],
        ["tool", "console", CONSOLE, "--topic", "jobs", "--from-beginning", "--max-messages", str(len(jobs_before))],
        ["produce", "jobs", str(PRODUCED_BY_KAFKA), "none", "0"],
    ]
    places = {"tool": 1, "committed": 2, "join": 5}
    for command in commands:
        if command[0] in places:
            command[places[command[0]]] = str(root / command[places[command[0]]])
    with broker.running():
        broker.client("\t".join(command) for command in commands)
    assert main(["handover", str(broker.data), "--from-broker"]) == 0

    kafka_committed = committed(broker.data)
    read_last: Read = defaultdict(list)
    with kstore.open(broker.data, durability="os") as store:
        append(store, APPENDED_LAST)
        with store.consumer("orders", group="billing", auto_offset_reset="none", iteration_timeout_ms=0) as consumer:
            for record in consumer:
                assert consumer.current is not None
                read_last[consumer.current].append((record.offset, record.value or b""))
        deliveries = []
        for job in store.queue("jobs").get_many(100):
            deliveries.append((job.value, job.delivery_count))
            job.ack()
    return Story(
        kstore_committed=kstore_committed,
        read_first=read_first,
        console=(root / "console").read_bytes().splitlines(),
        jobs_before=jobs_before,
        described=described(root / "described"),
        listed={group: (root / group).read_text("utf-8").splitlines() for group in groups},
        read_by_kafka=rows(root / protocol for protocol in PROTOCOLS),
        kafka_committed=kafka_committed,
        read_last=read_last,
        deliveries=deliveries,
        broker_log=broker.log,
    )


def test_kafka_s_group_tool_shows_the_offsets_and_the_lag(story: Story) -> None:
    assert set(story.kstore_committed) == {"billing", "audit", "invoicing", "gone"}
    read = tuple(len(story.read_first[owner]) for owner in ORDERS)
    assert all(READ_BY_MEMBERS_MIN <= count < PER_PARTITION for count in read)
    for group, offsets in {"billing": read, "audit": (7, 20, 7), "invoicing": (3, 3, 3)}.items():
        assert story.described[group] == {
            owner: (offset, PER_PARTITION, PER_PARTITION - offset)
            for owner, offset in zip(ORDERS, offsets, strict=True)
        }


@pytest.mark.parametrize("group", ["billing", "audit", "invoicing"])
def test_kafka_s_admin_client_has_offsets_and_metadata_as_kstore_has_them(story: Story, group: str) -> None:
    assert story.listed[group] == [
        f"{owner.topic}\t{owner.partition}\t{found.offset}\t{found.metadata}"
        for owner, found in sorted(story.kstore_committed[group].items())
    ]
    assert {found.metadata for found in story.kstore_committed["billing"].values()} == {"by kstore"}


def test_a_group_reads_each_record_once_in_kstore_in_kafka_and_in_kstore_again(story: Story) -> None:
    for owner in ORDERS:
        found = [*story.read_first[owner], *story.read_by_kafka[owner], *story.read_last[owner]]
        expected = [(offset, value(owner, offset)) for offset in range(PER_PARTITION + APPENDED_LAST)]
        if set(expected) - set(found):
            raise Lost(f"{owner}: {sorted(set(expected) - set(found))}")
        if found != expected:
            raise Wrong(f"{owner}: {found}")
    assert sum(map(len, story.read_by_kafka.values())) == READ_BY_KAFKA


def test_what_kafka_has_committed_reset_and_deleted_is_so_in_kstore(story: Story) -> None:
    kafka = story.kafka_committed
    assert set(kafka) == {"billing", "audit", "invoicing"}, "the group that Kafka's tool has deleted is gone"
    for owner in ORDERS:
        count = len(story.read_by_kafka[owner])
        told = "by Kafka" if count else "by kstore"
        assert kafka["billing"][owner][:2] == (len(story.read_first[owner]) + count, told)
    assert [kafka["audit"][owner].offset for owner in ORDERS] == [7, 4, 7]
    assert kafka["invoicing"] == story.kstore_committed["invoicing"]


def test_a_queue_s_topic_is_an_ordinary_one_to_the_broker(story: Story) -> None:
    assert story.console == story.jobs_before
    assert set(JOBS) - set(ACKED) <= set(story.console)


def test_a_queue_goes_on_after_the_way_back_with_what_was_not_acked(story: Story) -> None:
    left = [job for job in JOBS if job not in ACKED]
    produced = [b"value %d of jobs" % number for number in range(PRODUCED_BY_KAFKA)]
    assert [job for job, _ in story.deliveries] == [*left, *produced]


def test_the_broker_took_all_of_it_without_a_word(story: Story) -> None:
    assert " ERROR " not in story.broker_log
    assert "marked stray" not in story.broker_log
