"""Appended batches that keep their offsets: another log's, unchanged, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from kstore.config import LogConfig
from kstore.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    InvalidOffsetError,
)
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.rules.validate import ValidatedBatches
from tests.support.lives.foreign_batches import (
    CODECS,
    HOUR_MS,
    LEGACY_CODECS,
    NOW_MS,
    THREE,
    append,
    message,
    message_set,
    tampered,
    wrapper_at,
    written,
)


def kept(data: bytes, next_offset: int = 0, config: LogConfig | None = None) -> ValidatedBatches:
    return append(data, config, next_offset=next_offset, assign_offsets=False)


def log_batch(base_offset: int, **options: Any) -> bytes:
    shifted = [Record(base_offset + r.offset, r.timestamp, key=r.key, value=r.value) for r in THREE]
    return build_batch(shifted, leader_epoch=11, **options)


@pytest.mark.parametrize("codec", CODECS)
def test_kept_batches_are_written_byte_for_byte(codec: str) -> None:
    data = log_batch(10, codec=codec) + log_batch(50, codec=codec)
    validated = kept(data, 10)
    assert bytes(validated.buffer) == data
    assert validated.spans == [(10, 12), (50, 52)]
    assert [batch.leader_epoch for batch in written(validated)] == [11, 11]
    assert (validated.source_codec, validated.target_codec, validated.size_changed) == (codec, codec, False)
    assert (validated.max_timestamp, validated.offset_of_max_timestamp) == (NOW_MS, 11)


def test_kept_batches_are_not_what_a_producer_must_send() -> None:
    """Control, empty, stamped and mixed batches, gaps, any size, time and codec."""
    gap = build_batch([Record(3, NOW_MS + 9 * HOUR_MS), Record(7, 0)], last_offset=9)
    marker = build_batch(
        [Record(10, NOW_MS, key=bytes(4), value=bytes(6))],
        producer_id=1, producer_epoch=0, is_transactional=True, is_control=True,
    )  # fmt: skip
    empty = build_batch([], base_offset=11, last_offset=15, max_timestamp=NOW_MS)
    stamped = build_batch([Record(16, 5)], log_append_time=NOW_MS)
    data = message(0, 1, b"old") + message(1, 2, b"old") + gap + marker + empty + stamped
    config = LogConfig(max_message_bytes=68, compression_type="gzip", cleanup_policy="compact")
    validated = kept(data, 0, config)
    assert bytes(validated.buffer) == data
    assert validated.spans == [(1, 1), (2, 2), (3, 9), (10, 10), (11, 15), (16, 16)]
    assert validated.record_count == 6
    assert validated.log_append_time == -1
    assert validated.has_producers


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_kept_old_messages_stay_old(magic: int, codec: str) -> None:
    data = message_set(magic, codec, 1, 2, 3) if codec == "none" else wrapper_at(magic, codec, 102)
    validated = kept(data)
    assert bytes(validated.buffer) == data
    assert validated.spans == ([(0, 0), (1, 1), (2, 2)] if codec == "none" else [(100, 102)])
    assert validated.record_count == 3


def test_kept_offsets_below_the_end_are_refused() -> None:
    with pytest.raises(InvalidOffsetError, match="batch 0 starts at offset 10, expected at least 11"):
        kept(log_batch(10), 11)


@pytest.mark.parametrize("second", [0, 12], ids=["back", "overlapping"])
def test_kept_offsets_must_rise(second: int) -> None:
    with pytest.raises(InvalidOffsetError, match=f"batch 1 starts at offset {second}, expected at least 13"):
        kept(log_batch(10) + log_batch(second))


def test_kept_wrapper_must_end_at_its_own_offset() -> None:
    with pytest.raises(InvalidOffsetError, match="ends at offset 2, expected 0"):
        kept(wrapper_at(1, "gzip", 0))


@pytest.mark.parametrize("codec", CODECS)
def test_kept_batches_are_checked_for_damage(codec: str) -> None:
    data = bytearray(log_batch(10, codec=codec))
    data[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="bad crc"):
        kept(bytes(data))
    with pytest.raises(CorruptBatchError, match="batch 0 of the append: "):
        kept(tampered(log_batch(10, codec=codec), record_count=2))


def test_a_kept_batch_over_segment_bytes_is_refused() -> None:
    with pytest.raises(BatchTooLargeError):
        kept(build_batch([Record(0, NOW_MS, value=bytes(2000))]), 0, LogConfig(segment_bytes=2000))


def test_keeping_nothing_is_no_error() -> None:
    assert kept(b"").batches == []
