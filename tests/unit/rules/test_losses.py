"""Ranges of lost and accepted offsets, as pure values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.rules.losses import LossRanges, clipped, holes, joined, reduced, span_size

spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=9
).map(joined)


def offsets(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


def test_ranges_that_touch_become_one() -> None:
    assert joined([(5, 6), (0, 1)], [(7, 9), (2, 2), (4, 3)]) == ((0, 2), (5, 9))


def test_the_nearest_ranges_are_merged() -> None:
    assert reduced([(0, 1), (10, 11), (14, 15), (30, 31)], 3) == ((0, 1), (10, 15), (30, 31))
    assert reduced([(0, 1)], 3) == ((0, 1),)


@given(spans, st.integers(1, 4))
def test_merging_loses_no_offset(ranges: tuple[tuple[int, int], ...], count: int) -> None:
    merged = reduced(ranges, count)
    assert len(merged) <= count
    assert offsets(merged) >= offsets(ranges)
    assert merged == joined(merged)


@given(spans, st.integers(0, 70), st.integers(0, 70))
def test_clips_and_holes_are_those_of_sets(ranges: tuple[tuple[int, int], ...], one: int, other: int) -> None:
    window = set(range(one, other))
    assert offsets(clipped(ranges, one, other)) == offsets(ranges) & window
    assert offsets(holes(one, other - 1, ranges)) == window - offsets(ranges)
    assert span_size(ranges) == len(offsets(ranges))


@given(spans, spans, st.integers(0, 70), st.integers(0, 70))
def test_missing_is_what_is_lost_and_not_accepted(
    lost: tuple[tuple[int, int], ...], accepted: tuple[tuple[int, int], ...], one: int, other: int
) -> None:
    losses = LossRanges(lost, accepted)
    expected = (offsets(lost) - offsets(accepted)) & set(range(one, other))
    assert offsets(losses.missing(one, other)) == expected
    assert offsets(losses.within(one, other).lost) == offsets(lost) & set(range(one, other))


def test_a_log_ends_after_the_loss_at_its_end() -> None:
    losses = LossRanges(lost=((3, 4), (10, 12)))
    assert losses.end_after(10, 100) == 13
    assert losses.end_after(11, 100) == 13
    assert losses.end_after(10, 12) == 12
    assert losses.end_after(9, 100) == 9
    assert losses.end_after(13, 100) == 13


@pytest.mark.parametrize(
    ("start", "stop", "lost", "accepted"),
    [
        (0, 20, ((30, 31),), ((30, 30),)),
        (5, 20, ((30, 31),), ((30, 30),)),
        (0, 6, ((5, 6), (30, 31)), ((5, 6), (30, 30))),
        (0, 40, ((31, 31),), ()),
    ],
    ids=["all of it", "from its first offset on", "a part", "with one that is not all accepted"],
)
def test_compaction_takes_only_what_was_accepted(
    start: int, stop: int, lost: tuple[tuple[int, int], ...], accepted: tuple[tuple[int, int], ...]
) -> None:
    losses = LossRanges(lost=((5, 6), (30, 31)), accepted=((5, 6), (30, 30)))
    assert losses.after_compaction(start, stop, 16) == LossRanges(lost, accepted)
