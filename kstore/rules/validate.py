"""Whether foreign batches may be appended, and in what form: Kafka's LogValidator as pure decisions over batches.

    assigned   a client's batches: every check, offsets given by the log, the log's codec and timestamp type;
               versions 0 and 1 are rebuilt as version 2
    kept       batches that have their offsets, from another log: CRC, structure and the order of offsets;
               versions 0 and 1 are rebuilt as version 2 with the offsets they have

A batch that may stay as it is is not rebuilt: base offset and leader epoch lie outside the CRC, and the log patches
them when it knows them. All errors of a batch's records are collected before it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kstore.config import LogConfig
from kstore.errors import (
    InvalidOffsetError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordError,
    RecordTooLargeError,
)
from kstore.record._codec import Record, RecordsSummary
from kstore.record.batch import Batch, rewrite_header
from kstore.record.builder import build_batch
from kstore.record.parse import parse_batch
from kstore.types import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP

__all__ = ["ValidatedBatch", "timestamp_error", "validate_assigned", "validate_kept"]

MAGIC_V2 = 2
# As many as Kafka's message shows; the error lists them all.
ERRORS_SHOWN = 3


class ValidatedBatch(NamedTuple):
    """A whole batch of version 2, ready to be written once base offset and leader epoch are patched.

    ``offset_of_max_delta`` is relative to the base offset of the first record that has ``max_timestamp``.
    """

    data: bytes
    base_offset: int
    last_offset: int
    record_count: int
    max_timestamp: int
    offset_of_max_delta: int
    source_codec: str
    target_codec: str
    producer_id: int


def validate_assigned(batches: Sequence[Batch], config: LogConfig, now_ms: int) -> list[ValidatedBatch]:
    """What to write of a client's batches, whose offsets the log assigns (LogValidator).

    Raises: CorruptDataError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError, UnsupportedCodecError.
    """
    validated = []
    for batch in batches:
        if batch.size > config.max_message_bytes:
            raise RecordTooLargeError(batch.size, config.max_message_bytes)
        if batch.magic != batches[0].magic:
            raise InvalidRecordError(f"a batch of version {batch.magic} behind one of version {batches[0].magic}")
        batch.ensure_valid()
        summary = batch.check(config.max_batch_bytes_uncompressed)
        _check_header(batch, summary, config)
        _check_records(batch, summary, config, now_ms)
        done = _stored(batch, summary, config, now_ms)
        # Sizes are checked again: another codec, or another version, may need more.
        if len(done.data) > config.max_message_bytes:
            raise RecordTooLargeError(len(done.data), config.max_message_bytes)
        validated.append(done)
    return validated


def validate_kept(batches: Sequence[Batch], config: LogConfig) -> list[ValidatedBatch]:
    """What to write of batches that keep their offsets, which must rise; the log knows where the first must lie.

    Raises: CorruptDataError, InvalidOffsetError.
    """
    validated = []
    next_offset = 0
    for batch in batches:
        batch.ensure_valid()
        summary = batch.check(config.max_batch_bytes_uncompressed)
        if batch.base_offset < next_offset:
            raise InvalidOffsetError(f"a batch of offset {batch.base_offset}, expected at least {next_offset}")
        next_offset = batch.last_offset + 1
        if batch.magic == MAGIC_V2:
            data = bytes(batch.data)
        else:
            data = _rebuilt(batch, config, batch.codec, batch.base_offset, None)
        validated.append(_validated(batch, data, summary, batch.codec))
    return validated


def _check_header(batch: Batch, summary: RecordsSummary, config: LogConfig) -> None:
    """What a client's batch as a whole must be."""
    count = batch.record_count
    if count <= 0:
        raise InvalidRecordError(f"a batch of {count} records, expected at least 1")
    if batch.magic == MAGIC_V2:
        offset_range = batch.last_offset - batch.base_offset + 1
        if offset_range != count:
            raise InvalidRecordError(f"a batch of {count} records with offsets for {offset_range}")
        if batch.is_control:
            raise InvalidRecordError("a control batch, which only a coordinator may write")
        if batch.producer_id >= 0 and batch.base_sequence < 0:
            raise InvalidRecordError(
                f"a batch of producer {batch.producer_id} with sequence {batch.base_sequence}, expected 0 or more"
            )
        if batch.is_transactional and batch.producer_id < 0:
            raise InvalidRecordError("a transactional batch without a producer id")
    if batch.timestamp_type == LOG_APPEND_TIME and config.message_timestamp_type == CREATE_TIME:
        raise InvalidTimestampError("a batch stamped with LogAppendTime, which only the log may do")


def timestamp_error(timestamp: int, config: LogConfig, now_ms: int) -> str | None:
    """Why the timestamp (ms) is refused, or None. NO_TIMESTAMP is always taken, and any in an append-time log."""
    if timestamp == NO_TIMESTAMP or config.message_timestamp_type == LOG_APPEND_TIME:
        return None
    lowest = now_ms - config.message_timestamp_before_max_ms
    highest = now_ms + config.message_timestamp_after_max_ms
    if lowest <= timestamp <= highest:
        return None
    return f"timestamp {timestamp} ms, expected {lowest} to {highest}"


def _check_records(batch: Batch, summary: RecordsSummary, config: LogConfig, now_ms: int) -> None:
    """What each record must be. The summary tells whether any is wrong; only then they are looked at one by one."""
    keys_missing = config.is_compacted and summary.null_key_count > 0
    times_wrong = batch.magic > 0 and any(
        timestamp_error(timestamp, config, now_ms) or timestamp < NO_TIMESTAMP
        for timestamp in (summary.min_timestamp, summary.max_timestamp)
    )
    if not keys_missing and not times_wrong:
        return
    errors, times_refused = [], False
    for index, record in enumerate(batch.records(max_bytes_uncompressed=config.max_batch_bytes_uncompressed)):
        problem = timestamp_error(record.timestamp, config, now_ms) if batch.magic > 0 else None
        times_refused = times_refused or problem is not None
        if problem is None and config.is_compacted and record.key is None:
            problem = "no key, and a compacted log needs one"
        if problem is not None:
            errors.append(RecordError(index, problem))
    if errors:
        shown = "; ".join(f"record {error.index}: {error.message}" for error in errors[:ERRORS_SHOWN])
        kind = InvalidTimestampError if times_refused else InvalidRecordError
        raise kind(f"{len(errors)} of {batch.record_count} records are refused: {shown}", errors)


def _stored(batch: Batch, summary: RecordsSummary, config: LogConfig, now_ms: int) -> ValidatedBatch:
    """The batch in the log's form: as it is where codec, version and offsets allow it, else built anew."""
    target_codec = config.target_codec(batch.codec)
    append_time = now_ms if config.message_timestamp_type == LOG_APPEND_TIME else None
    dense = summary.first_offset_delta == 0 and summary.last_offset_delta == batch.record_count - 1
    if batch.magic == MAGIC_V2 and batch.codec == target_codec and dense:
        data = bytearray(batch.data)
        if append_time is not None:
            rewrite_header(data, timestamp_type=LOG_APPEND_TIME, max_timestamp=append_time)
        elif batch.max_timestamp != summary.max_timestamp:
            rewrite_header(data, max_timestamp=summary.max_timestamp)
        stored = bytes(data)
    else:
        stored = _rebuilt(batch, config, target_codec, 0, append_time)
    done = _validated(batch, stored, summary, target_codec)
    if append_time is not None:
        # Every record has the same time then; Kafka names the last.
        return done._replace(max_timestamp=append_time, offset_of_max_delta=batch.record_count - 1)
    return done


def _rebuilt(batch: Batch, config: LogConfig, codec: str, base_offset: int | None, append_time: int | None) -> bytes:
    """The records in a new batch of version 2: with ``base_offset`` 0 numbered from it, else with their own offsets."""
    records: list[Record] = list(batch.records(max_bytes_uncompressed=config.max_batch_bytes_uncompressed))
    if base_offset == 0:
        records = [
            Record(number, record.timestamp, CREATE_TIME, record.key, record.value, record.headers)
            for number, record in enumerate(records)
        ]
    return build_batch(
        records,
        codec=codec,
        level=config.compression_level(codec),
        log_append_time=append_time,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
    )


def _validated(batch: Batch, data: bytes, summary: RecordsSummary, target_codec: str) -> ValidatedBatch:
    stored = parse_batch(data)
    return ValidatedBatch(
        data,
        stored.base_offset,
        stored.last_offset,
        stored.record_count,
        stored.max_timestamp,
        max(summary.max_timestamp_offset_delta, 0),
        batch.codec,
        target_codec,
        batch.producer_id,
    )
