"""The bytes of producer snapshots."""

import struct

import crc32c
import pytest

from kstore.errors import CorruptFileError, UnsupportedFormatError
from kstore.state.producer_snapshot import ProducerEntry, SnapshotCrcError, decode_snapshot, encode_snapshot
from tests.support.harness.golden_data import golden_root

ENTRY = ProducerEntry(
    producer_id=98323,
    producer_epoch=99,
    last_sequence=10,
    last_offset=42,
    offset_delta=0,
    timestamp=1_700_000_000_000,
    coordinator_epoch=-1,
    current_txn_first_offset=-1,
)
ONE_PRODUCER = bytes.fromhex(
    "00010fc4784000000001000000000001801300630000000a000000000000002a000000000000018bcfe56800ffffffffffffffffffffffff"
)
EMPTY = bytes.fromhex("000148674bc700000000")


def with_crc(covered: bytes, version: int = 1) -> bytes:
    return struct.pack(">hI", version, crc32c.crc32c(covered)) + covered


@pytest.mark.parametrize(("entries", "data"), [([], EMPTY), ([ENTRY], ONE_PRODUCER)], ids=["empty", "one-producer"])
def test_snapshot_has_the_known_bytes(entries: list[ProducerEntry], data: bytes) -> None:
    assert encode_snapshot(entries) == data
    assert decode_snapshot(data) == entries


def test_snapshot_keeps_extreme_fields_and_the_order_of_entries() -> None:
    extreme = ProducerEntry(2**63 - 1, 2**15 - 1, 2**31 - 1, 2**63 - 1, 2**31 - 1, 2**63 - 1, 2**31 - 1, 2**63 - 1)
    none = ProducerEntry(0, 0, -1, -1, 0, -1, -1, -1)
    assert decode_snapshot(encode_snapshot([extreme, none, ENTRY])) == [extreme, none, ENTRY]


def test_every_flipped_byte_after_the_version_is_found() -> None:
    for at in range(2, len(ONE_PRODUCER)):
        damaged = bytearray(ONE_PRODUCER)
        damaged[at] ^= 0x10
        with pytest.raises(SnapshotCrcError):
            decode_snapshot(damaged)


def test_crc_error_tells_what_is_stored_and_what_was_computed() -> None:
    damaged = EMPTY[:2] + b"\0\0\0\1" + EMPTY[6:]
    with pytest.raises(SnapshotCrcError, match="stored 0x00000001, computed 0x48674bc7") as caught:
        decode_snapshot(damaged)
    assert (caught.value.stored, caught.value.computed) == (1, 0x48674BC7)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        EMPTY[:9],
        with_crc(b"\0\0\0\1"),
        with_crc(b"\0\0\0\1" + bytes(45)),
        with_crc(b"\0\0\0\1" + bytes(47)),
        with_crc(b"\xff\xff\xff\xff"),
        with_crc(b"\x7f\xff\xff\xff" + bytes(46)),
    ],
    ids=["empty", "short-header", "no-entry", "short-entry", "extra-byte", "negative-count", "huge-count"],
)
def test_snapshot_of_another_length_than_its_count_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptFileError):
        decode_snapshot(data)


def test_another_version_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="version 2, expected 1"):
        decode_snapshot(with_crc(bytes(4), version=2))


def test_a_broker_s_snapshots_come_out_as_they_went_in() -> None:
    paths = sorted((golden_root() / "clean").rglob("*.snapshot"))
    assert paths
    for path in paths:
        data = path.read_bytes()
        assert encode_snapshot(decode_snapshot(data)) == data
