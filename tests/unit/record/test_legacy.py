"""Message sets of versions 0 and 1: fields, compressed sets with their two kinds of offsets, every kind of damage."""

from __future__ import annotations

import struct

import pytest

from kstore.errors import CorruptBatchError, CorruptDataError, CorruptRecordError, UnsupportedCodecError
from kstore.record.legacy import LegacyBatch, parse_legacy
from tests.support.oracles.oracle_legacy import message, wrapper

TIME = 1_700_000_000_000
GOLDEN_V0 = bytes.fromhex("000000000000000000000014a4cdab3a0000000000016b0000000568656c6c6f")
GOLDEN_V1 = bytes.fromhex("00000000000000000000001caa1f677901000000018bcfe56800000000016b0000000568656c6c6f")
CODECS = ("gzip", "snappy", "lz4")


def offsets(batch: LegacyBatch) -> list[int]:
    return [record.offset for record in batch.records()]


@pytest.mark.parametrize(("golden", "magic"), [(GOLDEN_V0, 0), (GOLDEN_V1, 1)], ids=["version-0", "version-1"])
def test_the_golden_bytes_are_written_and_read(golden: bytes, magic: int) -> None:
    assert message(0, b"hello", b"k", magic=magic, timestamp=TIME) == golden
    batch = parse_legacy(golden)
    batch.ensure_valid()
    (record,) = batch.records()
    assert (record.offset, record.key, record.value, record.headers) == (0, b"k", b"hello", ())
    assert record.timestamp == (TIME if magic else -1)
    assert record.timestamp_type == ("CreateTime" if magic else "NoTimestampType")
    assert (batch.magic, batch.base_offset, batch.last_offset, batch.size) == (magic, 0, 0, len(golden))
    assert (batch.producer_id, batch.leader_epoch, batch.codec, batch.record_count) == (-1, -1, "none", 1)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(("key", "value"), [(None, None), (b"", b""), (b"k", None), (None, b"v")])
def test_null_and_empty_fields_are_told_apart(magic: int, key: bytes | None, value: bytes | None) -> None:
    (record,) = parse_legacy(message(7, value, key, magic=magic)).records()
    assert (record.key, record.value) == (key, value)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_a_compressed_set_gives_absolute_offsets(magic: int, codec: str) -> None:
    inner_offsets = (10, 11, 12) if magic == 0 else (0, 1, 2)
    inner = [message(o, b"v%d" % o, magic=magic, timestamp=TIME + o) for o in inner_offsets]
    batch = parse_legacy(wrapper(inner, offset=12, codec=codec, magic=magic, timestamp=TIME + 2))
    batch.ensure_valid()
    assert offsets(batch) == [10, 11, 12]
    assert (batch.base_offset, batch.last_offset, batch.record_count, batch.codec) == (10, 12, 3, codec)
    assert batch.values() == [b"v%d" % o for o in inner_offsets]


def test_relative_offsets_with_gaps_count_back_from_the_last() -> None:
    inner = [message(o, b"v", timestamp=TIME) for o in (0, 3, 4)]
    assert offsets(parse_legacy(wrapper(inner, offset=14, codec="gzip"))) == [10, 13, 14]


def test_a_wrapper_offset_of_zero_leaves_the_inner_ones_as_they_are() -> None:
    inner = [message(o, b"v", timestamp=TIME) for o in range(3)]
    assert offsets(parse_legacy(wrapper(inner, offset=0, codec="gzip"))) == [0, 1, 2]


def test_a_wrapper_offset_below_the_last_inner_one_is_refused() -> None:
    inner = [message(o, b"v", timestamp=TIME) for o in range(5)]
    with pytest.raises(CorruptRecordError, match="a wrapper offset of 3, expected at least the last inner one, 4"):
        list(parse_legacy(wrapper(inner, offset=3, codec="gzip")).records())


def test_an_append_time_wrapper_gives_every_record_its_own_time() -> None:
    inner = [message(o, b"v", timestamp=TIME + o) for o in range(3)]
    batch = parse_legacy(wrapper(inner, offset=2, codec="gzip", timestamp=TIME + 99, append_time=True))
    assert [(r.timestamp, r.timestamp_type) for r in batch.records()] == [(TIME + 99, "LogAppendTime")] * 3


def test_a_window_of_offsets_is_what_is_read() -> None:
    inner = [message(o, b"v%d" % o, timestamp=TIME + o) for o in range(5)]
    batch = parse_legacy(wrapper(inner, offset=104, codec="lz4"))
    assert [r.offset for r in batch.records(101, 103)] == [101, 102]
    assert batch.values(104) == [b"v4"]
    assert [list(column) for column in batch.offsets_and_timestamps(103)] == [[103, 104], [TIME + 3, TIME + 4]]


@pytest.mark.parametrize("value", [None, b""], ids=["null", "empty"])
def test_a_compressed_message_without_a_value_is_refused(value: bytes | None) -> None:
    with pytest.raises(CorruptRecordError, match="without a value"):
        list(parse_legacy(message(0, value, attributes=1)).records())


def test_a_compressed_message_that_holds_none_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="without messages"):
        list(parse_legacy(wrapper([], offset=0, codec="gzip")).records())


def test_nested_compression_is_refused() -> None:
    inner = wrapper([message(0, b"v")], offset=0, codec="gzip")
    with pytest.raises(CorruptRecordError, match="a compressed message within a compressed one"):
        list(parse_legacy(wrapper([inner], offset=0, codec="gzip")).records())


@pytest.mark.parametrize("append_time", [False, True], ids=["create", "append"])
def test_messages_of_version_0_in_a_wrapper_of_version_1_have_its_offsets_and_no_time(append_time: bool) -> None:
    inner = [message(0, b"a", magic=0), message(3, b"b", magic=1, timestamp=TIME), message(4, None, magic=0)]
    batch = parse_legacy(wrapper(inner, offset=14, codec="gzip", timestamp=TIME + 9, append_time=append_time))
    kind, time = ("LogAppendTime", TIME + 9) if append_time else ("CreateTime", TIME)
    assert [(r.offset, r.value, r.timestamp, r.timestamp_type) for r in batch.records()] == [
        (10, b"a", -1, "NoTimestampType"),
        (13, b"b", time, kind),
        (14, None, -1, "NoTimestampType"),
    ]
    assert list(batch.offsets_and_timestamps()[1]) == [-1, time, -1]


def test_messages_of_version_1_in_a_wrapper_of_version_0_have_absolute_offsets_and_their_times() -> None:
    inner = [message(10, b"a", magic=1, timestamp=TIME), message(14, b"b", magic=0)]
    batch = parse_legacy(wrapper(inner, offset=14, codec="gzip", magic=0))
    assert [(r.offset, r.timestamp, r.timestamp_type) for r in batch.records()] == [
        (10, TIME, "NoTimestampType"),
        (14, -1, "NoTimestampType"),
    ]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_that_is_cut_off_ends_a_compressed_set(magic: int) -> None:
    inner = [message(o, b"v%d" % o, magic=magic, timestamp=TIME) for o in range(3)]
    for size in range(len(inner[2])):
        batch = parse_legacy(wrapper([*inner[:2], inner[2][:size]], offset=1, codec="gzip", magic=magic))
        assert batch.values() == [b"v0", b"v1"], size
    with pytest.raises(CorruptRecordError, match="without messages"):
        list(parse_legacy(wrapper([inner[2][:-1]], offset=0, codec="gzip", magic=magic)).records())


@pytest.mark.parametrize("size", [13, 0, -1, -(2**31)])
def test_an_inner_message_that_is_smaller_than_any_is_refused_even_at_the_end(size: int) -> None:
    rest = struct.pack(">qi", 1, size)
    with pytest.raises(CorruptRecordError, match="inner message 1"):
        list(parse_legacy(wrapper([message(0, b"v"), rest + bytes(40)], offset=0, codec="gzip")).records())
    with pytest.raises(CorruptRecordError, match="inner message 1"):
        list(parse_legacy(wrapper([message(0, b"v"), rest], offset=0, codec="gzip")).records())


def test_a_damaged_inner_message_is_refused() -> None:
    inner = bytearray(message(0, b"value"))
    inner[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="inner message 0: bad crc"):
        list(parse_legacy(wrapper([bytes(inner)], offset=0, codec="gzip")).records())


@pytest.mark.parametrize("codec_id", [4, 5, 7])
def test_zstd_and_unknown_codecs_are_refused(codec_id: int) -> None:
    with pytest.raises(UnsupportedCodecError, match="expected 0 to 3"):
        list(parse_legacy(message(0, b"v", attributes=codec_id)).records())


def test_a_flipped_bit_anywhere_after_the_crc_is_found() -> None:
    whole = message(0, b"hello", b"k", timestamp=TIME)
    for at in range(16, len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            with pytest.raises(CorruptDataError):
                parse_legacy(data).ensure_valid()


@pytest.mark.parametrize(
    ("at", "new", "text"),
    [
        (8, struct.pack(">i", 13), "a message of 25 bytes, expected at least"),
        (8, struct.pack(">i", -1), "expected at least"),
        (8, struct.pack(">i", 1 << 30), "expected at most the"),
        (0, struct.pack(">q", -2), "offset -2, expected 0"),
    ],
    ids=["too-small", "negative", "past-the-end", "negative-offset"],
)
def test_a_header_that_cannot_be_is_refused(at: int, new: bytes, text: str) -> None:
    data = bytearray(message(0, b"hello", timestamp=TIME))
    data[at : at + len(new)] = new
    with pytest.raises(CorruptBatchError, match=text):
        parse_legacy(data)


@pytest.mark.parametrize("at", [26, 31], ids=["key", "value"])
def test_a_field_longer_than_the_message_is_refused(at: int) -> None:
    data = bytearray(message(0, b"hello", b"k", timestamp=TIME))
    struct.pack_into(">i", data, at, 1 << 20)
    with pytest.raises(CorruptRecordError, match="expected at most the"):
        list(parse_legacy(data).records())


def test_bytes_after_the_value_are_refused() -> None:
    data = bytearray(message(0, b"hello", timestamp=TIME) + b"\0")
    struct.pack_into(">i", data, 8, len(data) - 12)
    with pytest.raises(CorruptRecordError, match="1 bytes after the value"):
        list(parse_legacy(data).records())


def test_decompressed_bytes_are_limited() -> None:
    batch = parse_legacy(wrapper([message(0, bytes(100_000))], offset=0, codec="gzip"))
    with pytest.raises(CorruptRecordError, match="more than 1000 bytes"):
        batch.check(1000)
