"""The life of producers, recorded: what was acknowledged, committed and aborted after each call."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from kstore.files.fs import FileSystem
from kstore.store import Store
from tests.crash.power_cuts import ROOT
from tests.crash.producer_life import SETTINGS, Known, ProducerLife, prepare
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import Operation
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording

PATH = ROOT / "store"


class RecordedProducers(ProducerLife):
    """A life, recorded (``RecordedLife``). A call that fails is given up, and the next one follows."""

    fs: MemoryRecording

    def __init__(self) -> None:
        memory = MemoryFs(ROOT)
        prepare(PATH, "sync", memory)
        self.before: Image = memory.image()
        super().__init__(PATH, MemoryRecording(memory), "sync")
        self._returned: list[tuple[int, Known]] = [(0, Known())]

    @property
    def operations(self) -> Sequence[Operation]:
        return self.fs.operations

    def live(self) -> None:
        super().live()
        self.check_results()

    def _typed(self, action: Callable[[], object]) -> bool:
        try:
            return super()._typed(action)
        finally:
            if (known := self.known()) != self._returned[-1][1]:
                self._returned.append((len(self.operations), known))

    # --- after the crash -----------------------------------------------------------------------------------------

    def promise(self, done: int) -> Known:
        return self._returned[bisect_right(self._returned, done, key=lambda item: item[0]) - 1][1]

    def reopen(self, fs: FileSystem) -> None:
        Store(PATH, durability=self.durability, clock=ManualClock(), fs=fs, **SETTINGS).close()

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        self.check_disk(fs, self.promise(done))
