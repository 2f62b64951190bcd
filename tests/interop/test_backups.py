"""Backups on a real HDFS, and restored stores that a real broker opens."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.files.checkpoint import read_topic_id
from kstore.files.local import SYSTEM_FS
from kstore.files.remote import Location
from kstore.upkeep.handover import to_broker
from tests.interop.conftest import Kafka
from tools.interop.records import Row, rows_of

pytestmark = pytest.mark.interop

SETTINGS: dict[str, Any] = {"segment_bytes": 4096, "background": False}
TOPICS = ("orders", "payments")


def create(store: kstore.Store) -> None:
    for topic in TOPICS:
        store.create_topic(topic)


def fill(store: kstore.Store, word: str) -> None:
    """Committed and aborted transactions in two topics, and records without one."""
    with store.producer(transactional_id="t") as producer:
        producer.init_transactions()
        for number in range(20):
            producer.begin_transaction()
            for part in range(5):
                producer.send(TOPICS[(number + part) % 2], f"{word} {number}.{part}".encode() * 5, key=b"k")
            producer.abort_transaction() if number % 3 == 0 else producer.commit_transaction()
    store.log("orders").append_many([f"{word} plain {number}".encode() for number in range(7)])


def read(store: kstore.Store, isolation_level: Any = "read_uncommitted") -> list[list[Row]]:
    return [rows_of(store.log(topic).read(isolation_level=isolation_level)) for topic in TOPICS]


def test_backups_and_a_replica_on_hdfs_are_read_there_and_restored(at: Location, tmp_path: Path) -> None:
    url = at.fs.url_of(at.path / "backups")
    with kstore.open(tmp_path / "store", **SETTINGS) as store:
        create(store)
        fill(store, "first")
        store.queue("jobs").put_many([b"a", b"b"])
        assert store.backup(url).copied_count
        assert not store.backup(url).copied_count
        with store.replicator(url, every="100ms") as replicator:
            fill(store, "second")
            replicator.flush()
        expected = {level: read(store, level) for level in ("read_uncommitted", "read_committed")}
    assert all(backup.ok for backup in kstore.check_backups(url))
    kstore.restore(url, tmp_path / "new")
    for place in (url, str(tmp_path / "new")):
        with kstore.open(place, read_only=True) as shown:
            assert {level: read(shown, level) for level in expected} == expected
            assert shown.topics() == ["jobs", *TOPICS]


def test_a_broker_serves_what_two_restores_have(kafka: Kafka, tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", **SETTINGS) as store:
        create(store)
        expected, times = [], []
        for word in ("first", "second"):
            fill(store, word)
            times.append(store.backup(tmp_path / "backups").time_ms)
            expected.append((read(store), read(store, "read_committed")))
    for number, time_ms in enumerate(times):
        kstore.restore(tmp_path / "backups", tmp_path / f"restored-{number}", at_ms=time_ms)
        (tmp_path / f"broker-{number}").mkdir()
        broker = kafka.broker(tmp_path / f"broker-{number}")
        with broker.running():
            broker.create_topics({topic: {} for topic in TOPICS})
        # The cluster knows the topics; their logs are the restored ones.
        ids = {topic: read_topic_id(SYSTEM_FS, broker.data / f"{topic}-0" / "partition.metadata") for topic in TOPICS}
        for topic in TOPICS:
            shutil.rmtree(broker.data / f"{topic}-0")
            shutil.move(tmp_path / f"restored-{number}" / f"{topic}-0", broker.data)
        assert to_broker(broker.data, topic_ids=ids).is_whole
        with broker.running():
            served = tuple(
                [broker.consume([topic], level)[topic].rows for topic in TOPICS]
                for level in ("read_uncommitted", "read_committed")
            )
        assert served == expected[number]
        assert " ERROR " not in broker.log
