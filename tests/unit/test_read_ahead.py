"""A file that is read ahead gives the bytes of the file, whatever is read, and leaves no thread behind."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from kstore.errors import StorageError, ThreadStartError
from kstore.files import read_ahead
from kstore.files.fs import File
from kstore.files.local import SYSTEM_FS
from kstore.files.read_ahead import ReadAhead

DATA = random.Random(1).randbytes(10_000)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> File:
    monkeypatch.setattr(read_ahead, "PIECE_BYTES", 700)
    monkeypatch.setattr(read_ahead, "THREAD_BYTES_MIN", 1_000)
    (tmp_path / "file").write_bytes(DATA)
    return SYSTEM_FS.open(tmp_path / "file")


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threads():
        thread.join()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kstore-read-ahead"]


@pytest.mark.parametrize("size", [100, 699, 700, 701, 2_000])
def test_chunks_that_overlap_are_those_of_the_file(file: File, size: int) -> None:
    seen = mock.Mock(wraps=file)
    with ReadAhead(seen, 0, len(DATA)) as source:
        position = 0
        while position < len(DATA):
            assert source.pread(size, position) == DATA[position : position + size]
            position += size - 37
    assert seen.pread.call_count == len(DATA) // 700 + 1


def test_reads_anywhere_are_those_of_the_file(file: File, seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(30):
        start, stop = sorted(generator.sample(range(len(DATA)), 2))
        with ReadAhead(file, start, stop) as source:
            position = start
            for _ in range(20):
                position = generator.choice([position, position + 600, generator.randrange(start, stop)])
                size = min(generator.randrange(2_000), max(stop - position, 0))
                assert source.pread(size, position) == DATA[position : position + size]


def test_a_short_range_starts_no_thread(file: File) -> None:
    with ReadAhead(file, 0, 999) as source:
        assert not threads()
        assert source.pread(500, 0) == DATA[:500]


def test_without_a_thread_everything_is_read_all_the_same(file: File) -> None:
    refused = mock.patch.object(read_ahead, "start_thread", side_effect=ThreadStartError(11, "refused"))
    with refused, ReadAhead(file, 0, len(DATA)) as source:
        assert source.pread(5_000, 0) == DATA[:5_000]


def test_a_file_that_ends_early_gives_what_it_has(file: File) -> None:
    with ReadAhead(file, 0, 2 * len(DATA)) as source:
        assert source.pread(len(DATA), 0) == DATA
        assert source.pread(100, len(DATA) - 10) == DATA[-10:]
        assert source.pread(100, len(DATA) + 10) == b""


def test_an_error_of_the_thread_is_raised_by_the_read_that_needs_it(file: File) -> None:
    broken = mock.Mock(wraps=file)
    broken.pread.side_effect = StorageError(5, "the disk is broken")
    with ReadAhead(broken, 0, len(DATA)) as source, pytest.raises(StorageError, match="the disk is broken"):
        source.pread(100, 0)


def test_an_interrupt_between_two_reads_leaves_no_thread(file: File) -> None:
    def interrupted() -> None:
        with ReadAhead(file, 0, len(DATA)) as source:
            source.pread(100, 0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


def test_an_interrupt_before_the_block_leaves_no_thread(file: File) -> None:
    source = ReadAhead(file, 0, len(DATA))
    try:
        assert not threads()
    finally:
        source.close()


def test_a_thread_that_ended_by_itself_is_done_without(file: File) -> None:
    with ReadAhead(file, 0, len(DATA)) as source:
        source._asked.put(None)
        assert source.pread(len(DATA), 0) == DATA
        assert source.pread(100, 5_000) == DATA[5_000:5_100]
