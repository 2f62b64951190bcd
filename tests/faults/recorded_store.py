"""The life of a store, recorded: topics are created, grown, altered and deleted wholly or not at all, records stay.

The steps and their model are those of ``store_life``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import deepcopy

from kstore.errors import KstoreError
from kstore.files.fs import FileSystem
from kstore.store import Store
from tests.crash.power_cuts import ROOT
from tests.crash.store_life import SETTINGS, Model, Step, check_store, do, scripted
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import Operation
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording
from tests.support.harness.evidence import Lost, Untyped

PATH = ROOT / "store"
# Long enough that the next removal deletes a deleted topic's files.
STEP_MS = 70_000
# The first offset that retention keeps.
RETAINED = 6


class StoreLife:
    """A store's life, recorded (``RecordedLife``): every scripted step, then retention, closes and opens."""

    def __init__(self) -> None:
        self.fs = MemoryRecording(MemoryFs(ROOT))
        self.before: Image = {}
        self.clock = ManualClock()
        # How many operations had been done when each step began and ended; what was certain before it.
        self.steps: list[tuple[int, int, Model]] = []
        self.model = Model()

    @property
    def operations(self) -> Sequence[Operation]:
        return self.fs.operations

    def open(self, fs: FileSystem) -> Store:
        return Store(PATH, background=False, fs=fs, clock=self.clock, **SETTINGS)

    def step(self, pending: Step | None, act: Callable[[], object]) -> None:
        """``pending`` says what may exist once the step has begun; None if it changes no kept data."""
        began, before = len(self.operations), deepcopy(self.model)
        before.pending = self.model.pending = pending
        try:
            act()
        except BaseException:
            # It began, and nothing follows.
            self.steps.append((began, sys.maxsize, before))
            raise
        self.clock.advance(STEP_MS)
        if pending is not None:
            self.model.done()
        self.steps.append((began, len(self.operations), before))

    def live(self) -> None:
        opened: list[Store] = []

        def reopen() -> None:
            if opened:
                opened.pop().close()
            opened.append(self.open(self.fs))

        self.step(None, reopen)
        # A topic that no checkpoint lists.
        for step in (("create", "a.b", 0, 2), ("append", "a.b", 1, 7), ("delete", "a.b", 0, 0)):
            self.step(step, lambda step=step: do(opened[0], step))  # type: ignore[misc]
        for number, step in enumerate(scripted()):
            self.step(step, lambda step=step: do(opened[0], step))  # type: ignore[misc]
            if number % 6 == 5:
                self.step(None, reopen)
        self.step(("create", "orders", 0, 2), lambda: opened[0].create_topic("orders", 2))
        for number in range(12):
            append = ("append", "orders", 1, number)
            self.step(append, lambda append=append: do(opened[0], append))  # type: ignore[misc]
        self.step(("alter", "orders", 0, 1500), lambda: do(opened[0], ("alter", "orders", 0, 1500)))
        # Each segment holds three records; five segments, of which two are kept.
        self.step(("delete-records", "orders", 1, RETAINED), lambda: opened[0].run_task("retention"))
        assert opened[0].log("orders", 1).start_offset == RETAINED
        self.step(None, lambda: opened[0].run_task("checkpoints"))
        self.step(None, lambda: opened[0].run_task("removal"))
        self.step(None, opened[0].close)

    # --- after the crash --------------------------------------------------------------------------------------------

    def promise(self, done: int) -> int:
        """The number of finished steps."""
        return sum(behind <= done for _, behind, _ in self.steps)

    def reopen(self, fs: FileSystem) -> None:
        self.open(fs).close()

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        number = self.promise(done)
        began, _, model = self.steps[number] if number < len(self.steps) else (begun, 0, self.model)
        if began >= begun:
            model = deepcopy(model)
            model.pending = None
        try:
            found = check_store(PATH, deepcopy(model), fs)
            with self.open(fs) as store:
                for name, topic in found.topics.items():
                    for partition in range(topic.partitions):
                        log = store.log(name, partition)
                        log.check()
                        if log.recovery.corrupt or not log.recovery.clean:
                            raise Lost(f"{name}-{partition}: {log.recovery} after a clean close")
        except KstoreError as error:
            raise Lost(f"cannot be opened or read: {error!r}") from error
        except (OSError, LookupError, ValueError) as error:
            raise Untyped(repr(error)) from error
