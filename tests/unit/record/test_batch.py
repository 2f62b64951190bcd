"""The view over a batch of version 2 (Kafka: DefaultRecordBatchTest, MemoryRecordsTest, Crc32CTest, ChecksumsTest)."""

from __future__ import annotations

import re
import struct
from array import array
from pathlib import Path

import pytest

from kstore.config import BATCH_BYTES_MIN
from kstore.errors import CorruptBatchError, CorruptRecordError, UnsupportedCodecError, UnsupportedFormatError
from kstore.record import batch as batch_module
from kstore.record._codec import Record
from kstore.record.batch import (
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CODEC_NAMES,
    CRC_BYTES_WITHOUT_GIL,
    Batch,
    BatchHeader,
    RecordBatch,
    batch_crc,
    decrement_sequence,
    increment_sequence,
    parse_v2,
)
from kstore.record.builder import build_batch
from kstore.record.parse import MAGIC_POSITION, parse_batch
from tests.support.oracles.oracle_codec import OracleBatch, OracleRecord, crc32c, encode

T = 1_700_000_000_000
GOLDEN = bytes.fromhex(
    "000000000000000000000042ffffffff0263709c1c0000000000000000018bcfe568000000018bcfe56800ffffffffffffffffffffffff"
    "ffff0000000120000000026b0a68656c6c6f0202680201"
)
COMMIT_MARKER = bytes.fromhex(
    "00000000000000050000004200000007027a94e4690030000000000000018bcfe568000000018bcfe5680000000000000180130063ffffff"
    "ff000000012000000008000000010c00000000006400"
)
RECORDS = (
    OracleRecord(20, T, b"a", b"1"),
    OracleRecord(22, T + 10, None, b"22"),
    OracleRecord(23, T - 5, b"c", None, (("h", b"x"),)),
)


def make(**fields: object) -> bytes:
    """A batch of RECORDS, written by the tests' plain codec."""
    return encode(OracleBatch(20, RECORDS)._replace(**fields))  # type: ignore[arg-type]


def with_fields(data: bytes, **fields: int) -> bytes:
    """``data`` with header fields changed, and its CRC corrected."""
    header = BatchHeader._make(BATCH_HEADER.unpack_from(data))._replace(**fields)
    covered = BATCH_HEADER.pack(*header)[21:] + data[61:]
    return BATCH_HEADER.pack(*header._replace(crc=crc32c(covered))) + data[61:]


# --- golden vectors ---------------------------------------------------------------------------------------------------


def test_the_golden_batch_reads_as_its_record() -> None:
    batch = parse_batch(GOLDEN)
    batch.ensure_valid()
    assert list(batch.records()) == [Record(0, T, "CreateTime", b"k", b"hello", (("h", b"\x01"),), -1)]
    assert batch.values() == [b"hello"]
    assert batch.offsets_and_timestamps() == (array("q", [0]), array("q", [T]))
    assert (batch.magic, batch.base_offset, batch.last_offset, batch.size, batch.record_count) == (2, 0, 0, 78, 1)
    assert (batch.timestamp_type, batch.codec, batch.leader_epoch, batch.crc) == ("CreateTime", "none", -1, 0x63709C1C)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (-1, -1, -1, -1)
    assert (batch.is_transactional, batch.is_control, batch.delete_horizon_ms) == (False, False, None)


def test_the_golden_commit_marker_reads_as_its_record() -> None:
    batch = parse_batch(COMMIT_MARKER)
    batch.ensure_valid()
    assert list(batch.records()) == [Record(5, T, "CreateTime", b"\0\0\0\1", b"\0\0\0\0\0\x64", (), 7)]
    assert (batch.is_transactional, batch.is_control) == (True, True)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (98323, 99, -1, -1)


# --- fields -----------------------------------------------------------------------------------------------------------


def test_a_batch_has_the_fields_of_its_header() -> None:
    data = make(
        leader_epoch=4,
        attributes=0x10,
        last_offset_delta=9,
        producer_id=2**40,
        producer_epoch=3,
        base_sequence=100,
    )
    batch = parse_v2(b"before" + data + b"behind", 6)
    assert (batch.base_offset, batch.last_offset, batch.last_offset_delta, batch.record_count) == (20, 29, 9, 3)
    assert (batch.base_timestamp, batch.max_timestamp, batch.leader_epoch) == (T, T + 10, 4)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (2**40, 3, 100, 109)
    assert (batch.is_transactional, batch.is_control, batch.attributes) == (True, False, 0x10)
    assert batch.size == len(data)
    assert batch.data == data
    assert batch.is_valid()
    assert repr(batch) == f"RecordBatch(20-29, {len(data)} bytes, 3 records)"


def test_a_batch_of_version_2_is_a_batch() -> None:
    batch: Batch = parse_v2(GOLDEN)
    assert isinstance(batch, RecordBatch)


@pytest.mark.parametrize(
    ("attributes", "name"),
    [(0, "none"), (1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd"), (0x78 | 3, "lz4"), (0x7F80, "none")],
)
def test_the_codec_is_in_the_low_three_bits(attributes: int, name: str) -> None:
    assert parse_v2(make(attributes=attributes)).codec == name


@pytest.mark.parametrize("codec_id", [5, 6, 7])
def test_an_unknown_codec_can_be_looked_at_but_not_read(codec_id: int) -> None:
    batch = parse_v2(make(attributes=codec_id))
    batch.ensure_valid()
    assert (batch.codec_id, batch.record_count) == (codec_id, 3)
    for read in (lambda: batch.codec, batch.records, batch.values, batch.offsets_and_timestamps, batch.check):
        with pytest.raises(UnsupportedCodecError, match=f"codec {codec_id}, expected 0 to 4"):
            read()


def test_a_delete_horizon_is_the_base_timestamp_and_deltas_stay_relative_to_it() -> None:
    batch = parse_v2(make(attributes=0x40, base_timestamp=T + 1000))
    assert batch.delete_horizon_ms == T + 1000
    assert [record.timestamp for record in batch.records()] == [T, T + 10, T - 5]


def test_with_append_time_every_record_has_the_batchs() -> None:
    batch = parse_v2(make(attributes=8, max_timestamp=T + 500))
    assert batch.timestamp_type == "LogAppendTime"
    assert {(record.timestamp, record.timestamp_type) for record in batch.records()} == {(T + 500, "LogAppendTime")}
    assert list(batch.offsets_and_timestamps()[1]) == [T + 500] * 3
    assert batch.check().max_timestamp == T + 10


def test_records_are_given_for_a_window_of_offsets() -> None:
    batch = parse_v2(make())
    assert [record.offset for record in batch.records(21, 23)] == [22]
    assert batch.values(first_offset=22) == [b"22", None]
    assert list(batch.offsets_and_timestamps(stop_offset=21)[0]) == [20]


def test_a_check_sums_up_the_records() -> None:
    assert parse_v2(make()).check() == (0, 3, T + 10, 2, T - 5, 1)


def test_an_empty_batch_has_offsets_and_no_records() -> None:
    data = encode(OracleBatch(23, (), last_offset_delta=177, max_timestamp=T, producer_id=9, producer_epoch=1))
    batch = parse_v2(data)
    assert (batch.size, batch.base_offset, batch.last_offset, batch.record_count) == (61, 23, 200, 0)
    assert (batch.base_timestamp, batch.max_timestamp) == (-1, T)
    assert list(batch.records()) == batch.values() == []
    assert batch.check() == (-1, -1, -1, -1, -1, 0)


# --- CRC --------------------------------------------------------------------------------------------------------------


def test_the_crc_is_castagnolis() -> None:
    assert batch_crc(memoryview(b"")) == 0
    assert batch_crc(memoryview(b"123456789")) == 0xE3069283
    data = bytes(range(256)) * 3
    assert batch_crc(memoryview(data)) == crc32c(data)


def test_the_crc_of_parts_is_that_of_the_whole() -> None:
    data = bytes(range(256))
    for cut in (0, 1, 100, 256):
        assert batch_crc(memoryview(data)[cut:], batch_crc(memoryview(data)[:cut])) == batch_crc(memoryview(data))


def test_the_crc_of_a_large_block_is_the_same_without_the_gil() -> None:
    data = bytes(CRC_BYTES_WITHOUT_GIL)
    assert batch_crc(memoryview(data)) == batch_crc(memoryview(data[1:]), batch_crc(memoryview(b"\0")))


def test_a_flipped_bit_is_found_from_the_attributes_to_the_end() -> None:
    for position in range(21, len(GOLDEN)):
        data = bytearray(GOLDEN)
        data[position] ^= 1 << position % 8
        try:
            batch = parse_v2(data)
        except CorruptBatchError:
            continue
        assert not batch.is_valid()
        with pytest.raises(CorruptBatchError, match="bad crc: stored 0x63709c1c, computed 0x") as caught:
            batch.ensure_valid()
        assert (caught.value.position, caught.value.first_offset) == (0, 0)


def test_the_crc_leaves_out_what_the_log_assigns() -> None:
    data = bytearray(GOLDEN)
    data[0:8] = struct.pack(">q", 2**50)
    data[12:16] = struct.pack(">i", 9)
    assert parse_v2(data).is_valid()


# --- headers that cannot be -------------------------------------------------------------------------------------------

HOSTILE = {
    "size-below-the-header": ({"batch_length": 48}, "a batch of 60 bytes, expected at least the 61"),
    "size-negative": ({"batch_length": -1}, "a batch of 11 bytes"),
    "size-beyond-the-data": ({"batch_length": 67}, "a batch of 79 bytes, expected at most the 78 that remain"),
    "size-huge": ({"batch_length": 2**31 - 1}, "expected at most the 78"),
    "offset-negative": ({"base_offset": -1}, "base offset -1 and last offset delta 0, expected 0 or more"),
    "delta-negative": ({"last_offset_delta": -1}, "last offset delta -1"),
    "offset-overflow": ({"base_offset": 2**63 - 1}, "expected less than 2\\^63 - 1"),
    "last-offset-overflow": ({"base_offset": 2**63 - 5, "last_offset_delta": 4}, "expected less than"),
    "count-negative": ({"record_count": -1}, "a record count of -1"),
    "count-above-the-offsets": ({"record_count": 2}, "a record count of 2, expected 0 to 1"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_no_writer_can_have_written_is_refused(name: str) -> None:
    fields, message = HOSTILE[name]
    with pytest.raises(CorruptBatchError, match=message) as caught:
        parse_batch(b"before" + with_fields(GOLDEN, **fields), 6)
    assert caught.value.position == 6


def test_the_last_offset_that_a_log_can_hold_is_read() -> None:
    assert parse_v2(with_fields(GOLDEN, base_offset=2**63 - 2)).last_offset == 2**63 - 2


@pytest.mark.parametrize("size", [0, 1, 16])
def test_too_few_bytes_for_a_magic_are_refused(size: int) -> None:
    with pytest.raises(CorruptBatchError, match=f"{size} bytes, expected the 17"):
        parse_batch(b"xx" + GOLDEN[:size], 2)


@pytest.mark.parametrize("size", [17, 60])
def test_too_few_bytes_for_a_header_are_refused(size: int) -> None:
    with pytest.raises(CorruptBatchError, match=f"{size} bytes, expected the 61"):
        parse_batch(GOLDEN[:size])


@pytest.mark.parametrize("magic", [3, 127, 128, 255])
def test_another_magic_is_refused(magic: int) -> None:
    data = bytearray(GOLDEN)
    data[16] = magic
    with pytest.raises(UnsupportedFormatError, match=f"magic {magic}, expected 0 to 2 at position 0"):
        parse_batch(data)


@pytest.mark.parametrize("position", [-1, 79, 2**40])
def test_a_position_outside_the_data_holds_no_batch(position: int) -> None:
    with pytest.raises(CorruptBatchError):
        parse_batch(GOLDEN, position)
    with pytest.raises(CorruptBatchError):
        parse_v2(GOLDEN, position)


def test_a_header_alone_can_be_parsed_but_its_records_not_read() -> None:
    batch = parse_batch(GOLDEN[:61], header_only=True)
    assert (batch.size, batch.last_offset, batch.record_count) == (78, 0, 1)
    assert not batch.is_valid()
    assert batch.data == GOLDEN[:61]
    with pytest.raises(CorruptRecordError, match="records up to byte 78, expected at most 61"):
        batch.records()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_of_bytes_is_read(kind: type) -> None:
    batch = parse_batch(kind(b"x" + GOLDEN), 1)
    batch.ensure_valid()
    assert batch.values() == [b"hello"]


# --- records that cannot be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_a_batch_that_says_that_it_has_no_records_has_none_as_in_kafka(codec: str) -> None:
    records = [Record(20 + i, T, value=b"value") for i in range(3)]
    batch = parse_v2(with_fields(build_batch(records, codec=codec, last_offset=29), record_count=0))
    batch.check()
    assert (list(batch.records()), list(batch.values())) == ([], [])


@pytest.mark.parametrize(("count", "message"), [(2, "left behind 2 records"), (4, "varint is longer")])
@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_another_count_than_that_of_the_records_is_refused(codec: str, count: int, message: str) -> None:
    records = [Record(20 + i, T, value=b"value") for i in range(3)]
    data = with_fields(build_batch(records, codec=codec, last_offset=29), record_count=count)
    batch = parse_v2(data)
    assert batch.codec == codec
    batch.ensure_valid()
    for read in (batch.records, batch.values, batch.offsets_and_timestamps, batch.check):
        with pytest.raises(CorruptRecordError, match=message):
            read()


def test_a_record_of_bad_size_is_refused() -> None:
    data = bytearray(GOLDEN)
    data[61] = 0x22
    batch = parse_v2(with_fields(bytes(data)))
    batch.ensure_valid()
    with pytest.raises(CorruptRecordError, match="record 0: record size 17, expected 6 to the 16 bytes") as caught:
        batch.records()
    assert caught.value.position == 61


@pytest.mark.parametrize("codec", CODEC_NAMES[1:])
def test_more_uncompressed_bytes_than_asked_for_are_refused(codec: str) -> None:
    batch = parse_v2(build_batch([Record(0, T, value=bytes(100_000))], codec=codec))
    assert batch.size < 10_000
    assert len(batch.values(max_bytes_uncompressed=100_100)[0] or b"") == 100_000
    for read in (batch.records, batch.values, batch.offsets_and_timestamps):
        with pytest.raises(CorruptRecordError, match=r"more than \d+ bytes"):
            read(max_bytes_uncompressed=100_000)
    with pytest.raises(CorruptRecordError, match=r"more than \d+ bytes"):
        batch.check(100_000)


@pytest.mark.parametrize("codec", CODEC_NAMES[1:])
def test_a_payload_that_is_not_the_codecs_is_refused(codec: str) -> None:
    batch = parse_v2(make(attributes=CODEC_NAMES.index(codec)))
    batch.ensure_valid()
    with pytest.raises(CorruptRecordError):
        batch.records()


# --- the same numbers in compiled code and in Python ------------------------------------------------------------------


def test_compiled_code_has_the_layout_that_this_module_describes() -> None:
    stored = (Path(batch_module.__file__).parent / "_layout.pxd").read_text()
    compiled = {name: int(number, 0) for name, number in re.findall(r"^    (\w+) = (\w+)$", stored, re.MULTILINE)}
    renamed = {"HEADER_SIZE": "BATCH_HEADER_BYTES", "LOG_OVERHEAD": "LOG_OVERHEAD_BYTES", "MAGIC": "MAGIC_V2"}
    in_other_modules = {
        "MAGIC_POSITION": MAGIC_POSITION,
        "RECORD_SIZE_MIN": len(build_batch([Record(0, T)])) - BATCH_HEADER_BYTES,
    }
    assert len(compiled) == 11
    for name, number in compiled.items():
        expected = in_other_modules.get(name) or getattr(batch_module, renamed.get(name, name))
        assert number == expected, name


def test_the_smallest_limit_of_a_batch_is_that_of_one_empty_record() -> None:
    assert len(build_batch([Record(0, T)])) == BATCH_BYTES_MIN


# --- sequences --------------------------------------------------------------------------------------------------------


def test_sequences_wrap_around_at_31_bits() -> None:
    assert increment_sequence(5, 5) == 10
    assert increment_sequence(2**31 - 1, 1) == 0
    assert increment_sequence(2**31 - 5, 10) == 5
    assert decrement_sequence(10, 5) == 5
    assert decrement_sequence(0, 1) == 2**31 - 1
    assert decrement_sequence(5, 10) == 2**31 - 5


def test_the_last_sequence_wraps_around() -> None:
    batch = parse_v2(make(producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert batch.last_sequence == 1
