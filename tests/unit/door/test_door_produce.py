"""Produce and InitProducerId, called without a connection: what is accepted, and the code of each refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import Store
from kstore.clock import SYSTEM_CLOCK
from kstore.door import errors
from kstore.door.call import ConnectionEnded
from kstore.errors import DiskFullError
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.rules.internal_topics import journal_of
from tests.support.lives.door_calls import Caller, served
from tests.support.lives.foreign_batches import message, tampered

# Not long ago: a log forgets a producer that has been idle for a day.
TIME = SYSTEM_CLOCK.now_ms()
LATEST = 11


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kstore.open(tmp_path / "store", durability="os", background=False) as opened:
        opened.create_topic("orders", 3)
        yield opened


@pytest.fixture
def caller(store: Store) -> Caller:
    return Caller(served(store))


def batch(*values: bytes, **fields: Any) -> bytes:
    return bytes(build_batch([Record(number, TIME, value=value) for number, value in enumerate(values)], **fields))


def sent(
    caller: Caller, *parts: tuple[str, int, bytes | None], version: int = LATEST, acks: int = 1, **fields: Any
) -> list[dict[str, Any]]:
    topics = [
        {"name": topic, "partitionData": [{"index": index, "records": records}]} for topic, index, records in parts
    ]
    answer = caller.call("Produce", version, {"acks": acks, "timeoutMs": 1000, "topicData": topics, **fields})
    return [part for topic in answer["responses"] for part in topic["partitionResponses"]]


def values(store: Store, partition: int = 0, topic: str = "orders") -> list[bytes | None]:
    return [record.value for record in store.log(topic, partition)]


@pytest.mark.parametrize("version", range(3, LATEST + 1))
@pytest.mark.parametrize("acks", [1, -1])
def test_each_version_appends_a_batch(store: Store, caller: Caller, version: int, acks: int) -> None:
    store.log("orders").append(b"before")
    [part] = sent(caller, ("orders", 0, batch(b"a", b"b")), version=version, acks=acks)
    start = 0 if version >= 5 else -1
    assert (part["errorCode"], part["baseOffset"], part["logAppendTimeMs"]) == (0, 1, -1)
    assert part["logStartOffset"] == start
    assert values(store) == [b"before", b"a", b"b"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_stay_as_they_came(store: Store, caller: Caller, codec: str) -> None:
    data = batch(b"a" * 100, b"b" * 100, codec=codec)
    [part] = sent(caller, ("orders", 0, data))
    assert part["errorCode"] == 0
    [kept] = store.log("orders").fetch(0).batches()
    assert (kept.codec, bytes(kept.data[61:])) == (codec, data[61:])


def test_without_acks_there_is_no_answer(store: Store, caller: Caller) -> None:
    body = {
        "acks": 0,
        "topicData": [{"name": "orders", "partitionData": [{"index": 0, "records": batch(b"a")}]}],
    }
    assert caller.call("Produce", LATEST, body) is None
    assert values(store) == [b"a"]
    body["topicData"][0]["partitionData"].append({"index": 9, "records": batch(b"b")})  # type: ignore[index]
    with pytest.raises(ConnectionEnded, match="error 3"):
        caller.call("Produce", LATEST, body)


def test_a_log_that_stamps_tells_the_time(store: Store, caller: Caller) -> None:
    store.create_topic("stamped", message_timestamp_type="LogAppendTime")
    [part] = sent(caller, ("stamped", 0, batch(b"a")))
    assert part["logAppendTimeMs"] == store.log("stamped").get(0).timestamp  # type: ignore[union-attr]


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


REFUSED: dict[str, tuple[bytes | None, int]] = {
    "null": (None, errors.INVALID_RECORD),
    "empty": (b"", errors.INVALID_RECORD),
    "two batches": (batch(b"a") + batch(b"b"), errors.INVALID_RECORD),
    "trailing bytes": (batch(b"a") + b"x", errors.INVALID_RECORD),
    "cut off": (batch(b"a")[:-1], errors.INVALID_RECORD),
    "too short for a header": (batch(b"a")[:10], errors.INVALID_RECORD),
    "zeros": (bytes(61), errors.CORRUPT_MESSAGE),
    "magic 3": (batch(b"a")[:16] + b"\3" + batch(b"a")[17:], errors.CORRUPT_MESSAGE),
    "bad CRC": (damaged(batch(b"a")), errors.CORRUPT_MESSAGE),
    "too large": (batch(b"x" * 2_000_000), errors.MESSAGE_TOO_LARGE),
    "magic 1": (message(1, 0, b"a"), errors.INVALID_RECORD),
    "magic 0": (message(0, 0, b"a"), errors.INVALID_RECORD),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_batch_that_is_refused_is_not_written_and_the_others_are(store: Store, caller: Caller, name: str) -> None:
    data, error = REFUSED[name]
    bad, good = sent(caller, ("orders", 0, data), ("orders", 1, batch(b"good")))
    assert (bad["errorCode"], bad["baseOffset"], bad["logStartOffset"]) == (error, -1, -1)
    assert bad["errorMessage"]
    assert good["errorCode"] == 0
    assert (values(store, 0), values(store, 1)) == ([], [b"good"])


# What only a log refuses: the answer has its start.
REFUSED_BY_LOG: dict[str, tuple[bytes, int]] = {
    "base offset": (b"\0\0\0\0\0\0\0\5" + batch(b"a")[8:], errors.INVALID_RECORD),
    "negative base offset": (b"\xff" * 8 + batch(b"a")[8:], errors.INVALID_RECORD),
    "more records than it has": (tampered(batch(b"a"), record_count=2, last_offset_delta=1), errors.INVALID_RECORD),
    "negative last delta": (tampered(batch(b"a"), last_offset_delta=-1), errors.INVALID_RECORD),
    "unknown codec": (tampered(batch(b"a"), attributes=5), errors.UNSUPPORTED_COMPRESSION_TYPE),
    "control batch": (batch(b"a", is_control=True, producer_id=1, producer_epoch=0), errors.INVALID_RECORD),
    "far future": (bytes(build_batch([Record(0, 10_000_000_000_000, value=b"a")])), errors.INVALID_TIMESTAMP),
    "a sequence that is gone": (batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0), 45),
}


@pytest.mark.parametrize("name", REFUSED_BY_LOG)
def test_a_batch_that_its_log_refuses_tells_the_start_of_the_log(store: Store, caller: Caller, name: str) -> None:
    for sequence in range(7):
        known = batch(b"good", producer_id=7, producer_epoch=0, base_sequence=sequence)
        assert sent(caller, ("orders", 0, known))[0]["errorCode"] == 0
    store.log("orders").delete_records(3)
    data, error = REFUSED_BY_LOG[name]
    [part] = sent(caller, ("orders", 0, data))
    assert (part["errorCode"], part["baseOffset"], part["logStartOffset"]) == (error, -1, 3)
    assert store.log("orders").end_offset == 7


def test_transactional_batches_without_transactions_refuse_the_request(store: Store, caller: Caller) -> None:
    data = batch(b"a", is_transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    parts = sent(caller, ("orders", 0, data), ("orders", 1, batch(b"good")))
    assert [part["errorCode"] for part in parts] == [errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    [named] = sent(caller, ("orders", 0, data), transactionalId="one")
    assert named["errorCode"] == errors.INVALID_TXN_STATE
    assert values(store, 0) == values(store, 1) == []


@pytest.mark.parametrize("acks", [2, -2])
def test_unknown_acks_write_nothing(store: Store, caller: Caller, acks: int) -> None:
    parts = sent(caller, ("orders", 0, batch(b"a")), ("nowhere", 0, batch(b"a")), acks=acks)
    assert [part["errorCode"] for part in parts] == [errors.INVALID_REQUIRED_ACKS, errors.UNKNOWN_TOPIC_OR_PARTITION]
    assert values(store) == []


@pytest.mark.parametrize(("topic", "index"), [("nowhere", 0), ("orders", 3), ("orders", -1)])
def test_a_partition_that_does_not_exist_has_its_own_error(caller: Caller, topic: str, index: int) -> None:
    bad, good = sent(caller, (topic, index, batch(b"a")), ("orders", 0, batch(b"a")))
    assert (bad["errorCode"], good["errorCode"]) == (errors.UNKNOWN_TOPIC_OR_PARTITION, 0)


def test_internal_topics_and_journals_of_queues_are_refused(store: Store, caller: Caller) -> None:
    store.queue("jobs").put(b"item")
    journal = journal_of("jobs")
    end = store.log(journal).end_offset
    [part] = sent(caller, (journal, 0, batch(b"a")))
    assert store.log(journal).end_offset == end
    store.create_topic("__consumer_offsets", 50)
    [internal] = sent(caller, ("__consumer_offsets", 0, batch(b"a")))
    assert part["errorCode"] == internal["errorCode"] == errors.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(("version", "error"), [(6, errors.UNSUPPORTED_COMPRESSION_TYPE), (7, errors.NONE)])
def test_zstd_needs_a_version_that_knows_it(caller: Caller, version: int, error: int) -> None:
    [part] = sent(caller, ("orders", 0, batch(b"a", codec="zstd")), version=version)
    assert part["errorCode"] == error


def test_records_without_keys_for_a_compacted_log_are_named(store: Store, caller: Caller) -> None:
    store.create_topic("kept", cleanup_policy="compact")
    [part] = sent(caller, ("kept", 0, batch(b"a", b"b")))
    assert part["errorCode"] == errors.INVALID_RECORD
    assert [one["batchIndex"] for one in part["recordErrors"]] == [0, 1]


def test_a_plain_batch_beside_a_transactional_id_is_written(caller: Caller) -> None:
    [part] = sent(caller, ("orders", 0, batch(b"a")), transactionalId="one")
    assert part["errorCode"] == 0


def test_a_full_disk_is_an_error_of_its_partition(
    store: Store, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise DiskFullError(28, "no space left", "somewhere")

    monkeypatch.setattr("kstore.door.producing.append_batches", full)
    [part] = sent(caller, ("orders", 0, batch(b"a")))
    assert part["errorCode"] == errors.KAFKA_STORAGE_ERROR


def test_partitions_that_sync_are_all_written(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "synced", durability="sync", background=False) as store:
        store.create_topic("orders", 20)
        caller = Caller(served(store))
        for number in range(2):
            parts = sent(
                caller, *(("orders", index, batch(b"%d" % number)) for index in range(20)), ("orders", 99, None)
            )
            assert [part["baseOffset"] for part in parts] == [number] * 20 + [-1]
        again = sent(caller, *[("orders", 0, batch(b"%d" % number)) for number in range(2, 6)])
        assert [part["baseOffset"] for part in again] == [2, 3, 4, 5], "several for one partition keep their order"
        assert values(store) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_read_only_store_refuses_each_batch(store: Store) -> None:
    with kstore.open(store.path, read_only=True) as view:
        [part] = sent(Caller(served(view)), ("orders", 0, batch(b"a")))
    assert part["errorCode"] == errors.POLICY_VIOLATION
    assert values(store) == []


# --- idempotent producers ---------------------------------------------------------------------------------------------


def new_id(caller: Caller, version: int = 4, **fields: Any) -> tuple[int, int, int]:
    answer = caller.call("InitProducerId", version, {"transactionalId": None, "transactionTimeoutMs": -1, **fields})
    return answer["errorCode"], answer["producerId"], answer["producerEpoch"]


def test_ids_never_repeat_also_after_a_restart(tmp_path: Path) -> None:
    found = []
    for _ in range(3):
        with kstore.open(tmp_path / "store", background=False) as store:
            caller = Caller(served(store))
            found += [new_id(caller, version) for version in range(5)]
    assert [(error, epoch) for error, _, epoch in found] == [(0, 0)] * 15
    assert len({producer_id for _, producer_id, _ in found}) == 15


def test_a_transactional_id_is_refused(caller: Caller) -> None:
    assert new_id(caller, transactionalId="")[0] == errors.INVALID_REQUEST
    assert new_id(caller, transactionalId="one") == (errors.UNSUPPORTED_VERSION, -1, -1)
    assert new_id(caller, producerId=5)[0] == errors.INVALID_REQUEST


def test_a_repetition_gets_the_old_offset_also_from_the_next_door(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", background=False) as store:
        store.create_topic("orders")
        caller = Caller(served(store))
        _, producer_id, epoch = new_id(caller)
        batches = [
            batch(b"%d" % number, producer_id=producer_id, producer_epoch=epoch, base_sequence=number)
            for number in range(7)
        ]
        firsts = [sent(caller, ("orders", 0, one))[0]["baseOffset"] for one in batches[:6]]
        assert firsts == [0, 1, 2, 3, 4, 5]
        assert [sent(caller, ("orders", 0, one))[0]["baseOffset"] for one in batches[1:6]] == [1, 2, 3, 4, 5]
        [gap] = sent(
            caller,
            ("orders", 0, batch(b"x", producer_id=producer_id, producer_epoch=epoch, base_sequence=9)),
        )
        assert gap["errorCode"] == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    with kstore.open(tmp_path / "store", background=False) as store:
        caller = Caller(served(store))
        [again] = sent(caller, ("orders", 0, batches[5]))
        [following] = sent(caller, ("orders", 0, batches[6]))
        assert (again["errorCode"], again["baseOffset"]) == (0, 5)
        assert (following["errorCode"], following["baseOffset"]) == (0, 6)
        assert len(values(store)) == 7
