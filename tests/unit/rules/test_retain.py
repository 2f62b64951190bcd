"""What retention may delete: by the log's start, by size, by time; and which clocks it trusts."""

from __future__ import annotations

import pytest

from kstore.config import LogConfig
from kstore.rules.retain import JUMP_MS_MAX, SegmentAge, TrustedClock, deletable_count

NOW = 1_700_000_000_000
DAY = 86_400_000
FOUR = [
    SegmentAge(10, 100, NOW - 9 * DAY, NOW - 9 * DAY),
    SegmentAge(20, 100, NOW - 5 * DAY, NOW - 5 * DAY),
    SegmentAge(30, 100, NOW - 2 * DAY, NOW - 2 * DAY),
    SegmentAge(40, 50, NOW - 1 * DAY, NOW - 1 * DAY),
]


def count(segments: list[SegmentAge] = FOUR, *, start: int = 0, high_watermark: int = 40, **settings: object) -> int:
    config = LogConfig.from_settings(**settings)
    size = sum(segment.size for segment in segments)
    return deletable_count(segments, config, size=size, start_offset=start, high_watermark=high_watermark, now_ms=NOW)


def test_nothing_goes_unless_it_is_asked_for() -> None:
    assert count() == 0


@pytest.mark.parametrize(("start", "expected"), [(9, 0), (10, 1), (29, 2), (40, 4)])
def test_what_lies_below_the_start_goes(start: int, expected: int) -> None:
    assert count(start=start) == expected


@pytest.mark.parametrize(("limit", "expected"), [(350, 0), (251, 0), (250, 1), (151, 1), (150, 2), (49, 3), (0, 4)])
def test_the_log_never_falls_below_its_size_limit(limit: int, expected: int) -> None:
    assert count(retention_bytes=limit) == expected


@pytest.mark.parametrize(("days", "expected"), [(9, 0), (8, 1), (5, 1), (4, 2), (1, 3), (0, 4)])
def test_what_is_older_than_its_time_goes(days: int, expected: int) -> None:
    assert count(retention_ms=days * DAY) == expected


def test_one_with_damage_is_no_older_than_its_file() -> None:
    written = SegmentAge(10, 100, NOW - 9 * DAY, NOW - 2 * DAY)
    for damaged, days, expected in ((False, 8, 1), (True, 8, 0), (True, 2, 0), (True, 1, 1)):
        assert count([written._replace(has_damage=damaged), FOUR[3]], retention_ms=days * DAY) == expected
    assert count([FOUR[0]._replace(mtime_ms=0, has_damage=True), FOUR[3]], retention_ms=9 * DAY) == 0


def test_one_that_is_kept_keeps_what_follows() -> None:
    assert count([FOUR[3], *FOUR[:3]], retention_ms=4 * DAY) == 0


def test_no_more_ages_are_asked_for_than_it_takes() -> None:
    ages = iter([*FOUR, *FOUR])
    config = LogConfig(retention_ms=4 * DAY)
    assert deletable_count(ages, config, size=0, start_offset=0, high_watermark=40, now_ms=NOW) == 2
    assert len(list(ages)) == 4


def test_nothing_above_the_high_watermark_goes() -> None:
    assert count(retention_ms=0, high_watermark=25) == 2


def test_an_empty_active_segment_stays() -> None:
    assert count([*FOUR, SegmentAge(40, 0, -1, 0)], retention_bytes=0, retention_ms=0) == 4


def test_a_compacted_log_keeps_what_is_old_unless_its_policy_says_both() -> None:
    assert count(retention_ms=0, retention_bytes=0, cleanup_policy="compact") == 0
    assert count(retention_ms=0, cleanup_policy="compact", start=10) == 1
    assert count(retention_ms=0, cleanup_policy="compact,delete") == 4


def test_without_times_the_file_s_time_counts_and_so_it_does_for_times_in_the_future() -> None:
    assert count([SegmentAge(10, 100, -1, NOW - 2 * DAY), FOUR[3]], retention_ms=DAY) == 1
    assert count([SegmentAge(10, 100, NOW + 900 * DAY, NOW - 2 * DAY), FOUR[3]], retention_ms=DAY) == 1
    assert count([SegmentAge(10, 100, NOW + 1000, NOW - 2 * DAY), FOUR[3]], retention_ms=DAY) == 0


@pytest.mark.promise("clock")
def test_a_clock_that_jumps_ahead_is_not_believed() -> None:
    clock = TrustedClock(NOW, 100.0)
    assert clock.now_ms(NOW + 5000, 105.0) == NOW + 5000
    for passed in range(10):
        jumped = clock.now_ms(NOW + 400 * DAY, 110.0 + passed)
        assert jumped <= NOW + 10_000 + passed * 1000 + JUMP_MS_MAX
    assert clock.now_ms(NOW + 20_000, 120.0) == NOW + 20_000


@pytest.mark.promise("clock")
def test_a_clock_that_is_set_back_is_believed() -> None:
    clock = TrustedClock(NOW, 100.0)
    assert clock.now_ms(NOW - DAY, 101.0) == NOW - DAY
    assert clock.now_ms(NOW, 102.0) <= NOW - DAY + 1000 + JUMP_MS_MAX
