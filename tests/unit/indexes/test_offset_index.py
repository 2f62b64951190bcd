"""The offset index: entries, searches, growth, and the states that a crash leaves (Kafka: OffsetIndexTest)."""

from __future__ import annotations

import errno
import random
import sys
from array import array
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from kstore.errors import (
    ClosedError,
    CorruptIndexError,
    DiskFullError,
    FileInTheWayError,
    FileMissingError,
    IndexFullError,
    InvalidOffsetError,
    ReadOnlyError,
    StorageError,
    SyncFailedError,
)
from kstore.files.local import SYSTEM_FS
from kstore.index import OffsetIndex
from kstore.indexes._search import entries_around
from tests.support.fakes.fake_fs import FailingFs, Fault, RecordingFs
from tests.support.lives.offset_index_parts import BASE, create, encoded, fill

MEGABYTES = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000045.index"


@pytest.fixture
def index(path: Path) -> OffsetIndex:
    return create(path)


def open_again(path: Path, *, entries: int = 30, entry_count: int | None = None) -> OffsetIndex:
    return OffsetIndex.open_writable(SYSTEM_FS, path, BASE, index_bytes_max=entries * 8, entry_count=entry_count)


# --- format -----------------------------------------------------------------------------------------------------------


def test_entries_are_stored_as_kafka_stores_them(path: Path, index: OffsetIndex) -> None:
    index.append(BASE + 9, 4096)
    index.append(BASE + 0x01020304, 0x7FFFFFFF)
    index.close()
    assert path.read_bytes() == bytes.fromhex("00000009 00001000  01020304 7fffffff")


def test_a_new_index_is_an_empty_private_file(path: Path, index: OffsetIndex) -> None:
    assert path.stat().st_size == 0
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileInTheWayError):
        create(path)


# --- append -----------------------------------------------------------------------------------------------------------


def test_an_index_takes_as_many_entries_as_its_size_says(index: OffsetIndex) -> None:
    for slot in range(index.max_entry_count):
        assert not index.is_full
        index.append(BASE + slot + 1, slot + 1)
    assert index.is_full
    with pytest.raises(IndexFullError):
        index.append(BASE + 1000, 1000)
    assert index.entry_count == 30
    index.check()


@pytest.mark.parametrize(
    ("index_bytes_max", "entries"), [(7, 0), (8, 1), (100, 12), (10 * MEGABYTES, 1310720)], ids=str
)
def test_the_size_is_rounded_down_to_whole_entries(path: Path, index_bytes_max: int, entries: int) -> None:
    index = OffsetIndex.create(SYSTEM_FS, path, BASE, index_bytes_max=index_bytes_max)
    assert index.max_entry_count == entries


@pytest.mark.parametrize(
    "entry",
    [(BASE + 51, 1100), (BASE + 49, 1100), (BASE + 50, 1000), (BASE + 60, 1000), (BASE + 60, 999)],
    ids=["a later offset is fine", "an earlier offset", "the same again", "the same position", "an earlier position"],
)
def test_entries_rise_in_both_columns(index: OffsetIndex, entry: tuple[int, int]) -> None:
    index.append(BASE + 50, 1000)
    if entry == (BASE + 51, 1100):
        index.append(*entry)
        return
    with pytest.raises(InvalidOffsetError, match=f"offset {entry[0]}, position {entry[1]}"):
        index.append(*entry)
    assert index.entry_count == 1
    index.check()


@pytest.mark.parametrize(
    ("offset", "position"),
    [(BASE - 1, 10), (BASE + 2**31, 10), (BASE + 1, -1), (BASE + 1, 2**31), (2**63, 10), (BASE + 1, 2**70)],
    ids=["below the base", "too far from it", "negative position", "large position", "huge offset", "huge position"],
)
def test_an_entry_that_cannot_be_stored_is_refused(index: OffsetIndex, offset: int, position: int) -> None:
    with pytest.raises(InvalidOffsetError):
        index.append(offset, position)
    assert index.entry_count == 0


def test_the_largest_entry_can_be_stored(index: OffsetIndex) -> None:
    index.append(BASE + 2**31 - 1, 2**31 - 1)
    assert index.last_entry == (BASE + 2**31 - 1, 2**31 - 1)


def test_an_entry_at_the_base_is_sane(path: Path, index: OffsetIndex) -> None:
    index.append(BASE, 0)
    index.check()
    assert index.last_entry == (BASE, 0)
    index.append(BASE + 1, 10)
    index.check()


# --- lookup -----------------------------------------------------------------------------------------------------------


def test_an_empty_index_points_to_the_start(index: OffsetIndex) -> None:
    assert index.lookup(92) == (BASE, 0)
    assert index.lookup(BASE) == (BASE, 0)
    assert index.last_entry == (BASE, 0)


def test_a_lookup_finds_the_last_entry_at_or_below_the_offset(index: OffsetIndex) -> None:
    entries = fill(index, 20)
    for before, after in pairwise(entries):
        assert index.lookup(before.offset) == before
        assert index.lookup(before.offset + 1) == before
        assert index.lookup(after.offset - 1) == before
    assert index.lookup(entries[0].offset - 1) == (BASE, 0)
    assert index.lookup(entries[-1].offset + 1) == entries[-1]


@pytest.mark.parametrize("offset", [BASE + 2**31, 2**63 - 1, 2**70], ids=["above a delta", "largest", "huge"])
def test_an_offset_beyond_every_entry_finds_the_last(index: OffsetIndex, offset: int) -> None:
    entries = fill(index, 3)
    assert index.lookup(offset) == entries[-1]


@pytest.mark.parametrize("offset", [0, BASE - 1, -1, -(2**70)])
def test_an_offset_below_the_base_finds_the_start(index: OffsetIndex, offset: int) -> None:
    fill(index, 3)
    assert index.lookup(offset) == (BASE, 0)


@pytest.mark.parametrize("count", [1, 2, 1023, 1024, 1025, 1026, 2049, 5000])
def test_searches_agree_with_a_plain_one_at_any_size(path: Path, count: int) -> None:
    rng = random.Random(count)
    deltas = sorted(rng.sample(range(1, count * 3), count))
    data = encoded(*((delta, slot * 50 + 7) for slot, delta in enumerate(deltas)))
    index = OffsetIndex.from_bytes(data, BASE)
    targets = {0, 1, deltas[0], deltas[-1], count * 3, *rng.sample(range(count * 3), min(count, 60))}
    for target in targets:
        below = [slot for slot, delta in enumerate(deltas) if delta <= target]
        expected = (BASE + deltas[below[-1]], below[-1] * 50 + 7) if below else (BASE, 0)
        assert index.lookup(BASE + target) == expected


def test_the_upper_bound_is_the_first_entry_at_or_after_a_position(index: OffsetIndex) -> None:
    assert index.upper_bound(5) is None
    first, second, third, fourth = ((BASE, 0), (BASE + 1, 10), (BASE + 2, 23), (BASE + 3, 37))
    for entry in (first, second, third, fourth):
        index.append(*entry)
    assert index.upper_bound(0 + 5) == second
    assert index.upper_bound(0 + 10) == second
    assert index.upper_bound(0 + 23) == third
    assert index.upper_bound(0 + 22) == third
    assert index.upper_bound(10 + 24) == fourth
    for beyond in (37 + 1, 200, 2**40):
        assert index.upper_bound(beyond) is None
    for at_the_start in (0, -5):
        assert index.upper_bound(at_the_start) == first


def test_the_ceiling_is_the_first_entry_at_or_above_an_offset(index: OffsetIndex) -> None:
    assert index.ceiling(BASE) is None
    first, second, third = fill(index, 3)
    for at_the_start in (BASE - 5, BASE, first.offset - 1, first.offset):
        assert index.ceiling(at_the_start) == (first, second.position)
    assert index.ceiling(first.offset + 1) == (second, third.position)
    assert index.ceiling(third.offset) == (third, 0), "no entry says how far the last one reaches"
    for beyond in (third.offset + 1, BASE + 2**31, 2**70):
        assert index.ceiling(beyond) is None


def test_entries_are_read_by_their_number(index: OffsetIndex) -> None:
    entries = fill(index, 5)
    assert [index.entry(slot) for slot in range(5)] == entries
    assert list(index.entries()) == entries
    for slot in (-1, 5):
        with pytest.raises(IndexError):
            index.entry(slot)


class PageCounter(bytes):
    """The content of an index that notes which pages were read."""

    pages: set[int]

    def __getitem__(self, at: slice) -> bytes:  # type: ignore[override]
        assert at.step is None
        self.pages.update(range(at.start // 4096, (at.stop - 1) // 4096 + 1))
        return super().__getitem__(at)


@pytest.mark.parametrize("count", [1, 511, 1024, 1025, 1537, 100_000, 1_310_720])
@pytest.mark.sampled(2, keep=("1025",))
def test_a_lookup_near_the_end_touches_three_pages_at_most(count: int) -> None:
    numbers = array("i", [number for slot in range(count) for number in (slot * 4 + 3, slot * 100 + 1)])
    assert numbers.itemsize == 4
    if sys.byteorder == "little":
        numbers.byteswap()
    content = PageCounter(numbers.tobytes())
    content.pages = set()
    index = OffsetIndex.from_bytes(content, BASE)
    last = count * 4 - 1
    for target in (last, last + 1, last - 1, last + 10**6, max(last - 4 * 1000, 3), max(last - 4 * 500, 3)):
        content.pages = set()
        found = index.lookup(BASE + target)
        assert found.offset <= BASE + target
        assert len(content.pages) <= 3, f"target {target - last} from the end"
        content.pages = set()
        index.upper_bound(found.position)
        assert len(content.pages) <= 3


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_can_be_searched(seed: int) -> None:
    rng = random.Random(seed)
    garbage = rng.randbytes(rng.randrange(0, 40_000))
    for live in (False, True):
        index = OffsetIndex.from_bytes(garbage, BASE, live=live)
        for _ in range(20):
            found = index.lookup(rng.randrange(BASE + 2**32))
            assert found.offset >= BASE
            assert found.position >= 0
            upper = index.upper_bound(rng.randrange(2**32))
            assert upper is None or upper.position >= 0
        assert index.last_entry.position >= 0
        assert len(list(index.entries())) == index.entry_count


def around(entries: list[tuple[int, int]], offset: int) -> tuple[int, int, int, int, int]:
    """The same by a plain search."""
    at = sum(BASE + delta < offset for delta, _ in entries)
    floor = (BASE + entries[at - 1][0], entries[at - 1][1]) if at else (-1, 0)
    ceiling = (BASE + entries[at][0], entries[at][1]) if at < len(entries) else (-1, 0)
    return (*floor, *ceiling, entries[at + 1][1] if at + 1 < len(entries) else 0)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 100, 1025])
def test_the_entries_around_an_offset_agree_with_a_plain_search(path: Path, count: int) -> None:
    rng = random.Random(count)
    deltas = sorted(rng.sample(range(count * 3 + 1), count))
    entries = [(delta, slot * 50 + 7) for slot, delta in enumerate(deltas)]
    sealed = OffsetIndex.from_bytes(encoded(*entries), BASE)
    mapped = create(path, entries=count + 1)
    for delta, position in entries:
        mapped.append(BASE + delta, position)
    for target in {0, 1, *deltas, *(delta + 1 for delta in deltas), count * 3 + 5, 2**31, 2**40}:
        expected = around(entries, BASE + target)
        assert sealed.around(BASE + target) == expected
        assert mapped.around(BASE + target) == expected
    assert sealed.around(0) == around(entries, 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_entries_around_an_offset_in_any_bytes_are_no_negative_numbers(seed: int) -> None:
    rng = random.Random(seed)
    rising = sorted(rng.randrange(2**32) for _ in range(60))
    data = b"".join(delta.to_bytes(4, "big") + rng.randbytes(4) for delta in rising)
    for content in (rng.randbytes(rng.randrange(4000)), data):
        for base in (0, BASE, 2**63 - 2**31, 2**63 - 2):
            index = OffsetIndex.from_bytes(content, base)
            for _ in range(50):
                try:
                    span = index.around(min(base + rng.randrange(2**32), 2**63 - 1))
                except CorruptIndexError:
                    continue
                assert min(span[1], span[3], span[4]) >= 0
                assert all(offset == -1 or base <= offset < base + 2**31 for offset in (span[0], span[2]))


@pytest.mark.parametrize(("entries", "size"), [(2, 15), (-1, 16), (1, 0), (1 << 62, 16)])
def test_a_search_for_entries_looks_at_none_beyond_the_bytes(entries: int, size: int) -> None:
    with pytest.raises(ValueError, match="entries of 8 bytes"):
        entries_around(bytes(size), entries, 0, 1)


# --- truncate ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "just opened"])
@pytest.mark.parametrize(
    ("offset", "kept"),
    [
        (BASE + 10**6, 9),
        (BASE + 91, 9),
        (BASE + 90, 8),
        (BASE + 85, 8),
        (BASE + 40, 3),
        (BASE + 10, 0),
        (BASE, 0),
        (BASE - 5, 0),
    ],
    ids=["far above", "just above", "at the last", "between", "at the fourth", "at the first", "base", "below"],
)
def test_truncation_keeps_the_entries_below_the_offset(path: Path, offset: int, kept: int, mapped: bool) -> None:
    index = create(path)
    entries = fill(index, 9)
    if not mapped:
        index.close()
        index = open_again(path)
    index.truncate_to(offset)
    assert list(index.entries()) == entries[:kept]
    assert index.last_entry == (entries[kept - 1] if kept else (BASE, 0))
    index.check()
    # Slot numbers continue at the cut.
    index.append(BASE + 2000, 2000)
    index.close()
    assert path.read_bytes() == encoded(
        *((entry.offset - BASE, entry.position) for entry in entries[:kept]), (2000, 2000)
    )


def test_what_was_truncated_reads_as_zeros_in_the_file(path: Path, index: OffsetIndex) -> None:
    fill(index, 9)
    index.truncate_to(BASE + 40)
    assert path.read_bytes()[24:240] == bytes(216)


def test_a_whole_index_can_be_emptied(path: Path, index: OffsetIndex) -> None:
    fill(index, 9)
    index.truncate()
    assert index.entry_count == 0
    assert index.lookup(BASE + 50) == (BASE, 0)
    index.close()
    assert path.read_bytes() == b""


# --- growth -----------------------------------------------------------------------------------------------------------


def test_the_file_grows_in_small_steps_whose_blocks_come_first(path: Path) -> None:
    fs = RecordingFs()
    index = create(path, entries=100_000, fs=fs)
    for slot in range(1, 40_000):
        index.append(BASE + slot, slot)
    sizes = [operation.size for operation in fs.operations if operation.kind == "map"]
    assert sizes == [4096 << step for step in range(6)] + [196608, 262144, 327680]
    assert path.stat().st_blocks * 512 >= path.stat().st_size == sizes[-1]
    # Only mappings and stores.
    assert set(fs.kinds()) == {"create", "map", "store"}


def test_the_last_step_ends_at_the_limit(path: Path) -> None:
    index = create(path, entries=700)
    fill(index, 700)
    assert path.stat().st_size == 5600
    assert index.is_full


def test_a_full_disk_leaves_the_index_as_it_was_and_works_again_with_space(path: Path) -> None:
    fault = Fault(at=2, errno=errno.ENOSPC, sticky=True, kinds=frozenset({"map"}))
    fs = FailingFs(SYSTEM_FS, fault)
    index = create(path, entries=1000, fs=fs)
    entries = fill(index, 512)
    for _ in range(2):
        with pytest.raises(DiskFullError):
            index.append(BASE + 10**6, 10**6)
        index.check()
        assert index.last_entry == entries[-1]
    fs.faults.clear()
    index.append(BASE + 10**6, 10**6)
    index.close()
    assert path.stat().st_size == 513 * 8


def test_a_failed_sync_is_typed(path: Path) -> None:
    fs = FailingFs(SYSTEM_FS, Fault(at=1, kinds=frozenset({"sync_mapping"})))
    index = create(path, fs=fs)
    fill(index, 2)
    with pytest.raises(SyncFailedError):
        index.flush()


def test_a_flush_syncs_what_was_stored(path: Path) -> None:
    fs = RecordingFs()
    index = create(path, fs=fs)
    index.flush()
    fill(index, 1)
    index.flush()
    index.seal()
    index.flush()
    assert fs.kinds() == ["create", "fdatasync", "map", "store", "sync_mapping", "truncate"]


# --- seal, close, open again ------------------------------------------------------------------------------------------


def test_a_sealed_index_is_trimmed_and_still_searched(path: Path, index: OffsetIndex) -> None:
    entries = fill(index, 5)
    index.seal()
    index.seal()
    assert path.stat().st_size == 40
    assert not index.writable
    assert index.lookup(BASE + 35) == entries[2]
    assert list(index.entries()) == entries
    index.check()
    changes: list[Callable[[], None]] = [
        lambda: index.append(BASE + 1000, 1000),
        lambda: index.truncate_to(BASE),
        index.truncate,
    ]
    for change in changes:
        with pytest.raises(ReadOnlyError):
            change()


def test_a_closed_index_says_so(path: Path, index: OffsetIndex) -> None:
    fill(index, 5)
    index.close()
    index.close()
    assert path.stat().st_size == 40
    uses: list[Callable[[], object]] = [
        lambda: index.lookup(BASE + 50),
        lambda: index.upper_bound(50),
        lambda: index.append(BASE + 1000, 1000),
        lambda: list(index.entries()),
        index.check,
    ]
    for use in uses:
        with pytest.raises(ClosedError):
            use()


def test_a_closed_index_without_entries_says_so_too(index: OffsetIndex) -> None:
    index.close()
    with pytest.raises(ClosedError):
        index.lookup(BASE)


def test_an_index_can_be_closed_without_touching_its_file(path: Path) -> None:
    fs = RecordingFs()
    index = create(path, fs=fs)
    fill(index, 5)
    done = len(fs.kinds())
    index.close(trim=False)
    assert len(fs.kinds()) == done
    assert path.stat().st_size == 240


def test_an_index_that_cannot_be_trimmed_is_sealed_all_the_same(path: Path) -> None:
    fs = FailingFs(SYSTEM_FS, Fault(at=1, kinds=frozenset({"truncate"})))
    index = create(path, fs=fs)
    entries = fill(index, 5)
    with pytest.raises(StorageError):
        index.seal()
    assert not index.writable
    assert list(index.entries()) == entries


def test_an_index_opened_again_goes_on(path: Path, index: OffsetIndex) -> None:
    first, second = fill(index, 2)
    index.close()
    again = open_again(path)
    assert (again.lookup(first.offset), again.lookup(second.offset)) == (first, second)
    assert (again.entry_count, again.max_entry_count, again.last_entry) == (2, 30, second)
    with pytest.raises(InvalidOffsetError):
        again.append(*second)
    third = fill(again, 1, start=3)[0]
    again.close()
    assert list(OffsetIndex.open_read_only(SYSTEM_FS, path, BASE).entries()) == [first, second, third]


def test_an_index_over_its_limit_is_full_and_not_cut(path: Path) -> None:
    index = create(path)
    entries = fill(index, 20)
    index.close()
    again = open_again(path, entries=10)
    assert again.is_full
    assert list(again.entries()) == entries


def test_a_missing_index_is_created_for_writing_only(path: Path) -> None:
    with pytest.raises(FileMissingError):
        OffsetIndex.open_read_only(SYSTEM_FS, path, BASE)
    assert open_again(path).entry_count == 0
    assert path.exists()


CRASHED: dict[str, tuple[bytes, int]] = {
    "zeros behind": (encoded((5, 10), (9, 20)) + bytes(4096), 2),
    "zeros only": (bytes(8192), 0),
    "half an entry": (encoded((5, 10), (9, 20)) + b"\0\0\0\x0c\0", 2),
    "an entry that does not rise": (encoded((5, 10), (9, 20), (9, 30), (12, 40)), 2),
    "a position that does not rise": (encoded((5, 10), (9, 20), (10, 20), (12, 40)), 2),
    "a hole of zeros": (encoded((5, 10)) + bytes(16) + encoded((9, 20)), 1),
    "a negative offset": (encoded((5, 10), (-9, 20)), 1),
    "a negative position": (encoded((5, 10), (9, -20)), 1),
    "a negative first entry": (encoded((-5, 10), (9, 20)), 0),
}


@pytest.mark.parametrize(("content", "kept"), CRASHED.values(), ids=CRASHED.keys())
def test_after_a_crash_the_rising_entries_are_kept(path: Path, content: bytes, kept: int) -> None:
    path.write_bytes(content)
    index = open_again(path)
    assert index.entry_count == kept
    index.check()
    assert path.stat().st_size == kept * 8, "what follows must not look like entries later on"
    index.append(BASE + 1000, 1000)
    index.close()
    assert path.read_bytes() == content[: kept * 8] + encoded((1000, 1000))


def test_a_known_number_of_entries_is_kept_whatever_they_are(path: Path) -> None:
    path.write_bytes(encoded((5, 10), (9, 20)) + bytes(80))
    assert open_again(path, entry_count=1).entry_count == 1
    with pytest.raises(CorruptIndexError, match="holds 8 bytes, expected 2 entries"):
        open_again(path, entry_count=2)


def test_opening_for_reading_changes_nothing(path: Path) -> None:
    content = encoded((5, 10), (9, 20)) + bytes(83)
    path.write_bytes(content)
    fs = RecordingFs()
    for live in (False, True):
        OffsetIndex.open_read_only(fs, path, BASE, live=live).close()
    assert fs.kinds() == []
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("content", "entries"),
    [
        (encoded((5, 10), (9, 20)), 2),
        (encoded((5, 10), (9, 20)) + bytes(4096), 2),
        (encoded((5, 10), (9, 256)) + bytes(4096), 2),
        (encoded((5, 10), (9, 20), (11, 0)) + bytes(4096), 2),
        (encoded((5, 10), (9, 20)) + b"\0\0\0\x0c\0\0", 2),
        (bytes(10), 0),
        (b"", 0),
    ],
    ids=["trimmed", "room behind", "zero bytes at the end of an entry", "half stored", "ragged", "zeros", "empty"],
)
def test_the_index_of_a_live_writer_is_read_up_to_its_last_entry(path: Path, content: bytes, entries: int) -> None:
    path.write_bytes(content)
    index = OffsetIndex.open_read_only(SYSTEM_FS, path, BASE, live=True)
    assert index.entry_count == entries
    assert index.lookup(BASE + 10) == ((BASE, 0) if not entries else (BASE + 9, content[15] or 256))


def test_a_giant_index_is_read_up_to_a_limit(path: Path) -> None:
    path.write_bytes(encoded((5, 10), (9, 20)))
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    index = OffsetIndex.open_read_only(SYSTEM_FS, path, BASE, live=True, size_max=1 << 16)
    assert index.entry_count == 2
    assert index.memory_bytes == 16


# --- check ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "position"),
    [(encoded((5, 10), (4, 20)), 8), (encoded((5, 10), (9, 20)) + bytes(8), 16), (encoded((-1, 0)), 0)],
    ids=["falling", "zeros behind", "below the base"],
)
def test_a_check_says_where_entries_contradict_each_other(path: Path, content: bytes, position: int) -> None:
    path.write_bytes(content)
    index = OffsetIndex.open_read_only(SYSTEM_FS, path, BASE)
    with pytest.raises(CorruptIndexError) as caught:
        index.check()
    assert caught.value.path == path
    assert caught.value.position == position


def test_a_check_refuses_half_an_entry(path: Path) -> None:
    path.write_bytes(encoded((5, 10)) + b"\0")
    with pytest.raises(CorruptIndexError, match="9 bytes, expected a multiple of 8"):
        OffsetIndex.open_read_only(SYSTEM_FS, path, BASE).check()
