"""Batches as other programs make them, of every version, valid and invalid, for appends of foreign batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kstore.config import LogConfig
from kstore.errors import InvalidOffsetError, KstoreError
from kstore.record._codec import Record
from kstore.record.batch import BATCH_HEADER, CRC_START, Batch, BatchHeader, batch_crc
from kstore.record.scan import parse_batches
from kstore.rules.validate import ValidatedBatches, split_batches, unchanged, validate
from tests.support.oracles import oracle_legacy

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LEGACY_CODECS = ("none", "gzip", "snappy", "lz4")
COMPRESSED = CODECS[1:]
COMPACTED = LogConfig(cleanup_policy="compact")
STAMPING = LogConfig(message_timestamp_type="LogAppendTime")


def records(*timestamps: int, key: bytes | None = b"key") -> list[Record]:
    """One record for each timestamp, told apart by their values."""
    return [
        Record(offset, timestamp, key=key, value=b"value %d" % offset, headers=(("h", None),))
        for offset, timestamp in enumerate(timestamps)
    ]


THREE = records(NOW_MS - 5, NOW_MS, NOW_MS - 3)


def tampered(data: bytes, **fields: int) -> bytes:
    """A batch with other header fields, and a CRC that covers them."""
    header = BatchHeader._make(BATCH_HEADER.unpack_from(data))._replace(**fields)
    changed = bytearray(BATCH_HEADER.pack(*header) + data[BATCH_HEADER.size :])
    crc = batch_crc(memoryview(changed)[CRC_START:])
    return BATCH_HEADER.pack(*header._replace(crc=crc)) + data[BATCH_HEADER.size :]


def message(
    magic: int,
    offset: int,
    value: bytes | None,
    *,
    key: bytes | None = b"key",
    timestamp: int = NOW_MS,
    attributes: int = 0,
) -> bytes:
    """One entry of version 0 or 1, with a key and a time that are always accepted."""
    return oracle_legacy.message(offset, value, key, magic=magic, timestamp=timestamp, attributes=attributes)


def message_set(
    magic: int,
    codec: str,
    *timestamps: int,
    key: bytes | None = b"key",
    offsets: Sequence[int] = (),
    wrapper_offset: int | None = None,
) -> bytes:
    """Messages of version 0 or 1 for each timestamp, plain or in one wrapper."""
    offsets = offsets or range(len(timestamps))
    messages = [
        message(magic, offset, b"value %d" % number, key=key, timestamp=timestamp)
        for number, (offset, timestamp) in enumerate(zip(offsets, timestamps, strict=True))
    ]
    if codec == "none":
        return b"".join(messages)
    offset = offsets[-1] if wrapper_offset is None else wrapper_offset
    return oracle_legacy.wrapper(messages, offset=offset, codec=codec, magic=magic, timestamp=max(timestamps))


def wrapper_at(magic: int, codec: str, last_offset: int) -> bytes:
    """Three messages as a broker stores them: relative inner offsets in version 1, absolute ones in version 0."""
    first = 0 if magic else last_offset - 2
    return message_set(magic, codec, 1, 2, 3, offsets=range(first, first + 3), wrapper_offset=last_offset)


def append(data: bytes, config: LogConfig | None = None, **options: Any) -> ValidatedBatches:
    """What ``validate`` makes of the batches; the short way for one of them says the same, or nothing."""
    config = config or LogConfig()
    short = unchanged(data, config, NOW_MS) if options.get("assign_offsets", True) else None
    try:
        validated = validate(split_batches(data), config, now_ms=NOW_MS, **options)
    except KstoreError as error:
        # Where the log ends is checked when the batch gets its place.
        if short is not None and not isinstance(error, InvalidOffsetError):
            raise AssertionError(f"the short way takes {short}") from error
        raise
    if short is not None:
        assert validated.batches == [short.batch]
        assert (validated.source_codec, validated.target_codec) == (short.codec, short.codec)
        assert validated.has_producers == (short.stamp is not None)
        assert bytes(validated.buffer)[CRC_START:] == data[CRC_START:]
    return validated


def written(validated: ValidatedBatches) -> list[Batch]:
    """The batches that would be on disk, read as a log reads them; checks the result's description of them."""
    batches = list(parse_batches(bytes(validated.buffer)))
    for batch, encoded, span in zip(batches, validated.batches, validated.spans, strict=True):
        batch.check()
        assert (batch.size, batch.max_timestamp) == (encoded.size, encoded.max_timestamp)
        assert batch.record_count == encoded.record_count
        assert (batch.base_offset, batch.last_offset) == span
    assert sum(batch.record_count for batch in batches) == validated.record_count
    return batches


def contents(batches: Sequence[Batch]) -> list[tuple[int, int, bytes | None, bytes | None, tuple[Any, ...]]]:
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for batch in batches for r in batch.records()]
