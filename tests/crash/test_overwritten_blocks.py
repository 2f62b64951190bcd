"""Power cuts in a writer that overwrites zeros: the file's size says nothing, and any sector of a write may be missing.

The writer is a model of one that prepares its file. It shows that the cuts reach every part of an overwritten range.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from kstore.files.fs import File, FileSystem
from tests.crash.power_cuts import ROOT, cut_power
from tests.support.fakes.crash_states import SECTOR_SIZE, Image, Stored
from tests.support.fakes.fake_fs import Operation
from tests.support.fakes.memory_fs import Machine, MemoryFs, MemoryRecording, in_memory
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries

PATH = ROOT / "zeroed"
ZEROS = 8 * SECTOR_SIZE
# Within a sector, up to the end of one, over several, and small again.
SIZES = (100, SECTOR_SIZE - 100, 1300, 30, 700)
STATES = tries(1000, quick=150)

Write = Callable[[File, bytes, int], None]


def framed(number: int, size: int) -> bytes:
    data = bytes([number + 1]) * (size - 8)
    return size.to_bytes(4, "big") + zlib.crc32(data).to_bytes(4, "big") + data


class ZeroedLife:
    """Records over synced zeros, each acknowledged when ``write`` returns."""

    def __init__(self, write: Write) -> None:
        self.before: Image = {PATH.name: Stored(bytes(ZEROS), inode=1)}
        self.fs = MemoryRecording(MemoryFs(ROOT, self.before))
        self.written: list[bytes] = []
        # The number of operations after which each one was acknowledged.
        self.acknowledged: list[int] = []
        file, position = self.fs.open(PATH, write=True), 0
        for number, size in enumerate(SIZES):
            self.written.append(framed(number, size))
            write(file, self.written[-1], position)
            self.acknowledged.append(len(self.fs.operations))
            position += size

    @property
    def operations(self) -> Sequence[Operation]:
        return self.fs.operations

    def promise(self, done: int) -> int:
        return sum(at <= done for at in self.acknowledged)

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        found, position = [], 0
        data = fs.open(PATH).pread(ZEROS, 0)
        while size := int.from_bytes(data[position : position + 4], "big"):
            record = data[position : position + size]
            if zlib.crc32(record[8:]) != int.from_bytes(record[4:8], "big"):
                break
            found.append(record)
            position += size
        if found != self.written[: len(found)]:
            raise Wrong(f"{len(found)} records")
        if len(found) < self.promise(done):
            raise Lost(f"{len(found)} records, {self.promise(done)} were acknowledged")

    def reopen(self, fs: FileSystem) -> None:
        """Reads: a recovery that writes nothing."""
        fs.open(PATH).pread(ZEROS, 0)


def synced(file: File, record: bytes, position: int) -> None:
    file.write_and_sync([record], position)


def not_synced(file: File, record: bytes, position: int) -> None:
    file.write_all([record], position)


def synced_as_a_pair(file: File, record: bytes, position: int) -> None:
    """The first half is still on its way when the second, and so the record, is said to be on disk."""
    half = len(record) // 2
    file.write_all([record[:half]], position)
    file.write_and_sync([record[half:]], position + half)


def followed_by_zeros(file: File, record: bytes, position: int) -> None:
    """The zeros ahead begin before the end."""
    file.write_and_sync([record], position)
    file.write_all([bytes(SECTOR_SIZE)], position + len(record) - 1)


@pytest.fixture
def machine() -> Iterator[Machine]:
    with in_memory() as machine:
        yield machine


def test_records_over_zeros_are_all_there_or_were_not_acknowledged(machine: Machine, seed: int) -> None:
    # A writer that only grew or not at each write would have fewer states.
    assert cut_power(ZeroedLife(synced), machine, count=STATES, seed=seed).states > 10 * len(SIZES)


@pytest.mark.parametrize("write", [not_synced, synced_as_a_pair, followed_by_zeros])
def test_a_writer_over_zeros_that_acknowledges_too_much_is_found_out(write: Write, machine: Machine, seed: int) -> None:
    with pytest.raises(Lost):
        cut_power(ZeroedLife(write), machine, count=STATES, seed=seed)
