"""A kstore log in the directory of a running broker: reading it is safe and exact, writing it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest

import kstore
from kstore.errors import LockedError, ReadOnlyError
from kstore.types import IsolationLevel
from tests.interop.conftest import Kafka
from tools.interop.broker import Broker, BrokerError
from tools.interop.records import Consumed, rows_of

pytestmark = pytest.mark.interop

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
# By topic: the number of records, the codec, the number of transactions.
TOPICS = {"live": (500, "none", 0), "live-zstd": (300, "zstd", 0), "live-txn": (200, "lz4", 8)}
# Small segments, so that the broker rolls.
TOPIC_SETTINGS = {"internal.segment.bytes": "8192", "index.interval.bytes": "256"}
FOLLOW_SECONDS_MAX = 20


class Live(NamedTuple):
    """A running broker, and what a consumer read of it, by isolation level and topic."""

    broker: Broker
    consumed: dict[str, dict[str, Consumed]]

    def directory(self, topic: str) -> Path:
        return self.broker.data / f"{topic}-0"


@pytest.fixture(scope="module")
def live(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    broker = kafka.broker(tmp_path_factory.mktemp("live"))
    with broker.running():
        broker.create_topics(dict.fromkeys([*TOPICS, "growing"], TOPIC_SETTINGS))
        broker.client(produce(topic) for topic in TOPICS)
        yield Live(broker, {level: broker.consume(TOPICS, level) for level in ISOLATION_LEVELS})


def produce(topic: str) -> str:
    count, codec, transactions = TOPICS[topic]
    return f"produce\t{topic}\t{count}\t{codec}\t{transactions}"


def fingerprint(directory: Path) -> dict[str, tuple[int, ...] | bytes]:
    """Everything that a write would change: each name's inode, mode, size, times of change, and each file's bytes."""
    seen: dict[str, tuple[int, ...] | bytes] = {}
    for path in (directory, *sorted(directory.iterdir())):
        stat = path.stat()
        seen[path.name] = (stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        if path.is_file():
            seen[f"{path.name}, bytes"] = path.read_bytes()
    return seen


def names(root: Path) -> list[str]:
    """The names in the broker's root, except the file that it renames to a checkpoint every five seconds."""
    return sorted(path.name for path in root.iterdir() if path.suffix != ".tmp")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("topic", TOPICS)
def test_opening_a_live_brokers_partition_for_writing_is_refused(topic: str, shared: bool, live: Live) -> None:
    before = fingerprint(live.directory(topic))
    with pytest.raises(LockedError) as caught:
        kstore.Log(live.directory(topic), shared=shared)
    assert str(live.broker.data) in str(caught.value)
    assert fingerprint(live.directory(topic)) == before


def test_a_live_brokers_directory_is_no_store_to_share(live: Live) -> None:
    before = names(live.broker.data)
    with pytest.raises(LockedError, match="a broker or another program"):
        kstore.open(live.broker.data, shared=True)
    assert names(live.broker.data) == before


def test_a_broker_does_not_start_on_a_store_that_is_shared(
    kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> None:
    broker = kafka.broker(tmp_path_factory.mktemp("shared"))
    with broker.running():
        broker.create_topics({"live": TOPIC_SETTINGS})
        broker.client([produce("live")])
    with kstore.open(broker.data, shared=True) as one, kstore.open(broker.data, shared=True) as two:
        before = one.log("live", 0).end_offset
        with pytest.raises(BrokerError), broker.running():
            pass
        assert "Failed to acquire lock on file .lock" in broker.log
        # Neither of them noticed.
        assert one.log("live", 0).append(b"one") == before
        assert two.log("live", 0).append(b"two") == before + 1
    with broker.running():
        assert broker.consume(["live"], "read_uncommitted")["live"].end == before + 2


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
def test_a_read_only_log_reads_what_a_consumer_reads(topic: str, isolation_level: IsolationLevel, live: Live) -> None:
    consumed = live.consumed[isolation_level][topic]
    assert len(consumed.rows) > 90
    with kstore.Log(live.directory(topic), read_only=True) as log:
        assert rows_of(log.read(isolation_level=isolation_level)) == consumed.rows
        assert log.start_offset == consumed.begin


@pytest.mark.parametrize("topic", TOPICS)
def test_a_read_only_log_never_writes(topic: str, live: Live) -> None:
    directory = live.directory(topic)
    before, root_before = fingerprint(directory), names(live.broker.data)
    with kstore.Log(directory, read_only=True) as log:
        middle = (log.start_offset + log.end_offset) // 2
        assert next(iter(log.read(middle))).offset >= middle
        log.offset_for_time(0)
        log.check()
        with pytest.raises(ReadOnlyError):
            log.append(b"refused")
    assert fingerprint(directory) == before
    assert names(live.broker.data) == root_before


def test_a_read_only_log_follows_what_the_broker_writes(live: Live) -> None:
    with kstore.Log(live.directory("growing"), read_only=True) as log:
        assert list(log.read()) == []
        # Enough to roll several times under the reader.
        live.broker.client(["produce\tgrowing\t700\tnone\t0"])
        followed = list(islice(log.read(0, follow=True, timeout=FOLLOW_SECONDS_MAX), 700))
    assert rows_of(followed) == live.broker.consume(["growing"], "read_uncommitted")["growing"].rows


def test_the_log_opens_for_writing_once_the_broker_has_stopped(
    kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> None:
    broker = kafka.broker(tmp_path_factory.mktemp("stopped"))
    with broker.running():
        broker.create_topics({"live": TOPIC_SETTINGS})
        broker.client([produce("live")])
        consumed = broker.consume(["live"], "read_uncommitted")["live"]
        with pytest.raises(LockedError):
            kstore.Log(broker.data / "live-0")
    with kstore.Log(broker.data / "live-0") as log:
        assert rows_of(log.read()) == consumed.rows
        assert log.append(b"next") == consumed.end
