"""The life of a log that two writers share, to be ended by any fault: they write, roll and cut it in turn."""

from __future__ import annotations

from kstore.files.fs import FileSystem
from kstore.log import Log
from tests.crash.power_cut_lives import PATH, SETTINGS, LogLife
from tests.support.harness.evidence import Lost


class SharedLogLife(LogLife):
    """A life, recorded. Both writers are in this process: real processes share a log in ``shared_processes``."""

    def __init__(self) -> None:
        super().__init__("sync")
        self._opened = 0

    def open(self) -> Log:
        return Log(PATH, fs=self.fs, clock=self.clock, durability=self.durability, shared=True, **self.settings)

    def _open(self, fs: FileSystem) -> Log:
        """Alone and shared in turn."""
        self._opened += 1
        shared = self._opened % 3 == 0
        return Log(PATH, fs=fs, clock=self.clock, durability=self.durability, shared=shared, **SETTINGS)

    def live(self) -> None:
        one, two = self.open(), self.open()
        for size in (60, 120, 250, 20):
            for log, other in ((one, two), (two, one)):
                self.append(log, size=size)
                # The other one catches up: its end is where its next record goes.
                other.refresh()
                if other.end_offset != log.end_offset:
                    raise Lost(f"the other writer sees the end {other.end_offset}, expected {log.end_offset}")
        two.roll()
        one.refresh()
        self.append(one)
        two.refresh()
        self.delete(two, 5)
        one.refresh()
        self.append(one, size=200)
        two.refresh()
        self.truncate(two, 21)
        one.refresh()
        self.append(one)
        one.close()
        two.refresh()
        self.append(two)
        self.close(two)
