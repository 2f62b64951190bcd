"""Where recovery cuts and what it fences, as a table of situations."""

import pytest

from kstore.record.walk import Damage
from kstore.rules.recover import Doubt, SegmentFindings, decide


def damage(position: int, first_offset: int, next_offset: int | None, *, torn: bool = False) -> Damage:
    return Damage(position, position + 50, first_offset, next_offset, "bad crc", torn)


def segment(base: int, next_offset: int, *damages: Damage, batches: int = 1, size: int = 1000) -> SegmentFindings:
    return SegmentFindings(f"{base}.log", base, size, next_offset, damages, batches)


def doubt(recovery_point: int = 0, durable_end: int = 0, *, suffix_only: bool = False) -> Doubt:
    return Doubt(recovery_point, durable_end, suffix_only)


def test_a_whole_log_ends_after_its_last_batch() -> None:
    decision = decide([segment(0, 10), segment(10, 25)], doubt())
    assert (decision.end_offset, decision.cut, decision.fenced, decision.seal) == (25, None, [], False)


def test_a_torn_tail_is_cut() -> None:
    decision = decide([segment(0, 10, damage(500, 10, None, torn=True))], doubt())
    assert decision.cut == (0, 500)
    assert decision.end_offset == 10
    assert not decision.fenced


def test_damage_with_a_whole_batch_after_it_is_fenced() -> None:
    decision = decide([segment(0, 30, damage(500, 10, 20))], doubt())
    assert decision.cut is None
    assert [(gone.first, gone.last, gone.position) for gone in decision.fenced] == [(10, 19, 500)]
    assert decision.end_offset == 30
    assert not decision.seal


def test_damage_at_the_end_of_a_sealed_segment_is_fenced_when_the_next_one_holds_batches() -> None:
    decision = decide([segment(0, 10, damage(500, 10, None)), segment(20, 30)], doubt())
    assert decision.cut is None
    assert [(gone.first, gone.last) for gone in decision.fenced] == [(10, 19)]
    assert decision.end_offset == 30


def test_damage_that_is_gone_from_a_file_that_became_shorter_is_remembered_as_lost() -> None:
    shorter = segment(0, 3, damage(655, 3, None))._replace(size_now=655)
    decision = decide([shorter, segment(27, 39)], doubt())
    assert [(fenced.first, fenced.last) for fenced in decision.fenced] == [(3, 26)]
    assert decision.lost == [(3, 26)]
    assert (decision.cut, decision.end_offset) == (None, 39)
    still_there = shorter._replace(size_now=656)
    assert decide([still_there, segment(27, 39)], doubt()).lost == []


def test_an_empty_segment_after_damage_does_not_count_as_a_whole_batch() -> None:
    decision = decide([segment(0, 10, damage(500, 10, None)), segment(20, 20, batches=0)], doubt())
    assert decision.cut == (0, 500)
    assert decision.end_offset == 10


def test_after_a_restart_a_log_that_was_not_synced_is_cut_at_the_first_damage() -> None:
    findings = [segment(0, 30, damage(500, 10, 20)), segment(30, 40)]
    decision = decide(findings, doubt(suffix_only=True))
    assert decision.cut == (0, 500)
    assert decision.end_offset == 10


def test_what_a_truncation_left_after_missing_offsets_is_cut() -> None:
    findings = [segment(0, 7), segment(18, 27)]
    decision = decide(findings, Doubt(0, 6, suffix_only=False, is_gapless=True))
    assert (decision.cut, decision.end_offset) == ((0, 1000), 7)


def test_missing_offsets_that_are_no_truncations_stay() -> None:
    findings = [segment(0, 7), segment(18, 27)]
    for kept in (
        Doubt(18, 18, suffix_only=False, is_gapless=True),  # begun there, by a writer that assigns the offsets
        Doubt(0, 27, suffix_only=False, is_gapless=True),  # all of it was durable: a compaction's
        Doubt(0, 0, suffix_only=False),
    ):
        decision = decide(findings, kept)
        assert (decision.cut, decision.end_offset) == (None, 27)


@pytest.mark.parametrize("known", [{"recovery_point": 25}, {"durable_end": 25}], ids=["recovery-point", "durable-end"])
def test_after_a_restart_damage_in_what_was_flushed_is_fenced_all_the_same(known: dict[str, int]) -> None:
    decision = decide([segment(0, 30, damage(500, 10, 20))], doubt(**known, suffix_only=True))
    assert decision.cut is None
    assert [(gone.first, gone.last) for gone in decision.fenced] == [(10, 19)]


def test_what_was_never_flushed_of_a_fenced_range_is_unconfirmed() -> None:
    decision = decide([segment(0, 10, damage(500, 10, None)), segment(40, 50)], doubt(durable_end=25, suffix_only=True))
    assert decision.cut is None
    assert [(gone.first, gone.last, gone.is_unconfirmed) for gone in decision.fenced] == [
        (10, 24, False),
        (25, 39, True),
    ]


def test_a_damaged_last_batch_that_was_durable_is_fenced_and_its_offsets_are_not_given_out_again() -> None:
    decision = decide([segment(0, 10, damage(500, 10, None))], doubt(durable_end=15))
    assert decision.cut is None
    assert [(gone.first, gone.last) for gone in decision.fenced] == [(10, 14)]
    assert decision.end_offset == 15
    assert decision.seal


def test_a_log_that_ends_below_what_was_durable_reports_the_missing_offsets() -> None:
    decision = decide([segment(0, 10)], doubt(durable_end=15))
    assert [(gone.first, gone.last) for gone in decision.fenced] == [(10, 14)]
    assert decision.fenced[0].reason == "the log ends at offset 10, but 15 was durable"
    assert decision.end_offset == 15
    assert decision.seal


def test_damage_below_the_recovery_point_in_the_last_segment_is_fenced_though_nothing_follows() -> None:
    decision = decide([segment(0, 10, damage(500, 10, None))], doubt(recovery_point=12, durable_end=12))
    assert decision.cut is None
    assert [(gone.first, gone.last) for gone in decision.fenced] == [(10, 11)]
    assert decision.seal


def test_two_damages_are_both_fenced() -> None:
    decision = decide([segment(0, 50, damage(100, 10, 20), damage(300, 30, 40))], doubt())
    assert [(gone.first, gone.last) for gone in decision.fenced] == [(10, 19), (30, 39)]


def test_a_fence_and_then_a_torn_tail() -> None:
    decision = decide([segment(0, 30, damage(100, 10, 20), damage(800, 30, None, torn=True))], doubt())
    assert [(gone.first, gone.last) for gone in decision.fenced] == [(10, 19)]
    assert decision.cut == (0, 800)
    assert decision.end_offset == 30


@pytest.mark.parametrize("suffix_only", [False, True], ids=["killed", "restarted"])
@pytest.mark.parametrize("known", [{"recovery_point": 25}, {"durable_end": 25}], ids=["recovery-point", "durable-end"])
def test_a_log_that_ends_below_what_was_flushed_has_lost_the_rest(known: dict[str, int], suffix_only: bool) -> None:
    decision = decide([segment(0, 10), segment(10, 20)], doubt(**known, suffix_only=suffix_only))
    assert (decision.lost, decision.end_offset, decision.seal) == ([(20, 24)], 25, True)
    assert [(gone.first, gone.last) for gone in decision.fenced] == [(20, 24)]


def test_what_lies_above_a_cut_is_lost_only_where_it_was_flushed() -> None:
    findings = [segment(0, 10), segment(40, 50)]
    decision = decide(findings, doubt(durable_end=12, suffix_only=True))
    assert (decision.cut, decision.lost, decision.end_offset, decision.seal) == ((0, 1000), [(10, 11)], 12, True)
    decision = decide(findings, doubt(durable_end=45, suffix_only=True))
    assert (decision.cut, decision.lost, decision.end_offset) == (None, [], 50)
