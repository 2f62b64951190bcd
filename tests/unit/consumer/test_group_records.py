"""Committed offsets: their records, their places, and which of them count."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.cli.decoders import OffsetsDecoder
from kstore.errors import ConfigError, CorruptDataError, UnsupportedFormatError
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.record._codec import Record
from kstore.rules.internal_topics import is_internal, java_hash, partition_for
from kstore.store import Store, coordinator_of, parts_of
from kstore.transactions.group_records import (
    GroupPartition,
    OffsetAndMetadata,
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.golden_data import golden_root

ORDERS = TopicPartition("orders", 3)
NOW_MS = 1_700_000_000_000


def opened(path: Path, **settings: object) -> Store:
    """A store with two partitions of committed offsets, which is faster than 50."""
    store = Store(path, background=False, clock=ManualClock(NOW_MS), **settings)  # type: ignore[arg-type]
    if not settings and "__consumer_offsets" not in store.topics(internal=True):
        store.create_topic("__consumer_offsets", 2, cleanup_policy="compact", segment_bytes=1024)
    return store


def offsets(store: Store, group: str = "billing") -> dict[TopicPartition, int]:
    return {owner: kept.offset for owner, kept in coordinator_of(store).committed(group).items()}


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("Aa", 2112),
        ("BB", 2112),
        # Two code units: 0xD83D * 31 + 0xDE80.
        ("🚀", 1773027),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_the_hash_is_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_the_partition_is_kafkas() -> None:
    assert partition_for("hello", 50) == 99162322 % 50
    # The absolute value of the lowest int counts as 0.
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("billing", 1) == 0


def test_internal_topics_are_known() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__transaction_state")
    assert not is_internal("orders")


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", ["clean", "crashed", "recovered"])
def test_a_brokers_committed_offsets_are_read(tree: str) -> None:
    decoder = OffsetsDecoder()
    seen = 0
    with Log(golden_root() / tree / "__consumer_offsets-0", read_only=True) as log:
        for record in log.read():
            assert record.key is not None
            kept = decode_offset_key(record.key)
            shown = decoder(record)
            if kept is None:
                assert isinstance(shown.key, dict)
                assert shown.key["type"] not in ("0", "1")
                continue
            seen += 1
            assert encode_offset_key(*kept) == record.key
            if record.value is not None:
                committed = decode_offset_value(record.value)
                assert isinstance(shown.value, dict)
                data = shown.value["data"]
                assert isinstance(data, dict)
                assert committed == (data["offset"], data["metadata"], data["leaderEpoch"], data["commitTimestamp"])
                # Without the topic's id, which is left out on purpose.
                assert record.value.startswith(encode_offset_value(committed)[:-1])
    assert seen


def test_the_dump_tool_reads_a_committed_offset() -> None:
    committed = OffsetAndMetadata(42, "größe", 7, NOW_MS)
    key, value = encode_offset_key("billing", ORDERS), encode_offset_value(committed)
    shown = OffsetsDecoder()(Record(0, 0, "CreateTime", key, value))
    assert shown.key == {"type": "1", "data": {"group": "billing", "topic": "orders", "partition": 3}}
    assert shown.value == {
        "version": "4",
        "data": {"offset": 42, "leaderEpoch": 7, "metadata": "größe", "commitTimestamp": NOW_MS},
    }


@pytest.mark.parametrize(
    ("value", "leader_epoch"),
    [
        ("0000000000000000002a000261620000000000000009", -1),
        ("0001000000000000002a000261620000000000000009000000000000000a", -1),
        ("0002000000000000002a000261620000000000000009", -1),
        ("0003000000000000002a00000007000261620000000000000009", 7),
        ("0004000000000000002a00000007036162000000000000000900", 7),
    ],
    ids=["0", "1", "2", "3", "4"],
)
def test_every_version_is_read(value: str, leader_epoch: int) -> None:
    assert decode_offset_value(bytes.fromhex(value)) == OffsetAndMetadata(42, "ab", leader_epoch, 9)


def test_an_old_key_is_read_and_another_type_passed_over() -> None:
    key = encode_offset_key("billing", ORDERS)
    assert decode_offset_key(b"\0\0" + key[2:]) == decode_offset_key(key) == GroupPartition("billing", ORDERS)
    assert decode_offset_key(b"\0\x02" + key[2:]) is None


@pytest.mark.promise("hostile file")
def test_hostile_bytes_are_a_typed_error() -> None:
    key, value = encode_offset_key("billing", ORDERS), encode_offset_value(OffsetAndMetadata(42, "ab"))
    for at in range(len(key)):
        with pytest.raises(CorruptDataError):
            decode_offset_key(key[:at])
    for at in range(len(value)):
        with pytest.raises(CorruptDataError):
            decode_offset_value(value[:at])
    with pytest.raises(UnsupportedFormatError):
        decode_offset_value(b"\0\x05" + value[2:])
    with pytest.raises(CorruptDataError, match="UTF-8"):
        decode_offset_key(key.replace(b"billing", b"bil\xffing"))


# --- committed offsets ------------------------------------------------------------------------------------------------


def test_what_is_committed_is_there_after_a_new_open(tmp_path: Path) -> None:
    given = OffsetAndMetadata(42, "so far", 3)
    with opened(tmp_path / "s") as store:
        assert coordinator_of(store).committed("billing") == {}
        coordinator_of(store).commit_offsets("billing", {ORDERS: given})
        coordinator_of(store).commit_offsets("audit", {ORDERS: 7})
        assert coordinator_of(store).committed("billing") == {ORDERS: given._replace(commit_timestamp=NOW_MS)}
        assert store.topics() == []
    with opened(tmp_path / "s") as store:
        assert coordinator_of(store).committed("billing") == {ORDERS: given._replace(commit_timestamp=NOW_MS)}
        assert coordinator_of(store).groups() == ["audit", "billing"]
        assert coordinator_of(store).committed("billing", [TopicPartition("other", 0)]) == {}


def test_the_last_commit_counts_and_offsets_can_be_forgotten(tmp_path: Path) -> None:
    other = TopicPartition("orders", 4)
    with opened(tmp_path / "s") as store:
        coordinator, store_offsets = coordinator_of(store), parts_of(store).groups.offsets
        coordinator.commit_offsets("billing", {ORDERS: 1, other: 2})
        coordinator.commit_offsets("billing", {ORDERS: 0})
        assert offsets(store) == {ORDERS: 0, other: 2}
        store_offsets.forget("billing", [ORDERS])
        assert offsets(store) == {other: 2}
        store_offsets.forget("billing", [other])
        assert coordinator.groups() == []
    with opened(tmp_path / "s") as store:
        assert offsets(store) == {}


def test_a_lookup_creates_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "s", background=False) as store:
        assert coordinator_of(store).committed("billing") == {}
        assert coordinator_of(store).groups() == []
        assert coordinator_of(store).unstable("billing") == set()
        coordinator_of(store).commit_offsets("billing", {})
        assert store.topics(internal=True) == []


def test_the_topic_is_made_as_kafka_makes_it(tmp_path: Path) -> None:
    with Store(tmp_path / "s", background=False, durability="os") as store:
        coordinator_of(store).commit_offsets("billing", {ORDERS: 1})
        topic = store.describe_topic("__consumer_offsets")
        assert len(topic.partitions) == 50
        assert topic.config.cleanup_policy == "compact"
        assert topic.durability == "os"
        there = [partition.partition for partition in topic.partitions if partition.end_offset]
        assert there == [partition_for("billing", 50)]


def test_offsets_in_a_transaction_count_when_it_commits(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        coordinator = coordinator_of(store)
        coordinator.commit_offsets("billing", {ORDERS: 1})
        producer = coordinator.init_producer_id("x")
        coordinator.add_offsets("x", *producer, "billing", {ORDERS: 2})
        assert (offsets(store), coordinator.unstable("billing")) == ({ORDERS: 1}, {ORDERS})
        producer = coordinator.end("x", *producer, commit=False)
        assert (offsets(store), coordinator.unstable("billing")) == ({ORDERS: 1}, set())
        coordinator.add_offsets("x", *producer, "billing", {ORDERS: 3})
        coordinator.add_offsets("x", *producer, "billing", {ORDERS: 4})
        coordinator.end("x", *producer, commit=True)
        assert offsets(store) == {ORDERS: 4}
    with opened(tmp_path / "s") as store:
        assert offsets(store) == {ORDERS: 4}


def test_a_commit_after_an_open_transaction_counts_at_once(tmp_path: Path) -> None:
    """It stays when the transaction with an earlier one ends."""
    with opened(tmp_path / "s") as store:
        coordinator = coordinator_of(store)
        producer = coordinator.init_producer_id("x")
        coordinator.add_offsets("x", *producer, "billing", {ORDERS: 2})
        coordinator.commit_offsets("billing", {ORDERS: 9})
        assert offsets(store) == {ORDERS: 9}
        coordinator.end("x", *producer, commit=True)
        assert offsets(store) == {ORDERS: 9}


def test_reading_goes_on_where_it_was_and_over_segments_and_compaction(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        coordinator = coordinator_of(store)
        producer = coordinator.init_producer_id("x")
        for number in range(60):
            coordinator.commit_offsets("billing", {ORDERS: number})
            coordinator.add_offsets("x", *producer, "billing", {TopicPartition("in", 0): number})
            producer = coordinator.end("x", *producer, commit=number % 3 == 0)
            if number == 40:
                for partition in range(2):
                    log = store.log("__consumer_offsets", partition)
                    log.roll()
                    log.compact()
            assert offsets(store) == {ORDERS: number, TopicPartition("in", 0): number - number % 3}
        expected = offsets(store)
    with opened(tmp_path / "s") as store:
        assert offsets(store) == expected


def test_a_reader_in_another_process_sees_what_is_committed(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store, Store(tmp_path / "s", read_only=True) as reader:
        coordinator_of(store).commit_offsets("billing", {ORDERS: 5})
        assert offsets(reader) == {ORDERS: 5}
        coordinator_of(store).commit_offsets("billing", {ORDERS: 6})
        assert offsets(reader) == {ORDERS: 6}


def test_a_brokers_groups_are_read_in_place() -> None:
    with Store(golden_root() / "clean", read_only=True) as store:
        assert "billing" in coordinator_of(store).groups()
        assert coordinator_of(store).committed("billing")
        assert coordinator_of(store).transactions()


def test_what_is_no_commit_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        commit = coordinator_of(store).commit_offsets
        for offset in (-1, 2**63, True, "7"):
            with pytest.raises(ConfigError, match="a committed offset is"):
                commit("billing", {ORDERS: offset})  # type: ignore[dict-item]
        with pytest.raises(ConfigError, match="over 4096 bytes"):
            commit("billing", {ORDERS: OffsetAndMetadata(1, "x" * 4097)})
        for group in ("", "x" * 40_000, "\ud800", 7):
            with pytest.raises(ConfigError, match="group is"):
                commit(group, {ORDERS: 1})  # type: ignore[arg-type]
        assert offsets(store) == {}
