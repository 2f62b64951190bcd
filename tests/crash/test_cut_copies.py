"""Power cuts while a recovery cuts a log: what held whole batches is always in the log, or in a copy beside it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence

import pytest

from kstore.errors import DiskFullError
from kstore.files.fs import FileSystem
from kstore.log import Log
from kstore.state.log_state import LogState, StateFile
from tests.crash.power_cut_lives import indexes_that_grow_early
from tests.crash.power_cuts import ROOT, cut_power
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_fs import WRITES, FailingFs, Fault, Operation
from tests.support.fakes.memory_fs import Machine, MemoryFs, MemoryRecording, in_memory
from tests.support.harness.evidence import Lost
from tests.support.harness.selection import tries

PATH = ROOT / "log"


def contents(fs: FileSystem) -> dict[str, bytes]:
    """Of each ``.log``, and of what was set aside."""
    names = [name for name in fs.list(PATH) if ".log" in name]
    return {name: fs.open(PATH / name).pread(1 << 20, 0) for name in names}


class CutLife:
    """A recovery that cuts (``RecordedLife``)."""

    def __init__(self, damage: Callable[[FileSystem], list[bytes]]) -> None:
        self._damage = damage
        self.before: Image = {}
        self.fs = MemoryRecording(MemoryFs(ROOT))
        # What must be kept, from how many operations on.
        self.kept: list[tuple[int, bytes]] = []

    @property
    def operations(self) -> Sequence[Operation]:
        return self.fs.operations

    def open(self, fs: FileSystem) -> Log:
        return Log(PATH, durability="os", fs=fs)

    def live(self) -> None:
        memory = MemoryFs(ROOT)
        with self.open(memory) as log:
            fill(log)
        pieces = self._damage(memory)
        self.before = memory.image()
        self.kept = [(0, piece) for piece in pieces]
        self.fs = MemoryRecording(MemoryFs(ROOT, self.before))
        self.open(self.fs).close()

    # --- after the crash --------------------------------------------------------------------------------------------

    def promise(self, done: int) -> int:
        return len(self.kept)

    def reopen(self, fs: FileSystem) -> None:
        self.open(fs).close()

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        for when in ("after the power cut", "after the next open"):
            found = contents(fs)
            for since, piece in self.kept:
                if since <= begun and not any(piece in content for content in found.values()):
                    raise Lost(f"{len(piece)} bytes with whole batches are in no file {when}: {sorted(found)}")
            with self.open(fs) as log:
                log.check()
                assert len(list(log)) == log.end_offset


def fill(log: Log) -> None:
    for number in range(24):
        log.append(b"%02d" % number * 20)
        if number % 6 == 5:
            log.roll()
    for number in range(3):
        log.append(b"%02d" % (number + 24) * 20)


def forget(fs: FileSystem) -> None:
    """The machine was restarted since, and the state has no clean mark."""
    state_file = StateFile.open(fs, PATH / "kstore.state", mode=0o600)
    state_file.store(LogState(durability="os", boot_id=b"an earlier boot."))
    state_file.close()


def damaged_end(fs: FileSystem) -> list[bytes]:
    """The last batch is damaged."""
    forget(fs)
    file = fs.open(PATH / f"{24:020d}.log", write=True)
    size = file.size() // 3
    data = bytearray(file.pread(size, 2 * size))
    data[-1] ^= 1
    file.write_all([data], 2 * size)
    return [bytes(data)]


def gap(fs: FileSystem) -> list[bytes]:
    """The second segment has lost its last batch, so all after it must go."""
    forget(fs)
    file = fs.open(PATH / f"{6:020d}.log", write=True)
    file.truncate(file.size() * 5 // 6)
    return [contents(fs)[f"{base:020d}.log"] for base in (12, 18, 24)]


@pytest.fixture
def machine() -> Iterator[Machine]:
    with in_memory() as machine, indexes_that_grow_early():
        yield machine


@pytest.mark.promise("set aside")
@pytest.mark.parametrize("damage", [damaged_end, gap])
def test_what_a_recovery_cuts_is_copied_before_a_power_cut_can_take_it(
    damage: Callable[[FileSystem], list[bytes]], machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    life = CutLife(damage)
    life.live()
    counts = cut_power(life, machine, count=tries(400, quick=80), seed=seed)
    assert counts.states > 40
    tried("states", counts.states)


@pytest.mark.promise("set aside")
@pytest.mark.usefixtures("machine")
def test_without_space_for_a_copy_nothing_is_cut() -> None:
    life = CutLife(damaged_end)
    life.live()
    before = contents(MemoryFs(ROOT, life.before))
    recovered = MemoryFs(ROOT, life.before)
    life.open(recovered).close()
    (copy,) = contents(recovered).keys() - before.keys()
    fs = MemoryFs(ROOT, life.before)
    with pytest.raises(DiskFullError, match="nothing was cut"):
        life.open(FailingFs(fs, Fault(1, errno.ENOSPC, kinds=WRITES, suffix=copy))).close()
    assert contents(fs) == before
    life.open(fs).close()
    assert contents(fs) == contents(recovered)
