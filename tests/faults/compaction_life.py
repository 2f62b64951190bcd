"""The life of a keyed log that is compacted twice, to be ended by any fault: each group of segments is old or new."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from kstore.errors import KstoreError
from kstore.files.fs import FileSystem
from kstore.log import Log, writer_of
from kstore.types import Durability, IsolationLevel
from tests.crash.power_cuts import ROOT
from tests.crash.repeated import failure_count
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import Operation
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording
from tests.support.harness.evidence import Lost, Wrong
from tests.support.oracles.compaction_model import random_batches

PATH = ROOT / "log"
SETTINGS: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64, "delete_retention_ms": 0}
KEYS = 6
# After this many operations the log is compacted again, which takes longest.
AGAIN_EVERY = 7

Content = dict[int, tuple[bytes | None, bytes | None]]


def content(log: Log, isolation_level: IsolationLevel = "read_uncommitted") -> Content:
    return {record.offset: (record.key, record.value) for record in log.read(isolation_level=isolation_level)}


def latest(log: Log) -> dict[bytes, bytes]:
    """The value of each key that has one, to committed reads."""
    values = {key: value for key, value in content(log, "read_committed").values() if key is not None}
    return {key: value for key, value in values.items() if value is not None}


class CompactionLife:
    """A life, recorded (``RecordedLife``), with the log's contents after each step that changes them."""

    def __init__(self, durability: Durability, seed: int) -> None:
        self.fs = MemoryRecording(MemoryFs(ROOT))
        self.durability = durability
        self.batches = random_batches(seed, 60, KEYS)
        self.clock = ManualClock(1_800_000_000_000)
        # Most of the batches, in several segments.
        with self._open(self.fs.memory) as log:
            for data in self.batches[:45]:
                log.append_batches(data, assign_offsets=False)
        self.before: Image = self.fs.memory.image()
        # How many operations preceded each content, the content, and the offset below which it was durable.
        self.steps: list[tuple[int, Content, int]] = []
        # The end at the last of them, and what committed readers got for each key.
        self.latest: tuple[int, dict[bytes, bytes]] = (0, {})

    @property
    def operations(self) -> Sequence[Operation]:
        return self.fs.operations

    def _open(self, fs: FileSystem) -> Log:
        return Log(PATH, fs=fs, clock=self.clock, durability=self.durability, flush_ms=10**9, **SETTINGS)

    def _note(self, log: Log, durable: int) -> None:
        # A poisoned log shows only what is on disk.
        if writer_of(log).files.poisoned is None:
            self.latest = log.end_offset, latest(log)
        self.steps.append((len(self.operations), content(log), durable))

    def _compact(self, log: Log) -> None:
        """A compaction that fails is repeated, in the same process."""
        writer = writer_of(log)
        swap = writer.swap

        def noting(*arguments: Any) -> str:
            stopped = swap(*arguments)
            self._note(log, log.end_offset)
            return stopped

        writer.swap = noting  # type: ignore[assignment, method-assign]
        try:
            try:
                log.compact()
            except KstoreError:
                self._check_after_failure(log)
                log.compact()
        finally:
            writer.swap = swap  # type: ignore[method-assign]

    def _check_after_failure(self, log: Log) -> None:
        """Readers of the same handle get the same values, as far as the disk works."""
        before = failure_count(self.fs)
        try:
            values = latest(log)
        except KstoreError as error:
            if failure_count(self.fs) == before:
                raise Lost(f"after a compaction that failed, reads fail too: {error!r}") from error
            return
        if values != self.latest[1]:
            raise Lost(f"after a compaction that failed there are {values}, expected {self.latest[1]}")

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
        if not self.steps:
            with self._open(MemoryFs(ROOT, self.before)) as log:
                self.latest = log.end_offset, latest(log)
                self.steps.append((0, content(log), log.end_offset))
        _, before, durable = self.steps[-1]
        with self._open(MemoryFs(ROOT, self.fs.memory.image())) as log:
            after, values = content(log), (log.end_offset, latest(log))
        if values[0] == self.latest[0] and values != self.latest:
            raise Lost(f"the compaction has left {sorted(after)} of {sorted(before)}")
        self.steps.append((sys.maxsize, after, durable))

    def _live(self) -> None:
        log = self._open(self.fs)
        end = log.end_offset
        self._note(log, end)
        for batches in (self.batches[45:52], self.batches[52:]):
            for data in batches:
                log.append_batches(data, assign_offsets=False)
                end = log.end_offset if self.durability == "sync" else end
                self._note(log, end)
            log.roll()
            self._compact(log)
            end = log.end_offset
            self.clock.advance(5)
        log.close()

    # --- after the crash --------------------------------------------------------------------------------------------

    def promise(self, done: int) -> int:
        """The number of the last finished step."""
        return max((at for at, (count, _, _) in enumerate(self.steps) if count <= done), default=0)

    def reopen(self, fs: FileSystem) -> None:
        self._open(fs).close()

    def survive(self, fs: FileSystem, begun: int, done: int) -> None:
        """Opens what a crash left: it is as before the step, or as after it."""
        step = self.promise(done)
        allowed, durable = self.steps[step : step + 2], self.steps[step][2]
        try:
            with self._open(fs) as log:
                found = content(log)
                if log.recovery.corrupt:
                    raise Lost(f"fenced: {log.recovery.corrupt}")
                certain = {offset: record for offset, record in found.items() if offset < durable}
                if certain not in [
                    {offset: record for offset, record in step.items() if offset < durable} for _, step, _ in allowed
                ]:
                    raise Lost(f"a mix: {sorted(certain)}, expected one of {[sorted(step) for _, step, _ in allowed]}")
                left = [name for name in fs.list(PATH) if name.endswith((".cleaned", ".swap", ".deleted"))]
                if left:
                    raise Wrong(f"left over: {left}")
                log.check()
                if damage := log.verify().corrupt:
                    raise Wrong(f"damage: {damage}")
                # A compaction that failed is tried again.
                if (begun + done) % AGAIN_EVERY == 0 or begun > len(self.operations):
                    values = latest(log)
                    log.roll()
                    log.compact(whole=True)
                    if latest(log) != values:
                        raise Lost("a compaction after the crash")
            with self._open(fs) as log:
                if not log.recovery.clean:
                    raise Wrong(f"after a close: {log.recovery}")
        except KstoreError as error:
            raise Lost(f"cannot be opened or read: {error!r}") from error
