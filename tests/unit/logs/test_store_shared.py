"""Several stores over one directory, here in one process: their locks work the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import ConfigError, LockedError, SharedLogError, TopicExistsError
from kstore.store import Store, parts_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    with kstore.open(tmp_path / "store", shared=True) as one, kstore.open(tmp_path / "store", shared=True) as two:
        yield one, two


def test_a_topic_that_one_makes_is_the_other_s_too(pair: tuple[Store, Store]) -> None:
    one, two = pair
    one.create_topic("orders", partitions=2, segment_bytes=4096)
    assert two.topics() == ["orders"]
    assert two.log("orders", 1).append(b"a") == 0
    assert one.log("orders", 1).append(b"b") == 1
    with pytest.raises(TopicExistsError):
        two.create_topic("orders")
    two.create_topic("later")
    assert one.log("later").end_offset == 0
    two.add_partitions("later", 3)
    assert one.partitions("later") == [0, 1, 2]


def test_both_may_ask_for_a_topic_at_once(pair: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = pair
    topics = parts_of(two).topics
    create = topics.create

    def late(*arguments: Any, **options: Any) -> None:
        one.topic("orders", partitions=3)  # after two has looked for it
        create(*arguments, **options)

    monkeypatch.setattr(topics, "create", late)
    assert two.topic("orders", partitions=2).partition_count == 3
    two.create_topic("orders", exist_ok=True)
    assert one.topic("orders") == two.topic("orders")


def test_a_topic_that_the_other_makes_meanwhile_is_known_wholly(
    pair: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    fs = parts_of(two).topics.directory.fs

    class Late:
        def __getattr__(self, name: str) -> Any:
            return getattr(fs, name)

        def list(self, path: Path) -> list[str]:
            if "late" not in one.topics():
                one.create_topic("late", partitions=3, segment_bytes=4096)
            return fs.list(path)

    monkeypatch.setattr(parts_of(two).topics.directory, "fs", Late())
    parts_of(two).topics.directory.look()
    assert parts_of(two).topics.directory.topics["late"] == parts_of(one).topics.directory.topics["late"]


def test_a_topic_that_a_killed_process_has_left_half_made_can_be_made(pair: tuple[Store, Store]) -> None:
    one, two = pair
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts_of(one).topics.directory, "_make", lambda *_: one.path.joinpath("t-0").mkdir())
        one.create_topic("t", partitions=2)
    assert "t" not in two.topics()
    two.create_topic("t", partitions=3)
    assert one.partitions("t") == [0, 1, 2]


def test_topics_that_both_have_made_are_there_when_they_are_gone(pair: tuple[Store, Store], tmp_path: Path) -> None:
    for number in range(6):
        pair[number % 2].create_topic(f"topic-{number}")
    for store in pair:
        store.close()
    with kstore.open(tmp_path / "store") as store:
        assert store.topics() == [f"topic-{number}" for number in range(6)]
        assert store.notes == []


def test_both_may_be_the_first_to_commit_offsets(pair: tuple[Store, Store]) -> None:
    one, two = pair
    one.create_topic("orders")
    owner = kstore.TopicPartition("orders", 0)
    assert two.topics() == ["orders"]
    for store, group in ((one, "billing"), (two, "audit")):
        store.consumer_offsets.commit(group, {owner: 0})
    for store in pair:
        assert store.consumer_offsets.groups() == ["audit", "billing"]


def test_producers_of_both_have_ids_of_their_own(pair: tuple[Store, Store], tmp_path: Path) -> None:
    pair[0].create_topic("orders")
    producers = [store.producer() for store in pair]
    deliveries = [producers[number % 2].send("orders", b"%d" % number) for number in range(200)]
    for producer in producers:
        producer.close()
    assert sorted(delivery.result().offset for delivery in deliveries) == list(range(200))
    ids = [known.producer_id for known in pair[0].log("orders").producers()]
    assert len(ids) == 2
    for store in pair:
        store.close()
    with kstore.open(tmp_path / "store") as store:
        assert store.log("orders").recovery.clean
        assert store.log("orders").end_offset == 200


def test_what_needs_a_store_that_is_alone_is_refused(pair: tuple[Store, Store], tmp_path: Path) -> None:
    one, _ = pair
    one.create_topic("orders")
    with pytest.raises(SharedLogError):
        one.delete_topic("orders")
    with pytest.raises(SharedLogError):
        one.alter_topic("orders", retention_ms=1)
    with pytest.raises(SharedLogError):
        one.producer(transactional_id="t")
    with pytest.raises(SharedLogError):
        one.checkpoint()
    with pytest.raises(SharedLogError):
        one.log("orders").compact()
    with pytest.raises(ConfigError):
        kstore.open(tmp_path / "store", shared=True, read_only=True)


@pytest.mark.promise("one writer")
def test_writers_that_share_and_writers_that_do_not_keep_each_other_out(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with kstore.open(path, shared=True) as store:
        store.create_topic("orders")
        with pytest.raises(LockedError):
            kstore.open(path)
        with pytest.raises(LockedError):
            kstore.Log(path / "orders-0")
        with kstore.open(path, read_only=True) as view, kstore.Log(path / "orders-0", shared=True) as log:
            assert view.topics() == ["orders"]
            assert store.log("orders").append(b"a") == 0
            assert log.append(b"b") == 1
    with kstore.open(path), pytest.raises(LockedError):
        kstore.open(path, shared=True)


def test_a_killed_process_blocks_no_other(pair: tuple[Store, Store], tmp_path: Path) -> None:
    one, two = pair
    one.create_topic("orders")
    program = (
        "import os, signal, sys, kstore\n"
        "store = kstore.open(sys.argv[1], shared=True)\n"
        "store.log('orders').append(b'told')\n"
        "store.create_topic('theirs')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "store")], check=False, timeout=300)
    assert ended.returncode == -9
    assert two.topics() == ["orders", "theirs"]
    assert two.log("orders").append(b"mine") == 1
    assert [record.value for record in one.log("orders").read()] == [b"told", b"mine"]
