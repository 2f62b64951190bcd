"""What small files prove of offsets that no batch holds any more: which bytes are believed, and what is damage."""

from __future__ import annotations

import random
import struct

import pytest

from kstore.rules.evidence import (
    SPAN_MAX,
    SegmentTraces,
    Trace,
    epochs_trace,
    index_end,
    judge,
    recovery_point_trace,
    snapshot_trace,
    time_index_end,
    transaction_index_end,
)


def index(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def times(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


def aborted(*entries: tuple[int, int, int, int]) -> bytes:
    return b"".join(struct.pack(">hqqqq", 0, *entry) for entry in entries)


def last(next_offset: int, *traces: Trace, base: int = 0) -> SegmentTraces:
    return SegmentTraces(base, None, next_offset, traces)


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"", None),
        (bytes(8 * 10), None),
        (index((10, 4096)), 1011),
        (index((10, 4096)) + bytes(4096), 1011),
        (index((10, 4096), (256, 2 << 24)) + bytes(16), 1257),
        (index((2**31 - 1, 2**31 - 1)), 1000 + 2**31),
        (index((10, 4096), (10, 5000)), None),
        (index((10, 4096), (11, 4096)), None),
        (index((10, 4096), (0, 0), (11, 5000)), None),
        (index((-1, 4096)), None),
        (index((1, -1)), None),
        (index((10, 4096))[:7], None),
        (b"\xff" * 64, None),
    ],
)
def test_an_offset_index_is_believed_if_all_its_entries_increase(data: bytes, end: int | None) -> None:
    assert index_end(1000, data) == end


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"", None),
        (bytes(12 * 3), None),
        (times((5, 0)), 1001),
        (times((5, 3), (6, 9)) + bytes(24), 1010),
        (times((-9, 3)), 1004),
        (times((6, 3), (5, 9)), None),
        (times((5, 9), (6, 3)), None),
        (times((5, -9)), None),
        (times((5, 9))[:11], None),
    ],
)
def test_a_time_index_is_believed_if_neither_time_nor_offset_falls(data: bytes, end: int | None) -> None:
    assert time_index_end(1000, data) == end


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"", None),
        (aborted((1, 1000, 1010, 1011)), 1011),
        (aborted((1, 900, 1010, 1011), (2, 1005, 1020, 1000)), 1021),
        (aborted((1, 1000, 1010, 0), (1, 1000, 1010, 0)), None),
        (aborted((1, 1000, 999, 0)), None),
        (aborted((1, 1000, 2**62, 0)), None),
        (b"\x00\x07" + aborted((1, 1000, 1010, 1011))[2:], None),
    ],
)
def test_a_transaction_index_is_believed_if_it_belongs_to_its_segment(data: bytes, end: int | None) -> None:
    assert transaction_index_end(1000, data) == end


def test_random_bytes_never_claim_more_than_a_segment_can_hold() -> None:
    dice = random.Random(7)
    for _ in range(2000):
        data = dice.randbytes(dice.choice((8, 12, 24, 34, 102)))
        for end_of in (index_end, time_index_end, transaction_index_end):
            end = end_of(1000, data)
            assert end is None or 1000 < end <= 1000 + SPAN_MAX


def test_a_snapshot_that_names_an_offset_above_its_own_is_not_believed() -> None:
    assert snapshot_trace(10, [9, -1], [0]) == Trace(10, "the producer snapshot of offset 10", True)
    assert snapshot_trace(10, [10], [0]) is None


def test_a_snapshot_at_a_segment_s_base_proves_nothing_by_itself() -> None:
    trace = snapshot_trace(10, [], [0, 10])
    assert trace is not None
    assert not trace.is_proof


def test_leader_epochs_that_do_not_increase_are_not_believed() -> None:
    assert [trace.end for trace in epochs_trace([(0, 0), (3, 12)])] == [12]
    assert epochs_trace([]) == epochs_trace([(3, 0), (3, 12)]) == epochs_trace([(3, 12), (4, 0)]) == []


def test_what_lies_below_the_end_of_the_batches_proves_nothing_missing() -> None:
    found = judge([last(100, Trace(100, "an index"))], [Trace(99, "a snapshot", True)], recovery_point=100)
    assert (found.missing, found.is_loss, found.end) == ((), False, 0)


@pytest.mark.parametrize(
    ("trace", "recovery_point", "proven_end"),
    [
        (Trace(150, "a snapshot", True), None, 150),
        (Trace(150, "a snapshot", True), 150, 150),
        (Trace(150, "a snapshot", True), 120, 0),
        (Trace(150, "an epoch"), None, 0),
    ],
)
def test_a_proof_above_a_known_recovery_point_only_skips_offsets(
    trace: Trace, recovery_point: int | None, proven_end: int
) -> None:
    found = judge([last(100)], [trace], recovery_point=recovery_point)
    assert (found.proven_end, found.end) == (proven_end, 150)
    assert found.missing == ((100, 149),)
    assert found.untold == (() if proven_end else ((100, 149),))


def test_a_recovery_point_proves_what_lies_below_it() -> None:
    found = judge([last(100)], [*recovery_point_trace(120), Trace(150, "an epoch")], recovery_point=120)
    assert (found.proven_end, found.end, found.untold) == (120, 150, ((120, 149),))
    assert recovery_point_trace(None) == []


def test_the_index_of_the_last_segment_tells_only_that_offsets_were_used() -> None:
    found = judge([last(0, Trace(40, "an index"))], [])
    assert (found.is_loss, found.end, found.untold) == (False, 40, ((0, 39),))


@pytest.mark.parametrize(
    ("recovery_point", "next_offset", "is_loss"), [(None, 50, False), (20, 50, False), (21, 50, True), (None, 51, True)]
)
def test_a_power_cut_at_a_roll_loses_the_tail_of_the_segment_before(
    recovery_point: int | None, next_offset: int, is_loss: bool
) -> None:
    segments = [SegmentTraces(0, 50, 20, [Trace(45, "an index")]), last(next_offset, base=50)]
    found = judge(segments, recovery_point_trace(recovery_point), recovery_point=recovery_point)
    assert (found.is_loss, found.missing) == (is_loss, ((20, 49),))
    assert found.untold == (() if is_loss else ((20, 49),))


def test_a_sealed_segment_that_ends_before_its_index_has_lost_the_rest() -> None:
    sealed = SegmentTraces(0, 50, 20, [Trace(45, "an index")])
    found = judge([sealed, last(60, base=50)], [])
    assert found.holes == ((20, 49, 0, "an index"),)
    assert (found.proven_end, found.missing, found.untold) == (50, ((20, 49),), ())


def test_a_gap_before_a_segment_is_no_loss_if_no_index_reaches_into_it() -> None:
    sealed = SegmentTraces(0, 50, 20, [Trace(20, "an index")])
    found = judge([sealed, last(60, base=50)], [])
    assert (found.holes, found.missing) == ((), ())


def test_an_offset_that_the_log_cannot_have_is_not_believed() -> None:
    claims = [Trace(SPAN_MAX + 51, "an epoch"), Trace(2**62, "a snapshot", True), *recovery_point_trace(2**62)]
    found = judge([last(60, base=50)], claims, recovery_point=2**62)
    assert (found.missing, found.end) == ((), 0)
    assert judge([last(60, base=50)], [Trace(SPAN_MAX + 50, "an epoch")]).end == SPAN_MAX + 50
