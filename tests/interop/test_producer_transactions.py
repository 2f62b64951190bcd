"""What ``store.producer(transactional_id=...)`` wrote is exactly what a real broker's committed reader gets.

Transactions over several partitions, committed and aborted, fenced and left open, of several batches each, compressed
and not; offsets sent with them; and between them an idempotent producer in the same partitions. Kafka's dump tool
decodes the two internal logs, and what the producers wrote.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kstore.errors import ProducerFencedError
from kstore.files.paths import TopicPartition
from kstore.producer.producer import Producer
from kstore.store import Store, coordinator_of
from tests.interop.conftest import Kafka
from tools.interop.dump import Run, kafka_dumps, runs_over, unexpected_reports
from tools.interop.handover import put_in_place
from tools.interop.records import Consumed, rows_of

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
# The second topic stores its batches in its own codec, the third stamps them.
TOPICS: dict[str, dict[str, Any]] = {
    "a": {},
    "b": {"compression_type": "zstd"},
    "c": {"message_timestamp_type": "LogAppendTime"},
}
TOPIC_SETTINGS = {"a": {}, "b": {"compression.type": "zstd"}, "c": {"message.timestamp.type": "LogAppendTime"}}
INTERNAL = {"__transaction_state": "--transaction-log-decoder", "__consumer_offsets": "--offsets-decoder"}
GROUP = "billing"
TRANSACTION_COUNT = 40
SECONDS_MAX = 60.0


@dataclass
class Model:
    """What readers must find by topic, and the committed offsets."""

    everything: dict[str, set[bytes]] = field(default_factory=lambda: {topic: set() for topic in TOPICS})
    committed: dict[str, list[bytes]] = field(default_factory=lambda: {topic: [] for topic in TOPICS})
    offsets: dict[str, int] = field(default_factory=dict)


def send(producer: Producer, model: Model, word: str, generator: random.Random) -> dict[str, list[bytes]]:
    """Sends one transaction's records to all topics; returns what it sent."""
    sent: dict[str, list[bytes]] = {}
    for topic in TOPICS:
        count = generator.choice([1, 2, 60])
        values = [b"%s %d " % (word.encode(), number) + b"v" * generator.randrange(80) for number in range(count)]
        sent[topic] = values
        producer.send_many(topic, values, keys=[b"k%d" % (number % 5) for number in range(count)], partition=0)
        model.everything[topic].update(values)
        if generator.random() < 0.3:
            producer.flush()
    return sent


def live(path: Path, seed: int) -> Model:
    generator, model = random.Random(seed), Model()
    with Store(path, background=False, segment_bytes=16_384, durability="os") as store:
        for topic, settings in TOPICS.items():
            store.create_topic(topic, 1, **settings)
        # As many as the broker's own topic has.
        store.create_topic("__consumer_offsets", 1, cleanup_policy="compact")
        plain = store.producer(batch_size=500)
        movers = [
            store.producer(transactional_id=f"mover-{number}", batch_size=500, compression_type=codec)  # type: ignore[arg-type]  # a parameter of the test
            for number, codec in enumerate(("none", "lz4", "gzip"))
        ]
        for number in range(TRANSACTION_COUNT):
            mover = generator.choice(movers)
            mover.init_transactions()
            mover.begin_transaction()
            sent = send(mover, model, f"moved-{number}", generator)
            offsets = {TopicPartition(topic, 0): number * 10 for topic in generator.sample(sorted(TOPICS), 2)}
            mover.send_offsets(offsets, GROUP)
            if generator.random() < 0.4:
                mover.abort_transaction()
            else:
                mover.commit_transaction()
                model.offsets.update({owner.topic: offset for owner, offset in offsets.items()})
                for topic, values in sent.items():
                    model.committed[topic] += values
            for topic in TOPICS:
                value = b"plain %d" % number
                plain.send(topic, value, partition=0).result(SECONDS_MAX)
                model.everything[topic].add(value)
                model.committed[topic].append(value)
        _fence(store, movers[0], model, generator)
        for producer in (plain, *movers[1:]):
            producer.close()
    return model


def _fence(store: Store, old: Producer, model: Model, generator: random.Random) -> None:
    """A second producer with the id of one in a transaction; it is closed with its own transaction open."""
    old.init_transactions()
    old.begin_transaction()
    send(old, model, "fenced", generator)
    old.flush()
    new = store.producer(transactional_id="mover-0")
    new.init_transactions()
    with pytest.raises(ProducerFencedError):
        old.commit_transaction()
    old.close()
    new.begin_transaction()
    send(new, model, "left open", generator)
    new.flush()
    new.close()


class Story(NamedTuple):
    """What kstore wrote, its store, what the broker served, and the broker's directory after its stop."""

    model: Model
    given: Path
    consumed: dict[str, dict[str, Consumed]]
    offsets: list[str]
    left: Path


@pytest.fixture(scope="module")
def story(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Story:
    root = tmp_path_factory.mktemp("producer-transactions")
    given = root / "given"
    model = live(given, 20)
    (root / "broker").mkdir()
    broker = kafka.broker(root / "broker")
    with broker.running():
        broker.create_topics({**TOPIC_SETTINGS, **{topic: {"cleanup.policy": "compact"} for topic in INTERNAL}})
    put_in_place(broker.data, {topic: given / f"{topic}-0" for topic in (*TOPICS, *INTERNAL)}, clean=False)
    with broker.running():
        consumed = {level: broker.consume(TOPICS, level) for level in ("read_committed", "read_uncommitted")}
        path = root / "committed.txt"
        broker.client([f"committed\t{GROUP}\t{path}"])
    return Story(model, given, consumed, path.read_text("utf-8").splitlines(), broker.data)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_committed_reader_gets_exactly_what_was_committed_in_its_order(story: Story, topic: str) -> None:
    rows = story.consumed["read_committed"][topic].rows
    assert [row.value for row in rows] == story.model.committed[topic]


@pytest.mark.parametrize("topic", TOPICS)
def test_other_readers_get_what_was_written_once(story: Story, topic: str) -> None:
    values = [row.value for row in story.consumed["read_uncommitted"][topic].rows]
    assert len(set(values)) == len(values)
    assert set(story.model.committed[topic]) <= set(values) <= story.model.everything[topic]
    assert len(values) > len(story.model.committed[topic]), "aborted records were written too"


@pytest.mark.parametrize("topic", TOPICS)
def test_kstore_reads_what_the_broker_serves(story: Story, topic: str) -> None:
    with Store(story.given, read_only=True) as store:
        for level in ("read_committed", "read_uncommitted"):
            found = rows_of(store.log(topic).read(isolation_level=level))
            assert [row[:3] + row[4:] for row in found] == [
                row[:3] + row[4:] for row in story.consumed[level][topic].rows
            ]


def test_the_broker_knows_the_offsets_that_were_sent_with_committed_transactions(story: Story) -> None:
    assert story.offsets == [f"{topic}\t0\t{offset}\t" for topic, offset in sorted(story.model.offsets.items())]


def test_kstore_s_producers_go_on_with_what_the_broker_left(story: Story, tmp_path: Path) -> None:
    shutil.copytree(story.left, tmp_path / "s", ignore=shutil.ignore_patterns("kstore.*"))
    with Store(tmp_path / "s", background=False) as store:
        with store.producer(transactional_id="mover-1") as producer, producer.transaction():
            for topic in TOPICS:
                producer.send(topic, b"again", partition=0)
            producer.send_offsets({TopicPartition("a", 0): 7}, GROUP)
        for topic in TOPICS:
            values = [record.value for record in store.log(topic).read(isolation_level="read_committed")]
            assert values == [*story.model.committed[topic], b"again"]
        committed = {owner.topic: kept.offset for owner, kept in coordinator_of(store).committed(GROUP).items()}
        assert committed == {**story.model.offsets, "a": 7}


def test_kafka_s_tool_decodes_both_internal_logs_as_ours_does(story: Story, kafka: Kafka, tmp_path: Path) -> None:
    runs = []
    for topic, option in INTERNAL.items():
        for where in (story.given, story.left):
            copy = tmp_path / where.name / f"{topic}-0"
            shutil.copytree(where / f"{topic}-0", copy)
            runs += [Run(path, (option,)) for path in sorted(copy.glob("*.log"))]
    work = tmp_path / "work"
    work.mkdir()
    told = b""
    for run, printed in kafka_dumps(kafka.java, kafka.jars, runs, work).items():
        assert not printed.threw, run
        assert b"Error" not in printed.out
        command = [sys.executable, str(ROOT / "tools" / "dump_log.py"), *run.arguments]
        ours = subprocess.run(command, capture_output=True, check=False)
        assert (ours.returncode, ours.stderr, kafka.lines(ours.stdout)) == (0, b"", printed.out), run
        told += printed.out
    for word in (b'"transactionalId":"mover-0"', b'"group":"billing"', b'"transactionStatus":'):
        assert word in told, word


def test_kafka_s_tool_finds_the_producers_logs_in_order(story: Story, kafka: Kafka, tmp_path: Path) -> None:
    runs = {topic: runs_over(shutil.copytree(story.given / f"{topic}-0", tmp_path / f"{topic}-0")) for topic in TOPICS}
    (tmp_path / "printed").mkdir()
    printed = kafka_dumps(kafka.java, kafka.jars, [run for some in runs.values() for run in some], tmp_path / "printed")
    for topic, of_topic in runs.items():
        with Store(story.given, read_only=True) as store:
            offsets = [record.offset for record in store.log(topic).read()]
        for run in of_topic:
            assert printed[run].threw == ""
            assert b"isvalid: false" not in printed[run].out
            assert unexpected_reports(printed[run].err, offsets) == [], str(run)
