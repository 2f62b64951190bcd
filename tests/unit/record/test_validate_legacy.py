"""Message sets of magic 0 and 1 in an append: rebuilt as magic 2, or refused."""

from __future__ import annotations

import pytest

from kstore.config import LogConfig
from kstore.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnsupportedCodecError,
)
from kstore.record.builder import build_batch
from kstore.record.compression import CODECS_BY_NAME
from tests.support.lives.foreign_batches import (
    COMPACTED,
    LEGACY_CODECS,
    NOW_MS,
    STAMPING,
    THREE,
    append,
    contents,
    message,
    message_set,
    written,
)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_old_messages_become_one_batch_of_magic_2(magic: int, codec: str) -> None:
    validated = append(message_set(magic, codec, NOW_MS - 5, NOW_MS, NOW_MS - 3), next_offset=40, leader_epoch=3)
    (batch,) = written(validated)
    assert (batch.magic, batch.codec, batch.leader_epoch) == (2, codec, 3)
    times = [NOW_MS - 5, NOW_MS, NOW_MS - 3] if magic else [-1, -1, -1]
    assert contents([batch]) == [(40 + n, times[n], b"key", b"value %d" % n, ()) for n in range(3)]
    assert (validated.max_timestamp, validated.offset_of_max_timestamp) == ((NOW_MS, 41) if magic else (-1, -1))
    assert (validated.source_codec, validated.target_codec, validated.size_changed) == (codec, codec, True)
    assert not validated.has_producers


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compression_type", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_old_messages_are_stored_in_the_codec_of_the_log(magic: int, compression_type: str) -> None:
    target = "none" if compression_type == "uncompressed" else compression_type
    config = LogConfig.from_settings(compression_type=compression_type)
    for codec in ("none", "gzip"):
        (batch,) = written(append(message_set(magic, codec, NOW_MS, NOW_MS), config))
        assert batch.codec == target
        assert list(batch.values()) == [b"value 0", b"value 1"]


@pytest.mark.parametrize(
    ("codec", "offsets"),
    [
        pytest.param("none", (7, 7, 7), id="plain-all-alike"),
        pytest.param("none", (100, 200, 300), id="plain-absolute"),
        pytest.param("gzip", (100, 200, 300), id="compressed-with-gaps"),
    ],
)
@pytest.mark.parametrize("magic", [0, 1])
def test_whatever_offsets_old_messages_have_new_ones_have_no_gap(
    magic: int, codec: str, offsets: tuple[int, ...]
) -> None:
    validated = append(message_set(magic, codec, 1, 2, 3, offsets=offsets), next_offset=5)
    assert [offset for offset, *_ in contents(written(validated))] == [5, 6, 7]


def test_plain_messages_are_gathered_into_batches_of_at_most_max_message_bytes() -> None:
    data = b"".join(message(1, number, bytes(100)) for number in range(10))
    batches = written(append(data, LogConfig(max_message_bytes=500)))
    assert [batch.record_count for batch in batches] == [3, 3, 3, 1]
    assert all(batch.size <= 500 for batch in batches)


def test_plain_messages_beside_wrappers_keep_their_order() -> None:
    data = (
        message_set(1, "none", 1, 2)
        + message_set(1, "gzip", 3, 4)
        + message_set(1, "gzip", 5)
        + message_set(1, "none", 6)
    )
    validated = append(data)
    batches = written(validated)
    assert [timestamp for _, timestamp, *_ in contents(batches)] == [1, 2, 3, 4, 5, 6]
    assert [(batch.codec, batch.record_count) for batch in batches] == [
        ("none", 2),
        ("gzip", 2),
        ("gzip", 1),
        ("none", 1),
    ]
    assert validated.source_codec == "gzip"


@pytest.mark.parametrize(
    ("first", "second"),
    [(0, 1), (1, 0), (1, 2), (2, 1)],
    ids=["0-then-1", "1-then-0", "1-then-2", "2-then-1"],
)
def test_magics_do_not_mix(first: int, second: int) -> None:
    data = {0: message(0, 0, b"v"), 1: message(1, 0, b"v"), 2: build_batch(THREE)}
    with pytest.raises(InvalidRecordError, match=f"batch 1 has magic {second}, expected the first one's, {first}"):
        append(data[first] + data[second])


@pytest.mark.parametrize(("outer", "inner"), [(1, 0), (0, 1)], ids=["0-in-1", "1-in-0"])
def test_an_inner_message_of_another_magic_is_damage(outer: int, inner: int) -> None:
    compressed = CODECS_BY_NAME["gzip"].compress(message(inner, 0, b"v"), None)
    with pytest.raises(CorruptBatchError, match=f"version {inner} in a wrapper of version {outer}"):
        append(message(outer, 0, compressed, key=None, attributes=1))


def test_a_compressed_message_in_a_compressed_one_is_damage() -> None:
    inner = message_set(1, "gzip", NOW_MS)
    with pytest.raises(CorruptBatchError, match="a compressed message within"):
        append(message(1, 0, CODECS_BY_NAME["gzip"].compress(inner, None), key=None, attributes=1))


def test_an_inner_message_with_a_bad_crc_is_damage() -> None:
    inner = bytearray(message(1, 0, b"value"))
    inner[-1] ^= 1
    with pytest.raises(CorruptBatchError, match=r"batch 0 of the append: .*bad crc"):
        append(message(1, 0, CODECS_BY_NAME["gzip"].compress(inner, None), key=None, attributes=1))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    "value", [None, b"", CODECS_BY_NAME["gzip"].compress(b"", None)], ids=["null", "empty", "nothing-in-it"]
)
def test_a_wrapper_without_messages_is_damage(magic: int, value: bytes | None) -> None:
    with pytest.raises(CorruptBatchError, match="batch 0 of the append"):
        append(message(magic, 0, value, key=None, attributes=1))


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_is_refused_in_old_messages(magic: int) -> None:
    compressed = CODECS_BY_NAME["zstd"].compress(message(magic, 0, b"v"), None)
    with pytest.raises(UnsupportedCodecError, match=f"codec 4 in version {magic}"):
        append(message(magic, 0, compressed, key=None, attributes=4))


@pytest.mark.parametrize("codec_id", [0, 1], ids=["plain", "wrapper"])
def test_an_old_message_stamped_by_its_producer_is_refused(codec_id: int) -> None:
    data = message(1, 0, CODECS_BY_NAME["gzip"].compress(message(1, 0, b"v"), None), attributes=codec_id | 8)
    with pytest.raises(InvalidTimestampError, match="stamped LogAppendTime"):
        append(data)


def test_a_wrapper_is_measured_again_after_it_was_rebuilt() -> None:
    inner = message(1, 0, bytes(5000))
    data = message(1, 0, CODECS_BY_NAME["gzip"].compress(inner, None), key=None, attributes=1)
    with pytest.raises(RecordTooLargeError, match="a compressed message, rebuilt, of 50"):
        append(data, LogConfig(max_message_bytes=1000, compression_type="uncompressed"))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_a_compacted_log_refuses_old_messages_without_key(magic: int, codec: str) -> None:
    with pytest.raises(InvalidRecordError, match=r"batch 0 has \d invalid of"):
        append(message_set(magic, codec, NOW_MS, NOW_MS, key=None), COMPACTED)


@pytest.mark.parametrize("codec", LEGACY_CODECS)
@pytest.mark.parametrize("timestamp", [NOW_MS - 1001, NOW_MS + 2001], ids=["past", "future"])
def test_an_old_message_with_a_time_outside_the_limits_is_refused(codec: str, timestamp: int) -> None:
    config = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=2000)
    with pytest.raises(InvalidTimestampError, match=f"timestamp {timestamp} ms"):
        append(message_set(1, codec, timestamp, NOW_MS), config)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_an_append_time_is_stamped_on_old_messages(magic: int, codec: str) -> None:
    validated = append(message_set(magic, codec, 5, 7), STAMPING, next_offset=20)
    (batch,) = written(validated)
    assert {record.timestamp for record in batch.records()} == {NOW_MS}
    assert (batch.timestamp_type, validated.log_append_time) == ("LogAppendTime", NOW_MS)
    assert validated.offset_of_max_timestamp == 21
