"""Which segments a mirror keeps, compares, copies and refuses, and where its copy begins."""

from kstore.rules.mirror import SegmentFile, match_segments, start_of_target


def test_a_segment_of_the_same_size_and_time_is_kept() -> None:
    source = [SegmentFile(0, 10, 5), SegmentFile(7, 10, 5), SegmentFile(9, 10, 5), SegmentFile(12, 3, 6, sealed=False)]
    target = [SegmentFile(0, 10, 5), SegmentFile(7, 9, 5), SegmentFile(9, 10, 4), SegmentFile(12, 3, 6)]
    matching = match_segments(source, target, same_times=True)
    assert matching.verdicts == {0: "keep", 7: "compare", 9: "compare", 12: "compare"}
    assert match_segments(source, target[:1], same_times=True).verdicts[7] == "copy"


def test_a_segment_uploaded_after_its_last_change_is_kept() -> None:
    source = [SegmentFile(0, 10, 5), SegmentFile(7, 10, 5), SegmentFile(9, 10, 0)]
    target = [SegmentFile(0, 10, 8), SegmentFile(7, 10, 4), SegmentFile(9, 10, 4)]
    assert match_segments(source, target, same_times=False).verdicts == {0: "keep", 7: "compare", 9: "compare"}


def test_what_only_the_target_has_is_old_below_the_source_and_else_foreign() -> None:
    target = [SegmentFile(base, 1, 1) for base in (0, 5, 10, 15, 20)]
    source = [SegmentFile(10, 1, 1), SegmentFile(20, 1, 1)]
    matching = match_segments(source, target, same_times=True)
    assert (matching.old, matching.foreign) == ([0, 5], [15])
    assert match_segments([], target, same_times=True).foreign == [0, 5, 10, 15, 20]
    # All that is left of the source is an active segment, which is not copied.
    matching = match_segments([], target, same_times=True, source_end=15)
    assert (matching.old, matching.foreign) == ([0, 5, 10], [15, 20])


def test_the_start_of_the_target_goes_up_only_with_delete() -> None:
    assert start_of_target(10, before=None, old=[], delete=False) == 10
    assert start_of_target(10, before=None, old=[3, 5], delete=False) == 3
    assert start_of_target(10, before=4, old=[], delete=False) == 4
    assert start_of_target(10, before=4, old=[3], delete=True) == 10
