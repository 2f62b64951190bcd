"""The time index: when it gets an entry, and what a search for a time finds (Kafka: TimeIndexTest)."""

from __future__ import annotations

import errno
import random
import sys
from array import array
from pathlib import Path

import pytest

from kstore.errors import (
    ClosedError,
    CorruptIndexError,
    DiskFullError,
    IndexFullError,
    InvalidOffsetError,
    InvalidTimestampError,
    ReadOnlyError,
)
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.index import TimeIndex
from kstore.types import TimestampOffset
from tests.support.fakes.fake_fs import FailingFs, Fault, RecordingFs

BASE = 45


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000045.timeindex"


@pytest.fixture
def index(path: Path) -> TimeIndex:
    return create(path)


def create(path: Path, *, entries: int = 30, fs: FileSystem = SYSTEM_FS) -> TimeIndex:
    return TimeIndex.create(fs, path, BASE, index_bytes_max=entries * 12)


def open_again(path: Path, *, entries: int = 30, entry_count: int | None = None) -> TimeIndex:
    return TimeIndex.open_writable(SYSTEM_FS, path, BASE, index_bytes_max=entries * 12, entry_count=entry_count)


def fill(index: TimeIndex, count: int) -> list[TimestampOffset]:
    """Entries at every tenth timestamp and every tenth offset."""
    entries = [TimestampOffset(slot * 10, BASE + slot * 10) for slot in range(1, count + 1)]
    for entry in entries:
        assert index.maybe_append(*entry)
    return entries


def encoded(*entries: tuple[int, int]) -> bytes:
    return b"".join(
        time.to_bytes(8, "big", signed=True) + delta.to_bytes(4, "big", signed=True) for time, delta in entries
    )


# --- format -----------------------------------------------------------------------------------------------------------


def test_entries_are_stored_as_kafka_stores_them(path: Path, index: TimeIndex) -> None:
    index.maybe_append(1_700_000_000_000, BASE + 9)
    index.maybe_append(2**63 - 1, BASE + 0x01020304)
    index.close()
    assert path.read_bytes() == bytes.fromhex("0000018bcfe56800 00000009  7fffffffffffffff 01020304")


@pytest.mark.parametrize(("index_bytes_max", "entries"), [(11, 0), (12, 1), (100, 8), (10 << 20, 873813)], ids=str)
def test_the_size_is_rounded_down_to_whole_entries(path: Path, index_bytes_max: int, entries: int) -> None:
    index = TimeIndex.create(SYSTEM_FS, path, BASE, index_bytes_max=index_bytes_max)
    assert index.max_entry_count == entries
    assert index.entry_size == 12


# --- append -----------------------------------------------------------------------------------------------------------


def test_one_slot_is_kept_for_the_entry_of_the_roll(index: TimeIndex) -> None:
    assert not index.is_full
    fill(index, 28)
    assert not index.is_full
    index.maybe_append(290, BASE + 290)
    assert index.is_full
    with pytest.raises(IndexFullError):
        index.maybe_append(10_000, 1000)
    with pytest.raises(InvalidOffsetError):
        index.maybe_append(10_000, BASE + 280, final=True)
    assert index.maybe_append(10_000, 1000, final=True)
    assert index.entry_count == 30
    with pytest.raises(IndexFullError):
        index.maybe_append(10_001, 1001, final=True)
    index.check()


def test_an_index_without_room_is_full(path: Path) -> None:
    assert create(path, entries=0).is_full


@pytest.mark.parametrize("timestamp", [100, 99, 0, -1], ids=["equal", "earlier", "zero", "none"])
def test_a_timestamp_that_is_not_greater_adds_no_entry(index: TimeIndex, timestamp: int) -> None:
    index.maybe_append(100, BASE + 5)
    assert not index.maybe_append(timestamp, BASE + 7)
    assert index.entry_count == 1
    assert index.last_entry == (100, BASE + 5)


def test_no_timestamp_is_no_entry_in_an_empty_index(index: TimeIndex) -> None:
    assert not index.maybe_append(-1, BASE)
    assert index.entry_count == 0


def test_a_full_index_still_accepts_what_adds_no_entry(index: TimeIndex) -> None:
    fill(index, 29)
    assert not index.maybe_append(290, BASE + 290)


def test_a_greater_timestamp_may_come_with_the_same_offset(index: TimeIndex) -> None:
    index.maybe_append(100, BASE + 5)
    assert index.maybe_append(101, BASE + 5)
    index.check()


@pytest.mark.parametrize(
    "offset", [BASE + 4, BASE - 1, BASE + 2**31, 2**70], ids=["falling", "below the base", "too far", "huge"]
)
@pytest.mark.parametrize("timestamp", [100, 200], ids=["same time", "later"])
def test_an_offset_that_cannot_follow_is_refused(index: TimeIndex, offset: int, timestamp: int) -> None:
    index.maybe_append(100, BASE + 5)
    with pytest.raises(InvalidOffsetError, match=f"offset {offset}"):
        index.maybe_append(timestamp, offset)
    assert index.entry_count == 1


def test_a_timestamp_beyond_63_bits_is_refused(index: TimeIndex) -> None:
    with pytest.raises(InvalidTimestampError):
        index.maybe_append(2**63, BASE)
    assert index.entry_count == 0


def test_a_full_disk_leaves_the_index_as_it_was(path: Path) -> None:
    fs = FailingFs(SYSTEM_FS, Fault(at=1, errno=errno.ENOSPC, kinds=frozenset({"map"})))
    index = create(path, fs=fs)
    with pytest.raises(DiskFullError):
        index.maybe_append(100, BASE)
    assert index.last_entry == (-1, BASE)
    assert index.maybe_append(100, BASE)


# --- lookup -----------------------------------------------------------------------------------------------------------


def test_an_empty_index_knows_no_time(index: TimeIndex) -> None:
    assert index.lookup(100) == (-1, BASE)
    assert index.last_entry == (-1, BASE)


def test_a_lookup_finds_the_last_entry_at_or_before_the_time(index: TimeIndex) -> None:
    entries = fill(index, 20)
    assert index.lookup(9) == (-1, BASE)
    assert index.lookup(10) == entries[0]
    assert index.lookup(11) == entries[0]
    assert index.lookup(20) == entries[1]
    assert index.lookup(119) == entries[10]
    assert index.lookup(200) == index.lookup(10**15) == index.lookup(2**70) == entries[-1]


@pytest.mark.parametrize("timestamp", [-1, -2, -(2**63), -(2**70)])
def test_no_entry_is_before_the_epoch(index: TimeIndex, timestamp: int) -> None:
    index.maybe_append(0, BASE + 3)
    assert index.lookup(timestamp) == (-1, BASE)
    assert index.lookup(0) == (0, BASE + 3)


@pytest.mark.parametrize("count", [1, 681, 682, 683, 684, 1500])
def test_searches_agree_with_a_plain_one_at_any_size(count: int) -> None:
    rng = random.Random(count)
    times = sorted(rng.sample(range(1, count * 3), count))
    index = TimeIndex.from_bytes(encoded(*((time, slot // 2) for slot, time in enumerate(times))), BASE)
    for target in {0, 1, times[0], times[-1], count * 3, *rng.sample(range(count * 3), min(count, 60))}:
        below = [slot for slot, time in enumerate(times) if time <= target]
        expected = (times[below[-1]], BASE + below[-1] // 2) if below else (-1, BASE)
        assert index.lookup(target) == expected


def test_entries_are_read_by_their_number(index: TimeIndex) -> None:
    entries = fill(index, 5)
    assert [index.entry(slot) for slot in range(5)] == entries
    assert list(index.entries()) == entries
    with pytest.raises(IndexError):
        index.entry(5)


class PageCounter(bytes):
    """The content of an index that notes which pages were read."""

    pages: set[int]

    def __getitem__(self, at: slice) -> bytes:  # type: ignore[override]
        self.pages.update(range(at.start // 4096, (at.stop - 1) // 4096 + 1))
        return super().__getitem__(at)


@pytest.mark.parametrize("count", [1, 682, 683, 1023, 1024, 1365, 1706, 50_000])
def test_a_lookup_near_the_end_touches_three_pages_at_most(count: int) -> None:
    numbers = array("i", [number for slot in range(count) for number in (0, slot * 4 + 3, slot)])
    if sys.byteorder == "little":
        numbers.byteswap()
    content = PageCounter(numbers.tobytes())
    content.pages = set()
    index = TimeIndex.from_bytes(content, BASE)
    last = count * 4 - 1
    for target in (last, last + 1, last - 1, last + 10**6, max(last - 4 * 681, 3)):
        content.pages = set()
        assert index.lookup(target).timestamp <= target
        assert len(content.pages) <= 3


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_can_be_searched(seed: int) -> None:
    rng = random.Random(seed)
    garbage = rng.randbytes(rng.randrange(0, 40_000))
    for live in (False, True):
        index = TimeIndex.from_bytes(garbage, BASE, live=live)
        for _ in range(20):
            found = index.lookup(rng.randrange(2**64))
            assert found.offset >= BASE
            assert found.timestamp >= -1


# --- truncate ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "kept"),
    [(BASE + 10**6, 9), (BASE + 90, 8), (BASE + 85, 8), (BASE + 11, 1), (BASE + 10, 0), (BASE, 0), (BASE - 1, 0)],
    ids=["far above", "at the last", "between", "just above the first", "at the first", "base", "below"],
)
def test_truncation_keeps_the_entries_below_the_offset(index: TimeIndex, offset: int, kept: int) -> None:
    entries = fill(index, 9)
    index.truncate_to(offset)
    assert list(index.entries()) == entries[:kept]
    assert index.last_entry == (entries[kept - 1] if kept else (-1, BASE))
    index.check()


def test_truncation_drops_every_entry_of_an_offset(index: TimeIndex) -> None:
    for timestamp, offset in ((10, BASE + 1), (20, BASE + 5), (30, BASE + 5), (40, BASE + 6)):
        index.maybe_append(timestamp, offset)
    index.truncate_to(BASE + 5)
    assert list(index.entries()) == [(10, BASE + 1)]


def test_after_a_truncation_earlier_times_are_entries_again(path: Path, index: TimeIndex) -> None:
    fill(index, 9)
    index.truncate()
    assert index.maybe_append(5, BASE + 1)
    index.close()
    assert path.read_bytes() == encoded((5, 1))


# --- seal, open again -------------------------------------------------------------------------------------------------


def test_a_sealed_index_is_trimmed_and_still_searched(path: Path, index: TimeIndex) -> None:
    entries = fill(index, 5)
    index.seal()
    assert path.stat().st_size == 60
    assert index.lookup(35) == entries[2]
    with pytest.raises(ReadOnlyError):
        index.maybe_append(1000, BASE + 1000)
    index.close()
    with pytest.raises(ClosedError):
        index.lookup(35)


def test_an_index_opened_again_goes_on_and_may_be_given_another_size(path: Path, index: TimeIndex) -> None:
    entries = fill(index, 5)
    index.close()
    larger = open_again(path, entries=1000)
    assert (larger.max_entry_count, larger.last_entry) == (1000, entries[-1])
    for slot in range(6, 900):
        larger.maybe_append(slot * 10, BASE + slot * 10)
    larger.close()
    assert path.stat().st_size == 899 * 12
    smaller = open_again(path, entries=5)
    assert smaller.is_full
    assert smaller.entry_count == 899


def test_growth_never_leaves_part_of_an_entry_outside(path: Path) -> None:
    fs = RecordingFs()
    index = create(path, entries=2000, fs=fs)
    entries = fill(index, 1999)
    assert [operation.size for operation in fs.operations if operation.kind == "map"] == [4096, 8192, 16384, 24000]
    assert list(index.entries()) == entries


@pytest.mark.parametrize("count", [340, 341, 342, 682, 1023, 1365])
def test_an_index_opened_again_has_room_for_one_entry_more(count: int, path: Path) -> None:
    index = create(path, entries=2000)
    entries = fill(index, count)
    index.close()
    index = open_again(path, entries=2000)
    assert index.maybe_append(10**9, BASE + 10**6)
    assert list(index.entries()) == [*entries, TimestampOffset(10**9, BASE + 10**6)]


CRASHED: dict[str, tuple[bytes, int]] = {
    "zeros behind": (encoded((5, 10), (9, 10)) + bytes(4096), 2),
    "zeros only": (bytes(8192), 0),
    "half an entry": (encoded((5, 10), (9, 20)) + b"\0\0\0\0\0\0\0\x0c\0", 2),
    "a time that does not rise": (encoded((5, 10), (9, 20), (9, 30)), 2),
    "an offset that falls": (encoded((5, 10), (9, 9)), 1),
    "a negative time": (encoded((5, 10), (-9, 20)), 1),
    "a negative offset first": (encoded((5, -1)), 0),
}


@pytest.mark.parametrize(("content", "kept"), CRASHED.values(), ids=CRASHED.keys())
def test_after_a_crash_the_rising_entries_are_kept(path: Path, content: bytes, kept: int) -> None:
    path.write_bytes(content)
    index = open_again(path)
    assert index.entry_count == kept
    index.check()
    assert path.stat().st_size == kept * 12


def test_the_index_of_a_live_writer_is_read_up_to_its_last_entry(path: Path) -> None:
    path.write_bytes(encoded((5, 10), (9, 256)) + bytes(5000))
    index = TimeIndex.open_read_only(SYSTEM_FS, path, BASE, live=True)
    assert list(index.entries()) == [(5, BASE + 10), (9, BASE + 256)]


# --- check ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (encoded((5, 10), (9, 9)), "entry 1 does not follow"),
        (encoded((5, 10), (4, 20)), "entry 1 does not follow"),
        (encoded((5, 10), (9, 20)) + b"\0", "25 bytes, expected a multiple of 12"),
        (encoded((5, 10)) + bytes(12), "entry 1 does not follow"),
    ],
    ids=["offset", "timestamp", "length", "never trimmed"],
)
def test_a_check_finds_each_kind_of_damage(path: Path, content: bytes, reason: str) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptIndexError, match=reason):
        TimeIndex.open_read_only(SYSTEM_FS, path, BASE).check()


def test_sound_entries_pass_the_check(index: TimeIndex) -> None:
    index.check()
    fill(index, 20)
    index.check()
