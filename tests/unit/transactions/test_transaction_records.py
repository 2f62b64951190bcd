"""Records of ``__transaction_state``: a broker's bytes, the dump tool's text of ours, and hostile bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kstore.cli.decoders import TransactionLogDecoder
from kstore.errors import CorruptDataError, InvalidTransactionStateError, UnsupportedFormatError
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.record._codec import Record
from kstore.transactions.metadata import EPOCH_MAX, TransactionMetadata, TransactionState, is_valid_move
from kstore.transactions.transaction_records import (
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)
from tests.support.harness.golden_data import golden_root

State = TransactionState
PARTITIONS = frozenset({TopicPartition("b", 7), TopicPartition("a", 3), TopicPartition("a", 1)})
ONGOING = TransactionMetadata(
    "größe", 1 << 40, 5, 60_000, State.ONGOING, PARTITIONS, 1_700_000_000_000, 1_699_999_999_000
)


def decoded(metadata: TransactionMetadata) -> object:
    """The dump tool's text of a record."""
    key, value = encode_transaction_key(metadata.transactional_id), encode_transaction_value(metadata)
    shown = TransactionLogDecoder()(Record(0, 0, "CreateTime", key, value))
    assert shown.key == {"type": "0", "data": {"transactionalId": metadata.transactional_id}}
    return shown.value


@pytest.mark.parametrize("tree", ["clean", "crashed", "recovered"])
def test_a_brokers_records_are_read_and_written_byte_for_byte(tree: str) -> None:
    with Log(golden_root() / tree / "__transaction_state-0", read_only=True) as log:
        records = list(log.read())
    assert len(records) > 10
    for record in records:
        assert record.key is not None
        assert record.value is not None
        name = decode_transaction_key(record.key)
        assert name is not None
        assert encode_transaction_key(name) == record.key
        assert encode_transaction_value(decode_transaction_value(name, record.value)) == record.value


def test_the_dump_tool_reads_an_open_transaction() -> None:
    assert decoded(ONGOING) == {
        "version": "1",
        "data": {
            "producerId": 1 << 40,
            "producerEpoch": 5,
            "transactionTimeoutMs": 60_000,
            "transactionStatus": "Ongoing",
            "transactionPartitions": [{"topic": "a", "partitionIds": [1, 3]}, {"topic": "b", "partitionIds": [7]}],
            "transactionLastUpdateTimestampMs": 1_700_000_000_000,
            "transactionStartTimestampMs": 1_699_999_999_000,
            "clientTransactionVersion": 2,
        },
    }


def test_the_dump_tool_reads_an_id_without_a_transaction() -> None:
    shown = decoded(TransactionMetadata("x", 3, 0, 1))
    assert isinstance(shown, dict)
    assert shown["data"]["transactionPartitions"] is None
    assert shown["data"]["transactionStartTimestampMs"] == -1


def test_the_dump_tool_reads_a_change_of_producer() -> None:
    shown = decoded(ONGOING.prepared(9, commit=True, next_producer_id=77))
    assert isinstance(shown, dict)
    assert (shown["data"]["nextProducerId"], shown["data"]["nextProducerEpoch"]) == (77, 0)


@pytest.mark.parametrize(
    "metadata",
    [
        ONGOING,
        ONGOING.prepared(9, commit=False, next_producer_id=77),
        ONGOING.prepared(9, commit=True).completed(10),
        TransactionMetadata("x", 3, 0, 1),
    ],
    ids=["open", "decided", "complete", "new"],
)
def test_what_is_written_is_read_again(metadata: TransactionMetadata) -> None:
    value = encode_transaction_value(metadata)
    assert decode_transaction_value(metadata.transactional_id, value) == metadata


def test_version_0_is_read() -> None:
    value = bytes.fromhex("0000000000000000000700030000ea60010000000100016100000002")
    value += bytes.fromhex("000000000000000500000000000000090000000000000008")
    found = decode_transaction_value("x", value)
    assert (found.producer_id, found.producer_epoch, found.timeout_ms, found.state) == (7, 3, 60_000, State.ONGOING)
    assert found.partitions == {TopicPartition("a", 0), TopicPartition("a", 5)}
    assert (found.last_update_timestamp, found.start_timestamp) == (9, 8)


def test_a_later_version_and_another_type_are_told_apart() -> None:
    with pytest.raises(UnsupportedFormatError, match="version 2, expected 0 to 1"):
        decode_transaction_value("x", b"\0\x02" + encode_transaction_value(ONGOING)[2:])
    assert decode_transaction_key(b"\0\x01anything") is None


@pytest.mark.promise("hostile file")
def test_hostile_bytes_are_a_typed_error(seed: int, tried: Callable[[str, int], None]) -> None:
    generator = random.Random(seed)
    whole = encode_transaction_value(ONGOING)
    for at in range(len(whole)):
        with pytest.raises(CorruptDataError):
            decode_transaction_value("x", whole[:at])
    count = 2000
    for _ in range(count):
        damaged = bytearray(whole)
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        try:
            decode_transaction_value("x", bytes(damaged))
            decode_transaction_key(bytes(damaged[: generator.randrange(8)]))
        except CorruptDataError:
            pass
    tried("fuzz inputs", count)


# --- states -----------------------------------------------------------------------------------------------------------


def test_only_kafkas_moves_are_valid() -> None:
    idle = {State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}
    valid = {
        *((before, State.EMPTY) for before in idle),
        *((before, State.ONGOING) for before in {*idle, State.ONGOING}),
        (State.ONGOING, State.PREPARE_COMMIT),
        (State.ONGOING, State.PREPARE_ABORT),
        (State.PREPARE_COMMIT, State.COMPLETE_COMMIT),
        (State.PREPARE_ABORT, State.COMPLETE_ABORT),
        *((before, State.DEAD) for before in idle),
    }
    assert {(before, after) for before in State for after in State if is_valid_move(before, after)} == valid


def test_an_illegal_move_is_refused() -> None:
    decided = ONGOING.prepared(9, commit=True)
    moves: tuple[Callable[[], object], ...] = (
        lambda: decided.prepared(9, commit=False),
        lambda: decided.with_partitions(PARTITIONS, 9),
        lambda: ONGOING.completed(9),
        lambda: ONGOING.next_instance(1, 9),
        lambda: decided.completed(9).prepared(9, commit=True),
    )
    for move in moves:
        with pytest.raises(InvalidTransactionStateError, match="from which it cannot be"):
            move()


def test_a_decision_takes_the_next_epoch_and_keeps_the_partitions() -> None:
    decided = ONGOING.prepared(9, commit=True)
    assert (decided.state, decided.producer_epoch, decided.partitions) == (State.PREPARE_COMMIT, 6, PARTITIONS)
    complete = decided.completed(10)
    assert (complete.state, complete.producer_epoch, complete.partitions) == (State.COMPLETE_COMMIT, 6, frozenset())


def test_the_next_producer_comes_after_the_last_epoch() -> None:
    last = TransactionMetadata("x", 3, EPOCH_MAX - 1, 1, State.ONGOING, PARTITIONS)
    assert last.is_epoch_exhausted
    decided = last.prepared(9, commit=False, next_producer_id=4)
    assert (decided.producer_id, decided.producer_epoch) == (3, EPOCH_MAX)
    complete = decided.completed(10)
    assert (complete.producer_id, complete.producer_epoch, complete.previous_producer_id) == (4, 0, 3)
    assert complete.is_end_of(3, EPOCH_MAX - 1)
    assert not complete.is_end_of(3, EPOCH_MAX - 2)


def test_the_start_of_a_transaction_is_that_of_its_first_partition() -> None:
    begun = TransactionMetadata("x", 3, 0, 1).with_partitions([TopicPartition("a", 0)], 5)
    assert (begun.start_timestamp, begun.with_partitions(PARTITIONS, 9).start_timestamp) == (5, 5)
    assert begun.prepared(6, commit=True).completed(7).with_partitions(PARTITIONS, 9).start_timestamp == 9
