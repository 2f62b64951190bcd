"""When the active segment is full, and where the next one starts: pure decisions over values.

A segment accepts a batch unless (Kafka: LogSegment.shouldRoll)

    SIZE         it would be larger than segment_bytes
    TIME         the batch is segment_ms, less the segment's jitter, younger than the segment's first batch;
                 max_compaction_lag_ms, if that is less and the log is compacted: an active segment never is
    INDEX_FULL   its offset index or its time index has no slot left
    OFFSET       an offset of the batch cannot be stored relative to the segment's base offset in 32 bits
    IDLE         nothing was appended for that long, or the first batch is max_compaction_lag_ms old by the clock
                 (kstore only: in Kafka an idle segment never rolls)

Time is the records' own, so that a replay of old records makes the same segments as when they were new; only segments
whose records have no time, and the idle rule, use the clock.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from kstore.config import LogConfig
from kstore.errors import BatchTooLargeError, InvalidOffsetError
from kstore.types import RECORD_OFFSET_MAX, RELATIVE_OFFSET_MAX


class RollReason(enum.Enum):
    """Why a segment does not accept a batch; the value is for messages."""

    SIZE = "the segment has reached segment_bytes"
    TIME = "the segment spans segment_ms"
    INDEX_FULL = "an index of the segment is full"
    OFFSET = "the offset is too far from the segment's base offset"
    IDLE = "nothing was appended for segment_ms"


def roll_reason(
    config: LogConfig,
    *,
    position: int,
    size: int,
    base_offset: int,
    last_offset: int,
    first_timestamp: int,
    max_timestamp: int,
    created_ms: int,
    now_ms: int,
    jitter_ms: int,
    indexes_full: bool,
) -> RollReason | None:
    """Why a batch must start a new segment; None if it goes into the active one.

    Args:
        position: bytes in the active segment; ``base_offset`` is its name, ``created_ms`` its creation time.
        size: bytes of the batch; ``last_offset`` and ``max_timestamp`` are the batch's.
        first_timestamp: the greatest of the segment's first batch, -1 without one.
        jitter_ms: the segment's share of segment_jitter_ms (see ``jitter_ms``).
        indexes_full: whether its offset index or its time index has no slot left.
    """
    # First, because only this one applies to an empty segment: the others would roll it forever.
    if not 0 <= last_offset - base_offset <= RELATIVE_OFFSET_MAX:
        return RollReason.OFFSET
    if position == 0:
        return None
    if position > config.segment_bytes - size:
        return RollReason.SIZE
    waited_ms = max_timestamp - first_timestamp if first_timestamp >= 0 else now_ms - created_ms
    if waited_ms > segment_ms_max(config) - jitter_ms:
        return RollReason.TIME
    if indexes_full:
        return RollReason.INDEX_FULL
    return None


def segment_ms_max(config: LogConfig) -> int:
    """How long a segment stays active, by its records' time. (Kafka: LogConfig.maxSegmentMs.)"""
    return min(config.segment_ms, config.max_compaction_lag_ms) if config.is_compacted else config.segment_ms


def idle_reason(
    config: LogConfig, *, position: int, first_timestamp: int, last_append_ms: int, now_ms: int, jitter_ms: int
) -> RollReason | None:
    """IDLE if the active segment of ``position`` bytes has waited for an append for longer than its segment_ms.

    Without this, retention and compaction would never reach the last records of a log that gets no more appends.
    ``last_append_ms`` is the clock's time; for a log just opened, that of its last change. A clock that goes back only
    delays the roll. ``first_timestamp`` is as in ``roll_reason``: waiting for compaction starts there.
    """
    if position == 0:
        return None
    longest_ms = segment_ms_max(config) - jitter_ms
    if now_ms - last_append_ms > longest_ms:
        return RollReason.IDLE
    if config.is_compacted and first_timestamp >= 0 and now_ms - first_timestamp > config.max_compaction_lag_ms:
        return RollReason.IDLE
    return None


def jitter_ms(config: LogConfig, randrange: Callable[[int], int] | None = None) -> int:
    """A new segment's share of the jitter: random in [0, segment_jitter_ms), and less than the segment's time."""
    stop = min(config.segment_jitter_ms, segment_ms_max(config))
    if stop <= 0:
        return 0
    if randrange is None:
        import random

        return random.randrange(stop)
    return randrange(stop)


def ensure_fits(config: LogConfig, *, size: int, first_offset: int, last_offset: int) -> None:
    """Refuses a batch that fits no segment, whatever its base.

    Raises BatchTooLargeError for more than segment_bytes, InvalidOffsetError for offsets that do not fit into 32 bits
    relative to the first or that have no successor in 64.
    """
    if size > config.segment_bytes:
        raise BatchTooLargeError(size, config.segment_bytes)
    if not 0 <= last_offset - first_offset <= RELATIVE_OFFSET_MAX:
        raise InvalidOffsetError(
            f"a batch from offset {first_offset} to {last_offset}, expected at most {RELATIVE_OFFSET_MAX} between them"
        )
    if last_offset > RECORD_OFFSET_MAX:
        raise InvalidOffsetError(f"a batch up to offset {last_offset}, expected at most {RECORD_OFFSET_MAX}")
