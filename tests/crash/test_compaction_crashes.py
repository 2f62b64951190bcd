"""A compaction that a power cut, a kill or a failing disk ends: each group of segments is old or new, never a mix."""

from __future__ import annotations

import errno
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import KstoreError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from kstore.types import Durability, IsolationLevel
from tests.crash.power_cuts import ROOT, SOAK_STATES, cut_power, fast_directory
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, READS, FailingFs, Fault, Operation, RecordingFs, WatchedFs
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording, in_memory
from tests.support.harness.evidence import Lost, Untyped, Wrong, shuffled
from tests.support.harness.selection import tries
from tests.support.oracles.compaction_model import random_batches

SETTINGS: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64, "delete_retention_ms": 0}
DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")
KEYS = 6
STATES, SAMPLE = tries(1000, quick=50), tries(45, quick=10)
# After this many operations the log is compacted again, which takes longest.
AGAIN_EVERY = 7

# A log whose close failed is just dropped.
pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]

Content = dict[int, tuple[bytes | None, bytes | None]]


def content(log: Log, isolation_level: IsolationLevel = "read_uncommitted") -> Content:
    return {record.offset: (record.key, record.value) for record in log.read(isolation_level=isolation_level)}


def latest(log: Log) -> dict[bytes, bytes]:
    """The value of each key that has one, to committed reads."""
    values = {key: value for key, value in content(log, "read_committed").values() if key is not None}
    return {key: value for key, value in values.items() if value is not None}


class Life:
    """A keyed log that is compacted twice, with its contents after each step that changes them."""

    def __init__(self, path: Path, fs: WatchedFs, durability: Durability, seed: int) -> None:
        self.path = path
        self.fs = fs
        self.durability = durability
        self.batches = random_batches(seed, 60, KEYS)
        self.clock = ManualClock(1_800_000_000_000)
        self.before: Image = {}
        # How many operations preceded each content, the content, and the offset below which it was durable.
        self.steps: list[tuple[int, Content, int]] = []
        # The end at the last of them, and what committed readers got for each key.
        self.latest: tuple[int, dict[bytes, bytes]] = (0, {})

    @property
    def operations(self) -> Sequence[Operation]:
        assert isinstance(self.fs, RecordingFs)
        return self.fs.operations

    def open(self) -> Log:
        return Log(self.path, fs=self.fs, clock=self.clock, durability=self.durability, flush_ms=10**9, **SETTINGS)

    def prepare(self) -> None:
        """The contents before recording starts: most of the batches, in several segments."""
        with Log(self.path, fs=self.fs.inner, clock=self.clock, durability=self.durability, **SETTINGS) as log:
            for data in self.batches[:45]:
                log.append_batches(data, assign_offsets=False)
        if isinstance(self.fs.inner, MemoryFs):
            self.before = self.fs.inner.image()

    def note(self, log: Log, durable: int) -> None:
        count = len(self.fs.operations) if isinstance(self.fs, RecordingFs) else 0
        self.latest = log.end_offset, latest(log)
        self.steps.append((count, content(log), durable))

    def compact(self, log: Log) -> None:
        writer = writer_of(log)
        swap = writer.swap

        def noting(*arguments: Any) -> str:
            stopped = swap(*arguments)
            self.note(log, log.end_offset)
            return stopped

        writer.swap = noting  # type: ignore[assignment, method-assign]
        try:
            log.compact()
        finally:
            writer.swap = swap  # type: ignore[method-assign]

    def live(self) -> None:
        try:
            self._live()
        except BaseException:
            self._note_what_is_left()
            raise

    def _note_what_is_left(self) -> None:
        """A fault has ended the life: its last batch, or a compacted group, may be there.

        Raises: Lost if a compaction has changed a key's value.
        """
        assert isinstance(self.fs, MemoryRecording)
        left = MemoryFs(ROOT, self.fs.memory.image())
        if not self.steps:
            with Log(self.path, fs=MemoryFs(ROOT, self.before), clock=self.clock, **SETTINGS) as log:
                self.latest = log.end_offset, latest(log)
                self.steps.append((0, content(log), log.end_offset))
        _, before, durable = self.steps[-1]
        with Log(self.path, fs=left, clock=self.clock, durability=self.durability, **SETTINGS) as log:
            after, values = content(log), (log.end_offset, latest(log))
        if values[0] == self.latest[0] and values != self.latest:
            raise Lost(f"the compaction has left {sorted(after)} of {sorted(before)}")
        self.steps.append((sys.maxsize, after, durable))

    def _live(self) -> None:
        log = self.open()
        end = log.end_offset
        self.note(log, end)
        for data in self.batches[45:52]:
            log.append_batches(data, assign_offsets=False)
            end = log.end_offset if self.durability == "sync" else end
            self.note(log, end)
        log.roll()
        self.compact(log)
        end = log.end_offset
        self.clock.advance(5)
        for data in self.batches[52:]:
            log.append_batches(data, assign_offsets=False)
            end = log.end_offset if self.durability == "sync" else end
            self.note(log, end)
        log.roll()
        self.compact(log)
        end = log.end_offset
        log.close()

    # --- after the crash --------------------------------------------------------------------------------------------

    def promise(self, done: int) -> int:
        """The number of the last finished step."""
        return max((at for at, (count, _, _) in enumerate(self.steps) if count <= done), default=0)

    def reopen(self, fs: FileSystem) -> None:
        Log(self.path, fs=fs, clock=self.clock, durability=self.durability, **SETTINGS).close()

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        """Opens what a crash left: it is as before the step, or as after it."""
        step = self.promise(done)
        allowed, durable = self.steps[step : step + 2], self.steps[step][2]
        try:
            with Log(self.path, fs=fs, clock=self.clock, durability=self.durability, **SETTINGS) as log:
                found = content(log)
                if log.recovery.corrupt:
                    raise Lost(f"fenced: {log.recovery.corrupt}")
                certain = {offset: record for offset, record in found.items() if offset < durable}
                if certain not in [
                    {offset: record for offset, record in step.items() if offset < durable} for _, step, _ in allowed
                ]:
                    raise Lost(f"a mix: {sorted(certain)}, expected one of {[sorted(step) for _, step, _ in allowed]}")
                left = [name for name in fs.list(self.path) if name.endswith((".cleaned", ".swap", ".deleted"))]
                if left:
                    raise Wrong(f"left over: {left}")
                log.check()
                if damage := log.verify().corrupt:
                    raise Wrong(f"damage: {damage}")
                if (begun + done) % AGAIN_EVERY == 0:
                    values = latest(log)
                    log.roll()
                    log.compact(whole=True)
                    if latest(log) != values:
                        raise Lost("a compaction after the crash")
            with Log(self.path, fs=fs, durability=self.durability, **SETTINGS) as log:
                if not log.recovery.clean:
                    raise Wrong(f"after a close: {log.recovery}")
        except KstoreError as error:
            raise Lost(f"cannot be opened or read: {error!r}") from error


def compacted(durability: Durability, seed: int) -> Life:
    """A whole life, in memory."""
    life = Life(ROOT / "log", MemoryRecording(MemoryFs(ROOT)), durability, seed)
    life.prepare()
    life.live()
    assert len(life.steps) > 20, "several groups were swapped"
    return life


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os", "rebuilt")
def test_a_power_cut_in_a_compaction_leaves_each_group_old_or_new(
    durability: Durability, seed: int, tried: Callable[[str, int], None]
) -> None:
    with in_memory() as machine:
        counts = cut_power(compacted(durability, seed), machine, count=STATES, seed=seed)
    assert counts.states > STATES * 0.8
    tried("states", counts.states)


@pytest.mark.soak
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("number", range(4))
@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os", "rebuilt")
def test_power_cuts_in_compactions_leave_each_group_old_or_new(
    number: int, durability: Durability, seed: int, tried: Callable[[str, int], None]
) -> None:
    with in_memory() as machine:
        counts = cut_power(compacted(durability, seed + number), machine, count=SOAK_STATES // 200, seed=seed)
    tried("states", counts.states)


def fail_at(root: Path, durability: Durability, seed: int, numbers: Sequence[int], code: int, *, lasting: bool) -> int:
    """Lets each of the compaction's operations ``numbers`` fail; returns how many faults struck."""
    count = 0
    origin = root / "origin"
    life = Life(origin / "log", RecordingFs(SYSTEM_FS), durability, seed)
    life.prepare()
    for number in numbers:
        path = root / "try" / "log"
        shutil.copytree(origin, root / "try")
        fs = FailingFs(SYSTEM_FS)
        life = Life(path, fs, durability, seed)
        log = life.open()
        log.roll()
        before = latest(log)
        fs.faults = [Fault(number, code, sticky=lasting, kinds=CHANGES if lasting else CHANGES | READS)]
        try:
            log.compact()
        except KstoreError:
            count += 1
        except Exception as error:
            raise Untyped(repr(error)) from error
        fs.faults = []
        try:
            if latest(log) != before:
                raise Lost(f"in the same handle, operation {number}")
        finally:
            try:
                log.close()
            except KstoreError:
                pass  # it met the failed sync again
        with Log(path, clock=life.clock, durability=durability, **SETTINGS) as log:
            if latest(log) != before or log.recovery.corrupt:
                raise Lost(f"after operation {number} has failed")
            log.check()
            log.compact()
            if latest(log) != before:
                raise Lost(f"compacted after operation {number} has failed")
        shutil.rmtree(root / "try")
    return count


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.promise("disk full", "sync fails", "rebuilt")
@pytest.mark.sampled(2)
def test_a_compaction_whose_disk_fails_loses_nothing(
    code: int, lasting: bool, tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    root = fast_directory(tmp_path)
    try:
        faults = fail_at(root, "sync", seed, shuffled(range(1, 220), seed, SAMPLE), code, lasting=lasting)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    assert faults > SAMPLE // 4
    tried("faults", faults)


def operation_count(root: Path, seed: int, kinds: frozenset[str]) -> int:
    """How many operations of these kinds the compaction of ``fail_at`` requests."""
    fs = RecordingFs(SYSTEM_FS)
    life = Life(root / "counted" / "log", fs, "sync", seed)
    life.prepare()
    log = life.open()
    log.roll()
    fs.operations.clear()
    log.compact()
    count = len(fs.kinds(of=kinds))
    log.close()
    return count


@pytest.mark.soak
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE])
@pytest.mark.promise("disk full", "sync fails", "rebuilt")
def test_whatever_operation_of_a_compaction_fails_nothing_is_lost(
    code: int, lasting: bool, tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    root = fast_directory(tmp_path)
    try:
        count = operation_count(root, seed, CHANGES if lasting else CHANGES | READS)
        tried("faults", fail_at(root, "sync", seed, range(1, count + 1), code, lasting=lasting))
    finally:
        shutil.rmtree(root, ignore_errors=True)
