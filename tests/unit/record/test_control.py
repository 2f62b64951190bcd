"""Control records: types, end markers, and earlier and later versions."""

from __future__ import annotations

import pytest

from kstore.errors import CorruptBatchError, CorruptRecordError
from kstore.record.batch import parse_v2
from kstore.record.control import (
    ControlRecordType,
    EndTransactionMarker,
    as_abort_marker,
    parse_control_type,
    parse_end_transaction_marker,
)
from kstore.record.parse import parse_batch

COMMIT_BATCH = bytes.fromhex(
    "00000000000000050000004200000007027a94e4690030000000000000018bcfe568000000018bcfe568000000000000018013"
    "0063ffffffff000000012000000008000000010c00000000006400"
)


def test_a_commit_marker_is_written_and_read() -> None:
    marker = EndTransactionMarker(ControlRecordType.COMMIT, 100)
    assert marker.encode() == (bytes.fromhex("00000001"), bytes.fromhex("000000000064"))
    assert parse_end_transaction_marker(*marker.encode()) == marker


def test_the_golden_marker_batch_is_a_commit() -> None:
    batch = parse_batch(COMMIT_BATCH)
    batch.ensure_valid()
    assert (batch.is_control, batch.is_transactional, batch.producer_id, batch.producer_epoch) == (
        True,
        True,
        98323,
        99,
    )
    (record,) = batch.records()
    assert parse_end_transaction_marker(record.key, record.value) == EndTransactionMarker(ControlRecordType.COMMIT, 100)


@pytest.mark.parametrize("number", list(range(7)))
def test_known_types_are_named(number: int) -> None:
    assert parse_control_type(bytes([0, 0, 0, number])) == ControlRecordType(number)


def test_an_unknown_type_is_passed_over() -> None:
    assert parse_control_type(bytes([0, 0, 0, 99])) is ControlRecordType.UNKNOWN
    assert parse_end_transaction_marker(bytes([0, 0, 0, 99]), b"") is None
    assert parse_end_transaction_marker(bytes([0, 0, 0, 2]), b"") is None


def test_a_newer_version_is_read_as_the_known_one() -> None:
    assert parse_control_type(bytes.fromhex("00050000")) is ControlRecordType.ABORT
    marker = parse_end_transaction_marker(bytes.fromhex("00050000"), bytes.fromhex("000500000007ff"))
    assert marker == EndTransactionMarker(ControlRecordType.ABORT, 7)


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"], ids=["null", "empty", "short"])
def test_a_short_key_is_refused(key: bytes | None) -> None:
    with pytest.raises(CorruptRecordError, match="expected 4"):
        parse_control_type(key)


def test_a_negative_version_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="version -1"):
        parse_control_type(bytes.fromhex("ffff0000"))
    with pytest.raises(CorruptRecordError, match="version -1"):
        parse_end_transaction_marker(bytes.fromhex("00000000"), bytes.fromhex("ffff00000000"))


@pytest.mark.parametrize("value", [None, b"\0\0\0\0\0"], ids=["null", "short"])
def test_a_short_marker_is_refused(value: bytes | None) -> None:
    with pytest.raises(CorruptRecordError, match="expected 6"):
        parse_end_transaction_marker(bytes.fromhex("00000001"), value)


def test_a_commit_marker_becomes_an_abort_marker_and_nothing_else_changes() -> None:
    before = parse_v2(COMMIT_BATCH)
    after = parse_v2(as_abort_marker(COMMIT_BATCH))
    after.ensure_valid()
    assert after.header._replace(crc=0) == before.header._replace(crc=0)
    (old,), (new,) = before.records(), after.records()
    assert parse_end_transaction_marker(new.key, new.value) == EndTransactionMarker(ControlRecordType.ABORT, 100)
    assert (new.offset, new.timestamp, new.value) == (old.offset, old.timestamp, old.value)


def test_a_damaged_marker_is_not_made_sound() -> None:
    data = bytearray(COMMIT_BATCH)
    data[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="bad crc"):
        as_abort_marker(data)


def test_a_marker_of_a_newer_version_is_not_changed() -> None:
    data = bytearray(COMMIT_BATCH)
    data[data.index(b"\x08\x00\x00\x00\x01") + 2] = 1
    data[17:21] = parse_v2(data).computed_crc().to_bytes(4, "big")
    with pytest.raises(CorruptBatchError, match="without a key of version 0"):
        as_abort_marker(data)
