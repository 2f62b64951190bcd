"""Which foreign batches of magic 2 an append accepts, and the bytes it writes (Kafka: LogValidator)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from kstore.config import LogConfig
from kstore.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    InvalidOffsetError,
    InvalidRecordError,
    InvalidTimestampError,
    KstoreError,
    RecordError,
    RecordTooLargeError,
    UnsupportedCodecError,
    UnsupportedFormatError,
)
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.compression import CODECS_BY_NAME
from kstore.rules.validate import RECORD_ERRORS_MAX, split_batches, unchanged
from tests.support.lives.foreign_batches import (
    CODECS,
    COMPACTED,
    COMPRESSED,
    HOUR_MS,
    NOW_MS,
    STAMPING,
    THREE,
    append,
    contents,
    records,
    tampered,
    written,
)

# --- batches of magic 2, in place -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_a_good_batch_is_stored_as_it_came_but_for_offset_and_epoch(codec: str) -> None:
    data = build_batch(THREE, codec=codec)
    validated = append(data, next_offset=1000, leader_epoch=7)
    stored = bytes(validated.buffer)
    assert stored[:8] == (1000).to_bytes(8, "big")
    assert stored[8:12] == data[8:12]
    assert stored[12:16] == (7).to_bytes(4, "big")
    assert stored[16:] == data[16:]
    assert validated.spans == [(1000, 1002)]
    assert (validated.source_codec, validated.target_codec, validated.size_changed) == (codec, codec, False)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", [{}, {"producer_id": 9, "producer_epoch": 2, "base_sequence": 4}], ids=str)
def test_a_good_batch_needs_no_closer_look(codec: str, producer: dict[str, Any]) -> None:
    short = unchanged(build_batch(THREE, codec=codec, **producer), LogConfig(), NOW_MS)
    assert short is not None
    assert short.stamp == ((9, 2, 4, False) if producer else None)


@pytest.mark.parametrize("config", [LogConfig(), COMPACTED, STAMPING], ids=["kept", "compacted", "stamping"])
@pytest.mark.parametrize("codec", CODECS)
def test_the_short_way_accepts_no_changed_bit_that_is_refused(codec: str, config: LogConfig) -> None:
    data = build_batch(THREE, codec=codec, producer_id=9, producer_epoch=2, base_sequence=4)
    short_count = 0
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        right = tampered(bytes(changed))
        short_count += unchanged(right, config, NOW_MS) is not None
        with suppress(KstoreError):
            append(right, config)
    assert (short_count > 0) == (config is not STAMPING)


@pytest.mark.parametrize("codec", CODECS)
def test_offsets_are_assigned_from_the_next_one(codec: str) -> None:
    batches = written(append(build_batch(THREE, codec=codec), next_offset=1234567))
    assert [offset for offset, *_ in contents(batches)] == [1234567, 1234568, 1234569]


def test_the_result_names_the_record_with_the_greatest_time() -> None:
    validated = append(build_batch(THREE), next_offset=50)
    assert (validated.max_timestamp, validated.offset_of_max_timestamp) == (NOW_MS, 51)
    assert validated.log_append_time == -1


@pytest.mark.parametrize("codec", CODECS)
def test_a_wrong_max_timestamp_of_a_producer_is_made_right(codec: str) -> None:
    data = tampered(build_batch(THREE, codec=codec), max_timestamp=NOW_MS + 77)
    validated = append(data)
    assert written(validated)[0].max_timestamp == NOW_MS
    assert not validated.size_changed


def test_producer_fields_and_headers_stay() -> None:
    data = build_batch(THREE, producer_id=9, producer_epoch=2, base_sequence=4, is_transactional=True)
    validated = append(data, next_offset=10)
    (batch,) = written(validated)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence) == (9, 2, 4, 6)
    assert batch.is_transactional
    assert validated.has_producers


def test_several_batches_are_one_append() -> None:
    one, two = build_batch(THREE), build_batch(records(NOW_MS + 5, NOW_MS), codec="gzip")
    validated = append(one + two, next_offset=100)
    batches = written(validated)
    assert [(batch.base_offset, batch.last_offset) for batch in batches] == [(100, 102), (103, 104)]
    assert (validated.max_timestamp, validated.offset_of_max_timestamp) == (NOW_MS + 5, 103)
    assert (validated.source_codec, validated.target_codec) == ("gzip", "gzip")
    assert not validated.offsets_monotonic


def test_batches_may_have_the_base_offset_of_their_place_in_the_buffer() -> None:
    one, two = build_batch(THREE), build_batch(THREE[:2])
    validated = append(one + tampered(two, base_offset=3), next_offset=8)
    assert list(validated.spans) == [(8, 10), (11, 12)]
    assert validated.offsets_monotonic


def test_one_bad_batch_refuses_the_append() -> None:
    good, bad = build_batch(THREE), build_batch(records(-1), is_control=True)
    with pytest.raises(InvalidRecordError, match=r"^batch 1 is a control batch"):
        append(good + bad)


def test_nothing_to_append_is_no_error() -> None:
    validated = append(b"", next_offset=5)
    assert (validated.batches, validated.spans, validated.record_count) == ([], [], 0)
    assert (validated.max_timestamp, validated.offset_of_max_timestamp, validated.log_append_time) == (-1, -1, -1)
    assert validated.offsets_monotonic


# --- splitting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 16, 17, 60, 61, -1], ids=lambda kept: f"{kept}-bytes")
def test_a_batch_that_is_cut_off_at_the_end_is_left_out(kept: int) -> None:
    data = build_batch(THREE)
    assert len(split_batches(data + data[:kept])) == 1
    assert split_batches(data[:kept]) == []


@pytest.mark.parametrize("kept", range(12, 17))
@pytest.mark.parametrize("size", [-1, 0, 13])
def test_a_size_that_no_batch_has_is_refused_though_the_rest_is_cut_off(kept: int, size: int) -> None:
    whole = build_batch(THREE)
    tail = (bytes(8) + size.to_bytes(4, "big", signed=True) + bytes(4))[:kept]
    with pytest.raises(CorruptBatchError, match=f"a size field of {size}, expected at least 14") as raised:
        split_batches(whole + tail)
    assert raised.value.position == len(whole)
    assert len(split_batches(whole + tail[:11])) == 1


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_like_object_is_taken(kind: Any) -> None:
    (batch,) = split_batches(kind(build_batch(THREE)))
    assert batch.record_count == 3


@pytest.mark.parametrize("size", [-1, 0, 13], ids=["negative", "zero", "below-the-smallest"])
def test_a_size_that_no_batch_can_have_is_damage(size: int) -> None:
    data = bytearray(build_batch(THREE))
    data[8:12] = size.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatchError):
        split_batches(data)


def test_an_unknown_magic_is_refused() -> None:
    data = bytearray(build_batch(THREE))
    data[16] = 3
    with pytest.raises(UnsupportedFormatError, match="magic 3, expected 0 to 2"):
        split_batches(data)


# --- what a producer's batch must be ----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("at", [20, 40, -1], ids=["crc", "header", "records"])
def test_a_flipped_bit_is_damage(codec: str, at: int) -> None:
    data = bytearray(build_batch(THREE, codec=codec))
    data[at] ^= 1
    with pytest.raises(CorruptBatchError, match="bad crc: stored 0x"):
        append(bytes(data))


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_without_records_is_refused(codec: str) -> None:
    attributes = CODECS_BY_NAME[codec].id
    data = tampered(build_batch([], base_offset=0), attributes=attributes, last_offset_delta=0)
    with pytest.raises(InvalidRecordError, match="batch 0 has no records"):
        append(data)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"last_offset_delta": 5}, "has 3 records, expected 6 for its offsets", id="offsets-over-count"),
        pytest.param({"record_count": 2}, "has 2 records, expected 3 for its offsets", id="count-below-offsets"),
    ],
)
def test_a_record_count_other_than_the_offsets_is_refused(codec: str, fields: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        append(tampered(build_batch(THREE, codec=codec), **fields))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"record_count": 4}, id="count-over-offsets"),
        pytest.param({"record_count": -3}, id="negative-count"),
        pytest.param({"last_offset_delta": -3}, id="negative-delta"),
    ],
)
def test_counts_that_no_writer_can_have_written_are_damage(fields: dict[str, int]) -> None:
    with pytest.raises(CorruptBatchError, match="expected"):
        append(tampered(build_batch(THREE), **fields))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [2, 4], ids=["fewer-than-there-are", "more-than-there-are"])
def test_a_count_and_offsets_that_both_lie_are_damage(codec: str, count: int) -> None:
    data = tampered(build_batch(THREE, codec=codec), record_count=count, last_offset_delta=count - 1)
    with pytest.raises(CorruptBatchError, match="batch 0 of the append: "):
        append(data)


@pytest.mark.parametrize("codec", CODECS)
def test_inner_offsets_with_a_gap_are_refused(codec: str) -> None:
    gap = [THREE[0], Record(2, NOW_MS, value=b"")]
    with pytest.raises(InvalidRecordError, match="has 2 records, expected 3"):
        append(build_batch(gap, codec=codec))
    with pytest.raises(CorruptBatchError, match="batch 0 of the append: "):
        append(tampered(build_batch(gap, codec=codec), last_offset_delta=1))


@pytest.mark.parametrize("place", [0, 1], ids=["first", "second"])
def test_another_base_offset_is_refused(place: int) -> None:
    data = build_batch(THREE) * place + tampered(build_batch(THREE), base_offset=4)
    with pytest.raises(InvalidRecordError, match=f"batch {place} has base offset 4, expected 0, or {3 * place} as its"):
        append(data)


@pytest.mark.parametrize("compression_type", ["producer", "gzip"])
def test_a_control_batch_of_a_client_is_refused(compression_type: str) -> None:
    marker = build_batch(records(NOW_MS), producer_id=1, producer_epoch=0, is_transactional=True, is_control=True)
    with pytest.raises(InvalidRecordError, match="batch 0 is a control batch"):
        append(marker, LogConfig.from_settings(compression_type=compression_type))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"base_sequence": -1}, id="without-sequence"),
        pytest.param({"producer_epoch": -1}, id="without-epoch"),
    ],
)
def test_a_producer_needs_sequence_and_epoch(fields: dict[str, int]) -> None:
    data = build_batch(THREE, producer_id=9, producer_epoch=0, base_sequence=0)
    with pytest.raises(InvalidRecordError, match="has producer id 9 with sequence"):
        append(tampered(data, **fields))


def test_a_transaction_needs_a_producer() -> None:
    with pytest.raises(InvalidRecordError, match="is transactional with producer id -1"):
        append(tampered(build_batch(THREE), attributes=0x10))


@pytest.mark.parametrize("config", [LogConfig(), STAMPING], ids=["CreateTime-log", "LogAppendTime-log"])
def test_a_batch_stamped_by_its_producer_is_refused(config: LogConfig) -> None:
    with pytest.raises(InvalidTimestampError, match="batch 0 is stamped LogAppendTime") as refused:
        append(build_batch(THREE, log_append_time=NOW_MS), config)
    assert [error.index for error in refused.value.record_errors] == [0, 1, 2]


@pytest.mark.parametrize("codec_id", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec_id: int) -> None:
    with pytest.raises(UnsupportedCodecError, match=f"codec {codec_id}, expected 0 to 4"):
        append(tampered(build_batch(THREE), attributes=codec_id))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_bytes_that_are_no_compressed_stream_are_damage(codec: str) -> None:
    with pytest.raises(CorruptBatchError, match=f"batch 0 of the append: .*{codec}"):
        append(tampered(build_batch(THREE), attributes=CODECS_BY_NAME[codec].id))


def test_a_broken_record_is_damage_with_its_batch() -> None:
    data = bytearray(build_batch(THREE))
    data[62] = 0x40  # the first record's lengths are checked, not its attributes
    data[61] = 0x7E
    with pytest.raises(CorruptBatchError, match="batch 1 of the append: "):
        append(build_batch(THREE) + tampered(bytes(data)))


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_a_batch_of_max_message_bytes_is_taken_and_a_larger_one_refused() -> None:
    data = build_batch(THREE)
    append(data, LogConfig(max_message_bytes=len(data)))
    with pytest.raises(RecordTooLargeError, match=f"record batch of {len(data)} bytes is over the limit"):
        append(data, LogConfig(max_message_bytes=len(data) - 1))


def test_a_batch_is_measured_again_after_it_was_recompressed() -> None:
    data = build_batch([Record(0, NOW_MS, value=bytes(5000))], codec="gzip")
    with pytest.raises(RecordTooLargeError, match=r"batch 0, compressed with none, of 50\d\d bytes"):
        append(data, LogConfig(max_message_bytes=1000, compression_type="uncompressed"))


def test_a_batch_over_segment_bytes_is_refused() -> None:
    with pytest.raises(BatchTooLargeError, match=r"over the segment size of 2000 bytes \(segment_bytes\)"):
        append(build_batch([Record(0, NOW_MS, value=bytes(2000))]), LogConfig(segment_bytes=2000))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_batch_that_grows_over_the_uncompressed_limit_is_damage(codec: str) -> None:
    data = build_batch([Record(0, NOW_MS, value=bytes(1 << 20))], codec=codec)
    with pytest.raises(CorruptBatchError, match=r"more than \d+ bytes uncompressed"):
        append(data, LogConfig(max_batch_bytes_uncompressed=1 << 16))


def test_a_batch_is_not_compressed_where_it_could_not_be_read_again() -> None:
    config = LogConfig(max_batch_bytes_uncompressed=1024, compression_type="gzip")
    with pytest.raises(RecordTooLargeError, match=r"batch 0 of 20\d\d bytes .*\(max_batch_bytes_uncompressed\)"):
        append(build_batch([Record(0, NOW_MS, value=bytes(2000))]), config)


def test_offsets_end_where_64_bits_do() -> None:
    data = build_batch(THREE)
    assert append(data, next_offset=2**63 - 4).spans == [(2**63 - 4, 2**63 - 2)]
    with pytest.raises(InvalidOffsetError):
        append(data, next_offset=2**63 - 3)


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_a_compacted_log_refuses_records_without_key_and_names_each(codec: str) -> None:
    mixed = [THREE[0], Record(1, NOW_MS, value=b"b"), Record(2, NOW_MS, key=b"", value=b"c"), Record(3, NOW_MS)]
    with pytest.raises(InvalidRecordError) as refused:
        append(build_batch(mixed, codec=codec), COMPACTED)
    assert refused.value.record_errors == (
        RecordError(1, "no key, which a compacted log needs"),
        RecordError(3, "no key, which a compacted log needs"),
    )
    assert str(refused.value) == (
        "batch 0 has 2 invalid of 4 records: record 1: no key, which a compacted log needs; "
        "record 3: no key, which a compacted log needs"
    )
    assert not isinstance(refused.value, InvalidTimestampError)


def test_a_compacted_log_takes_records_with_keys() -> None:
    assert append(build_batch(THREE), COMPACTED).record_count == 3


def test_a_log_that_deletes_needs_no_key() -> None:
    assert append(build_batch(records(NOW_MS, key=None))).record_count == 1


# --- timestamps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("timestamp", "accepted"),
    [
        pytest.param(NOW_MS - 1000, True, id="at-the-limit-before"),
        pytest.param(NOW_MS - 1001, False, id="past"),
        pytest.param(NOW_MS + 2000, True, id="at-the-limit-after"),
        pytest.param(NOW_MS + 2001, False, id="future"),
        pytest.param(-1, True, id="no-time"),
    ],
)
def test_a_time_outside_the_limits_is_refused(codec: str, timestamp: int, accepted: bool) -> None:
    config = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=2000)
    data = build_batch(records(NOW_MS, timestamp, NOW_MS), codec=codec)
    if accepted:
        assert append(data, config).record_count == 3
        return
    with pytest.raises(InvalidTimestampError) as refused:
        append(data, config)
    message = f"timestamp {timestamp} ms, expected {NOW_MS - 1000} to {NOW_MS + 2000}"
    assert refused.value.record_errors == (RecordError(1, message),)
    assert message in str(refused.value)


def test_a_time_of_long_ago_is_taken_by_default_and_one_far_ahead_is_not() -> None:
    append(build_batch(records(0)))
    append(build_batch(records(NOW_MS + HOUR_MS)))
    with pytest.raises(InvalidTimestampError):
        append(build_batch(records(NOW_MS + HOUR_MS + 1)))


def test_without_limits_every_time_is_taken() -> None:
    config = LogConfig.from_settings(message_timestamp_after_max_ms=None)
    assert append(build_batch(records(0, 2**63 - 1)), config).max_timestamp == 2**63 - 1


@pytest.mark.parametrize(
    "config", [LogConfig(), LogConfig.from_settings(message_timestamp_after_max_ms=None)], ids=["limits", "none"]
)
def test_a_negative_time_other_than_none_is_refused(config: LogConfig) -> None:
    data = tampered(build_batch(records(NOW_MS)), base_timestamp=-2, max_timestamp=-2)
    with pytest.raises(InvalidTimestampError, match="timestamp -2 ms, expected 0 to"):
        append(data, config)


def test_a_batch_without_any_time_has_none() -> None:
    config = LogConfig(message_timestamp_before_max_ms=1000)
    validated = append(build_batch(records(-1, -1)), config)
    assert (validated.max_timestamp, validated.offset_of_max_timestamp) == (-1, -1)


def test_a_bad_time_makes_it_a_timestamp_error_that_lists_the_other_errors_too() -> None:
    bad = [
        Record(0, NOW_MS, value=b"no key"),
        Record(1, NOW_MS, key=b"k"),
        Record(2, NOW_MS + 2 * HOUR_MS, key=b"k"),
        Record(3, NOW_MS + 2 * HOUR_MS, value=b"no key either: one error a record"),
        Record(4, NOW_MS, value=b"no key"),
    ]
    with pytest.raises(InvalidTimestampError) as refused:
        append(build_batch(bad), COMPACTED)
    assert [error.index for error in refused.value.record_errors] == [0, 2, 3, 4]
    text = str(refused.value)
    assert text.startswith("batch 0 has 4 invalid of 5 records: record 0: no key")
    assert "record 3: " in text
    assert "record 4" not in text
    assert text.endswith("; and 1 more")


def test_errors_of_a_huge_batch_are_counted_when_there_are_too_many_to_list() -> None:
    count = RECORD_ERRORS_MAX + 5
    data = build_batch([Record(offset, NOW_MS) for offset in range(count)])
    with pytest.raises(
        InvalidRecordError, match=f"{count} invalid of {count} records: .*and {count - 3} more"
    ) as refused:
        append(data, COMPACTED)
    assert len(refused.value.record_errors) == RECORD_ERRORS_MAX


# --- LogAppendTime ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_an_append_time_is_stamped_on_the_header_only(codec: str) -> None:
    data = build_batch(THREE, codec=codec)
    validated = append(data, STAMPING, next_offset=20)
    (batch,) = written(validated)
    assert bytes(batch.data[61:]) == data[61:]
    assert (batch.timestamp_type, batch.max_timestamp) == ("LogAppendTime", NOW_MS)
    assert {record.timestamp for record in batch.records()} == {NOW_MS}
    assert batch.check().min_timestamp == NOW_MS - 5
    assert (validated.log_append_time, validated.max_timestamp) == (NOW_MS, NOW_MS)
    assert validated.offset_of_max_timestamp == 22
    assert not validated.size_changed


@pytest.mark.parametrize("source", CODECS)
def test_an_append_time_is_stamped_on_what_is_recompressed(source: str) -> None:
    target = "gzip" if source != "gzip" else "lz4"
    config = LogConfig.from_settings(message_timestamp_type="LogAppendTime", compression_type=target)
    validated = append(build_batch(THREE, codec=source), config, next_offset=20)
    (batch,) = written(validated)
    assert (batch.codec, batch.timestamp_type, batch.max_timestamp) == (target, "LogAppendTime", NOW_MS)
    assert (validated.log_append_time, validated.offset_of_max_timestamp) == (NOW_MS, 22)
    assert validated.size_changed


def test_a_log_that_stamps_looks_at_no_time() -> None:
    append(build_batch(records(NOW_MS + 2 * HOUR_MS, 0)), STAMPING)


def test_the_greatest_time_of_several_stamped_batches_is_the_last_records() -> None:
    assert append(build_batch(THREE) * 2, STAMPING).offset_of_max_timestamp == 5


# --- another codec ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("compression_type", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_is_stored_in_the_codec_of_the_log(source: str, compression_type: str) -> None:
    target = "none" if compression_type == "uncompressed" else compression_type
    config = LogConfig.from_settings(compression_type=compression_type)
    data = build_batch(THREE, codec=source, producer_id=9, producer_epoch=2, base_sequence=4, is_transactional=True)
    validated = append(data, config, next_offset=30)
    (batch,) = written(validated)
    assert batch.codec == target
    assert contents([batch]) == [(30 + r.offset, r.timestamp, r.key, r.value, r.headers) for r in THREE]
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.is_transactional) == (9, 2, 4, True)
    assert batch.max_timestamp == NOW_MS
    assert (validated.source_codec, validated.target_codec) == (source, target)
    assert validated.size_changed is (source != target)


@pytest.mark.parametrize(
    ("codec", "producers", "logs"), [("gzip", 9, 1), ("lz4", 9, 1), ("zstd", 19, 1)], ids=["gzip", "lz4", "zstd"]
)
def test_another_level_of_the_same_codec_changes_nothing(codec: str, producers: int, logs: int) -> None:
    data = build_batch([Record(0, NOW_MS, value=bytes(range(256)) * 40)], codec=codec, level=producers)
    config = LogConfig.from_settings(compression_type=codec, **{f"compression_{codec}_level": logs})
    validated = append(data, config)
    assert bytes(validated.buffer)[16:] == data[16:]
    assert not validated.size_changed


@pytest.mark.parametrize("level", [1, 9])
def test_the_level_of_the_log_is_used(level: int) -> None:
    data = build_batch([Record(0, NOW_MS, value=bytes(range(256)) * 40)])
    config = LogConfig.from_settings(compression_type="gzip", compression_gzip_level=level)
    (batch,) = written(append(data, config))
    assert bytes(batch.data[61:]) == CODECS_BY_NAME["gzip"].compress(data[61:], level)
