"""What a connection remembers of its last Fetch: an idle one looks up no log, and nothing that changes is missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kstore
from kstore import Store
from kstore.door import errors, fetch_part
from kstore.door.fetch_part import PART_BYTES, Seen
from kstore.door.memory import Memory
from kstore.door.served import Part, Served, part_of
from tests.support.lives.door_calls import Caller, served, sizes
from tests.support.lives.door_parts import opened

ENDS = [("orders", 0, 1), ("orders", 1, 1), ("orders", 2, 1)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kstore.open(tmp_path / "store", durability="os", background=False) as opened:
        opened.create_topic("orders", 3)
        for number in range(3):
            opened.log("orders", number).append(b"x")
        yield opened


@pytest.fixture
def caller(store: Store) -> Caller:
    caller = Caller(served(store))
    caller.waiter.leave()  # no request waits
    return caller


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions whose logs were looked up."""
    found: list[int] = []

    def noted(door: Served, topic: str, partition: int) -> Part:
        found.append(partition)
        return part_of(door, topic, partition)

    monkeypatch.setattr(fetch_part, "part_of", noted)
    return found


def test_an_idle_client_s_next_request_looks_up_no_log(caller: Caller, looked_up: list[int]) -> None:
    first = caller.fetch(*ENDS)
    assert looked_up == [0, 1, 2]
    # In another order too, as librdkafka asks.
    assert caller.fetch(*ENDS[1:], ENDS[0]) == [*first[1:], first[0]]
    assert looked_up == [0, 1, 2]


def test_only_what_has_changed_is_looked_up(store: Store, caller: Caller, looked_up: list[int]) -> None:
    caller.fetch(*ENDS)
    store.log("orders", 1).append(b"y")
    parts = caller.fetch(*ENDS)
    assert [size > 0 for size in sizes(parts)] == [False, True, False]
    assert sorted(looked_up) == [0, 1, 1, 2]
    assert [part["highWatermark"] for part in caller.fetch(*ENDS[:1], ("orders", 1, 2), *ENDS[2:])] == [1, 2, 1]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda store: store.delete_topic("orders"), errors.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda store: (store.delete_topic("orders"), store.create_topic("orders", 3)), errors.OFFSET_OUT_OF_RANGE),
        (lambda store: [store.log("orders", number).truncate_to(0) for number in range(3)], errors.OFFSET_OUT_OF_RANGE),
        (lambda store: store.close(), errors.NOT_LEADER_OR_FOLLOWER),
    ],
    ids=["deleted", "made again", "truncated", "closed"],
)
def test_what_ends_a_log_is_noticed(
    store: Store, caller: Caller, change: Callable[[Store], object], error: int
) -> None:
    caller.fetch(*ENDS)
    change(store)
    assert [part["errorCode"] for part in caller.fetch(*ENDS)] == [error] * 3


def test_a_topic_that_did_not_exist_is_looked_for_again(store: Store, caller: Caller) -> None:
    assert [part["errorCode"] for part in caller.fetch(("later", 0, 0))] == [errors.UNKNOWN_TOPIC_OR_PARTITION]
    store.create_topic("later")
    assert [part["errorCode"] for part in caller.fetch(("later", 0, 0))] == [errors.NONE]


def test_what_the_limits_left_out_is_sent_next(store: Store, caller: Caller) -> None:
    sent = [sizes(caller.fetch(("orders", 0, 0), ("orders", 1, 0), maxBytes=1)) for _ in range(2)]
    assert sorted(size > 0 for one in sent for size in one) == [False, False, True, True]


def test_another_isolation_level_is_another_answer(caller: Caller) -> None:
    assert [part["abortedTransactions"] for part in caller.fetch(*ENDS[:1], isolationLevel=0)] == [None]
    assert [part["abortedTransactions"] for part in caller.fetch(*ENDS[:1], isolationLevel=1)] == [[]]


def test_an_append_by_another_process_is_noticed_by_the_next_request(store: Store) -> None:
    with kstore.open(store.path, read_only=True) as view:
        caller = Caller(served(view))
        caller.waiter.leave()
        caller.fetch(*ENDS)
        store.log("orders", 2).append(b"y")
        while not any(sizes(caller.fetch(*ENDS))):
            pass


def test_without_memory_nothing_is_remembered_and_all_is_answered(
    store: Store, caller: Caller, looked_up: list[int]
) -> None:
    memory = Memory(2 * PART_BYTES)
    caller.seen = Seen(memory)
    answers = [caller.fetch(*ENDS) for _ in range(2)]
    assert answers[0] == answers[1]
    assert looked_up == [0, 1, 2, 1, 2, 0]
    assert memory.taken == 0
    caller.fetch(*ENDS[:2])
    assert memory.taken == 2 * PART_BYTES
    caller.fetch(*ENDS[:1])
    assert memory.taken == PART_BYTES
    caller.seen.end()
    assert memory.taken == 0


def test_a_connection_that_ends_gives_its_memory_back(store: Store) -> None:
    part = {"partition": 0, "fetchOffset": 1, "partitionMaxBytes": 1}
    with opened(store) as (door, client):
        client.ask("Fetch", 11, {"maxWaitMs": 0, "topics": [{"topic": "orders", "partitions": [part]}]})
        assert door._server._memory.seen.taken == PART_BYTES
        client.socket.close()
        while door.metrics()["connections"]:
            pass
        assert door._server._memory.seen.taken == 0
