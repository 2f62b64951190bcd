"""Transactions found by headers alone: the same as by reading all batches, also in damaged files, with few bytes."""

from __future__ import annotations

import os
import random
import sys
import threading
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.engine import head_search
from kstore.engine.head_search import HeadSearch
from kstore.engine.view import LogView
from kstore.files.moment import Moment
from kstore.files.remote import Location, RemoteFile, RemoteFiles, RemoteReading, open_remote
from kstore.indexes.offset_index import ENTRY, WINDOW_BYTES, OffsetIndex, stored_entries
from kstore.log import Log, reads_of
from kstore.record.scan import BufferSource
from kstore.spark.places import open_at
from kstore.types import AbortedTransaction
from tests.support.harness.selection import tries
from tests.support.lives.foreign_batches import message
from tests.support.lives.log_cases import data, marker, transaction

Count = Callable[[str, int], None]
MIB = 1 << 20
WAYS = ("on a disk", "jumping", "through")


def fill(path: Path, rng: random.Random, *, count: int = 40) -> None:
    """A log of batches of all kinds, without what says more about producers than they do."""
    open_by: dict[int, int] = {}
    with Log(path, durability="os", segment_bytes=rng.choice((1 << 15, 1 << 20)), index_interval_bytes=0) as log:
        for _ in range(count):
            at, producer = log.end_offset, rng.randrange(4)
            size, kind = rng.choice((0, 30, 5_000)), rng.random()
            offsets = range(at, at + rng.randint(1, 3))
            if kind < 0.2:
                log.append_batches(data(*offsets, size=size), assign_offsets=False)
            elif kind < 0.3:
                log.append_batches(
                    data(*offsets, size=size, producer_id=9, producer_epoch=0, base_sequence=0), assign_offsets=False
                )
            elif kind < 0.35 and at:
                log.append_batches(message(1, at, b"x" * size), assign_offsets=False)
            elif kind < 0.7 or producer not in open_by:
                open_by.setdefault(producer, at)
                log.append_batches(transaction(producer, *offsets, size=size), assign_offsets=False)
            else:
                log.append_batches(marker(producer, at, commit=rng.random() < 0.5), assign_offsets=False)
                del open_by[producer]
    forget_producers(path)


def forget_producers(path: Path) -> None:
    for file in path.iterdir():
        if file.suffix in (".snapshot", ".txnindex"):
            file.unlink()


def flip_bit(path: Path, position: int, bit: int) -> None:
    stat = path.stat()
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # a clean log stays one


class Found:
    """What a reader found: where committed reads end, and what they leave out."""

    def __init__(self, log: Log) -> None:
        self.stable = log.last_stable_offset
        self.aborted: set[AbortedTransaction] = set(reads_of(log).aborted_transactions(0, self.stable))


def by_heads(log: Log, *, bytes_max: int = 1 << 60, request_count: int = 1) -> HeadSearch:
    view = reads_of(log).source
    assert isinstance(view, LogView)
    search = HeadSearch(bytes_max=bytes_max, on_much=lambda size: None, request_count=request_count)
    view.search_by_heads(search)
    return search


def upload(path: Path, url: str) -> Location:
    at = open_remote(f"{url}/{path.name}", reading=RemoteReading(Moment()))
    for file in path.iterdir():
        if file.name != ".lock":
            at.fs.put(at.path / file.name, [file.read_bytes()])
    return at


@pytest.fixture(params=WAYS)
def opened(request: pytest.FixtureRequest, memory: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Log]:
    """Opens a log, or its copy far away, for a search by heads in one of the three ways."""
    if request.param == "on a disk":
        return lambda path: Log(path, read_only=True)
    monkeypatch.setattr(head_search, "JUMP_BYTES", 0 if request.param == "jumping" else 1 << 30)
    monkeypatch.setattr(head_search, "PIECE_BYTES", 700)

    def open_far(path: Path) -> Log:
        return open_at(upload(path, memory))

    return open_far


def test_heads_tell_the_same_as_the_batches(
    opened: Callable[[Path], Log], tmp_path: Path, seed: int, tried: Count
) -> None:
    rng = random.Random(seed)
    for number in range(tries(40, quick=4)):
        path = tmp_path / f"t-{number}"
        fill(path, rng)
        with Log(path, read_only=True) as log:
            expected = Found(log)
        with opened(path) as log:
            by_heads(log, request_count=rng.choice((1, 2, 5)))
            found = Found(log)
        assert (found.stable, found.aborted) == (expected.stable, expected.aborted)
        tried("reads", 1)


def test_a_damaged_byte_never_moves_where_committed_reads_end(
    opened: Callable[[Path], Log], tmp_path: Path, seed: int, tried: Count
) -> None:
    """A flipped bit may show a transaction that was never begun, or another producer: what is believed is checked."""
    rng = random.Random(seed)
    for number in range(tries(20, quick=2)):
        path = tmp_path / f"t-{number}"
        fill(path, rng, count=20)
        names = sorted(path.glob("*.log"))
        for _ in range(12):
            name = rng.choice(names)
            before = name.read_bytes()
            if not before:
                continue
            flip_bit(name, rng.randrange(len(before)), rng.randrange(8))
            with Log(path, read_only=True) as log:
                expected = Found(log)
            with opened(path) as log:
                by_heads(log)
                found = Found(log)
            name.write_bytes(before)
            assert found.stable == expected.stable
            # The records of a damaged batch are in none of the two; its header tells that its transaction was aborted.
            firsts = {gone.last_offset: gone.first_offset for gone in found.aborted}
            assert firsts.keys() >= {gone.last_offset for gone in expected.aborted}
            assert all(firsts[gone.last_offset] <= gone.first_offset for gone in expected.aborted)
            tried("flips", 1)


def test_a_search_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    with Log(tmp_path / "t-0", durability="os", segment_bytes=20_000) as log:
        log.append_batches(data(*range(50), size=50), assign_offsets=False)
        with Log(log.path, read_only=True) as reader:
            search = by_heads(reader)
            assert reader.last_stable_offset == 50
            for first in range(50, 500, 10):
                log.append_batches(transaction(1, *range(first, first + 9), size=20), assign_offsets=False)
                assert reader.last_stable_offset == first
                assert 0 < search.bytes_read < 5_000, "the new batch, twice"
                log.append_batches(marker(1, first + 9, commit=first % 20 == 0), assign_offsets=False)
                assert reader.last_stable_offset == first + 10
                assert 0 < search.bytes_read < 200, "the new batch"
            assert len(list(log.path.glob("*.log"))) > 1
            aborted = reads_of(reader).aborted_transactions(0, 500)
            assert [gone.first_offset for gone in aborted] == list(range(50, 500, 20))


# --- what it costs ----------------------------------------------------------------------------------------------------


class Fetched:
    """The ranges of a file that are fetched, one after the other or at the same time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: dict[str, list[int]] = {}
        read_range = RemoteFiles.read_range

        def noted(files: RemoteFiles, path: str, start: int, stop: int) -> bytes:
            self.sizes.setdefault(Path(path).suffix, []).append(stop - start)
            return read_range(files, path, start, stop)

        monkeypatch.setattr(RemoteFiles, "read_range", noted)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Fetched:
    return Fetched(monkeypatch)


def large_batches(path: Path, *, count: int = 40, size: int = 200_000) -> None:
    with Log(path, durability="os") as log:
        for number in range(count):
            log.append_batches(transaction(1, number, sequence=number, size=size), assign_offsets=False)
    forget_producers(path)


def test_of_large_batches_far_away_only_the_headers_are_fetched(tmp_path: Path, memory: str, fetched: Fetched) -> None:
    large_batches(tmp_path / "t-0")
    with open_at(upload(tmp_path / "t-0", memory)) as log:
        search = by_heads(log, request_count=4)
        fetched.sizes.clear()
        assert log.last_stable_offset == 0
        assert fetched.sizes[".index"] == [40 * 8 - 8]
        # The first batch is read whole, since where reads end depends on it.
        assert sorted(fetched.sizes[".log"])[:-1] == [128] * 40
        assert search.bytes_read < MIB / 4


def test_several_headers_are_fetched_at_a_time(tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    large_batches(tmp_path / "t-0", count=13)
    together = threading.Barrier(4)
    fetch = RemoteFile.fetch

    def waiting(file: RemoteFile, start: int, stop: int) -> bytes:
        if start:
            together.wait(30)  # three others come too, or this breaks
        return fetch(file, start, stop)

    with open_at(upload(tmp_path / "t-0", memory)) as log:
        by_heads(log, request_count=4)
        monkeypatch.setattr(RemoteFile, "fetch", waiting)
        assert log.last_stable_offset == 0


def test_small_batches_far_away_are_read_through_in_large_pieces(tmp_path: Path, memory: str, fetched: Fetched) -> None:
    with Log(tmp_path / "t-0", durability="os", segment_bytes=8 * MIB) as log:
        log.append_batches(b"".join(transaction(1, at, sequence=at, size=4_000) for at in range(1_000)))
    forget_producers(tmp_path / "t-0")
    size = sum(file.stat().st_size for file in (tmp_path / "t-0").glob("*.log"))
    with open_at(upload(tmp_path / "t-0", memory)) as log:
        search = by_heads(log, request_count=4)
        fetched.sizes.clear()
        assert log.last_stable_offset == 0
        assert search.bytes_read <= size + 10_000
        assert len(fetched.sizes[".log"]) <= 5


def test_a_search_that_reads_much_says_so_once_while_it_goes_on(tmp_path: Path) -> None:
    fill(tmp_path / "t-0", random.Random(1), count=200)
    told: list[int] = []
    with Log(tmp_path / "t-0", read_only=True) as log:
        by_heads(log)
        view = reads_of(log).source
        assert isinstance(view, LogView)
        search = HeadSearch(bytes_max=10_000, on_much=told.append)
        view.search_by_heads(search)
        log.last_stable_offset  # noqa: B018
        assert search.bytes_read > 10_000
    assert told == [sum(file.stat().st_size for file in (tmp_path / "t-0").glob("*.log"))]


# --- where the entries of an index end --------------------------------------------------------------------------------


class Windows(BufferSource):
    reads = 0

    def pread(self, size: int, position: int) -> bytes:
        self.reads += 1
        assert size <= WINDOW_BYTES
        return super().pread(size, position)


def test_the_last_entry_is_found_wherever_the_zeros_begin(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(tries(100, quick=10)):
        count = rng.choice((0, 1, 2, 8_191, 8_192, 8_193, rng.randrange(60_000)))
        step, position, rows = rng.randrange(5_000, 30_000), 0, array("i")
        turn = rng.randrange(count + 1)
        for number in range(count):
            position += step if number < turn else 4_097
            rows.extend((number + 1, position))
        if sys.byteorder == "little":
            rows.byteswap()
        size = rng.choice((0, 7, 16, 100_000, 10 * MIB))
        content = rows.tobytes() + bytes(size)
        source = Windows(content)
        found = stored_entries(source, len(content), 40, log_size=position + 10_000)
        assert found == (count, OffsetIndex.from_bytes(content, 40, live=True).last_entry)
        assert source.reads <= 10


def test_the_last_entry_of_even_batches_is_found_in_three_reads() -> None:
    for count in (1_000, 30_000, 200_000):
        content = b"".join(ENTRY.pack(number, 5_000 * number) for number in range(1, count + 1))
        content += bytes(10 * MIB - len(content))
        source = Windows(content)
        assert stored_entries(source, len(content), 0, log_size=5_000 * (count + 1)) == (count, (count, 5_000 * count))
        assert source.reads <= 3


def test_the_end_of_a_log_is_found_without_the_zeros_of_its_index(
    tmp_path: Path, memory: str, fetched: Fetched
) -> None:
    """As a broker leaves its active segment: the index is allocated ahead."""
    with Log(tmp_path / "t-0", durability="os", index_interval_bytes=0) as log:
        for _ in range(300):
            log.append_many([b"x" * 1_000] * 5)
    index = next((tmp_path / "t-0").glob("*.index"))
    index.write_bytes(index.read_bytes() + bytes(10 * MIB - index.stat().st_size))
    (tmp_path / "t-0" / "kstore.state").unlink()
    with open_at(upload(tmp_path / "t-0", memory)) as log:
        assert log.end_offset == 1_500
    assert fetched.sizes[".index"] == [WINDOW_BYTES]
    assert sum(fetched.sizes[".log"]) < 50_000
