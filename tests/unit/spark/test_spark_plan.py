"""How a read is divided: large segments are cut at batches in the index, small ones joined, nothing is read twice."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import ClosedError
from kstore.files.remote import open_remote
from kstore.indexes.offset_index import OffsetIndex
from kstore.log import Log
from kstore.spark.holdings import Holdings
from kstore.spark.options import ReadOptions
from kstore.spark.places import LogPlace, find_places
from kstore.spark.plan import OPEN_BYTES, Split, SplitPiece, plan_splits
from tests.support.harness.evidence import Wrong
from tests.support.harness.selection import tries
from tests.support.lives.log_cases import marker, transaction

MIB = 1 << 20
Count = Callable[[str, int], None]


def written(path: Path, count: int, *, size: int = 100, per_batch: int = 10, **settings: Any) -> LogPlace:
    """A log of batches of about ``per_batch * size`` bytes, each with an index entry."""
    with Log(path, durability="os", **{"index_interval_bytes": 0, **settings}) as log:
        for first in range(0, count, per_batch):
            log.append_many([b"v" * size] * min(per_batch, count - first))
    (place,) = find_places([str(path)])
    return place


def planned(
    path: Path, ranges: Sequence[tuple[LogPlace, int, int]], *, max_partition_bytes: int = 128 * MIB, **options: Any
) -> list[Split]:
    with Holdings(ReadOptions(paths=(str(path),))) as logs:
        return plan_splits(ranges, logs.log, max_partition_bytes=max_partition_bytes, **options)


def bounds(splits: Sequence[Split]) -> list[list[tuple[int, int]]]:
    return [[(piece.start, piece.stop) for piece in split.pieces] for split in splits]


def check_covers(splits: Sequence[Split], ranges: Sequence[tuple[LogPlace, int, int]]) -> None:
    """The pieces cover the ranges in order, without gaps or overlaps."""
    pieces = [piece for split in splits for piece in split.pieces]
    found: list[tuple[LogPlace, int, int]] = []
    for piece in pieces:
        if piece.start >= piece.stop:
            raise Wrong(f"{piece}")
        if found and found[-1][0] == piece.place and found[-1][2] == piece.start:
            found[-1] = (piece.place, found[-1][1], piece.stop)
        else:
            found.append((piece.place, piece.start, piece.stop))
    if found != [each for each in ranges if each[1] < each[2]]:
        raise Wrong(f"{found}, expected {ranges}")


def test_small_segments_are_put_together(tmp_path: Path) -> None:
    place = written(tmp_path / "a-0", 1000, segment_bytes=2000)
    (split,) = planned(tmp_path, [(place, 0, 1000)])
    assert bounds([split]) == [[(0, 1000)]]
    assert split.size == pytest.approx(sum(file.stat().st_size for file in (tmp_path / "a-0").glob("*.log")), rel=0.01)


def test_a_large_segment_is_cut_where_batches_begin(tmp_path: Path) -> None:
    place = written(tmp_path / "a-0", 1000)
    splits = planned(tmp_path, [(place, 0, 1000)], max_partition_bytes=11_000)
    check_covers(splits, [(place, 0, 1000)])
    assert len(splits) >= 10
    assert all(piece.start % 10 == 0 for split in splits for piece in split.pieces)
    sizes = [split.size for split in splits]
    assert max(sizes) <= 13_000, "a batch more at most"
    assert min(sizes) >= 8_000


def test_a_part_of_a_segment_has_its_share_of_the_size(tmp_path: Path) -> None:
    place = written(tmp_path / "a-0", 1000)
    (split,) = planned(tmp_path, [(place, 250, 500)])
    assert split.size == pytest.approx((tmp_path / "a-0" / f"{0:020}.log").stat().st_size / 4, rel=0.05)
    cut = planned(tmp_path, [(place, 250, 500)], max_partition_bytes=5_000)
    check_covers(cut, [(place, 250, 500)])
    assert 5 <= len(cut) <= 8


def test_a_segment_whose_index_is_closed_meanwhile_is_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*arguments: object) -> None:
        raise ClosedError("the index is closed")

    place = written(tmp_path / "a-0", 500)
    monkeypatch.setattr(OffsetIndex, "upper_bound", closed)
    (split,) = planned(tmp_path, [(place, 0, 500)], max_partition_bytes=11_000)
    check_covers([split], [(place, 0, 500)])


@pytest.mark.parametrize("damage", ["missing", "garbage", "of another log"])
def test_without_an_index_that_can_be_believed_a_segment_is_still_read_once(damage: str, tmp_path: Path) -> None:
    place = written(tmp_path / "a-0", 500)
    index = tmp_path / "a-0" / f"{0:020}.index"
    if damage == "missing":
        index.unlink()
    elif damage == "garbage":
        index.write_bytes(random.Random(1).randbytes(index.stat().st_size))
    else:
        written(tmp_path / "b-0", 5000, size=7)
        shutil.copyfile(tmp_path / "b-0" / index.name, index)
    splits = planned(tmp_path, [(place, 0, 500)], max_partition_bytes=5_000)
    check_covers(splits, [(place, 0, 500)])
    assert damage != "missing" or len(splits) == 1


def test_each_partition_is_one_task_if_the_user_wants_it(tmp_path: Path) -> None:
    places = [written(tmp_path / f"a-{number}", 10) for number in range(3)]
    large = written(tmp_path / "b-0", 1000, segment_bytes=20_000)
    ranges = [*((place, 0, 10) for place in places), (large, 100, 1000)]
    assert len(planned(tmp_path, ranges, max_partition_bytes=11_000)) > 5
    splits = planned(tmp_path, ranges, max_partition_bytes=11_000, task_per_partition=True)
    assert bounds(splits) == [[(0, 10)]] * 3 + [[(100, 1000)]]
    divided = planned(tmp_path, ranges, task_per_partition=True, max_records=300)
    check_covers(divided, ranges)
    assert all(split.offset_count <= 300 for split in divided)
    least = planned(tmp_path, ranges, task_per_partition=True, min_partitions=9)
    check_covers(least, ranges)
    assert len(least) >= 9


def test_small_logs_are_put_together_but_not_all_of_them(tmp_path: Path) -> None:
    places = [written(tmp_path / f"a-{number}", 10) for number in range(40)]
    ranges = [(place, 0, 10) for place in places]
    splits = planned(tmp_path, ranges)
    check_covers(splits, ranges)
    # Each costs as much as reading some MiB.
    assert [len(split.pieces) for split in splits] == [1 + 128 * MIB // (OPEN_BYTES + 2000), 40 - 32]
    assert len(planned(tmp_path, ranges, max_partition_bytes=1)) == 40


def test_there_are_as_many_splits_as_asked_for_at_least(tmp_path: Path) -> None:
    place = written(tmp_path / "a-0", 1000)
    for count in (1, 2, 3, 10, 50, 130, 1000):
        splits = planned(tmp_path, [(place, 0, 1000)], min_partitions=count)
        check_covers(splits, [(place, 0, 1000)])
        assert count <= len(splits) <= max(2 * count, count + 5)
    # No more offsets exist.
    assert len(planned(tmp_path, [(place, 0, 7)], min_partitions=100)) == 7
    assert planned(tmp_path, [], min_partitions=100) == []


def test_many_small_segments_give_not_many_more_splits_than_asked_for(tmp_path: Path) -> None:
    place = written(tmp_path / "a-0", 1000, segment_bytes=2000)
    splits = planned(tmp_path, [(place, 0, 1000)], min_partitions=5)
    check_covers(splits, [(place, 0, 1000)])
    assert 5 <= len(splits) <= 8


def test_no_split_has_more_offsets_than_asked_for(tmp_path: Path) -> None:
    places = [written(tmp_path / f"a-{number}", 100 + number, segment_bytes=3000) for number in range(3)]
    ranges = [(place, number, 100 + number) for number, place in enumerate(places)]
    for most in (1, 7, 30, 100, 250):
        splits = planned(tmp_path, ranges, max_records=most)
        check_covers(splits, ranges)
        assert max(split.offset_count for split in splits) <= most
    assert len(splits) == 2


def test_empty_ranges_give_nothing(tmp_path: Path) -> None:
    place = written(tmp_path / "a-0", 10)
    assert planned(tmp_path, [(place, 5, 5), (place, 7, 3)]) == []
    assert planned(tmp_path, []) == []


def test_aborted_transactions_go_with_the_splits_that_have_their_offsets(tmp_path: Path) -> None:
    with Log(tmp_path / "a-0", durability="os") as log:
        for first in range(0, 100, 10):
            log.append_batches(transaction(1, *range(first, first + 9), sequence=first), assign_offsets=False)
            log.append_batches(marker(1, first + 9, commit=first % 20 == 0), assign_offsets=False)
    (place,) = find_places([str(tmp_path)])
    splits = planned(tmp_path, [(place, 0, 100)], max_records=15)
    check_covers(splits, [(place, 0, 100)])
    for split in splits:
        (piece,) = split.pieces
        expected = [at for at in range(10, 100, 20) if at < piece.stop and at + 9 >= piece.start]
        assert [aborted.first_offset for aborted in piece.aborted] == expected
    uncommitted = planned(tmp_path, [(place, 0, 100)], max_records=15, committed=False)
    assert not any(piece.aborted for split in uncommitted for piece in split.pieces)


def test_pieces_that_are_joined_have_each_transaction_once(tmp_path: Path) -> None:
    with Log(tmp_path / "a-0", durability="os", segment_bytes=1024) as log:
        for first in range(0, 300, 3):
            log.append_batches(transaction(1, first, first + 1, first + 2, sequence=first), assign_offsets=False)
        log.append_batches(marker(1, 300, commit=False), assign_offsets=False)
    (place,) = find_places([str(tmp_path)])
    (split,) = planned(tmp_path, [(place, 0, 301)])
    (piece,) = split.pieces
    assert len(piece.aborted) == 1


def test_a_range_below_the_log_stays_whole_so_that_its_reader_misses_it(tmp_path: Path) -> None:
    place = written(tmp_path / "a-0", 100, segment_bytes=2000)
    with Log(tmp_path / "a-0", durability="os") as log:
        log.delete_records(60)
    splits = planned(tmp_path, [(place, 0, 100)])
    check_covers(splits, [(place, 0, 100)])


def test_a_segment_in_a_store_far_away_is_cut_without_its_index(tmp_path: Path, memory: str) -> None:
    place = written(tmp_path / "a-0", 100, segment_bytes=3000)
    fs = open_remote(memory).fs
    for file in (tmp_path / "a-0").iterdir():
        fs.put(Path(f"/dir/a-0/{file.name}"), [file.read_bytes()])
    for index in (tmp_path / "a-0").glob("*.index"):
        fs.put(Path(f"/dir/a-0/{index.name}"), [b"not an index, and never read"])
    with Holdings(ReadOptions(paths=(memory,))) as logs:
        (held,) = logs.look()
        assert logs.sizes(held.place) == {
            int(file.stem): file.stat().st_size for file in (tmp_path / "a-0").glob("*.log")
        }
        ranges = [(held.place, 0, 100)]
        splits = plan_splits(ranges, logs.log, sizes_of=logs.sizes, max_partition_bytes=1500)
    check_covers(splits, ranges)
    assert all(split.size <= 1500 for split in splits)
    assert max(split.offset_count for split in splits) <= 15
    with Holdings(ReadOptions(paths=(str(tmp_path),))) as logs:
        logs.look()
        assert logs.sizes(place) == {}, "on a disk they are looked up"


@pytest.mark.long
def test_whatever_is_asked_for_is_covered_once(tmp_path: Path, seed: int, tried: Count) -> None:
    rng = random.Random(seed)
    places = [
        written(tmp_path / f"a-{number}", rng.randrange(1, 400), size=rng.randrange(1, 200), segment_bytes=20_000)
        for number in range(4)
    ]
    with Holdings(ReadOptions(paths=(str(tmp_path),))) as logs:
        ends = [logs.log(place).high_watermark for place in places]
        for _ in range(tries(150, quick=40)):
            ranges = []
            for place, end in zip(places, ends, strict=True):
                start, stop = sorted((rng.randrange(end + 1), rng.randrange(end + 1)))
                ranges.append((place, start, stop))
            splits = plan_splits(
                ranges,
                logs.log,
                max_partition_bytes=rng.choice((1, 500, 5_000, 50_000, MIB)),
                min_partitions=rng.choice((None, 1, 5, 60)),
                max_records=rng.choice((None, 1, 13, 200)),
            )
            check_covers(splits, ranges)
            tried("states", 1)


def test_a_split_knows_how_much_it_is() -> None:
    place = LogPlace("/logs/a-0", "a", 0)
    split = Split([SplitPiece(place, 5, 15, 100), SplitPiece(place, 20, 21, 7)])
    assert (split.offset_count, split.size) == (11, 107)
