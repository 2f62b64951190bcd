"""The split of a segment whose offsets overflow, ended by a power cut or a failing disk: nothing is lost or doubled."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kstore.errors import KstoreError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from tests.crash.power_cuts import ROOT, cut_power
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_fs import CHANGES, FailingFs, Fault, Operation
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording, in_memory
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries
from tests.support.lives.log_cases import offsets
from tests.support.lives.overflowing import FAR, overflowing_log

# A log whose close failed is just dropped.
pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


class SplitLife:
    """An open that splits a segment, an append, and a close."""

    def __init__(self, *, last: bool) -> None:
        self.path = ROOT / "log"
        self.fs = MemoryRecording(MemoryFs(ROOT))
        self.wanted = overflowing_log(self.path, self.fs.memory, last=last)
        self.before: Image = self.fs.memory.image()
        self.was_split = False
        self.acknowledged_at = sys.maxsize

    @property
    def operations(self) -> Sequence[Operation]:
        return self.fs.operations

    def live(self) -> None:
        with Log(self.path, fs=self.fs) as log:
            self.was_split = writer_of(log).segments.bases[:2] == (0, FAR[0])
            log.append(b"more")
            self.acknowledged_at = len(self.fs.operations)

    def promise(self, done: int) -> int:
        return int(done >= self.acknowledged_at)

    def reopen(self, fs: FileSystem) -> None:
        Log(self.path, fs=fs).close()

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        more = self.wanted[-1] + 1
        try:
            with Log(self.path, fs=fs) as log:
                found = offsets(log)
                if found not in ([*self.wanted, more], *([self.wanted] if not self.promise(done) else [])):
                    raise Lost(f"{found}, expected {self.wanted}")
                if log.recovery.corrupt:
                    raise Lost(f"{log.recovery}")
                left = [name for name in fs.list(self.path) if name.endswith((".cleaned", ".swap", ".deleted"))]
                if left:
                    raise Wrong(f"left over: {left}")
                log.check()
                log.append(b"goes on")
            with Log(self.path, fs=fs) as log:
                if not log.recovery.clean or offsets(log)[: len(found)] != found:
                    raise Wrong(f"after a close: {log.recovery}")
        except KstoreError as error:
            raise Lost(f"cannot be opened or read: {error!r}") from error


@pytest.mark.parametrize("last", [False, True], ids=["sealed", "last"])
@pytest.mark.promise("power cut: sync")
@pytest.mark.sampled(1)
def test_a_power_cut_in_a_split_leaves_the_old_segment_or_the_new_ones(
    last: bool, seed: int, tried: Callable[[str, int], None]
) -> None:
    with in_memory() as machine:
        life = SplitLife(last=last)
        life.live()
        assert life.was_split
        counts = cut_power(life, machine, count=tries(600, quick=120), seed=seed)
    assert counts.states > tries(300, quick=60)
    tried("states", counts.states)


@pytest.mark.parametrize("last", [False, True], ids=["sealed", "last"])
@pytest.mark.parametrize("interrupted", [False, True], ids=["fails", "interrupted"])
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.sampled(1)
def test_a_split_that_fails_at_any_operation_loses_nothing(
    step: int, last: bool, interrupted: bool, seed: int, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    wanted = overflowing_log(tmp_path / "log", SYSTEM_FS, last=last)
    number = seed % step - step + 1
    count = 0
    while True:
        number += step
        count += 1
        path = tmp_path / f"{number}" / "log"
        shutil.copytree(tmp_path / "log", path)
        if last:
            # The clean mark is not the copy's: this close marks it again, so that the next open splits it.
            Log(path).close()
        fault = Fault(number, kinds=CHANGES, raising=KeyboardInterrupt() if interrupted else None)
        fs = FailingFs(SYSTEM_FS, fault)
        try:
            Log(path, fs=fs).close()
        except (KstoreError, KeyboardInterrupt):
            pass
        if not fs.failures:
            break
        with Log(path) as log:
            assert offsets(log) == wanted, fs.failures
            assert not log.recovery.corrupt
            assert not list(path.glob("*.cleaned")) + list(path.glob("*.swap"))
            log.check()
    assert number > 50
    tried("faults", count - 1)
