"""Fetch, called without a connection: what it sends, what it limits, and how it waits."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import Store
from kstore.door import errors, parking
from kstore.door.served import Served
from kstore.engine.read.fetch import FetchSlice
from kstore.files.paths import LEADER_EPOCHS
from kstore.record.scan import parse_batches
from tests.support.lives.door_calls import Caller, served, sizes
from tests.support.lives.log_cases import flip

LONG_MS = 600_000
ENDS_WITHIN = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kstore.open(tmp_path / "store", durability="os", background=False) as opened:
        yield opened


@pytest.fixture
def caller(store: Store) -> Caller:
    store.create_topic("orders", 3)
    return Caller(served(store))


def values(part: dict[str, Any]) -> list[bytes | None]:
    return [record.value for batch in parse_batches(bytes(part["records"])) for record in batch.records()]


class Parked:
    """A Fetch in a thread of its own, that has begun to wait."""

    def __init__(self, caller: Caller, *asked: tuple[str, int, int], **fields: Any) -> None:
        self.answer: list[dict[str, Any]] | None = None
        caller.armed.clear()
        self._thread = threading.Thread(target=self._run, args=(caller, asked, {"maxWaitMs": LONG_MS, **fields}))
        self._thread.start()
        assert caller.armed.wait(ENDS_WITHIN)

    def _run(self, caller: Caller, asked: tuple[tuple[str, int, int], ...], fields: dict[str, Any]) -> None:
        self.answer = caller.fetch(*asked, **fields)

    def end(self) -> list[dict[str, Any]]:
        self._thread.join(ENDS_WITHIN)
        assert self.answer is not None, "it never woke"
        return self.answer


# --- what is sent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4, 13))
def test_each_version_sends_the_bytes_of_the_file(store: Store, caller: Caller, version: int) -> None:
    for number in range(3):
        store.log("orders", 1).append_many([b"%d" % number] * 2)
    empty, full, unknown = caller.fetch(("orders", 0, 0), ("orders", 1, 0), ("nowhere", 0, 0), version=version)
    assert (empty["errorCode"], empty["highWatermark"], bytes(empty["records"])) == (0, 0, b"")
    assert (full["highWatermark"], full["lastStableOffset"], full["logStartOffset"]) == (
        6,
        6,
        0 if version >= 5 else -1,
    )
    assert bytes(full["records"]) == next(store.log("orders", 1).path.glob("*.log")).read_bytes()
    assert (unknown["errorCode"], unknown["highWatermark"]) == (errors.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_records_begin_with_the_batch_that_holds_the_offset(store: Store, caller: Caller) -> None:
    store.log("orders").append_many([b"a", b"b", b"c"])
    store.log("orders").append(b"d")
    [part] = caller.fetch(("orders", 0, 1))
    assert values(part) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("offset", [-1, 3, 2**63 - 1])
def test_an_offset_outside_of_the_log_is_out_of_range_at_once(store: Store, caller: Caller, offset: int) -> None:
    store.log("orders").append_many([b"a", b"b"])
    [part] = caller.fetch(("orders", 0, offset), maxWaitMs=LONG_MS)
    assert part["errorCode"] == errors.OFFSET_OUT_OF_RANGE
    assert (part["highWatermark"], part["lastStableOffset"], part["logStartOffset"]) == (-1, -1, -1)


def test_a_deleted_offset_is_out_of_range(store: Store, caller: Caller) -> None:
    log = store.log("orders")
    log.append_many([b"a", b"b"])
    log.delete_records(1)
    [below, at] = caller.fetch(("orders", 0, 0)) + caller.fetch(("orders", 0, 1))
    assert (below["errorCode"], at["errorCode"], at["logStartOffset"]) == (errors.OFFSET_OUT_OF_RANGE, 0, 1)


def test_damage_ends_the_records_and_is_an_error_where_it_begins(
    store: Store, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    log = store.log("orders")
    for number in range(3):
        log.append(b"%d" % number)
    path = next(log.path.glob("*.log"))
    flip(path, path.stat().st_size - 1)
    [part] = caller.fetch(("orders", 0, 0))
    assert values(part) == [b"0", b"1"]
    [part] = caller.fetch(("orders", 0, 2), maxWaitMs=LONG_MS)
    assert (part["errorCode"], bytes(part["records"])) == (errors.CORRUPT_MESSAGE, b"")
    assert caller.fetch(("orders", 0, 2))[0]["errorCode"] == errors.CORRUPT_MESSAGE
    [line] = [record.getMessage() for record in caplog.records if str(path) in record.getMessage()]
    assert "orders-0: a fetch at offset 2 meets damage" in line, "a client that asks again fills no log"


def test_an_unknown_isolation_level_is_an_error(caller: Caller) -> None:
    asked = {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 100}
    body = {"isolationLevel": 2, "maxBytes": 100, "topics": [{"topic": "orders", "partitions": [asked]}]}
    answer = caller.call("Fetch", 11, body)
    [part] = answer["responses"][0]["partitions"]
    assert answer["errorCode"] == part["errorCode"] == errors.UNKNOWN_SERVER_ERROR
    assert part["abortedTransactions"] == []


@pytest.mark.parametrize("limit", ["maxBytes", "partitionMaxBytes"])
def test_a_negative_limit_is_an_error(store: Store, caller: Caller, limit: str) -> None:
    store.log("orders").append(b"value")
    [part] = caller.fetch(("orders", 0, 0), **{limit: -1})
    assert (part["errorCode"], part["highWatermark"]) == (errors.UNKNOWN_SERVER_ERROR, -1)


def test_a_partition_that_does_not_exist_ends_no_wait_for_others(store: Store, caller: Caller) -> None:
    store.log("orders").append(b"value")
    asking = threading.Thread(target=lambda: found.extend(caller.fetch(*asked, maxWaitMs=60_000)))
    found: list[dict[str, Any]] = []
    asked = (("orders", 0, 1), ("nowhere", 0, 0))
    asking.start()
    assert caller.armed.wait(60)
    store.log("orders").append(b"more")
    asking.join(60)
    assert [part["errorCode"] for part in found] == [0, errors.UNKNOWN_TOPIC_OR_PARTITION]
    assert found[0]["records"]


def test_an_epoch_that_the_log_does_not_know_is_out_of_range(store: Store, caller: Caller) -> None:
    store.log("orders").append(b"value")
    [unknown] = caller.fetch(("orders", 0, 0), version=12, lastFetchedEpoch=9)
    assert unknown["errorCode"] == errors.OFFSET_OUT_OF_RANGE
    [after] = caller.fetch(("orders", 0, 5), version=12, lastFetchedEpoch=0)
    assert (after["errorCode"], after["divergingEpoch"]) == (0, {"epoch": 0, "endOffset": 1})


def test_a_committed_read_stops_at_the_open_transaction_and_names_the_aborted_ones(store: Store) -> None:
    store.create_topic("orders")
    caller = Caller(served(store))
    with store.producer(transactional_id="one") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"gone")
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("orders", b"open")
        producer.flush()
        [dirty] = caller.fetch(("orders", 0, 0))
        [clean] = caller.fetch(("orders", 0, 0), isolationLevel=1)
        producer.commit_transaction()
    assert (dirty["highWatermark"], dirty["lastStableOffset"], dirty["abortedTransactions"]) == (3, 2, None)
    assert (clean["highWatermark"], clean["lastStableOffset"]) == (3, 2)
    assert [one["firstOffset"] for one in clean["abortedTransactions"]] == [0]
    assert len(clean["records"]) < len(dirty["records"])
    [later] = caller.fetch(("orders", 0, 0), isolationLevel=1)
    assert later["lastStableOffset"] == later["highWatermark"] == 4


@pytest.mark.parametrize("version", [4, 9, 10])
def test_zstd_comes_as_it_is_also_in_early_versions(store: Store, version: int) -> None:
    store.create_topic("packed", compression_type="zstd")
    store.log("packed").append(b"value")
    [part] = Caller(served(store)).fetch(("packed", 0, 0), version=version)
    assert (part["errorCode"], bool(part["records"])) == (errors.NONE, True)


# --- limits (KIP-74) --------------------------------------------------------------------------------------------------


def test_the_first_records_come_whole_whatever_the_limits(store: Store, caller: Caller) -> None:
    for partition in (1, 2):
        store.log("orders", partition).append(b"x" * 1000)
    found = caller.fetch(*(("orders", partition, 0) for partition in range(3)), partitionMaxBytes=0, maxBytes=0)
    assert [size > 1000 for size in sizes(found)] == [False, True, False]
    assert [part["highWatermark"] for part in found] == [0, 1, 1]


def test_later_partitions_get_what_still_fits(store: Store, caller: Caller) -> None:
    for partition in range(3):
        for _ in range(3):
            store.log("orders", partition).append(b"x" * 1000)
    batch_bytes = len(caller.fetch(("orders", 0, 2))[0]["records"])
    caller.door.turns = iter([0])
    found = caller.fetch(*(("orders", partition, 0) for partition in range(3)), maxBytes=4 * batch_bytes + 10)
    assert [size // batch_bytes for size in sizes(found)] == [3, 1, 0]


def test_each_request_begins_one_partition_further(store: Store, caller: Caller) -> None:
    for partition in range(3):
        store.log("orders", partition).append(b"x" * 1000)
    asked = [("orders", partition, 0) for partition in range(3)]
    firsts = [[bool(size) for size in sizes(caller.fetch(*asked, maxBytes=1))].index(True) for _ in range(4)]
    assert firsts == [0, 1, 2, 0]


def test_no_response_exceeds_what_a_broker_sends(store: Store, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.door.fetching.RESPONSE_BYTES_MAX", 3000)
    for _ in range(5):
        store.log("orders").append(b"x" * 1000)
    [part] = caller.fetch(("orders", 0, 0), maxBytes=2**31 - 1, partitionMaxBytes=2**31 - 1)
    assert len(part["records"]) <= 3000


# --- sessions and epochs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("session", "epoch", "error"), [(0, -1, 0), (0, 0, 0), (5, -1, 0), (5, 1, 70), (0, 1, 70)])
def test_sessions_are_refused_so_that_clients_begin_again(caller: Caller, session: int, epoch: int, error: int) -> None:
    body = {"maxWaitMs": LONG_MS, "minBytes": 1, "sessionId": session, "sessionEpoch": epoch, "topics": []}
    answer = caller.call("Fetch", 11, body)
    assert (answer["errorCode"], answer["sessionId"], answer["responses"]) == (error, 0, [])


@pytest.fixture
def aged(tmp_path: Path) -> Iterator[Caller]:
    """A broker's log: epoch 0 to below offset 2, epoch 3 to below 4, epoch 7 from there on."""
    with kstore.open(tmp_path / "aged", durability="os", background=False) as store:
        store.create_topic("orders")
        for number in range(6):
            store.log("orders").append(b"%d" % number)
    (tmp_path / "aged" / "orders-0" / LEADER_EPOCHS).write_text("0\n3\n0 0\n3 2\n7 4\n")
    with kstore.open(tmp_path / "aged", read_only=True) as view:
        yield Caller(served(view))


@pytest.mark.parametrize(
    ("current", "error"),
    [
        (-1, 0),
        (7, 0),
        (8, errors.UNKNOWN_LEADER_EPOCH),
        (3, errors.FENCED_LEADER_EPOCH),
        (0, errors.FENCED_LEADER_EPOCH),
    ],
)
def test_another_leader_epoch_than_the_latest_is_refused(aged: Caller, current: int, error: int) -> None:
    [part] = aged.fetch(("orders", 0, 0), currentLeaderEpoch=current)
    assert part["errorCode"] == error
    for name, body in (
        ("ListOffsets", {"replicaId": -1, "timestamp": -1, "partitionIndex": 0}),
        ("OffsetForLeaderEpoch", {"leaderEpoch": 7, "partition": 0}),
    ):
        topic = {"name": "orders", "topic": "orders", "partitions": [{**body, "currentLeaderEpoch": current}]}
        answer = aged.call(name, 4, {"replicaId": -1, "isolationLevel": 0, "topics": [topic]})
        assert answer["topics"][0]["partitions"][0]["errorCode"] == error


@pytest.mark.parametrize(
    ("last", "offset", "diverging"),
    [(7, 6, None), (3, 4, None), (3, 5, (3, 4)), (2, 2, (0, 2)), (0, 1, None)],
)
def test_a_client_whose_epoch_ended_earlier_is_told_where(
    aged: Caller, last: int, offset: int, diverging: tuple[int, int] | None
) -> None:
    [part] = aged.fetch(("orders", 0, offset), version=12, lastFetchedEpoch=last, maxWaitMs=0)
    found = part["divergingEpoch"]
    assert (found["epoch"], found["endOffset"]) == (diverging or (-1, -1))
    assert part["errorCode"] == 0
    assert not (diverging and part["records"])


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_fetch_at_the_end_waits_for_an_append(store: Store, caller: Caller) -> None:
    parked = Parked(caller, *(("orders", partition, 0) for partition in range(3)))
    store.log("orders", 2).append(b"new")
    assert [values(part) for part in parked.end()] == [[], [], [b"new"]]


def test_a_fetch_waits_until_there_are_as_many_bytes_as_it_wants(store: Store, caller: Caller) -> None:
    for partition in (0, 1):
        store.log("orders", partition).append(b"x" * 100)
    size = sum(sizes(caller.fetch(("orders", 0, 0), ("orders", 1, 0))))
    parked = Parked(caller, ("orders", 0, 0), ("orders", 1, 0), minBytes=size + 1)
    store.log("orders", 1).append(b"y" * 100)
    assert sum(sizes(parked.end())) > size


def test_a_fetch_that_waits_holds_no_slice(store: Store, caller: Caller) -> None:
    store.log("orders").append(b"x" * 100)
    held: list[int] = []
    wait = caller.waiter.wait

    def look(until: float) -> None:
        held.append(sum(type(each) is FetchSlice for each in gc.get_objects()))
        wait(0)
        caller.waiter.gone = True

    caller.waiter.wait = look  # type: ignore[method-assign]
    [part] = caller.fetch(("orders", 0, 0), minBytes=1 << 20, maxWaitMs=LONG_MS)
    assert held == [0]
    assert values(part) == [b"x" * 100], "and in the end what is there"


def test_a_fetch_waits_at_most_as_long_as_it_says(store: Store, caller: Caller) -> None:
    store.log("orders").append(b"a")
    [one, other] = caller.fetch(("orders", 0, 0), ("orders", 1, 0), minBytes=1 << 20, maxWaitMs=1)
    assert (values(one), values(other)) == ([b"a"], [])


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda store: store.delete_topic("orders"), errors.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda store: store.close(), errors.NOT_LEADER_OR_FOLLOWER),
    ],
    ids=["deleted", "closed"],
)
def test_what_ends_a_log_ends_the_wait(
    store: Store, caller: Caller, act: Callable[[Store], object], error: int
) -> None:
    store.log("orders").append(b"a")
    parked = Parked(caller, ("orders", 0, 1))
    act(store)
    [part] = parked.end()
    assert part["errorCode"] == error


def delete_records(store: Store, door: Served, offset: int) -> None:
    part = {"partitionIndex": 0, "offset": offset}
    answer = Caller(door).call("DeleteRecords", 2, {"topics": [{"name": "orders", "partitions": [part]}]})
    assert answer["topics"][0]["partitions"][0]["errorCode"] == 0


@pytest.mark.parametrize(
    "cut",
    [
        lambda store, door: delete_records(store, door, 2),
        lambda store, door: store.log("orders").truncate_to(0),
        lambda store, door: (store.alter_topic("orders", retention_bytes=0), store.log("orders").apply_retention()),
    ],
    ids=["records deleted", "truncated", "retention"],
)
def test_what_takes_away_the_asked_records_ends_the_wait_at_once(
    store: Store, caller: Caller, cut: Callable[[Store, Served], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "NOTIFIED_POLL_SECONDS", LONG_MS / 1000)
    store.log("orders").append_many([b"a", b"b", b"c"])
    parked = Parked(caller, ("orders", 0, 1), minBytes=1 << 20)
    cut(store, caller.door)
    [part] = parked.end()
    assert part["errorCode"] == errors.OFFSET_OUT_OF_RANGE


def test_a_peer_that_leaves_ends_the_wait(caller: Caller) -> None:
    parked = Parked(caller, ("orders", 0, 0))
    caller.waiter.leave()
    assert sizes(parked.end()) == [0]


def test_a_committed_read_waits_for_the_end_of_a_transaction(store: Store, caller: Caller) -> None:
    with store.producer(transactional_id="one") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"value", partition=0)
        producer.flush()
        parked = Parked(caller, ("orders", 0, 0), isolationLevel=1)
        producer.commit_transaction()
        [part] = parked.end()
    assert part["lastStableOffset"] == 2


def test_an_append_by_another_process_ends_the_wait_of_a_view(store: Store, caller: Caller) -> None:
    with kstore.open(store.path, read_only=True) as view:
        reader = Caller(served(view))
        for number in range(3):
            parked = Parked(reader, ("orders", 0, number), ("orders", 1, 0))
            store.log("orders", 0).append(b"%d" % number)
            assert values(parked.end()[0]) == [b"%d" % number]


def test_two_fetches_of_one_view_both_wake(store: Store, caller: Caller) -> None:
    with kstore.open(store.path, read_only=True) as view:
        door = served(view)
        parked = [Parked(Caller(door), ("orders", 0, 0)) for _ in range(2)]
        store.log("orders").append(b"new")
        assert [values(each.end()[0]) for each in parked] == [[b"new"], [b"new"]]


def test_a_topic_that_is_created_while_a_view_is_served_is_found(store: Store, caller: Caller) -> None:
    with kstore.open(store.path, read_only=True) as view:
        reader = Caller(served(view))
        assert reader.fetch(("later", 0, 0))[0]["errorCode"] == errors.UNKNOWN_TOPIC_OR_PARTITION
        store.create_topic("later")
        store.log("later").append(b"a")
        assert values(reader.fetch(("later", 0, 0))[0]) == [b"a"]
