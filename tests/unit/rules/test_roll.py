"""When the active segment rolls: every condition of Kafka's LogSegment.shouldRoll, its limit, and the idle rule."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kstore.config import LogConfig
from kstore.errors import BatchTooLargeError, InvalidOffsetError
from kstore.rules.roll import (
    RollReason,
    ensure_fits,
    idle_reason,
    jitter_ms,
    roll_reason,
)

DAY_MS = 86_400_000
# A segment of one batch from time 1,000,000 on, and a batch that fits into it.
FITTING: dict[str, Any] = {
    "position": 4000,
    "size": 100,
    "base_offset": 50,
    "last_offset": 99,
    "first_timestamp": 1_000_000,
    "max_timestamp": 1_000_010,
    "created_ms": 1_000_000,
    "now_ms": 1_000_020,
    "jitter_ms": 0,
    "indexes_full": False,
}
CONFIG = LogConfig(segment_bytes=4100, segment_ms=500)
NOT_COMPACTED = LogConfig(segment_ms=500, max_compaction_lag_ms=100)
COMPACTED = LogConfig(segment_ms=500, max_compaction_lag_ms=100, cleanup_policy="compact,delete")


def reason(config: LogConfig = CONFIG, **changes: Any) -> RollReason | None:
    return roll_reason(config, **{**FITTING, **changes})


def test_a_batch_that_fits_exactly_stays_in_the_segment() -> None:
    assert reason() is None


def test_a_segment_rolls_when_one_byte_more_would_exceed_segment_bytes() -> None:
    assert reason(size=101) is RollReason.SIZE


def test_a_size_sum_beyond_32_bits_rolls() -> None:
    assert reason(LogConfig(segment_bytes=2**31 - 1), position=2**31 - 50, size=100) is RollReason.SIZE


@pytest.mark.parametrize(
    ("max_timestamp", "expected"),
    [
        pytest.param(1_000_500, None, id="at-segment-ms"),
        pytest.param(1_000_501, RollReason.TIME, id="one-ms-later"),
        pytest.param(999_000, None, id="older-than-the-first"),
        pytest.param(-1, None, id="without-a-time"),
    ],
)
def test_a_segment_rolls_by_the_time_of_its_records(max_timestamp: int, expected: RollReason | None) -> None:
    # The clock is days later: only the records' times relative to each other count.
    assert reason(max_timestamp=max_timestamp, now_ms=1_000_000 + 9 * DAY_MS) is expected


@pytest.mark.parametrize(
    ("now_ms", "expected"),
    [pytest.param(1_000_500, None, id="at-segment-ms"), pytest.param(1_000_501, RollReason.TIME, id="one-ms-later")],
)
def test_a_segment_whose_records_have_no_time_rolls_by_its_age(now_ms: int, expected: RollReason | None) -> None:
    assert reason(first_timestamp=-1, max_timestamp=5_000_000, now_ms=now_ms) is expected


@pytest.mark.parametrize(
    ("max_timestamp", "expected"),
    [pytest.param(1_000_480, None, id="at-the-shortened-time"), pytest.param(1_000_481, RollReason.TIME, id="later")],
)
def test_jitter_shortens_the_time(max_timestamp: int, expected: RollReason | None) -> None:
    assert reason(jitter_ms=20, max_timestamp=max_timestamp) is expected


@pytest.mark.parametrize(
    ("config", "span_ms", "expected"),
    [
        pytest.param(COMPACTED, 100, None, id="at-the-lag"),
        pytest.param(COMPACTED, 101, RollReason.TIME, id="one-ms-later"),
        pytest.param(NOT_COMPACTED, 500, None, id="never-compacted"),
        pytest.param(NOT_COMPACTED, 501, RollReason.TIME, id="segment-ms"),
        pytest.param(LogConfig(segment_ms=50, max_compaction_lag_ms=100, cleanup_policy="compact"), 51, RollReason.TIME,
                     id="the-lesser-counts"),
    ],
)  # fmt: skip
def test_the_longest_wait_for_a_compaction_rolls_a_compacted_log_only(
    config: LogConfig, span_ms: int, expected: RollReason | None
) -> None:
    assert reason(config, max_timestamp=FITTING["first_timestamp"] + span_ms) is expected


def test_a_full_index_rolls() -> None:
    assert reason(indexes_full=True) is RollReason.INDEX_FULL


@pytest.mark.parametrize(
    ("last_offset", "expected"),
    [
        pytest.param(50 + 2**31 - 1, None, id="largest-relative-offset"),
        pytest.param(50 + 2**31, RollReason.OFFSET, id="one-above"),
        pytest.param(49, RollReason.OFFSET, id="below-the-base"),
    ],
)
def test_an_offset_that_cannot_be_stored_relative_to_the_base_rolls(
    last_offset: int, expected: RollReason | None
) -> None:
    assert reason(last_offset=last_offset) is expected


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"size": 5000}, id="too-large"),
        pytest.param({"indexes_full": True}, id="no-index-slot"),
        pytest.param({"first_timestamp": -1, "now_ms": 9 * DAY_MS}, id="old"),
    ],
)
def test_an_empty_segment_rolls_for_nothing_but_an_offset_out_of_reach(changes: dict[str, Any]) -> None:
    assert reason(position=0, **changes) is None
    assert reason(position=0, **changes, last_offset=50 + 2**31) is RollReason.OFFSET


# --- idle -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waited_ms", "expected"),
    [
        pytest.param(480, None, id="at-the-shortened-time"),
        pytest.param(481, RollReason.IDLE, id="one-ms-later"),
        pytest.param(-DAY_MS, None, id="clock-gone-back"),
    ],
)
def test_an_idle_segment_rolls_on_time(waited_ms: int, expected: RollReason | None) -> None:
    found = idle_reason(
        CONFIG, position=1, first_timestamp=1, last_append_ms=7000, now_ms=7000 + waited_ms, jitter_ms=20
    )
    assert found is expected


def test_an_idle_empty_segment_stays() -> None:
    for config in (CONFIG, COMPACTED):
        assert (
            idle_reason(config, position=0, first_timestamp=-1, last_append_ms=0, now_ms=9 * DAY_MS, jitter_ms=0)
            is None
        )


@pytest.mark.parametrize(
    ("config", "age_ms", "expected"),
    [
        pytest.param(COMPACTED, 100, None, id="at-the-lag"),
        pytest.param(COMPACTED, 101, RollReason.IDLE, id="one-ms-later"),
        pytest.param(NOT_COMPACTED, 500, None, id="never-compacted"),
    ],
)
def test_a_record_that_waits_to_be_compacted_waits_no_longer_for_appends_beside_it(
    config: LogConfig, age_ms: int, expected: RollReason | None
) -> None:
    found = idle_reason(
        config, position=1, first_timestamp=7000, last_append_ms=7000 + age_ms, now_ms=7000 + age_ms, jitter_ms=0
    )
    assert found is expected
    assert idle_reason(config, position=1, first_timestamp=-1, last_append_ms=8000, now_ms=8000, jitter_ms=0) is None


# --- jitter -----------------------------------------------------------------------------------------------------------


def test_without_segment_jitter_there_is_none() -> None:
    assert jitter_ms(LogConfig()) == 0


@pytest.mark.parametrize(
    ("segment_jitter_ms", "stop"),
    [pytest.param(20, 20, id="below-segment-ms"), pytest.param(2000, 500, id="never-more-than-segment-ms")],
)
def test_jitter_is_random_below_its_setting_and_segment_ms(segment_jitter_ms: int, stop: int) -> None:
    config = LogConfig(segment_ms=500, segment_jitter_ms=segment_jitter_ms)
    stops: list[int] = []

    def largest(exclusive: int) -> int:
        stops.append(exclusive)
        return exclusive - 1

    assert jitter_ms(config, largest) == stop - 1
    assert stops == [stop]
    assert jitter_ms(config, random.Random(1).randrange) in range(stop)


# --- base and borders -------------------------------------------------------------------------------------------------


def test_a_batch_of_segment_bytes_fits_and_a_larger_one_is_refused() -> None:
    ensure_fits(CONFIG, size=4100, first_offset=0, last_offset=0)
    with pytest.raises(BatchTooLargeError, match="4101 bytes is over the segment size of 4100"):
        ensure_fits(CONFIG, size=4101, first_offset=0, last_offset=0)


@pytest.mark.parametrize(
    ("first_offset", "last_offset"),
    [
        pytest.param(5, 5 + 2**31, id="delta-over-32-bits"),
        pytest.param(5, 4, id="last-below-first"),
        pytest.param(2**63 - 1, 2**63 - 1, id="no-successor"),
        pytest.param(2**63 - 5, 2**63 + 5, id="over-64-bits"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(first_offset: int, last_offset: int) -> None:
    with pytest.raises(InvalidOffsetError, match="expected at most"):
        ensure_fits(CONFIG, size=100, first_offset=first_offset, last_offset=last_offset)


def test_the_last_offsets_that_there_are_fit() -> None:
    ensure_fits(CONFIG, size=100, first_offset=2**63 - 2 - (2**31 - 1), last_offset=2**63 - 2)
