"""Readers of an offset index beside its writer, in this process and in others."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from kstore.errors import (
    CorruptIndexError,
    FileMissingError,
)
from kstore.files.local import SYSTEM_FS
from kstore.files.unmapped import unmapped
from kstore.index import OffsetIndex
from tests.support.fakes.fake_fs import RecordingFs
from tests.support.lives.offset_index_parts import BASE, create, encoded, fill


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000045.index"


@pytest.fixture
def index(path: Path) -> OffsetIndex:
    return create(path)


# --- readers beside the writer ----------------------------------------------------------------------------------------


def test_a_reader_whose_mapping_is_sealed_looks_again(path: Path) -> None:
    class SealingMapping:
        """Sealed by the writer while a reader uses it."""

        def __getitem__(self, at: slice) -> bytes:
            index._source = mapping
            index.seal()
            return mapping[at]

    index = create(path)
    entries = fill(index, 9)
    mapping = index._source
    index._source = SealingMapping()
    assert index.lookup(BASE + 55) == entries[4]
    assert not index.writable


def test_readers_meet_no_gap_while_the_index_grows_and_is_sealed(path: Path) -> None:
    index = create(path, entries=100_000)
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                count = index.entry_count
                for slot in (count, count // 2, 0):
                    assert index.lookup(BASE + slot) == (BASE + slot, slot)
                assert index.last_entry.offset >= BASE + count
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=read) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        for slot in range(1, 5000):
            index.append(BASE + slot, slot)
        index.seal()
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert failures == []


def test_a_growing_index_never_closes_a_mapping_that_is_read(path: Path) -> None:
    index = create(path, entries=10_000)
    fill(index, 1)
    first_mapping = index._source
    fill(index, 3000, start=2)
    assert index._source is not first_mapping
    assert first_mapping[0:8] == encoded((10, 100))


# --- entries of other processes ---------------------------------------------------------------------------------------


def test_an_index_is_joined_without_a_change_and_only_its_last_entry_is_read(path: Path) -> None:
    index = create(path, entries=2000)
    entries = fill(index, 1500)
    size = path.stat().st_size
    fs = RecordingFs()
    joined = OffsetIndex.join(unmapped(fs), path, BASE, index_bytes_max=2000 * 8, entry_count=1500)
    assert {(operation.kind, operation.size) for operation in fs.operations if operation.size} == {("pread", 8)}
    assert list(joined.entries()) == entries
    assert joined.lookup(entries[700].offset) == entries[700]
    entries += fill(index, 3, start=1501)
    joined.take_in(1503)
    assert list(joined.entries()) == entries
    assert path.stat().st_size >= size


@pytest.mark.parametrize("damage", ["shorter", "zeros", "half an entry"])
def test_entries_that_are_not_there_are_damage_and_nothing_is_taken_in(damage: str, path: Path) -> None:
    entries = fill(create(path), 3)
    joined = OffsetIndex.join(unmapped(SYSTEM_FS), path, BASE, index_bytes_max=30 * 8, entry_count=2)
    data = path.read_bytes()[:24]
    path.write_bytes({"shorter": data[:16], "zeros": data[:16] + bytes(8), "half an entry": data[:20]}[damage])
    with pytest.raises(CorruptIndexError, match="expected 3 entries"):
        joined.take_in(3)
    assert list(joined.entries()) == entries[:2]
    with pytest.raises(CorruptIndexError):
        OffsetIndex.join(unmapped(SYSTEM_FS), path, BASE, index_bytes_max=30 * 8, entry_count=3)
    path.unlink()
    with pytest.raises(FileMissingError):
        OffsetIndex.join(unmapped(SYSTEM_FS), path, BASE, index_bytes_max=30 * 8, entry_count=3)
