"""Whether foreign batches may be appended, and the bytes that then go into the log: pure, over values.

With offsets to be assigned, a batch is a producer's, and must have (Kafka: LogValidator, UnifiedLog.append)

    1  the first batch's magic, at most max_message_bytes, and the CRC that it states
    2  no control records, a sequence if it has a producer, no append time
    3  for magic 2: as many records as its offsets say, and at least one; base offset 0, or its place in the buffer
    4  only whole records: lengths, offsets without a gap, inner CRCs of magic 0 and 1
    5  if the log is compacted, a key in every record
    6  if the log keeps the producers' times, times within the limits; -1 is no time, and always accepted

Its bytes are then used unchanged, with a patched header, unless the codec changes (the same records are compressed
again) or the magic is 0 or 1 (rebuilt as magic 2). This may make it larger, so its size is checked again. One batch
that fails makes the whole append fail. ``unchanged`` answers for the commonest append, one batch that stays as it is,
and leaves all others to ``validate``; the tests and the fuzzer hold it against that.

With offsets to be kept, a batch is a log's own: 4 and the CRC must hold, and offsets increase from batch to batch;
gaps, control batches, empty batches and mixed magics are allowed, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from kstore.config import LogConfig
from kstore.errors import (
    CorruptBatchError,
    CorruptRecordError,
    InvalidOffsetError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordError,
    RecordTooLargeError,
)
from kstore.record._codec import BatchBuffer, EncodedBatch, Record, RecordsSummary, check_records, patch_header
from kstore.record.batch import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_LOG_APPEND_TIME,
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CRC_START,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    Batch,
    BatchHeader,
    RecordBatch,
    batch_crc,
)
from kstore.record.builder import BATCH_BYTES_MAX, build_batches
from kstore.record.compression import CODECS, CODECS_BY_NAME, NO_CODEC, Codec
from kstore.record.legacy import LegacyBatch
from kstore.record.parse import MAGIC_POSITION, entry_size, parse_batch
from kstore.record.scan import check_size_field
from kstore.rules.roll import ensure_fits
from kstore.types import LOG_APPEND_TIME, NO_OFFSET, NO_TIMESTAMP, TIMESTAMP_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

# How many records of a refused batch a message shows; the error's record_errors has them all.
RECORD_ERRORS_SHOWN = 3
# Millions of bad records must not become millions of objects: further ones are only counted.
RECORD_ERRORS_MAX = 10_000


class ValidatedBatches(NamedTuple):
    """Batches that may be written as they are in ``buffer``, and the data of the append's result.

    ``spans`` are the first and last offset of each batch. ``offset_of_max_timestamp`` belongs to the first record with
    it; if the log stamps records (``log_append_time``, else -1), to the last one. ``source_codec`` is the last
    compressing one found. ``size_changed``: a batch was compressed or rebuilt. ``offsets_monotonic``: the original
    offsets of the batches increase. ``has_producers``: a batch has a producer id.
    """

    buffer: BatchBuffer
    batches: list[EncodedBatch]
    spans: Sequence[tuple[int, int]]
    max_timestamp: int
    offset_of_max_timestamp: int
    log_append_time: int
    source_codec: str
    target_codec: str
    record_count: int
    size_changed: bool
    offsets_monotonic: bool
    has_producers: bool


class UnchangedBatch(NamedTuple):
    """A batch that goes into the log as it is. ``stamp``, of a producer's, is that of ``PendingAppend``."""

    batch: EncodedBatch
    codec: str
    stamp: tuple[int, int, int, bool] | None


def split_batches(data: bytes | bytearray | memoryview) -> list[Batch]:
    """The batches in ``data``, of any version; trailing bytes without a whole batch are dropped.

    Only headers are read: ``validate`` checks the rest, and copies it. Until then the bytes must not change.

    Raises: CorruptBatchError, also for an impossible size in what is cut off; UnsupportedFormatError.
    """
    batches: list[Batch] = []
    position = 0
    while len(data) - position > MAGIC_POSITION:
        size = entry_size(data, position)
        if size > len(data) - position:
            break
        batches.append(parse_batch(data, position))
        position += size
    check_size_field(data, position)
    return batches


def unchanged(data: Buffer, config: LogConfig, now_ms: int) -> UnchangedBatch | None:
    """The one batch that is all of ``data``, if ``validate`` would accept it and change nothing but its place.

    This is what a client sends almost always, for a fraction of the cost. None means: let ``validate`` decide.
    """
    view = memoryview(data)
    size = view.nbytes
    if not BATCH_HEADER_BYTES <= size <= min(config.max_message_bytes, config.segment_bytes):
        return None
    header = BatchHeader._make(BATCH_HEADER.unpack_from(view))
    codec = _plain_codec(header)
    if (
        codec is None
        or header.batch_length + LOG_OVERHEAD_BYTES != size
        or header.record_count != header.last_offset_delta + 1
        or (header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0))
        or config.message_timestamp_type == LOG_APPEND_TIME
        or config.target_codec(codec.name) != codec.name
        or batch_crc(view[CRC_START:]) != header.crc
    ):
        return None
    records: Buffer = data
    start, stop = BATCH_HEADER_BYTES, size
    try:
        if codec.name != NO_CODEC:
            records = codec.decompress(view[start:], config.max_batch_bytes_uncompressed, MAGIC_V2)
            start, stop = 0, len(records)
        summary = check_records(
            records, start, stop, header.record_count, header.last_offset_delta, header.base_timestamp
        )
    except CorruptRecordError:
        return None
    if summary.max_timestamp != header.max_timestamp or not _Limits.of(config, now_ms).hold(summary):
        return None
    batch = EncodedBatch(
        header.record_count,
        0,
        size,
        header.record_count,
        header.base_timestamp,
        header.max_timestamp,
        summary.max_timestamp_offset_delta,
    )
    if header.producer_id < 0:
        return UnchangedBatch(batch, codec.name, None)
    return UnchangedBatch(batch, codec.name, (header.producer_id, header.producer_epoch, header.base_sequence, False))


def validate(
    batches: Sequence[Batch],
    config: LogConfig,
    *,
    now_ms: int,
    next_offset: int = 0,
    leader_epoch: int = -1,
    assign_offsets: bool = True,
) -> ValidatedBatches:
    """Checks ``batches``, of ``split_batches``, and returns the bytes to be written.

    Args:
        now_ms: the reference for timestamps, and the append time of a log that stamps.
        next_offset: assigned to the first record; of kept offsets the least that is accepted. ``patch_header`` may
            assign others later, since the CRC leaves them out, and so does ``leader_epoch``, which kept batches keep.

    Raises: CorruptBatchError, UnsupportedCodecError; InvalidRecordError and InvalidTimestampError, whose
    ``record_errors`` name the records of the first refused batch; RecordTooLargeError, BatchTooLargeError,
    InvalidOffsetError.
    """
    if not assign_offsets:
        return _keep_offsets(batches, config, next_offset)
    stamped = config.message_timestamp_type == LOG_APPEND_TIME
    encoded: list[EncodedBatch] = []
    record_count = 0
    for number, batch in enumerate(batches):
        _check_batch(batch, number, config, batches[0].magic, record_count)
        record_count += batch.record_count if batch.magic == MAGIC_V2 else 0
    limits = _Limits.of(config, now_ms)
    buffer = BatchBuffer(sum(batch.size for batch in batches))
    if batches and batches[0].magic != MAGIC_V2:
        encoded.extend(_rebuild_legacy(buffer, batches, config, limits, now_ms))
    else:
        for number, batch in enumerate(batches):
            assert isinstance(batch, RecordBatch)
            encoded.append(_place(buffer, batch, number, config, limits, now_ms if stamped else None))
    spans: list[tuple[int, int]] = []
    offset = next_offset
    for placed in encoded:
        last_offset = offset + placed.record_count - 1
        ensure_fits(config, size=placed.size, first_offset=offset, last_offset=last_offset)
        patch_header(buffer, placed.position, offset, leader_epoch)
        spans.append((offset, last_offset))
        offset = last_offset + 1
    source_codec = _last_codec(batches)
    return _result(
        buffer,
        encoded,
        spans,
        batches,
        log_append_time=now_ms if stamped and batches else NO_TIMESTAMP,
        source_codec=source_codec,
        target_codec=config.target_codec(source_codec),
        size_changed=any(
            batch.magic != MAGIC_V2 or config.target_codec(batch.codec) != batch.codec for batch in batches
        ),
    )


def _plain_codec(header: BatchHeader) -> Codec | None:
    """The codec of a batch whose header is that of a producer outside of transactions; None for any other one."""
    is_plain = (
        header.magic == MAGIC_V2
        and header.base_offset == 0
        and header.attributes & ~ATTRIBUTE_CODEC == 0
        and header.attributes < len(CODECS)
        and header.record_count > 0
    )
    return CODECS[header.attributes] if is_plain else None


# --- checks of a batch ------------------------------------------------------------------------------------------------


def _check_batch(batch: Batch, number: int, config: LogConfig, magic: int, place: int) -> None:
    """Checks 1 to 3, which need no record. ``place``: records in the batches before it."""
    if batch.size > config.max_message_bytes:
        raise RecordTooLargeError(batch.size, config.max_message_bytes)
    batch.ensure_valid()
    if batch.magic != magic:
        raise InvalidRecordError(f"batch {number} has magic {batch.magic}, expected the first one's, {magic}")
    problem = _problem(batch, place) if batch.magic == MAGIC_V2 else None
    if problem is not None:
        raise InvalidRecordError(f"batch {number} {problem}")
    if batch.timestamp_type == LOG_APPEND_TIME:
        message = "stamped LogAppendTime, which only the log may do, expected CreateTime"
        count = batch.record_count if batch.magic == MAGIC_V2 else 1
        errors = [RecordError(index, message) for index in range(min(count, RECORD_ERRORS_MAX))]
        raise InvalidTimestampError(f"batch {number} is {message}", errors)


def _problem(batch: Batch, place: int) -> str | None:
    """What a producer cannot have sent in a batch of magic 2, or None."""
    offset_count = batch.last_offset - batch.base_offset + 1
    if batch.record_count == 0:
        return "has no records"
    if batch.record_count != offset_count:
        return f"has {batch.record_count} records, expected {offset_count} for its offsets"
    if batch.base_offset not in (0, place):
        # Kafka takes one batch an append, of base offset 0.
        return (
            f"has base offset {batch.base_offset}, expected 0, or {place} as its place in the buffer; "
            "to keep offsets append with assign_offsets=False"
        )
    if batch.is_control:
        return "is a control batch, which only the log's own transactions may write"
    if batch.producer_id >= 0 and (batch.base_sequence < 0 or batch.producer_epoch < 0):
        return (
            f"has producer id {batch.producer_id} with sequence {batch.base_sequence} and epoch "
            f"{batch.producer_epoch}, expected both to be 0 or more"
        )
    if batch.is_transactional and batch.producer_id < 0:
        return f"is transactional with producer id {batch.producer_id}, expected 0 or more"
    return None


# --- checks of records ------------------------------------------------------------------------------------------------


class _Limits(NamedTuple):
    """The limits for the records: times from ``lowest`` to ``highest`` (ms), or -1, and a key."""

    lowest: int
    highest: int
    needs_key: bool

    @classmethod
    def of(cls, config: LogConfig, now_ms: int) -> _Limits:
        if config.message_timestamp_type == LOG_APPEND_TIME:
            # The log's time replaces any other.
            return cls(-TIMESTAMP_MAX - 1, TIMESTAMP_MAX, config.is_compacted)
        lowest = max(now_ms - config.message_timestamp_before_max_ms, 0)
        highest = min(now_ms + config.message_timestamp_after_max_ms, TIMESTAMP_MAX)
        return cls(lowest, highest, config.is_compacted)

    def hold(self, summary: RecordsSummary) -> bool:
        """Whether all records are within the limits; False only means: check each one."""
        least = summary.min_timestamp
        if self.needs_key and summary.null_key_count:
            return False
        # Nothing is between -1, no time, and 0, the first time.
        has_no_time = least == NO_TIMESTAMP and (self.lowest == 0 or summary.max_timestamp == NO_TIMESTAMP)
        return (least >= self.lowest or has_no_time) and summary.max_timestamp <= self.highest

    def check(self, records: Iterable[Record], number: int) -> None:
        """Raises the errors of a batch's records: all of them, one for each record.

        InvalidTimestampError if one is about a timestamp, else InvalidRecordError.
        """
        errors: list[RecordError] = []
        record_count = error_count = 0
        error_type = InvalidRecordError
        for index, record in enumerate(records):
            record_count += 1
            if self.needs_key and record.key is None:
                message = "no key, which a compacted log needs"
            elif record.timestamp != NO_TIMESTAMP and not self.lowest <= record.timestamp <= self.highest:
                message = f"timestamp {record.timestamp} ms, expected {self.lowest} to {self.highest}"
                error_type = InvalidTimestampError
            else:
                continue
            error_count += 1
            if error_count <= RECORD_ERRORS_MAX:
                errors.append(RecordError(index, message))
        if errors:
            shown = "; ".join(f"record {error.index}: {error.message}" for error in errors[:RECORD_ERRORS_SHOWN])
            more = f"; and {error_count - RECORD_ERRORS_SHOWN} more" if error_count > RECORD_ERRORS_SHOWN else ""
            raise error_type(
                f"batch {number} has {error_count} invalid of {record_count} records: {shown}{more}", errors
            )


def _damaged(number: int, error: CorruptRecordError) -> NoReturn:
    """The codec knows only bytes; the caller wants to know the number of the batch."""
    raise CorruptBatchError(f"batch {number} of the append: {error.reason}") from error


# --- magic 2: the bytes as they are, or compressed again --------------------------------------------------------------


def _place(
    buffer: BatchBuffer, batch: RecordBatch, number: int, config: LogConfig, limits: _Limits, append_time: int | None
) -> EncodedBatch:
    """Checks 4 to 6, then the batch at the end of ``buffer``; ``append_time`` (ms) is stamped unless it is None."""
    header = batch.header
    source, target = CODECS_BY_NAME[batch.codec], CODECS_BY_NAME[config.target_codec(batch.codec)]
    body: Buffer = batch.data[BATCH_HEADER_BYTES:]
    try:
        records = body
        if source.name != NO_CODEC:
            records = source.decompress(body, config.max_batch_bytes_uncompressed, MAGIC_V2)
        size = memoryview(records).nbytes
        summary = check_records(records, 0, size, header.record_count, header.last_offset_delta, header.base_timestamp)
    except CorruptRecordError as error:
        _damaged(number, error)
    # As many records as offsets, which increase: there can be no gap.
    if not limits.hold(summary):
        limits.check(batch.records(max_bytes_uncompressed=config.max_batch_bytes_uncompressed), number)
    if target is not source:
        if size > config.max_batch_bytes_uncompressed and target.name != NO_CODEC:
            # Compressed it would be accepted, but could never be read.
            limit = config.max_batch_bytes_uncompressed
            raise RecordTooLargeError(size, limit, f"batch {number}", setting="max_batch_bytes_uncompressed")
        body = target.compress(records, config.compression_level(target.name))
    size = BATCH_HEADER_BYTES + memoryview(body).nbytes
    if size > config.max_message_bytes:
        raise RecordTooLargeError(size, config.max_message_bytes, f"batch {number}, compressed with {target.name},")
    attributes = header.attributes & ~(ATTRIBUTE_CODEC | ATTRIBUTE_LOG_APPEND_TIME) | target.id
    placed = header._replace(
        batch_length=size - LOG_OVERHEAD_BYTES,
        attributes=attributes if append_time is None else attributes | ATTRIBUTE_LOG_APPEND_TIME,
        # A producer may state a wrong one; lookups by time trust it.
        max_timestamp=summary.max_timestamp if append_time is None else append_time,
    )
    if placed != header or target is not source:
        covered = memoryview(BATCH_HEADER.pack(*placed))[CRC_START:]
        placed = placed._replace(crc=batch_crc(memoryview(body), batch_crc(covered)))
    position = buffer.size
    buffer.extend(BATCH_HEADER.pack(*placed))
    buffer.extend(body)
    return EncodedBatch(
        header.record_count,
        position,
        size,
        header.record_count,
        header.base_timestamp,
        placed.max_timestamp,
        summary.max_timestamp_offset_delta if append_time is None else header.last_offset_delta,
    )


# --- magic 0 and 1: rebuilt ----------------------------------------------------------------------------------------


def _rebuild_legacy(
    buffer: BatchBuffer, batches: Sequence[Batch], config: LogConfig, limits: _Limits, now_ms: int
) -> Iterator[EncodedBatch]:
    """Checks 4 to 6, then batches of magic 2: one for each compressed message, as few as possible for the plain
    ones."""
    number = 0
    for codec, group in groupby(batches, lambda batch: batch.codec):
        run: list[Record] = []
        for batch in group:
            try:
                records = list(batch.records(max_bytes_uncompressed=config.max_batch_bytes_uncompressed))
                if isinstance(batch, LegacyBatch):
                    batch.ensure_one_version(config.max_batch_bytes_uncompressed)
            except CorruptRecordError as error:
                _damaged(number, error)
            limits.check(records, number)
            number += 1
            if codec == NO_CODEC:
                run += records
            else:
                yield from _build(buffer, records, codec, config, now_ms, BATCH_BYTES_MAX)
        if run:
            yield from _build(buffer, run, codec, config, now_ms, config.max_message_bytes)


def _build(
    buffer: BatchBuffer, records: Sequence[Record], source_codec: str, config: LogConfig, now_ms: int, size_max: int
) -> Iterator[EncodedBatch]:
    """Batches of at most ``size_max`` bytes before compression, and of max_message_bytes after it."""
    codec = config.target_codec(source_codec)
    built = build_batches(
        buffer,
        [record.value for record in records],
        [record.key for record in records],
        [record.timestamp for record in records],
        codec=codec,
        level=config.compression_level(codec),
        timestamp_type=config.message_timestamp_type,
        now_ms=now_ms,
        size_max=size_max,
    )
    for batch in built:
        if batch.size > config.max_message_bytes:
            raise RecordTooLargeError(batch.size, config.max_message_bytes, "a compressed message, rebuilt,")
        if config.message_timestamp_type == LOG_APPEND_TIME:
            batch = batch._replace(max_timestamp_delta_offset=batch.record_count - 1)
        yield batch


# --- kept offsets -----------------------------------------------------------------------------------------------------


def _keep_offsets(batches: Sequence[Batch], config: LogConfig, next_offset: int) -> ValidatedBatches:
    buffer = BatchBuffer(sum(batch.size for batch in batches))
    encoded: list[EncodedBatch] = []
    spans: list[tuple[int, int]] = []
    for number, batch in enumerate(batches):
        batch.ensure_valid()
        first_offset, record_count, max_delta = _kept_records(batch, number, config.max_batch_bytes_uncompressed)
        if first_offset < next_offset:
            raise InvalidOffsetError(f"batch {number} starts at offset {first_offset}, expected at least {next_offset}")
        ensure_fits(config, size=batch.size, first_offset=first_offset, last_offset=batch.last_offset)
        position = buffer.size
        buffer.extend(batch.data)
        timestamp = batch.max_timestamp
        encoded.append(EncodedBatch(record_count, position, batch.size, record_count, timestamp, timestamp, max_delta))
        spans.append((first_offset, batch.last_offset))
        next_offset = batch.last_offset + 1
    codec = _last_codec(batches)
    return _result(
        buffer,
        encoded,
        spans,
        batches,
        log_append_time=NO_TIMESTAMP,
        source_codec=codec,
        target_codec=codec,
        size_changed=False,
    )


def _kept_records(batch: Batch, number: int, bytes_max: int) -> tuple[int, int, int]:
    """First offset, number of records, and the offset, relative to the first, of the record with the greatest time."""
    try:
        if batch.magic == MAGIC_V2:
            summary = batch.check(bytes_max)
            is_stamped = batch.timestamp_type == LOG_APPEND_TIME or not batch.record_count
            delta = batch.last_offset - batch.base_offset if is_stamped else summary.max_timestamp_offset_delta
            return batch.base_offset, batch.record_count, delta
        offsets, timestamps = batch.offsets_and_timestamps(max_bytes_uncompressed=bytes_max)
    except CorruptRecordError as error:
        _damaged(number, error)
    if offsets[-1] != batch.last_offset:
        raise InvalidOffsetError(
            f"batch {number} ends at offset {offsets[-1]}, expected {batch.last_offset} as it says"
        )
    return offsets[0], len(offsets), offsets[timestamps.index(max(timestamps))] - offsets[0]


# --- the result -------------------------------------------------------------------------------------------------------


def _last_codec(batches: Sequence[Batch]) -> str:
    return next((batch.codec for batch in reversed(batches) if batch.codec != NO_CODEC), NO_CODEC)


def _result(
    buffer: BatchBuffer,
    encoded: list[EncodedBatch],
    spans: Sequence[tuple[int, int]],
    batches: Sequence[Batch],
    *,
    log_append_time: int,
    source_codec: str,
    target_codec: str,
    size_changed: bool,
) -> ValidatedBatches:
    max_timestamp, offset_of_max_timestamp = NO_TIMESTAMP, NO_OFFSET
    for placed, (first_offset, _) in zip(encoded, spans, strict=True):
        if placed.max_timestamp > max_timestamp:
            max_timestamp = placed.max_timestamp
            offset_of_max_timestamp = first_offset + placed.max_timestamp_delta_offset
    if log_append_time != NO_TIMESTAMP:
        offset_of_max_timestamp = spans[-1][1]
    last_offsets = [batch.last_offset for batch in batches]
    return ValidatedBatches(
        buffer,
        encoded,
        spans,
        max_timestamp,
        offset_of_max_timestamp,
        log_append_time,
        source_codec,
        target_codec,
        sum(placed.record_count for placed in encoded),
        size_changed,
        all(one < other for one, other in pairwise(last_offsets)),
        any(batch.producer_id >= 0 for batch in batches),
    )
